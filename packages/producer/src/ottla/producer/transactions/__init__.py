"""Transactions: the application's calls, their state, and the requests to the coordinator."""

__all__: list[str] = []

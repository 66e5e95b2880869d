"""Requests as the network and the APIs both know them: routes, contexts, and the sessions they come from."""

__all__: list[str] = []

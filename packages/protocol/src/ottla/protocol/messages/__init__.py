"""Requests and responses, one module per API."""

__all__: list[str] = []

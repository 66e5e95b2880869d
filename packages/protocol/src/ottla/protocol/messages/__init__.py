"""Requests and responses: one module per API, or one for APIs about the same thing."""

__all__: list[str] = []

"""Fetch: the general path, the fast path, sessions, and the wait for records."""

__all__: list[str] = []

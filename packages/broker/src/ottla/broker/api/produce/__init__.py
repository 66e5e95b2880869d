"""Produce: the general path, the fast path, and the wait for replicas."""

__all__: list[str] = []

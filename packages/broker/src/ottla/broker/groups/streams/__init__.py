"""Streams groups (KIP-1071): topologies, tasks, their assignment, and the members that run them."""

__all__: list[str] = []

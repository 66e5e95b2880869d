"""Committed offsets of groups."""

__all__: list[str] = []

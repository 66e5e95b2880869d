"""Segments of a log, their indexes, and searches in them."""

__all__: list[str] = []

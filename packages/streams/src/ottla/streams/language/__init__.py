"""Streams and tables: a small language that becomes handlers."""

__all__: list[str] = []

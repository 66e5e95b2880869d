"""Retention of segments, and the passes over all logs in the background."""

__all__: list[str] = []

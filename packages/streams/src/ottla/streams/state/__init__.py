"""Keyed state: entries with stamps in memory or SQLite, kept in a compacted changelog topic."""

__all__: list[str] = []

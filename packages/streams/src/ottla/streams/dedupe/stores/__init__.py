"""Stores of dedupe: in memory, in a SQLite file, in Redis, in a compacted topic."""

__all__: list[str] = []

"""Compaction: which logs are cleaned, and the cleaning."""

__all__: list[str] = []

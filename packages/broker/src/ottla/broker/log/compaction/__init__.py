"""Compaction: which logs are cleaned, and the cleaning."""

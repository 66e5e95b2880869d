"""Metrics, health, log lines and status, for operators."""

__all__: list[str] = []

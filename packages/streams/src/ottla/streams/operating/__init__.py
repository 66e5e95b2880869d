"""Metrics, health, log lines and status, for operators."""

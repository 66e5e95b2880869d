"""Streams and tables: a small language that becomes handlers."""

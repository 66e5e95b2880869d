"""Handlers made of functions: typed arguments, async functions, threads and processes."""

__all__: list[str] = []

"""Records whose handler failed: retries, dead letters, poison keys."""

__all__: list[str] = []

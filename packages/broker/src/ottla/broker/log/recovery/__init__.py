"""Recovery of a log when it is opened."""

__all__: list[str] = []

"""The file system as logs use it."""

__all__: list[str] = []

"""The groups that this broker coordinates."""

__all__: list[str] = []

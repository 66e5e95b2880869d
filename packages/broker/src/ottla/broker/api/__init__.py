"""The APIs of the broker: the routes, and one module or folder for each API."""

__all__: list[str] = []

"""The append to a log, and the log's end."""

__all__: list[str] = []

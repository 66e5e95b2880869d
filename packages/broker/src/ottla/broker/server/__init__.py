"""The broker process: its command, its parts in their order, and their start and stop."""

__all__: list[str] = []

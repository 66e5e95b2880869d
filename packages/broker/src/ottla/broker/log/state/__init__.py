"""The state of one log, the outcomes that change it, and what of it is not on the disk yet."""

__all__: list[str] = []

"""The logs of one broker and their directories."""

__all__: list[str] = []

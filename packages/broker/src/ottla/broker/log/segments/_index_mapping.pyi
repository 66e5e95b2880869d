from typing import final

def losses() -> int:
    """How many times a page of any mapping was lost so far."""

@final
class IndexMapping:
    """The first bytes of a file, mapped; it keeps no descriptor, and nothing is read ahead.

    Where another program has cut the file, it reads as zeros from the first lost page on that was touched,
    and what is written there is lost; `is_lost` says so.
    """

    is_writable: bool
    def __init__(self, descriptor: int, size: int, *, is_writable: bool) -> None:
        """Map at least one byte. Raises OSError."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def is_lost(self) -> bool: ...
    def close(self) -> None:
        """End the mapping. Raises BufferError while it is in use."""

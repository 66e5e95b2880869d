"""The high watermark of one partition, shared by its log and its replication core."""

from __future__ import annotations


class HighWatermark:
    """One cell: records below `offset` are committed.

    The log creates it and reads it; `replication.partition.Partition` is handed it and is the only code
    that writes it. A log without a partition keeps the offset it was opened with.
    """

    __slots__ = ("offset",)

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def __repr__(self) -> str:
        return f"HighWatermark({self.offset})"

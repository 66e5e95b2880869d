"""Errors in the files of a log."""

from __future__ import annotations

from ottla.pipeline.errors import DataLoss, PipelineError
from ottla.protocol.topics import TopicPartition


class CorruptSegment(PipelineError):
    """A segment whose content violates its format."""

    def __init__(self, path: str, problem: object) -> None:
        super().__init__(
            f"{path} is damaged: {problem}. Take the file from another replica or a copy, or read "
            'this partition through its broker: format("ottla")'
        )


class UnreadableBatch(DataLoss):
    """A batch in a segment whose records cannot be read from some offset on."""

    def __init__(self, path: str, partition: TopicPartition, offset: int, problem: object) -> None:
        super().__init__(
            f"{partition} at offset {offset}: {problem} (in {path})",
            "Take the file from another replica or a copy, or read this partition through its broker. ",
        )


class SegmentsChanged(PipelineError):
    """Files that the broker replaces or deletes during the read."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Run the query again, or read a copy of the directory, which does not change"
        )

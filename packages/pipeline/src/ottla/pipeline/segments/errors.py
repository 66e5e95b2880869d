"""What can be wrong with the files of a log."""

from __future__ import annotations

from ottla.pipeline.errors import PipelineError


class CorruptSegment(PipelineError):
    """A segment that does not hold what its format promises."""

    def __init__(self, path: str, problem: object) -> None:
        super().__init__(
            f"{path} is damaged: {problem}. Take the file from another replica or a copy, or read this "
            'partition through its broker: format("ottla")'
        )


class SegmentsChanged(PipelineError):
    """Files that the broker exchanges, by compaction or deletion, while they are read."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Run the query again; a copy of the directory stays as it is")

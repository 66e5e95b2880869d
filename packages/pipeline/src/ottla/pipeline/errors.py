"""Errors of the data sources and pipelines."""

from __future__ import annotations

import logging

from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


class PipelineError(Exception):
    """An error that stops a data source or a pipeline."""


class OptionError(PipelineError, ValueError):
    """An option that is unknown, missing, or has an invalid value."""


class DataLoss(PipelineError):
    """Records that a query needs are lost."""

    def __init__(
        self,
        what: str,
        why: str = "Either the topic's retention was too short for the query, or the topic was deleted and "
        "created again. ",
    ) -> None:
        super().__init__(
            f'{what}. {why}With option("failOnDataLoss", "false") the query continues without these records'
        )
        self.what = what


def report_loss(loss: DataLoss, *, fails: bool) -> None:
    """Raise an error for lost records, or log it if `failOnDataLoss` is false."""
    if fails:
        raise loss
    log.warning("%s; continuing, because failOnDataLoss is false", loss.what)


class NotSupported(PipelineError, NotImplementedError):
    """A feature of Spark's own source that this one does not have."""


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

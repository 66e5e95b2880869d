"""Errors of the data sources and pipelines."""

from __future__ import annotations

import logging

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

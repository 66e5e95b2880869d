"""Errors of the data sources and pipelines."""

from __future__ import annotations


class PipelineError(Exception):
    """An error that stops a data source or a pipeline."""


class OptionError(PipelineError, ValueError):
    """An option that is unknown, missing, or has an invalid value."""


class DataLoss(PipelineError):
    """Records that a query needs are lost."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Either the topic's retention was too short for the query, or the topic was "
            'deleted and created again. With option("failOnDataLoss", "false") the query continues '
            "without these records"
        )


class NotSupported(PipelineError, NotImplementedError):
    """A feature of Spark's own source that this one does not have."""

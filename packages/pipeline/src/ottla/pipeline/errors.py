"""What can go wrong in the data sources and pipelines."""

from __future__ import annotations


class PipelineError(Exception):
    """Anything that a data source or a pipeline cannot go on with."""


class OptionError(PipelineError, ValueError):
    """An option that there is not, that is missing, or that cannot have the value it was given."""


class DataLoss(PipelineError):
    """Records that a query counts on are no longer there."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Either the topic's retention was too short for the query, or the topic was deleted and "
            'made again. With option("failOnDataLoss", "false") the query goes on without these records'
        )


class NotSupported(PipelineError, NotImplementedError):
    """Something that Spark's own source does and this one does not."""

"""Errors of the sink."""

from __future__ import annotations

from ottla.pipeline.errors import NotSupported, PipelineError
from ottla.protocol.errors import KafkaError


class RowsUnfit(PipelineError, ValueError):
    """Rows that cannot become records: a column is missing, has another type, or holds a forbidden null."""


class BrokersUnreachable(PipelineError):
    """No broker could be reached, so no task was started."""

    def __init__(self, servers: str, error: Exception) -> None:
        super().__init__(f"no row was written, option kafka.bootstrap.servers is {servers!r}: {error}")


class NoTransactions(NotSupported):
    """The cluster has no transactions, or this user may not use them (`refused`)."""

    def __init__(self, refused: KafkaError | None = None) -> None:
        why = "which these brokers do not have"
        if refused is not None:
            why = f"which this user may not use ({type(refused).__name__}): it needs the rights for them"
        super().__init__(
            f"delivery=exactly-once needs transactions, {why}. With delivery=dedupe every row has headers by "
            "which readers recognise a second copy; delivery=at-least-once adds none"
        )


class RowsCut(PipelineError):
    """A task that ended before all its rows were there; none are committed, and Spark reports the cause."""

    def __init__(self) -> None:
        super().__init__("an earlier step of this task failed, or the task was stopped, before its last row")


class TransactionFenced(PipelineError):
    """The transaction of a task was ended from outside; its rows are not visible."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(
            f"the transaction of {transactional_id!r} was ended from outside. Either another attempt "
            "of the same task took over, which is harmless, or the transaction took longer than the "
            f"{timeout_ms} ms of kafka.transaction.timeout.ms: raise that timeout, or give each task "
            "fewer rows"
        )
        self.timeout_ms = timeout_ms


class WaitedTooLong(PipelineError):
    """A transaction that waited for other tasks of its batch was ended from outside, invisibly."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(
            f"the transaction of {transactional_id!r}, part of a replayed batch, was ended from "
            "outside while it waited for the other tasks: it was open for more than the "
            f"{timeout_ms} ms of kafka.transaction.timeout.ms, or a late attempt of its task took "
            "over. Its rows are written at the next start; rows that are already written stay. "
            "Raise the timeout (brokers allow up to transaction.max.timeout.ms) or give the query "
            'more cores. Or let tasks commit at once with option("failOnChangedReplay", "false") '
            "until this batch is written, if the query is unchanged since it began the batch"
        )


class ReplayChanged(PipelineError):
    """The tasks of a replayed batch have other rows than before, and part of the batch is written."""

    def __init__(self, where: str, rows_before: int, now: str) -> None:
        super().__init__(
            f"{where} is already written, with {rows_before} rows, and was replayed {now}: the rows "
            "were distributed differently over the tasks, so the missing rows are unknown, and "
            "nothing was written. Start the query as it was before (cores, shuffle partitions, "
            'options of the source) until this batch is written. With option("failOnChangedReplay", '
            '"false") the task counts as written, which suits rows that are drawn at random'
        )


class StaleBatch(PipelineError):
    """A batch was replayed after later batches of the same query were written."""

    def __init__(self, where: str, later: int) -> None:
        super().__init__(
            f"{where} was replayed after batch {later} was written: the checkpoint was restored to "
            "an earlier state, or a very old attempt resumed. Nothing was written. A query that "
            "should write everything again needs a new checkpoint, or another markers.topic"
        )


class MarkersUnreadable(PipelineError):
    """The topic of the markers holds foreign records, or its retention would delete markers."""

"""What can go wrong in writing rows to topics."""

from __future__ import annotations

from ottla.pipeline.errors import NotSupported, PipelineError


class RowsUnfit(PipelineError, ValueError):
    """Rows that cannot become records: columns are missing, of other types, or null where none may be."""


class NoTransactions(NotSupported):
    """The cluster, or what this user may do in it, has no transactions."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(
            "delivery=exactly-once is made of transactions, and this cluster lets this client make no "
            "transactions. With delivery=dedupe every row has headers by which readers tell the second copy "
            "from the first; delivery=at-least-once is without. (What the brokers answered: "
            f"{type(cause).__name__})"
        )


class TransactionFenced(PipelineError):
    """The transaction of a task was ended by somebody else; what it wrote is not seen."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(
            f"the transaction of {transactional_id!r} was ended from outside. Either another attempt of the "
            f"same task took over, and all is well; or it took longer than the {timeout_ms} ms of "
            "kafka.transaction.timeout.ms: give it more time, or tasks fewer rows"
        )


class WaitedTooLong(PipelineError):
    """A transaction that waited for the other tasks of its batch was ended by somebody else, unseen."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(
            f"the transaction of {transactional_id!r}, of a batch that was written in part and came again, "
            "was ended from outside while it waited for the other tasks: it was open for more than the "
            f"{timeout_ms} ms of kafka.transaction.timeout.ms, or a late attempt of its task took over. Its "
            "rows come again at the next start; what else is written stays. Give it more time (brokers allow "
            "up to transaction.max.timeout.ms) or the query more cores. Or let tasks commit at once: "
            'option("failOnChangedReplay", "false"), if the query is as it was when it began this batch, and '
            "until the batch is through"
        )


class ReplayChanged(PipelineError):
    """A batch that was written in part came again, and its tasks have other rows than before."""

    def __init__(self, where: str, rows_before: int, now: str) -> None:
        super().__init__(
            f"{where} is written already, with {rows_before} rows, and came again {now}: rows went to other "
            "tasks than before, so what is missing cannot be told, and nothing was written. Start the query "
            "as it was (cores, shuffle partitions, options of the source) until this batch is through. With "
            'option("failOnChangedReplay", "false") it counts as written, as where rows are drawn by chance'
        )


class StaleBatch(PipelineError):
    """A batch came again after later ones of the same query were written."""

    def __init__(self, where: str, later: int) -> None:
        super().__init__(
            f"{where} came after batch {later} was written: the checkpoint was set back, or an attempt of "
            "long ago woke up. Nothing was written. A query that should write everything again needs a new "
            "checkpoint, or another markers.topic"
        )


class MarkersUnreadable(PipelineError):
    """The topic of the markers holds something else, or will lose them."""

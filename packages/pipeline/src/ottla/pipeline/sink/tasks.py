"""Tasks of a sink: their identity, their input and their result.

A task that is repeated keeps its identity.

When an earlier step of a task fails, or when the task is killed, Java closes the connection to the worker of
the sink between two Arrow batches, and there Arrow sees an ordinary end. Only what follows tells them apart:
after all rows Java sends four more bytes, END_OF_STREAM in Spark's protocol. A worker reads them when the
writer is done, which is too late for a writer that commits; so they are looked at here and left in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from ottla.pipeline.errors import OptionError, PipelineError
from ottla.pipeline.lazy import pa
from ottla.pipeline.sink.errors import RowsCut

if TYPE_CHECKING:
    from ottla.producer import PreparedTransaction

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties that Spark sets on the tasks of a stream. The writer itself gets neither of them."""

Properties = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """A partition of a batch of a query. A replay has the identity of the task that it repeats."""

    query: str
    """The id of a streaming query, from its checkpoint; for a batch write a name, or a random id."""
    batch: int
    partition: int
    """The number of the task within its batch; not a partition of a topic."""

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of query {self.query}"

    @property
    def key(self) -> bytes:
        """The key of the marker: the same for all batches of this task number in the query."""
        return f"{self.query}/{self.partition}".encode()

    def transactional_id(self, prefix: str) -> str:
        """Return the transactional id.

        It fences earlier attempts at this task, and at the same task of earlier batches.
        """
        return f"{prefix}-{self.query}-{self.partition}"


def stream_task(properties: Properties, partition: int) -> TaskIdentity:
    """Return the identity of a stream's task. Raises PipelineError if Spark does not set the properties."""
    query, batch = properties(QUERY_ID), properties(BATCH_ID)
    if query is None or batch is None:
        raise PipelineError(
            f"Spark set no {QUERY_ID} and {BATCH_ID} for this task; it sets them for tasks of a stream"
        )
    return TaskIdentity(query, int(batch), partition)


def batch_task(properties: Properties, partition: int, write_id: str | None, random_id: str) -> TaskIdentity:
    """Return the identity of a task of a batch write.

    Inside `foreachBatch` it contains the stream's batch, and `write_id` distinguishes several writes. Raises
    OptionError if `write_id` is missing there: two writes of one batch would have the same identity.
    """
    query, batch = properties(QUERY_ID), properties(BATCH_ID)
    if query is None or batch is None:
        return TaskIdentity(write_id or random_id, 0, partition)
    if write_id is None:
        raise OptionError(
            "a write inside foreachBatch needs option 'write.id', different for each write of the "
            'batch, which identifies the write when the batch is replayed: .option("write.id", '
            '"bills")'
        )
    return TaskIdentity(f"{query}/{write_id}", int(batch), partition)


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction that a task has written and the driver ends."""

    transaction: PreparedTransaction
    timeout_ms: int
    """Brokers keep the transaction open for this long after its start."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task, for the driver."""

    task: TaskIdentity
    rows: int
    """The rows of the task that are written, now or by an earlier run."""
    is_replay: bool = False
    """Whether an earlier run has written part of the batch."""
    pending: PendingTransaction | None = None
    """The open transaction with the rows, if the driver has to commit it."""


_WORKERS = ("pyspark.worker", "__main__")
"""The module of Spark's workers; the second where Spark starts a process for each of them."""


class Input(Protocol):
    """A buffered stream, such as the one from Java."""

    def peek(self, size: int = ..., /) -> bytes:
        """Return the next bytes without taking them; no bytes at the end."""


def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task. Raises RowsCut at their end if rows are missing."""
    source = _input_of_worker()
    yield from batches
    if source is not None and not source.peek(1):
        raise RowsCut


def _input_of_worker() -> Input | None:
    """Return the stream from Java of the worker that runs this task; None outside of Spark's workers.

    Spark passes it to no writer; its function `main` has it.
    """
    frame: FrameType | None = sys._getframe()
    while frame := frame.f_back if frame else None:
        if frame.f_code.co_name == "main" and frame.f_globals.get("__name__") in _WORKERS:
            found: Input | None = frame.f_locals.get("infile")
            return found
    return None

"""Tasks of a sink: their identity, the columns of their input, and their result.

A task that is repeated keeps its identity. Columns are checked once on the driver, and split by topic in
tasks.

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
from ottla.pipeline.lazy import pa, pc
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import RowsCut, RowsUnfit

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.producer import PreparedTransaction


QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties that Spark sets on the tasks of a stream. The writer itself gets neither of them."""

Properties = Callable[[str], str | None]

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


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


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to write, and the topic."""

    names: tuple[str, ...]
    topic: str | None
    """The topic of all rows; None: the column `topic` names it."""

    @classmethod
    def of(cls, schema: StructType, config: SinkConfig) -> Columns:
        """Check the columns of the rows and drop those that no record has. Raises RowsUnfit."""
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if "value" not in types:
            raise RowsUnfit(
                "the rows have no column 'value', which each record needs; the columns are "
                f'{_listed(types)}. For example: df.selectExpr("to_json(struct(*)) AS value")'
            )
        if config.topic is None and "topic" not in types:
            raise RowsUnfit(
                "no topic is given: set .option('topic', 'orders'), or add a column 'topic'; the "
                f"columns are {_listed(types)}"
            )
        wanted = ["key", "value", "headers", "partition"]
        wanted += ["topic"] if config.topic is None else []
        wanted += ["timestamp"] if config.include_timestamps else []
        if config.include_timestamps and "timestamp" not in types:
            raise RowsUnfit(f"includeTimestamps needs a column 'timestamp'; the columns are {_listed(types)}")
        for name in wanted:
            _check(name, types.get(name))
        return cls(tuple(name for name in wanted if name in types and name != "topic"), config.topic)

    def records(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return only the columns of records."""
        return rows.select(list(self.names))

    def by_topic(self, records: pa.RecordBatch, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the records of each topic, in the order of the rows.

        Raises RowsUnfit for a null topic.
        """
        if self.topic is not None:
            yield self.topic, records
        elif rows.num_rows:
            yield from _cut(records, rows.column("topic"))


def _check(name: str, found: str | None) -> None:
    if found is not None and found.split(" collate ")[0] not in _TYPES[name]:
        raise RowsUnfit(
            f"column {name!r} must be {' or '.join(_TYPES[name])}, not {found}: "
            f'df.withColumn("{name}", ...), or CAST({name} AS {_TYPES[name][-1].upper()})'
        )


def _listed(types: dict[str, str]) -> str:
    return ", ".join(types) or "none at all"


def _cut(records: pa.RecordBatch, topics: pa.Array) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topics.null_count:
        raise RowsUnfit(
            f"{topics.null_count} rows have a null in column 'topic', so no topic is known for them; "
            "option 'topic' sends all rows to one topic"
        )
    encoded = topics.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], records
        return
    # Sorting by topic keeps the order within a topic and puts the rows of each topic into one slice.
    order = pc.array_sort_indices(encoded.indices)
    ordered, start = records.take(order), 0
    counts = {entry["values"]: entry["counts"] for entry in encoded.indices.value_counts().to_pylist()}
    for index, name in enumerate(names):
        yield name, ordered.slice(start, counts[index])
        start += counts[index]

"""The identity of a task's rows, which stays the same when the task is repeated. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ottla.pipeline.errors import OptionError, PipelineError

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

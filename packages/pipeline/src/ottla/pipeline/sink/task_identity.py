"""Which rows a task writes, in words that stay the same when it has to write them again. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ottla.pipeline.errors import OptionError, PipelineError

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Properties that Spark gives to the tasks of a stream. The writer itself is told neither of them."""

Properties = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """A partition of a batch of a query. What a replay writes has the place of what it repeats."""

    query: str
    """The id of a streaming query, which its checkpoint keeps; for batch writes a name, or a random one."""
    batch: int
    partition: int
    """The number of the task among those of the batch, and no partition of a topic."""

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of query {self.query}"

    @property
    def key(self) -> bytes:
        """What all batches of this partition of the query have in common."""
        return f"{self.query}/{self.partition}".encode()

    def transactional_id(self, prefix: str) -> str:
        """Return the id that fences off earlier attempts at this place, and at those before it."""
        return f"{prefix}-{self.query}-{self.partition}"


def stream_task(properties: Properties, partition: int) -> TaskIdentity:
    """Return the place of a task of a stream. Raises PipelineError where Spark does not say."""
    query, batch = properties(QUERY_ID), properties(BATCH_ID)
    if query is None or batch is None:
        raise PipelineError(f"Spark gave this task no {QUERY_ID} and {BATCH_ID}; it does so in a stream")
    return TaskIdentity(query, int(batch), partition)


def batch_task(properties: Properties, partition: int, write_id: str | None, random_id: str) -> TaskIdentity:
    """Return the place of a task of a batch write.

    Inside of `foreachBatch` it is that of the stream's batch, and `write_id` tells several writes apart.
    Raises OptionError where that is missing there: two writes of one batch would be taken for one.
    """
    query, batch = properties(QUERY_ID), properties(BATCH_ID)
    if query is None or batch is None:
        return TaskIdentity(write_id or random_id, 0, partition)
    if write_id is None:
        raise OptionError(
            "a write inside of foreachBatch needs option 'write.id', one for each write of the batch, by "
            'which it is known when the batch comes again: .option("write.id", "bills")'
        )
    return TaskIdentity(f"{query}/{write_id}", int(batch), partition)

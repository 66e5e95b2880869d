"""Records gathered into batches per partition. Pure: the time is an argument, nothing waits in here.

At most one batch of a partition is with a broker at a time; that keeps the order, whatever is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.protocol.records import BatchBuilder, Codec
from ottla.protocol.topics import TopicPartition

Headers = Iterable[tuple[str, bytes | None]]

# What a record costs beside key, value and headers, at most: varints, attributes, counts.
RECORD_OVERHEAD = 40


@dataclass(slots=True, eq=False)
class Batch:
    """Records of one partition that are sent together. `data` is set once it is built."""

    partition: TopicPartition
    builder: BatchBuilder
    created_ms: float
    timestamps: list[int] = field(default_factory=list)
    waiters: list[object] = field(default_factory=list)
    size_bytes: int = 0
    closed: bool = False
    not_before_ms: float = 0.0
    attempts: int = 0
    last_error: BaseException | None = None
    data: bytes | None = None
    producer_id: int = -1

    @property
    def record_count(self) -> int:
        """Records in it."""
        return len(self.timestamps)


class Accumulator:
    """Batches by partition, oldest first."""

    def __init__(self, *, batch_size: int, linger_ms: float, codec: Codec = Codec.NONE) -> None:
        self._batch_size = batch_size
        self._linger_ms = linger_ms
        self._codec = codec
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self._in_flight: set[TopicPartition] = set()
        self._flushing = False
        self.size_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything was sent and answered."""
        return not self._queues

    def append(
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Headers,
        now_ms: float,
    ) -> tuple[Batch, bool]:
        """Add a record; return its batch, and whether that was begun for it. Its index is the last one."""
        queue = self._queues.setdefault(partition, deque())
        began = False
        batch = queue[-1] if queue and not queue[-1].closed else None
        if batch is None or batch.builder.append(key, value, timestamp_ms, headers) < 0:
            if batch is not None:
                batch.closed = True
            batch, began = Batch(partition, BatchBuilder(self._batch_size, codec=self._codec), now_ms), True
            batch.builder.append(key, value, timestamp_ms, headers)
            queue.append(batch)
        size = record_size(key, value, headers)
        batch.timestamps.append(timestamp_ms)
        batch.size_bytes += size
        self.size_bytes += size
        return batch, began

    def ready(self, now_ms: float) -> tuple[list[Batch], float | None]:
        """Return batches that may be sent now, and when (ms) to look again: None for not before a change."""
        due: list[Batch] = []
        next_ms: float | None = None
        for partition, queue in self._queues.items():
            if partition in self._in_flight:
                continue
            at_ms = self._due_ms(queue)
            if at_ms <= now_ms:
                due.append(queue[0])
            else:
                next_ms = at_ms if next_ms is None else min(next_ms, at_ms)
        return due, next_ms

    def _due_ms(self, queue: deque[Batch]) -> float:
        batch = queue[0]
        full = batch.closed or len(queue) > 1 or self._flushing or batch.size_bytes >= self._batch_size
        return max(batch.not_before_ms, batch.created_ms if full else batch.created_ms + self._linger_ms)

    def take(self, batch: Batch) -> None:
        """Hand a batch to the sender: it is closed, and nothing else of its partition goes out meanwhile."""
        batch.closed = True
        self._in_flight.add(batch.partition)

    def put_back(self, batch: Batch, not_before_ms: float) -> None:
        """Send a batch again later."""
        batch.not_before_ms = not_before_ms
        self._in_flight.discard(batch.partition)

    def finish(self, batch: Batch) -> None:
        """Be done with a batch, whatever became of it."""
        queue = self._queues[batch.partition]
        assert queue[0] is batch, "batches of a partition finish in their order"
        queue.popleft()
        self._in_flight.discard(batch.partition)
        self.size_bytes -= batch.size_bytes
        if not queue:
            del self._queues[batch.partition]

    def expired(self, now_ms: float, timeout_ms: float) -> list[Batch]:
        """Return batches that have waited too long and are not with a broker, oldest first."""
        return [
            batch
            for partition, queue in self._queues.items()
            if partition not in self._in_flight
            for batch in queue
            if now_ms - batch.created_ms >= timeout_ms
        ]

    def flush(self, flushing: bool) -> None:
        """While flushing no batch waits for company."""
        self._flushing = flushing

    def everything(self) -> list[Batch]:
        """Return all batches, those with brokers too."""
        return [batch for queue in self._queues.values() for batch in queue]


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return about how many bytes a record takes, rather more than fewer."""
    named = sum(len(name) + len(content or b"") + 8 for name, content in headers)
    return RECORD_OVERHEAD + len(key or b"") + len(value or b"") + named

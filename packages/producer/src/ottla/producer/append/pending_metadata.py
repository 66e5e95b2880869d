"""Records whose partitions are not known yet: they wait for metadata, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.producer.accumulator import (
    Acknowledgement,
    Batch,
    packed_headers,
    pending_acknowledgement,
    pending_batch,
    resolve,
    resolve_all,
)
from ottla.producer.record import RECORD_OVERHEAD_BYTES, ProducerRecord


@dataclass(slots=True)
class _PendingTopic:
    """The records of one topic; their acknowledgements wait on `batch` until they are appended."""

    batch: Batch
    records: list[tuple[int, Acknowledgement, ProducerRecord]] = field(default_factory=list)
    """Each with its number, ascending, among all that ever waited."""
    size_bytes: int = 0


class PendingMetadata:
    """Records by topic that wait for metadata; `on_failure` is called for records that are never written."""

    def __init__(self, on_failure: Callable[[BaseException], None] = lambda error: None) -> None:
        self._on_failure = on_failure
        self._topics: dict[str, _PendingTopic] = {}
        self._added = 0

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    @property
    def size_bytes(self) -> int:
        """About how many bytes wait."""
        return sum(pending.size_bytes for pending in self._topics.values())

    @property
    def record_count(self) -> int:
        """How many records wait."""
        return sum(len(pending.records) for pending in self._topics.values())

    def counts(self) -> dict[str, int]:
        """Return the number of waiting records by topic."""
        return {topic: len(pending.records) for topic, pending in self._topics.items()}

    def add(self, record: ProducerRecord) -> Acknowledgement:
        """Add a record; return its acknowledgement, which is pending."""
        pending = self._pending(record.topic)
        acknowledgement = pending_acknowledgement(pending.batch)
        self._added += 1
        pending.records.append((self._added, acknowledgement, record))
        pending.size_bytes += _size(record)
        return acknowledgement

    def highest_partition(self, topic: str) -> int | None:
        """Return the highest partition that a record of a topic names; None if none of them names one."""
        pending = self._topics.get(topic)
        named = [] if pending is None else [record.partition for _, _, record in pending.records]
        return max((partition for partition in named if partition is not None), default=None)

    def append_all(
        self, topic: str, partitions: int, append: Callable[[ProducerRecord], Acknowledgement]
    ) -> None:
        """Append the records of a topic that has so many partitions, in order.

        Records of later partitions go on waiting. A record that `append` rejects fails with its error.
        """
        pending = self._topics.pop(topic, None)
        if pending is None:
            return
        for number, acknowledgement, record in pending.records:
            if record.partition is not None and record.partition >= partitions:
                self._keep(number, acknowledgement, record)
                continue
            try:
                appended = append(record)
            except Exception as error:
                self._on_failure(error)
                appended = _failed(error)
            resolve(acknowledgement, appended)
        resolve_all(pending.batch)

    def _keep(self, number: int, acknowledgement: Acknowledgement, record: ProducerRecord) -> None:
        pending = self._pending(record.topic)
        resolve(acknowledgement, pending_acknowledgement(pending.batch))
        pending.records.append((number, acknowledgement, record))
        pending.size_bytes += _size(record)

    def _pending(self, topic: str) -> _PendingTopic:
        pending = self._topics.get(topic)
        if pending is None:
            pending = self._topics[topic] = _PendingTopic(pending_batch(asyncio.get_running_loop()))
        return pending

    def fail(self, topic: str, error: BaseException) -> None:
        """Fail the records of a topic."""
        pending = self._topics.pop(topic, None)
        if pending is not None:
            self._on_failure(error)
            pending.batch.fail(error)

    def fail_all(self, error: BaseException) -> None:
        """Fail all records."""
        for topic in list(self._topics):
            self.fail(topic, error)

    async def resolved(self) -> None:
        """Return once every record that waits now is in a batch, or failed."""
        last = self._added
        while waiting := [
            pending.batch.settled() for pending in self._topics.values() if pending.records[0][0] <= last
        ]:
            await asyncio.wait(waiting)


def _size(record: ProducerRecord) -> int:
    # Empty records take memory too: without the overhead any number of them would fit.
    headers = len(packed_headers(record.headers) or b"")
    return len(record.key or b"") + len(record.value or b"") + headers + RECORD_OVERHEAD_BYTES


def _failed(error: BaseException) -> Acknowledgement:
    batch = pending_batch(asyncio.get_running_loop())
    acknowledgement = pending_acknowledgement(batch)
    batch.fail(error)
    return acknowledgement

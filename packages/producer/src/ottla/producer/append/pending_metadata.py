"""Records whose topic has no metadata yet: they wait, in order, until their partitions are known."""

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
    records: list[tuple[Acknowledgement, ProducerRecord]] = field(default_factory=list)
    size_bytes: int = 0


class PendingMetadata:
    """Records by topic that wait for metadata; `on_failure` is called for records that are never written."""

    def __init__(self, on_failure: Callable[[BaseException], None] = lambda error: None) -> None:
        self._on_failure = on_failure
        self._topics: dict[str, _PendingTopic] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    @property
    def size_bytes(self) -> int:
        """About how many bytes wait."""
        return sum(each.size_bytes for each in self._topics.values())

    def counts(self) -> dict[str, int]:
        """Return the number of waiting records by topic."""
        return {topic: len(each.records) for topic, each in self._topics.items()}

    def add(self, record: ProducerRecord) -> Acknowledgement:
        """Add a record; return its acknowledgement, which is pending."""
        pending = self._topics.get(record.topic)
        if pending is None:
            pending = self._topics[record.topic] = _PendingTopic(pending_batch(asyncio.get_running_loop()))
        acknowledgement = pending_acknowledgement(pending.batch)
        pending.records.append((acknowledgement, record))
        pending.size_bytes += _size(record)
        return acknowledgement

    def append_all(self, topic: str, append: Callable[[ProducerRecord], Acknowledgement]) -> None:
        """Append the records of a topic, in order. A record that `append` rejects fails with its error."""
        pending = self._topics.pop(topic, None)
        if pending is None:
            return
        for acknowledgement, record in pending.records:
            try:
                appended = append(record)
            except Exception as error:
                self._on_failure(error)
                appended = _failed(error)
            resolve(acknowledgement, appended)
        resolve_all(pending.batch)

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
        waiting = [each.batch.settled() for each in self._topics.values()]
        if waiting:
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

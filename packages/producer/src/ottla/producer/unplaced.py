"""Records of topics that are not known yet: they wait, in their order, until it is known where they go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.producer.record import ProducerRecord
from ottla.producer.sending import (
    Acknowledgement,
    Batch,
    all_placed,
    packed_headers,
    place,
    placeholder,
    waiting_acknowledgement,
)

OVERHEAD = 40  # of a record in a batch, at most


@dataclass(slots=True)
class _Waiting:
    """The records of one topic; `stand_in` is where their acknowledgements wait."""

    stand_in: Batch
    records: list[tuple[Acknowledgement, ProducerRecord]] = field(default_factory=list)
    size_bytes: int = 0


class Unplaced:
    """Records by topic that wait for their topic; `on_failure` hears of those that will never be written."""

    def __init__(self, on_failure: Callable[[BaseException], None] = lambda error: None) -> None:
        self._on_failure = on_failure
        self._topics: dict[str, _Waiting] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    @property
    def size_bytes(self) -> int:
        """About how many bytes wait."""
        return sum(each.size_bytes for each in self._topics.values())

    def counts(self) -> dict[str, int]:
        """Return how many records of which topics wait."""
        return {topic: len(each.records) for topic, each in self._topics.items()}

    def add(self, record: ProducerRecord) -> Acknowledgement:
        """Have a record wait; its acknowledgement waits with it."""
        waiting = self._topics.get(record.topic)
        if waiting is None:
            waiting = self._topics[record.topic] = _Waiting(placeholder(asyncio.get_running_loop()))
        acknowledgement = waiting_acknowledgement(waiting.stand_in)
        waiting.records.append((acknowledgement, record))
        waiting.size_bytes += _size(record)
        return acknowledgement

    def place(self, topic: str, put: Callable[[ProducerRecord], Acknowledgement]) -> None:
        """Put the records of a topic where they go; one that goes nowhere fails with what `put` raised."""
        waiting = self._topics.pop(topic, None)
        if waiting is None:
            return
        for acknowledgement, record in waiting.records:
            try:
                placed = put(record)
            except Exception as error:
                self._on_failure(error)
                placed = _failed(error)
            place(acknowledgement, placed)
        all_placed(waiting.stand_in)

    def fail(self, topic: str, error: BaseException) -> None:
        """Give the records of a topic up."""
        waiting = self._topics.pop(topic, None)
        if waiting is not None:
            self._on_failure(error)
            waiting.stand_in.fail(error)

    def fail_all(self, error: BaseException) -> None:
        """Give all records up."""
        for topic in list(self._topics):
            self.fail(topic, error)

    async def placed(self) -> None:
        """Return once nothing waits that waits now."""
        waiting = [each.stand_in.settled() for each in self._topics.values()]
        if waiting:
            await asyncio.wait(waiting)


def _size(record: ProducerRecord) -> int:
    # Empty records take memory too: without their overhead any number of them would fit.
    headers = len(packed_headers(record.headers) or b"")
    return len(record.key or b"") + len(record.value or b"") + headers + OVERHEAD


def _failed(error: BaseException) -> Acknowledgement:
    batch = placeholder(asyncio.get_running_loop())
    acknowledgement = waiting_acknowledgement(batch)
    batch.fail(error)
    return acknowledgement

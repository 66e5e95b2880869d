"""Work for handlers and policies, without a scheduler."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition


@dataclass(eq=False)
class OneWork:
    """One call of a handler, as a scheduler would make it."""

    records: Sequence[ConsumerRecord]
    attempt: int = 1
    context: Any = None
    started_ms: int = 0

    @property
    def record(self) -> ConsumerRecord:
        return self.records[0]

    @property
    def partition(self) -> TopicPartition:
        return self.record.topic_partition

    @property
    def offset(self) -> int:
        return self.record.offset

    @property
    def lane(self) -> Hashable:
        key: bytes | None = self.record.key
        return key

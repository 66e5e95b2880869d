"""A record as the consumer gives it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ConsumerRecord(NamedTuple):
    """One record. `timestamp_ms` is -1 where its format has none (before Kafka 0.10)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

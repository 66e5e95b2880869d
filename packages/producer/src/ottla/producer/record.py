"""What is known of a record once it is written."""

from __future__ import annotations

from typing import NamedTuple


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 with acks=0, when nobody tells.

    `timestamp_ms` is the broker's time where the topic says LogAppendTime, the record's own otherwise.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

"""Keys that are set aside because a record of theirs failed for good. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from ottla.protocol.topics import TopicPartition


class PoisonKeys:
    """The lanes that are set aside, each with the offset of the record that failed, until their time is over.

    Above `max_keys` the oldest is forgotten: its records are handled again. So is a key after `ttl_ms`; if it
    fails once more, it is set aside once more. Later records that follow into the dead-letter topic do not
    make the time longer.
    """

    def __init__(self, max_keys: int, ttl_ms: int) -> None:
        self._max_keys = max_keys
        self._ttl_ms = ttl_ms
        # In the order of their ends, because all have the same time to live.
        self._keys: dict[tuple[TopicPartition, Hashable], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, partition: TopicPartition, lane: Hashable, offset: int, now_ms: int) -> None:
        """Set a lane aside; one that is set aside already stays so with its first offset."""
        self._expire(now_ms)
        if lane is None or (partition, lane) in self._keys:
            return
        self._keys[partition, lane] = (offset, now_ms + self._ttl_ms)
        if len(self._keys) > self._max_keys:
            del self._keys[next(iter(self._keys))]

    def failed_offset(self, partition: TopicPartition, lane: Hashable, now_ms: int) -> int | None:
        """Return the offset of the record for which a lane is set aside; None if it is not."""
        if not self._keys:
            return None
        self._expire(now_ms)
        found = self._keys.get((partition, lane))
        return None if found is None else found[0]

    def _expire(self, now_ms: int) -> None:
        while self._keys:
            oldest = next(iter(self._keys))
            if self._keys[oldest][1] > now_ms:
                return
            del self._keys[oldest]

"""Where topics end, as far as a stream may believe it.

A broker that has just started knows no topics for a moment, and one that is behind has ends from before. If a
query took its word, its checkpoint would say for ever that less was read than was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ottla.pipeline.source.batch_reader import lost
from ottla.pipeline.source.clock import Clock
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offset_json import Offsets, written
from ottla.pipeline.source.offset_lookup import OffsetLookup
from ottla.protocol.topics import TopicPartition

BELIEVED_AFTER_MS = 10_000
"""How long brokers are asked again before it is believed that less is there than was read."""

WAS_READ = "was read up to {} before"
TO_READ = "is to be read from {}"
"""What messages say of the offset that a partition does not reach."""

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class ShortPartition(NamedTuple):
    """A partition of which less is there than was read."""

    partition: TopicPartition
    read: int
    is_gone: bool


class EndOffsets:
    """Asks where topics end, and asks again for seconds while that is before what was read.

    It asks so long only once: what it believed then, it believes at once while it stays as it is.
    """

    def __init__(self, lookup: OffsetLookup, config: SourceConfig, clock: Clock) -> None:
        self._lookup = lookup
        self._config = config
        self._clock = clock
        self._believed: frozenset[ShortPartition] = frozenset()

    def behind(self, read: Offsets, how: str) -> Offsets:
        """Return where topics end. Raises DataLoss where less is there than was read.

        With failOnDataLoss=false that is said in the log, and the ends are those that there are: a partition
        that is gone has none, one that was made anew or truncated has a smaller one. `how` is WAS_READ or
        TO_READ.
        """
        ends = self._now()
        if short(read, ends) - self._believed:
            ends = self._asked_again(read)
        found = short(read, ends)
        new = {each.partition: each.read for each in found - self._believed}
        for what in losses(new, ends, how):
            lost(self._config, what)
        self._believed = found
        return ends

    def _asked_again(self, read: Offsets) -> Offsets:
        """Return the first ends that leave nothing to doubt, or the last there are."""
        ends: Offsets = {}
        for pause_s in pauses(self._config.fetch_retry_interval_ms / 1_000, self._retry_s()):
            self._clock.wait(pause_s)
            ends = self._now()
            if not short(read, ends) - self._believed:
                break
        return ends

    def _retry_s(self) -> float:
        api_timeout_ms = self._config.consumer_config().client.default_api_timeout_ms
        return min(BELIEVED_AFTER_MS, api_timeout_ms) / 1_000

    def _now(self) -> Offsets:
        return self._lookup.offsets(Edge.LATEST, self._lookup.partitions(all_there=False))


def short(
    read: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> frozenset[ShortPartition]:
    """Return the partitions of which less is there than was read. Pure."""
    return frozenset(
        ShortPartition(partition, offset, partition not in ends)
        for partition, offset in read.items()
        if ends.get(partition, -1) < offset
    )


def losses(read: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], how: str) -> list[str]:
    """Say of what less is there than was read; nothing where all is well. Pure."""
    gone = read.keys() - ends.keys()
    return [
        *([f"{written(gone)} is not there any more"] if gone else []),
        *(
            f"{partition} ends at {ends[partition]}, and {how.format(offset)}"
            for partition, offset, is_gone in sorted(short(read, ends))
            if not is_gone
        ),
    ]


def pauses(first_s: float, total_s: float) -> Iterator[float]:
    """Give one wait after the other, in seconds: each twice as long as that before, `total_s` in all. Pure.

    It is the waits that are counted and not the time: an answer that was long in coming says no more than one
    that was not, and the client has a bound of its own for it.
    """
    pause_s, left_s = max(first_s, _FIRST_PAUSE_S), total_s
    while left_s > 0:
        yield min(pause_s, left_s)
        left_s -= pause_s
        pause_s = max(first_s, min(2 * pause_s, _LONGEST_PAUSE_S))

"""The end offsets of topics, with protection against stale answers.

A broker that has just started knows no topics for a moment, and a broker that lags behind reports old end
offsets. If a query accepted such an answer, its checkpoint would permanently record a smaller offset than was
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from ottla.pipeline.source.batch_reader import report_loss
from ottla.pipeline.source.clock import Clock
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offset_json import Position, partition_names
from ottla.pipeline.source.topic_offsets import TopicOffsets
from ottla.protocol.topics import TopicPartition

BELIEVED_AFTER_MS = 10_000
"""How long brokers are asked again before an end offset below the offset that was read is accepted."""

WAS_READ = "was read up to {} before"
TO_READ = "should be read from {}"
"""Parts of messages about an offset that a partition does not reach."""

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class ShortPartition(NamedTuple):
    """A partition without the offset that was read: it ends below, does not exist, or is another one now."""

    partition: TopicPartition
    read: int
    why: Literal["short", "gone", "recreated"]


class EndOffsets:
    """Looks up end offsets, and repeats the lookup for seconds while one is below the offset that was read.

    A short partition that was accepted once is accepted again without that wait, as long as it does not
    change.
    """

    def __init__(self, lookup: TopicOffsets, config: SourceConfig, clock: Clock) -> None:
        self._lookup = lookup
        self._config = config
        self._clock = clock
        self._believed: frozenset[ShortPartition] = frozenset()

    def behind(self, read: Position, how: str) -> Position:
        """Return the end offsets. Raises DataLoss if a partition lacks the offset that was read.

        With failOnDataLoss=false the loss is logged and the actual ends are returned: a deleted partition has
        none, a truncated one has a smaller one, and the topic of a recreated one has another id. `how` is
        WAS_READ or TO_READ.
        """
        ends = self._now()
        if short_partitions(read, ends) - self._believed:
            ends = self._asked_again(read)
        found = short_partitions(read, ends)
        new = {each.partition: each.read for each in found - self._believed}
        for what in describe_losses(Position(new, read.ids), ends, how):
            report_loss(self._config, what)
        self._believed = found
        return ends

    def _asked_again(self, read: Position) -> Position:
        """Return the first end offsets without a new short partition, or the last answer."""
        ends = Position({}, {})
        for pause_s in retry_waits(self._config.fetch_retry_interval_ms / 1_000, self._retry_s()):
            self._clock.wait(pause_s)
            ends = self._now()
            if not short_partitions(read, ends) - self._believed:
                break
        return ends

    def _retry_s(self) -> float:
        api_timeout_ms = self._config.consumer_config().client.default_api_timeout_ms
        return min(BELIEVED_AFTER_MS, api_timeout_ms) / 1_000

    def _now(self) -> Position:
        selected = self._lookup.selected(all_there=False)
        return Position(self._lookup.offsets(Edge.LATEST, selected.partitions), selected.ids)


def short_partitions(read: Position, ends: Position) -> frozenset[ShortPartition]:
    """Return the partitions without the offset that was read. Pure."""
    return frozenset(_short_partitions(read, ends))


def _short_partitions(read: Position, ends: Position) -> Iterator[ShortPartition]:
    for partition, offset in read.offsets.items():
        if partition not in ends.offsets:
            yield ShortPartition(partition, offset, "gone")
        elif read.is_recreated(partition, ends.ids):
            yield ShortPartition(partition, offset, "recreated")
        elif ends.offsets[partition] < offset:
            yield ShortPartition(partition, offset, "short")


def describe_losses(read: Position, ends: Position, how: str) -> list[str]:
    """Describe the partitions without the offset that was read. Pure."""
    found = sorted(short_partitions(read, ends))
    gone = [each.partition for each in found if each.why == "gone"]
    return [
        *([f"{partition_names(gone)} does not exist any more"] if gone else []),
        *(_described(each, ends, how) for each in found if each.why != "gone"),
    ]


def _described(short: ShortPartition, ends: Position, how: str) -> str:
    partition, read = short.partition, how.format(short.read)
    if short.why == "recreated":
        return f"topic {partition.topic!r} was deleted and created again, and {partition} {read}"
    return f"{partition} ends at {ends.offsets[partition]}, and {read}"


def retry_waits(first_s: float, total_s: float) -> Iterator[float]:
    """Yield waits in seconds, each twice as long as the previous one, `total_s` in all. Pure.

    Only the waits count, not the time that lookups take: a slow answer proves no more than a fast one, and
    the client bounds it.
    """
    pause_s, left_s = max(first_s, _FIRST_PAUSE_S), total_s
    while left_s > 0:
        yield min(pause_s, left_s)
        left_s -= pause_s
        pause_s = max(first_s, min(2 * pause_s, _LONGEST_PAUSE_S))

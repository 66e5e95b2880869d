"""The offsets of a stream's batches: where they start and end, with protection against stale answers.

A broker that has just started knows no topics for a moment, and a broker that lags behind reports old end
offsets. If a query accepted such an answer, its checkpoint would permanently record a smaller offset than was
read. There is no wait where all brokers, each with a controller, confirm that a topic was deleted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from ottla.pipeline.errors import DataLoss, report_loss
from ottla.pipeline.source.config import SourceConfig, TopicSelection
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offsets import (
    INITIAL,
    Nested,
    Offsets,
    Position,
    flat,
    partition_names,
    position_in,
    starts_in,
)
from ottla.pipeline.source.topic_offsets import TopicOffsets
from ottla.protocol.topics import TopicPartition


class Clock:
    """Reads the time and waits; tests replace it with a clock that does not wait."""

    def now_ms(self) -> float:
        """Return a monotonic time."""
        return time.monotonic() * 1_000

    def wait(self, seconds: float) -> None:
        """Sleep for this time."""
        time.sleep(seconds)


class StartOffsets:
    """Looks up starting offsets: of a query from the options, of a batch from the end of the previous one.

    A new partition starts at its first record.
    """

    def __init__(self, lookup: TopicOffsets, config: SourceConfig) -> None:
        self._lookup = lookup
        self._config = config
        self._of_query: Position | None = None

    def of_query(self) -> Position:
        """Return the starting offsets of a new query. Resolved once, because `latest` moves."""
        if self._of_query is None:
            selected = self._lookup.selected()
            offsets = self._lookup.first_offsets(
                self._config.starting, selected.partitions, self._config.when_no_offset
            )
            self._of_query = Position(offsets, selected.ids)
        return self._of_query

    def of_batch(self, start: Nested, end: Nested) -> Position:
        """Return the starting offsets of a batch in the checkpoint, without partitions that are new in it."""
        if start != INITIAL:
            return position_in(start)
        if (found := starts_in(end)) or not end:
            return Position(found, position_in(end).ids)
        # An old release wrote checkpoints without starting offsets: resolve the options again.
        until, (offsets, ids) = flat(end), self.of_query()
        return Position(
            {partition: offset for partition, offset in offsets.items() if partition in until}, ids
        )

    def of_new(self, known: Offsets, end: Offsets) -> Offsets:
        """Return the starting offsets of partitions that are not known yet: their first records."""
        return self._lookup.offsets(Edge.EARLIEST, end.keys() - known.keys())


BELIEVED_AFTER_MS = 10_000
"""How long brokers are asked again before an end offset below the offset that was read is accepted."""

WAS_READ = "was read up to {} before"
TO_READ = "should be read from {}"
"""Parts of messages about an offset that a partition does not reach."""

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5


class ShortPartition(NamedTuple):
    """A partition without the offset that was read.

    It ends below, does not exist, is another one now, or the options select it no longer.
    """

    partition: TopicPartition
    read: int
    why: Literal["short", "gone", "recreated", "deselected"]


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
        doubtful = self._doubtful(read, ends)
        if doubtful and not self._is_certain(doubtful, read):
            ends = self._asked_again(read)
        self.report(read, ends, how)
        return ends

    def report(self, read: Position, ends: Position, how: str) -> None:
        """Report the partitions without the offset that was read, each once. Raises DataLoss, or logs it."""
        found = short_partitions(read, ends, self._config.wanted)
        for loss in _losses(found - self._believed, ends, how, self._config.wanted.option):
            report_loss(loss, fails=self._config.fail_on_data_loss)
        self._believed = found

    def _doubtful(self, read: Position, ends: Position) -> frozenset[ShortPartition]:
        """Return the short partitions that a stale answer may have caused, and that were not accepted yet."""
        found = short_partitions(read, ends, self._config.wanted) - self._believed
        return frozenset(short for short in found if short.why != "deselected")

    def _is_certain(self, doubtful: frozenset[ShortPartition], read: Position) -> bool:
        """Whether all brokers confirm that topics were deleted; another broker may know a longer end."""
        if any(short.why == "short" for short in doubtful):
            return False
        ids = self._lookup.agreed_ids(frozenset(short.partition.topic for short in doubtful))
        return ids is not None and all(
            short.partition.topic not in ids
            if short.why == "gone"
            else ids.get(short.partition.topic) not in (None, read.ids[short.partition.topic])
            for short in doubtful
        )

    def _asked_again(self, read: Position) -> Position:
        """Return the first end offsets without a new short partition, or the last answer."""
        ends = Position({}, {})
        for pause_s in retry_waits(self._config.fetch_retry_interval_ms / 1_000, self._retry_s()):
            self._clock.wait(pause_s)
            ends = self._now()
            if not self._doubtful(read, ends):
                break
        return ends

    def _retry_s(self) -> float:
        api_timeout_ms = self._config.consumer_config().client.default_api_timeout_ms
        return min(BELIEVED_AFTER_MS, api_timeout_ms) / 1_000

    def _now(self) -> Position:
        selected = self._lookup.selected(all_there=False)
        return Position(self._lookup.offsets(Edge.LATEST, selected.partitions), selected.ids)


def short_partitions(read: Position, ends: Position, wanted: TopicSelection) -> frozenset[ShortPartition]:
    """Return the partitions without the offset that was read. Pure."""
    return frozenset(_short_partitions(read, ends, wanted))


def _short_partitions(read: Position, ends: Position, wanted: TopicSelection) -> Iterator[ShortPartition]:
    for partition, offset in read.offsets.items():
        if partition not in ends.offsets:
            yield ShortPartition(partition, offset, "gone" if wanted.chooses(partition) else "deselected")
        elif read.is_recreated(partition, ends.ids):
            yield ShortPartition(partition, offset, "recreated")
        elif ends.offsets[partition] < offset:
            yield ShortPartition(partition, offset, "short")


def _losses(found: Iterable[ShortPartition], ends: Position, how: str, option: str) -> Iterator[DataLoss]:
    """Yield the errors for short partitions. Pure."""
    ordered = sorted(found)
    if gone := [short.partition for short in ordered if short.why == "gone"]:
        yield DataLoss(f"{partition_names(gone)} does not exist any more")
    if others := [short.partition for short in ordered if short.why == "deselected"]:
        yield DataLoss(
            f"{partition_names(others)} was read before, and option {option!r} does not choose it any more",
            why="Choose it again, or begin with a new checkpointLocation. ",
        )
    for short in ordered:
        partition, read = short.partition, how.format(short.read)
        if short.why == "recreated":
            yield DataLoss(f"topic {partition.topic!r} was deleted and created again, and {partition} {read}")
        elif short.why == "short":
            yield DataLoss(f"{partition} ends at {ends.offsets[partition]}, and {read}")


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

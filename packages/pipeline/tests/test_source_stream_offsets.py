"""Which offsets the batches of a stream have, over the lives of its driver."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import NullType, StructField, StructType

from ottla.pipeline.errors import DataLoss
from ottla.pipeline.source.batch import Piece
from ottla.pipeline.source.bounds import Edge
from ottla.pipeline.source.offsets import Nested, Offsets
from ottla.pipeline.source.stream import StreamReader
from ottla.pipeline.source.survey import Places
from ottla.protocol.topics import TopicPartition

SCHEMA = StructType(
    [
        StructField(name, NullType())
        for name in ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    ]
)
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
Read = list[tuple[TopicPartition, int, int]]


@dataclass
class Topic(Places):
    """A topic in memory: where each partition begins and ends."""

    ends: Offsets
    begins: Offsets = field(default_factory=dict)
    grows: Offsets = field(default_factory=dict)
    """How much each partition grows whenever its end was asked for: somebody writes."""
    behind: int = 0
    """How many more answers come from a broker that knows of nothing yet."""
    closed: bool = False

    def partitions(self, *, all_there: bool = True) -> frozenset[TopicPartition]:
        return frozenset(self.ends)

    def offsets(self, edge: Edge, partitions: Iterable[TopicPartition]) -> Offsets:
        wanted = list(partitions)
        if edge is Edge.EARLIEST:
            return {each: self.begins.get(each, 0) for each in wanted}
        if wanted and self.behind:
            self.behind -= 1
            return dict.fromkeys(wanted, 0)
        found = {each: self.ends[each] for each in wanted}
        for each in wanted:
            self.ends[each] += self.grows.get(each, 0)
        return found

    def by_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return dict.fromkeys(times)

    def close(self) -> None:
        self.closed = True


class Query:
    """What Spark does with a reader: it writes down where a batch ends, and asks again after a restart."""

    def __init__(self, topic: Topic, **options: object) -> None:
        self.topic = topic
        self.options = {
            "kafka.bootstrap.servers": "localhost:9092",
            "subscribePattern": "t",
            **{name: str(value) for name, value in options.items()},
        }
        self.log: list[str] = []
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        """Begin with a new reader, as another process."""
        self.reader = StreamReader(self.options, SCHEMA, self.topic)
        if available_now:
            self.reader.prepareForTriggerAvailableNow()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Write down the next batch; return whether there is one."""
        start = _through_json(self.reader.initialOffset()) if not self.log else json.loads(self.log[-1])
        end = json.dumps(self.reader.latestOffset(start, limit or ReadAllAvailable()))
        if self.log and end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def read(self) -> Read:
        """Return what the tasks of the last batch in the log read, in whatever process that is."""
        start = json.loads(self.log[-2]) if len(self.log) > 1 else _through_json(self.reader.initialOffset())
        pieces = self.reader.partitions(start, json.loads(self.log[-1]))
        return [
            (each.range.partition, each.range.start, each.range.end)
            for each in pieces
            if isinstance(each, Piece)
        ]

    def batch(self) -> Read:
        """Plan and read."""
        return self.read() if self.plan() else []


def _through_json(offset: Nested) -> Nested:
    found: Nested = json.loads(json.dumps(offset))
    return found


# --- a driver that dies in its first batch


def test_a_first_batch_that_comes_again_begins_where_it_began_when_records_came_meanwhile() -> None:
    query = Query(Topic({ZERO: 100}))
    assert query.batch() == []

    query.topic.ends[ZERO] = 160
    query.restart()

    assert query.read() == []
    assert query.batch() == [(ZERO, 100, 160)]


def test_a_first_batch_that_comes_again_does_not_miss_partitions_that_came_meanwhile() -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets="earliest")
    assert query.batch() == [(ZERO, 0, 5)]

    query.topic.ends[ONE] = 7
    query.restart()

    assert query.read() == [(ZERO, 0, 5)]
    assert query.batch() == [(ONE, 0, 7)]


def test_a_first_batch_that_comes_again_needs_no_option_about_new_partitions() -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets='{"t": {"0": 2}}')
    assert query.batch() == [(ZERO, 2, 5)]

    query.topic.ends[ONE] = 7
    query.restart()

    assert query.read() == [(ZERO, 2, 5)]
    assert query.batch() == [(ONE, 0, 7)]


def test_a_first_batch_without_any_topic_comes_again() -> None:
    query = Query(Topic({}))
    assert query.batch() == []

    query.topic.ends[ZERO] = 3
    query.restart()

    assert query.read() == []
    assert query.batch() == [(ZERO, 0, 3)]


def test_the_parts_of_a_first_batch_that_is_limited_come_again_as_they_were() -> None:
    query = Query(Topic({ZERO: 10}, {ZERO: 4}), startingOffsets="earliest")
    query.plan(ReadMaxRows(2))
    assert query.read() == [(ZERO, 4, 6)]

    query.topic.begins[ZERO] = 5
    query.restart()

    assert query.read() == [(ZERO, 4, 6)]
    assert query.batch() == [(ZERO, 6, 10)]


def test_later_batches_go_on_behind_the_first_in_every_life() -> None:
    query = Query(Topic({ZERO: 3}), startingOffsets="earliest")
    query.batch()
    for end in (5, 9):
        query.restart()
        assert not query.plan()
        query.topic.ends[ZERO] = end
        assert query.plan()
        first = query.read()
        query.restart()
        assert query.read() == first
    assert first == [(ZERO, 5, 9)]


# --- checkpoints of before


def test_a_first_batch_of_a_checkpoint_without_its_beginnings_begins_where_options_say() -> None:
    query = Query(Topic({ZERO: 5, ONE: 7}), startingOffsets="earliest")
    query.log = ['{"t": {"0": 5}}']

    assert query.read() == [(ZERO, 0, 5)]
    assert query.batch() == [(ONE, 0, 7)]


def test_a_later_batch_of_a_checkpoint_without_its_beginnings() -> None:
    query = Query(Topic({ZERO: 9}))
    query.log = ['{"t": {"0": 5}}', '{"t": {"0": 8}}']

    assert query.read() == [(ZERO, 5, 8)]
    assert query.batch() == [(ZERO, 8, 9)]


# --- what is not written down


@pytest.mark.parametrize("allowed", [False, True])
def test_a_beginning_behind_the_end_is_refused_before_it_is_in_the_checkpoint(
    caplog: pytest.LogCaptureFixture, allowed: bool
) -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets='{"t": {"0": 9}}', failOnDataLoss=not allowed)

    if allowed:
        with caplog.at_level(logging.WARNING):
            assert query.batch() == []
        assert "t-0 ends at 5, and is to be read from 9" in caplog.text
    else:
        with pytest.raises(DataLoss, match="t-0 ends at 5, and is to be read from 9"):
            query.plan()
        assert query.log == []


def test_the_lag_is_told_by_ends_alone() -> None:
    query = Query(Topic({ZERO: 5}), startingOffsets="earliest")
    assert query.reader.reportLatestOffset() is None

    query.plan(ReadMaxRows(2))

    assert query.reader.reportLatestOffset() == {"t": {"0": 5}}


# --- all that is available now


def test_available_now_begins_and_ends_right_while_somebody_writes() -> None:
    query = Query(Topic({ZERO: 100}, grows={ZERO: 3}))
    query.restart(available_now=True)

    first = query.batch()
    while query.plan():
        first += query.read()
    assert all(start < end for _, start, end in first)

    query.restart(available_now=True)
    ((_, start, end),) = query.batch()
    assert start == (first[-1][2] if first else 100)
    assert end > start
    assert not query.plan()


def test_available_now_asks_again_while_a_broker_is_behind() -> None:
    query = Query(Topic({ZERO: 8}))
    query.log = ['{"t": {"0": 8}}']
    query.topic.ends[ZERO] = 10
    query.topic.behind = 2
    query.restart(available_now=True)

    assert query.batch() == [(ZERO, 8, 10)]


def test_available_now_does_not_go_beyond_what_was_there() -> None:
    query = Query(Topic({ZERO: 6}), startingOffsets="earliest")
    query.restart(available_now=True)
    read: Read = []

    while query.plan(ReadMaxRows(2)):
        read += query.read()
        query.topic.ends[ZERO] += 5

    assert read == [(ZERO, 0, 2), (ZERO, 2, 4), (ZERO, 4, 6)]


def test_connections_are_closed() -> None:
    query = Query(Topic({}))

    query.reader.stop()

    assert query.topic.closed

"""Which offsets the batches of a stream have, over the lives of its driver."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from pyspark.sql.types import NullType, StructField, StructType

from ottla.client.testing import ScriptedBroker
from ottla.pipeline.errors import DataLoss
from ottla.pipeline.source.batch_reader import ReadTask
from ottla.pipeline.source.clock import Clock
from ottla.pipeline.source.offset_bounds import Edge
from ottla.pipeline.source.offset_json import Nested, Offsets
from ottla.pipeline.source.offset_lookup import OffsetLookup
from ottla.pipeline.source.stream_reader import IDLE_S, StreamReader
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest
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
class Topic(OffsetLookup):
    """A topic in memory: where each partition begins and ends."""

    ends: Offsets
    begins: Offsets = field(default_factory=dict)
    grows: Offsets = field(default_factory=dict)
    """How much each partition grows whenever its end was asked for: somebody writes."""
    behind: int = 0
    """How many more answers come from a broker that knows of no record yet."""
    unknown: int = 0
    """How many more answers come from a broker that knows of no topic yet."""
    hidden: frozenset[TopicPartition] = frozenset()
    """Partitions of which no broker says anything."""
    asked: int = 0
    """How often somebody asked which partitions there are."""
    closed: bool = False

    def partitions(self, *, all_there: bool = True) -> frozenset[TopicPartition]:
        self.asked += 1
        if self.unknown and not all_there:
            self.unknown -= 1
            return frozenset()
        return frozenset(self.ends) - self.hidden

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


class Waits(Clock):
    """Time that passes only when somebody waits for it."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_ms(self) -> float:
        return 1_000 * sum(self.waits)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)

    def long(self) -> float:
        """Return for how long brokers were asked again since last time, in seconds."""
        waited = sum(each for each in self.waits if each != IDLE_S)
        self.waits.clear()
        return round(waited, 3)


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
        self.clock = Waits()
        self.restart()

    def restart(self, *, available_now: bool = False) -> None:
        """Begin with a new reader, as another process."""
        self.reader = StreamReader(self.options, SCHEMA, self.topic, self.clock)
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
            if isinstance(each, ReadTask)
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


# --- less is there than was read

FOR_EVER = 10**6


def after_eight(
    settings: Mapping[str, object] | None = None,
    *,
    available_now: bool = False,
    end: int = 10,
    **options: object,
) -> Query:
    """Return a query that has read eight records, in a new life; its topic has more by now."""
    query = Query(Topic({ZERO: 8}), startingOffsets="earliest", **(settings or {}), **options)
    assert query.batch() == [(ZERO, 0, 8)]
    query.topic.ends[ZERO] = end
    query.restart(available_now=available_now)
    return query


@pytest.mark.parametrize("how", ["behind", "unknown"])
@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_broker_that_has_just_started_is_asked_again_for_seconds(
    how: str, available_now: bool, allowed: bool
) -> None:
    query = after_eight(available_now=available_now, failOnDataLoss=not allowed)
    setattr(query.topic, how, 15)

    assert query.batch() == [(ZERO, 8, 10)]
    query.restart()
    assert query.read() == [(ZERO, 8, 10)]


@pytest.mark.parametrize("limit", [ReadMaxRows(1), ReadMinRows(1)])
def test_a_broker_that_has_just_started_is_asked_again_where_batches_are_limited(limit: ReadLimit) -> None:
    query = after_eight()
    query.topic.unknown = 15

    assert query.plan(limit)
    assert query.read()[0][:2] == (ZERO, 8)


def test_a_first_batch_is_planned_when_the_broker_knows_its_partitions_again() -> None:
    query = Query(Topic({ZERO: 8}), startingOffsets="earliest")
    query.topic.unknown = 15

    assert query.batch() == [(ZERO, 0, 8)]


def test_one_partition_that_a_broker_does_not_know_yet_is_enough_to_ask_again() -> None:
    query = Query(Topic({ZERO: 8, ONE: 5}), startingOffsets="earliest")
    query.batch()
    query.topic.ends[ZERO] = 10
    query.topic.hidden = frozenset({ONE})

    with pytest.raises(DataLoss, match="t-1 is not there any more"):
        query.plan()
    query.topic.hidden = frozenset()
    query.restart()
    assert query.batch() == [(ZERO, 8, 10)]


@pytest.mark.parametrize(
    ("how", "words"),
    [("behind", "t-0 ends at 0, and was read up to 8 before"), ("unknown", "t-0 is not there any more")],
)
@pytest.mark.parametrize("available_now", [False, True])
def test_what_is_lost_is_said_before_it_is_in_the_checkpoint(
    how: str, words: str, available_now: bool
) -> None:
    query = after_eight(available_now=available_now)
    setattr(query.topic, how, FOR_EVER)
    before = list(query.log)

    with pytest.raises(DataLoss, match=words):
        query.plan()
    assert query.log == before

    setattr(query.topic, how, 0)
    query.restart()
    assert query.batch() == [(ZERO, 8, 10)]


@pytest.mark.parametrize(("timeout_ms", "seconds"), [(60_000, 10), (2_000, 2)])
def test_brokers_are_asked_again_for_seconds_and_no_longer_than_the_client_may_ask(
    timeout_ms: int, seconds: float
) -> None:
    query = after_eight({"kafka.default.api.timeout.ms": timeout_ms})
    query.topic.unknown = FOR_EVER
    query.clock.long()

    with pytest.raises(DataLoss):
        query.plan()

    assert query.clock.long() == seconds


def test_a_topic_that_is_gone_is_let_go_and_is_new_when_it_was_made_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = after_eight(failOnDataLoss=False)
    query.topic.ends.clear()
    query.clock.long()

    with caplog.at_level(logging.WARNING):
        assert query.plan()
    assert "t-0 is not there any more; failOnDataLoss is false: going on" in caplog.text
    assert query.read() == []
    assert query.clock.long() == 10

    query.topic.ends[ZERO] = 3
    query.restart()
    assert query.batch() == [(ZERO, 0, 3)]
    assert query.clock.long() == 0


def test_a_topic_that_was_made_anew_with_less_is_read_on_from_its_end() -> None:
    query = after_eight(failOnDataLoss=False, end=3)
    query.clock.long()

    assert query.batch() == []
    assert query.clock.long() == 10
    query.topic.ends[ZERO] = 5

    assert query.batch() == [(ZERO, 3, 5)]
    assert query.clock.long() == 0


def test_a_topic_that_is_gone_is_asked_for_once_while_batches_wait_for_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(
        Topic({ZERO: 8, ONE: 5}), startingOffsets="earliest", failOnDataLoss=False, minOffsetsPerTrigger=4
    )
    least = ReadMinRows(4)
    query.plan(least)
    query.topic.ends = {ZERO: 9}
    query.clock.long()

    with caplog.at_level(logging.WARNING):
        assert not query.plan(least)
        assert query.clock.long() == 10
        asked = query.topic.asked
        for _ in range(20):
            assert not query.plan(least)
    assert query.topic.asked == asked + 20
    assert query.clock.long() == 0
    assert caplog.text.count("t-1 is not there any more") == 1

    query.topic.ends[ZERO] = 12
    assert query.plan(least)
    assert query.read() == [(ZERO, 8, 12)]


def test_a_topic_that_came_back_is_asked_for_again_when_it_is_missing_again() -> None:
    query = Query(
        Topic({ZERO: 8, ONE: 5}), startingOffsets="earliest", failOnDataLoss=False, minOffsetsPerTrigger=4
    )
    least = ReadMinRows(4)
    query.plan(least)
    query.topic.hidden = frozenset({ONE})
    assert not query.plan(least)
    query.topic.hidden = frozenset()
    assert not query.plan(least)

    query.topic.ends[ZERO] = 12
    query.topic.unknown = 15

    assert query.plan(least)
    assert query.read() == [(ZERO, 8, 12)]


def _found(*topics: ListOffsetsTopic, end: int) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=end)
                    for each in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


@pytest.mark.parametrize("wanted", [{"subscribe": "t"}, {"subscribePattern": "^t$"}])
async def test_a_real_broker_that_knows_no_topics_for_a_moment(wanted: dict[str, str]) -> None:
    asked = itertools.count()
    async with ScriptedBroker() as broker:
        # The first question opens the connection, and names no topic.
        broker.on(MetadataRequest, lambda _: broker.metadata(*(["t"] if next(asked) > 15 else [])))
        broker.on(ListOffsetsRequest, lambda request: _found(*request.topics, end=10))
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers} | wanted
        reader = StreamReader(options, SCHEMA, clock=Waits())

        end = await asyncio.to_thread(reader.latestOffset, {"t": {"0": 8}}, ReadAllAvailable())
        await asyncio.to_thread(reader.stop)

    assert end == {"t": {"0": 10}}


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

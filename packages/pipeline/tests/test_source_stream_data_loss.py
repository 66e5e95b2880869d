"""A stream whose topic ends before the offset that was read: ask again for seconds, then report data loss."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from ottla.client.testing import ScriptedBroker
from ottla.pipeline.errors import DataLoss
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.readers import StreamReader
from ottla.pipeline.source.topic_offsets import BrokerTopicOffsets
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponseTopic
from ottla.protocol.topics import TopicPartition
from peers.stream_queries import ONE, SCHEMA, ZERO, ManualClock, Query, Topic

FOR_EVER = 10**6


def after_eight(
    settings: Mapping[str, object] | None = None,
    *,
    available_now: bool = False,
    end: int = 10,
    **options: object,
) -> Query:
    """Return a restarted query that has read eight records of a topic that has grown."""
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

    with pytest.raises(DataLoss, match="t-1 does not exist any more"):
        query.plan()
    query.topic.hidden = frozenset()
    query.restart()
    assert query.batch() == [(ZERO, 8, 10)]


@pytest.mark.parametrize(
    ("how", "words"),
    [("behind", "t-0 ends at 0, and was read up to 8 before"), ("unknown", "t-0 does not exist any more")],
)
@pytest.mark.parametrize("available_now", [False, True])
def test_data_loss_is_reported_before_it_is_in_the_checkpoint(
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
    assert "continuing, because failOnDataLoss is false loss=t-0 does not exist any more" in caplog.text
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
    assert caplog.text.count("t-1 does not exist any more") == 1

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


# --- a topic that the query does not select any more


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"subscribe": "t,u"}, {"subscribe": "t"}),
        ({"subscribePattern": "t|u"}, {"subscribePattern": "t"}),
        ({"assign": '{"t": [0], "u": [0]}'}, {"assign": '{"t": [0]}'}),
    ],
)
def test_a_topic_taken_out_of_the_options_is_reported_at_once_by_the_option(
    before: dict[str, str], after: dict[str, str]
) -> None:
    query = deselected(before, after)

    words = rf"^u-0 was read before, and option '{next(iter(after))}' does not choose it any more"
    with pytest.raises(DataLoss, match=words) as failure:
        query.plan()
    assert "retention" not in str(failure.value)
    assert query.clock.long() == 0


def test_a_topic_taken_out_of_the_options_is_left_out_at_once_if_that_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = deselected({"subscribe": "t,u"}, {"subscribe": "t"}, failOnDataLoss=False)

    with caplog.at_level(logging.WARNING):
        assert query.batch() == [(ZERO, 8, 10)]
    assert query.clock.long() == 0
    assert caplog.text.count("u-0 was read before, and option 'subscribe' does not choose it any more") == 1
    caplog.clear()
    query.restart()
    query.topic.ends[ZERO] = 12
    assert query.batch() == [(ZERO, 10, 12)]
    assert "u-0" not in caplog.text


def deselected(before: dict[str, str], after: dict[str, str], **options: object) -> Query:
    """Return a query that has read topics t and u, restarted with options that select only t."""
    other = TopicPartition("u", 0)
    query = Query(Topic({ZERO: 8, other: 5}), startingOffsets="earliest", **options)
    del query.options["subscribePattern"]
    query.options |= before
    query.restart()
    assert query.batch() == [(ZERO, 0, 8), (other, 0, 5)]
    query.options = {name: text for name, text in query.options.items() if name not in before} | after
    query.topic.hidden, query.topic.ends[ZERO] = frozenset({other}), 10
    query.restart()
    return query


# --- loss that all brokers confirm


@pytest.mark.parametrize("allowed", [False, True])
def test_a_topic_that_no_broker_has_is_reported_without_a_wait(
    allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    query = after_eight(failOnDataLoss=allowed is False)
    query.topic.ends.clear()
    query.topic.agreed = {}
    query.clock.long()

    if not allowed:
        with pytest.raises(DataLoss, match="t-0 does not exist any more"):
            query.plan()
    else:
        with caplog.at_level(logging.WARNING):
            assert query.batch() == []
        assert caplog.text.count("t-0 does not exist any more") == 1
    assert query.clock.long() == 0


def test_another_id_that_all_brokers_have_is_reported_without_a_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(Topic({ZERO: 8}, topic_id="old"), startingOffsets="earliest", failOnDataLoss=False)
    query.batch()
    query.topic.recreate({ZERO: 5}, "new")
    query.topic.agreed = {"t": "new"}
    query.clock.long()

    with caplog.at_level(logging.WARNING):
        assert query.batch() == [(ZERO, 0, 5)]
    assert query.clock.long() == 0
    assert caplog.text.count("topic 't' was deleted and created again") == 1


@pytest.mark.parametrize("agreed", [{"t": "old"}, {"t": None}, None])
def test_a_missing_topic_that_some_broker_has_is_waited_for(agreed: dict[str, str | None] | None) -> None:
    query = after_eight()
    query.topic.unknown = 15
    query.topic.agreed = agreed

    assert query.batch() == [(ZERO, 8, 10)]


def test_a_loss_is_logged_once_although_it_is_met_again_when_the_batch_is_planned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = after_eight(failOnDataLoss=False, end=3)

    with caplog.at_level(logging.WARNING):
        query.plan()
        query.read()
    assert caplog.text.count("t-0 ends at 3, and was read up to 8 before") == 1


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
        # The first lookup opens the connection, and names no topic.
        broker.on(MetadataRequest, lambda _: broker.metadata(*(["t"] if next(asked) > 15 else [])))
        broker.on(ListOffsetsRequest, lambda request: _found(*request.topics, end=10))
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers} | wanted
        reader = StreamReader(options, SCHEMA, clock=ManualClock())

        end = await asyncio.to_thread(reader.latestOffset, {"t": {"0": 8}}, ReadAllAvailable())
        await asyncio.to_thread(reader.stop)

    assert end == {"t": {"0": 10}}


@pytest.mark.parametrize(
    ("error", "controller", "agreed"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 1, {}),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, None),
        (ErrorCode.LEADER_NOT_AVAILABLE, 1, None),
        (ErrorCode.NONE, 1, {"t": None}),
    ],
)
async def test_a_broker_with_a_controller_answers_for_certain_that_a_topic_does_not_exist(
    error: ErrorCode, controller: int, agreed: dict[str, str | None] | None
) -> None:
    async with ScriptedBroker() as broker:
        answer = broker.metadata()
        answer.controller_id = controller
        answer.topics = [MetadataResponseTopic(name="t", error_code=error)]
        broker.on(MetadataRequest, lambda _: answer)
        options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
        lookup = BrokerTopicOffsets(SourceConfig.of(options, streaming=True))

        found = await asyncio.to_thread(lookup.agreed_ids, frozenset({"t"}))
        await asyncio.to_thread(lookup.close)

    assert found == agreed


# --- a topic that was deleted and created again


@pytest.mark.parametrize("end", [3, 8, 20])
@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_with_another_id_is_data_loss_whatever_its_end(end: int, available_now: bool) -> None:
    query = Query(Topic({ZERO: 8}, topic_id="old"), startingOffsets="earliest")
    assert query.batch() == [(ZERO, 0, 8)]
    query.restart(available_now=available_now)
    query.topic.recreate({ZERO: end}, "new")
    before = list(query.log)

    words = "topic 't' was deleted and created again, and t-0 was read up to 8 before"
    with pytest.raises(DataLoss, match=words):
        query.plan()
    assert query.log == before


@pytest.mark.parametrize("end", [3, 8, 20])
def test_a_topic_with_another_id_is_read_from_its_first_record_if_that_is_allowed(
    end: int, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(Topic({ZERO: 8}, topic_id="old"), startingOffsets="earliest", failOnDataLoss=False)
    assert query.batch() == [(ZERO, 0, 8)]
    query.topic.recreate({ZERO: end}, "new")

    with caplog.at_level(logging.WARNING):
        assert query.batch() == [(ZERO, 0, end)]
    assert "continuing, because failOnDataLoss is false" in caplog.text
    query.restart()
    assert query.read() == [(ZERO, 0, end)]
    query.clock.long()
    assert not query.plan()
    assert query.clock.long() == 0
    query.topic.ends[ZERO] = end + 1
    assert query.batch() == [(ZERO, end, end + 1)]


def test_a_topic_with_another_id_is_divided_by_what_is_left_of_it() -> None:
    query = Query(Topic({ZERO: 8}, topic_id="old"), startingOffsets="earliest", failOnDataLoss=False)
    query.batch()
    query.topic.recreate({ZERO: 20}, "new")

    query.plan(ReadMaxRows(5))
    assert query.read() == [(ZERO, 0, 5)]
    query.plan(ReadMaxRows(5))
    assert query.read() == [(ZERO, 5, 10)]


def test_ids_that_brokers_get_later_are_no_data_loss() -> None:
    query = Query(Topic({ZERO: 8}), startingOffsets="earliest")
    assert query.batch() == [(ZERO, 0, 8)]
    query.topic.topic_id = "first"
    assert not query.plan()
    query.topic.ends[ZERO] = 9
    assert query.batch() == [(ZERO, 8, 9)]

    query.topic.topic_id = None
    query.topic.ends[ZERO] = 10
    assert query.batch() == [(ZERO, 9, 10)]
    query.topic.recreate({ZERO: 30}, "second")
    with pytest.raises(DataLoss, match="deleted and created again"):
        query.plan()


def test_a_topic_with_another_id_may_come_from_a_broker_that_lags_behind() -> None:
    query = Query(Topic({ZERO: 8}, topic_id="new"), startingOffsets="earliest")
    assert query.batch() == [(ZERO, 0, 8)]
    query.restart()
    query.topic.ends[ZERO] = 12
    query.topic.stale_ids = ["old", "old"]

    assert query.batch() == [(ZERO, 8, 12)]

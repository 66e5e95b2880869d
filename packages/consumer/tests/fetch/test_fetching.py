"""What brokers may say to a fetch, and what a consumer makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from ottla.client.config import ClientConfig
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.consumer import (
    Consumer,
    ConsumerClosed,
    ConsumerConfig,
    LogTruncated,
    OffsetOutOfRange,
    TopicPartition,
    WrongMode,
)
from ottla.consumer.fetch.epoch_validation import EpochValidation
from ottla.consumer.fetch.lookups import EpochEnd, LookupResults
from ottla.consumer.fetch.memory import held_bytes
from ottla.protocol.errors import ErrorCode, UnknownServerError
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.records import BatchBuilder, Codec

BOUND_S = 20
FOLLOWER = 2
FAST = ConsumerConfig(
    auto_offset_reset="earliest",
    fetch_max_wait_ms=20,
    client=ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20),
)
A = TopicPartition("t", 0)


class Log:
    """Topic `t` with some partitions on a leader, and perhaps a follower; batches have leader epochs."""

    def __init__(self, broker: ScriptedBroker, partitions: int = 1) -> None:
        self.broker = broker
        self.follower: ScriptedBroker | None = None
        self.records: dict[int, list[tuple[bytes, int]]] = {n: [] for n in range(partitions)}
        self.epoch = 1
        self.topic_id = UUID(int=1)
        self.preferred = -1
        self.codec = Codec.NONE
        self.key: bytes | None = None
        self.topic_error = 0
        self.errors: list[int] = []
        self.follower_errors: list[int] = []
        self.session: dict[int, int] | None = None
        self.has_sessions = True
        broker.on(MetadataRequest, self.metadata)
        broker.on(ListOffsetsRequest, self.offsets)
        broker.on(OffsetForLeaderEpochRequest, self.epoch_ends)
        broker.on(FetchRequest, self.fetch)

    def add(self, *values: bytes, partition: int = 0) -> None:
        self.records[partition] += [(value, self.epoch) for value in values]

    def metadata(self, _: MetadataRequest) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node_id=NODE_ID, host=self.broker.host, port=self.broker.port)]
        if self.follower is not None:
            port = self.follower.port
            brokers.append(MetadataResponseBroker(node_id=FOLLOWER, host=self.broker.host, port=port))
        partitions = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=NODE_ID,
                leader_epoch=self.epoch,
                replica_nodes=[NODE_ID, FOLLOWER],
                isr_nodes=[NODE_ID],
            )
            for index in self.records
        ]
        topic = MetadataResponseTopic(
            name="t", error_code=self.topic_error, topic_id=self.topic_id, partitions=partitions
        )
        return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=NODE_ID, topics=[topic])

    def offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        found = [
            ListOffsetsPartitionResponse(
                partition_index=each.partition_index,
                offset=0 if each.timestamp == -2 else len(self.records[each.partition_index]),
            )
            for each in request.topics[0].partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)])

    def epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        found = []
        for each in request.topics[0].partitions:
            below = [epoch for _, epoch in self.records[each.partition] if epoch <= each.leader_epoch]
            found.append(
                EpochEndOffset(
                    partition=each.partition, leader_epoch=max(below, default=-1), end_offset=len(below)
                )
            )
        topics = [OffsetForLeaderTopicResult(topic="t", partitions=found)]
        return OffsetForLeaderEpochResponse(topics=topics)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        wanted = {each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions}
        if self.has_sessions and request.session_epoch >= 0:
            if request.session_epoch == 0:
                self.session = wanted
            elif self.session is None:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            else:
                for topic in request.forgotten_topics_data:
                    for partition in topic.partitions:
                        self.session.pop(partition)
                self.session |= wanted
                wanted = self.session
        answers = [self.data(partition, offset) for partition, offset in wanted.items()]
        if self.errors:
            answers = [PartitionData(partition_index=0, error_code=self.errors.pop(0))]
        elif self.preferred != -1 and self.follower is not None:
            answers = [PartitionData(partition_index=0, preferred_read_replica=self.preferred)]
        return self.answer(answers, 77 if self.has_sessions else 0)

    def fetch_from_follower(self, request: FetchRequest) -> FetchResponse:
        answers = [
            self.data(each.partition, each.fetch_offset)
            for topic in request.topics
            for each in topic.partitions
        ]
        if self.follower_errors:
            answers = [PartitionData(partition_index=0, error_code=self.follower_errors.pop(0))]
        return self.answer(answers, 0)

    def answer(self, answers: list[PartitionData], session_id: int) -> FetchResponse:
        return FetchResponse(
            session_id=session_id, responses=[FetchableTopicResponse(topic="t", partitions=answers)]
        )

    def data(self, partition: int, offset: int) -> PartitionData:
        records = self.records[partition]
        data = PartitionData(partition_index=partition, high_watermark=len(records))
        if offset > len(records):
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif offset < len(records):
            builder = BatchBuilder(1 << 26, codec=self.codec)
            epoch = records[offset][1]
            for value, own in records[offset:]:
                if own != epoch or builder.record_count == 1000:
                    break
                builder.append(self.key, value, 0)
            data.records = builder.build(base_offset=offset, partition_leader_epoch=epoch)
        return data


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        yield broker


def reader(broker: ScriptedBroker, config: ConsumerConfig = FAST) -> Consumer:
    return Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=config)


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(BOUND_S):
        return [(await anext(consumer)).value for _ in range(count)]


async def waits_for(consumer: Consumer) -> asyncio.Task[list[bytes | None]]:
    """Let a task ask for the next record until it waits."""
    waiting = asyncio.create_task(take(consumer, 1))
    while not consumer._runtime.fetch.notifier.has_waiters:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return waiting


async def test_a_session_says_only_what_changed(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=50)
    log.add(b"a", partition=7)
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        log.add(b"b", partition=9)
        assert await take(consumer, 1) == [b"b"]

    first, *others = broker.seen(FetchRequest)
    assert (first.session_epoch, len(first.topics[0].partitions)) == (0, 50)
    assert [each.session_epoch for each in others] == list(range(1, len(others) + 1))
    assert all(each.session_id == 77 for each in others)
    assert sum(len(topic.partitions) for each in others for topic in each.topics) <= 4


async def test_a_session_that_the_broker_dropped_is_opened_anew(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        log.session = None
        log.add(b"b")
        assert await take(consumer, 1) == [b"b"]


async def test_a_broker_without_sessions_is_asked_in_full(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.has_sessions = False
    log.add(b"a")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        log.add(b"b")
        assert await take(consumer, 1) == [b"b"]
    assert {each.session_epoch for each in broker.seen(FetchRequest)} == {0}


async def test_the_replica_that_the_leader_recommends_is_read_and_left_when_it_fails(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(b"a")
    async with ScriptedBroker() as follower:
        follower.on(FetchRequest, log.fetch_from_follower)
        log.follower, log.preferred = follower, FOLLOWER
        async with reader(broker, replace(FAST, client_rack="here")) as consumer:
            assert await take(consumer, 1) == [b"a"]
            assert follower.seen(FetchRequest)
            assert broker.seen(FetchRequest)[0].rack_id == "here"

            log.preferred = -1
            log.follower_errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
            log.add(b"b")
            assert await take(consumer, 1) == [b"b"]
            assert not log.follower_errors


async def test_a_follower_that_is_behind_does_not_reset_the_position(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    async with ScriptedBroker() as follower:
        follower.on(FetchRequest, log.fetch_from_follower)
        log.follower, log.preferred = follower, FOLLOWER
        log.follower_errors = [ErrorCode.OFFSET_OUT_OF_RANGE]
        async with reader(broker) as consumer:
            consumer.seek(A, 1)
            assert await take(consumer, 1) == [b"b"]
            assert not log.follower_errors


async def test_a_truncated_log_is_read_on_from_where_it_differs(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"lost 1", b"lost 2")
    async with reader(broker) as consumer:
        assert await take(consumer, 3) == [b"a", b"lost 1", b"lost 2"]
        log.records[0] = [(b"a", 1), (b"x", 2), (b"y", 2), (b"z", 2)]
        log.epoch = 2
        log.errors = [ErrorCode.FENCED_LEADER_EPOCH]

        assert await take(consumer, 3) == [b"x", b"y", b"z"]


async def test_a_truncated_log_is_told_where_nothing_is_reset(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"lost")
    async with reader(broker, replace(FAST, auto_offset_reset="none")) as consumer:
        consumer.seek(A, 0)
        assert await take(consumer, 2) == [b"a", b"lost"]
        log.records[0] = [(b"a", 1), (b"x", 2), (b"y", 2)]
        log.epoch = 2
        log.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]

        with pytest.raises(LogTruncated) as caught:
            await take(consumer, 1)
        assert (caught.value.partition, caught.value.position, caught.value.diverges_at) == (A, 2, 1)
        consumer.seek(A, 1)
        assert await take(consumer, 2) == [b"x", b"y"]


async def test_what_was_fetched_ahead_of_a_truncation_is_not_given_out(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"lost")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        log.records[0] = [(b"a", 1), (b"x", 2)]
        log.epoch = 2
        log.errors = [ErrorCode.FENCED_LEADER_EPOCH]
        while not broker.seen(OffsetForLeaderEpochRequest):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        while consumer._positions[A].must_validate:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

        assert await take(consumer, 1) == [b"x"]


async def test_a_topic_that_was_made_again_is_read_from_its_beginning(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"a", b"b"]
        log.records[0] = []
        log.topic_id = UUID(int=2)
        log.add(b"new 1", b"new 2", b"new 3")
        log.errors = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

        assert await take(consumer, 3) == [b"new 1", b"new 2", b"new 3"]


async def test_all_partitions_out_of_range_are_told_at_once(broker: ScriptedBroker) -> None:
    Log(broker, partitions=2)
    other = TopicPartition("t", 1)
    async with reader(broker, replace(FAST, auto_offset_reset="none")) as consumer:
        consumer.seek(A, 5)
        consumer.seek(other, 6)
        with pytest.raises(OffsetOutOfRange) as caught:
            await take(consumer, 1)
        assert caught.value.partitions == {A: 5, other: 6}


async def test_no_more_than_two_answers_of_a_partition_are_at_hand(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(10_000)))
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"0"]
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert len(broker.seen(FetchRequest)) <= 2
        assert await take(consumer, 9_999) == [b"%d" % n for n in range(1, 10_000)]


async def test_assigning_while_somebody_waits_loses_nothing(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=2)
    b = TopicPartition("t", 1)
    async with Consumer(bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
        consumer.assign([])
        waiting = await waits_for(consumer)
        consumer.assign([A, b])
        await asyncio.sleep(0.05)
        consumer.assign([A])
        log.add(b"a")
        log.add(b"b", partition=1)
        assert await waiting == [b"a"]


async def test_a_seek_while_somebody_waits_counts(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    async with reader(broker) as consumer:
        await take(consumer, 2)
        waiting = await waits_for(consumer)
        consumer.seek(A, 0)
        assert await waiting == [b"a"]


async def test_records_at_hand_do_not_keep_the_loop_from_its_other_work(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(*(b"x" for _ in range(1000)))
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async with reader(broker) as consumer:
        await take(consumer, 1)
        heart = asyncio.create_task(beat())
        before = beats
        for _ in range(20):
            time.sleep(0.02)  # noqa: ASYNC251 - a handler that does not await
            await anext(consumer)
        heart.cancel()
        assert beats - before >= 10


async def test_large_compressed_answers_are_unfolded_off_the_loop(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.codec = Codec.GZIP
    noise = [bytes((n * k * 7919) % 251 for k in range(1, 2001)) for n in range(1, 1001)]
    log.add(*noise)
    async with reader(broker) as consumer:
        assert await take(consumer, 1000) == noise


async def test_metrics_count_what_was_fetched(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        await take(consumer, 1)
        assert consumer.metrics.records_consumed_total == 3
        assert consumer.metrics.records_lag_max == 2


class Watcher:
    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def on_consume(self, records):  # type: ignore[no-untyped-def]
        self.seen += [record.value for record in records]
        return [record for record in records if record.value != b"hidden"]


async def test_interceptors_see_records_and_may_leave_some_out(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"hidden", b"b", b"c", b"hidden")
    watcher = Watcher()
    async with reader(broker, replace(FAST, interceptors=[watcher])) as consumer:
        assert await take(consumer, 2) == [b"a", b"b"]
        found = await consumer.getmany(timeout_ms=1000)
        assert [record.value for record in found[A]] == [b"c"]
    assert watcher.seen == [b"a", b"hidden", b"b", b"c", b"hidden"]


async def test_raw_pieces_move_the_position_and_the_rest_can_be_given_back(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(10)))
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"0", b"1"]
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        assert (fetched.partition, fetched.since_offset, fetched.next_offset) == (A, 2, 10)
        assert await consumer.position(A) == 10
        assert consumer._runtime.fetch.assigned.finished_offsets()[A].offset == 2
        consumer._delivery.give_back(fetched, 5)
        assert await consumer.position(A) == 5
        assert await take(consumer, 5) == [b"5", b"6", b"7", b"8", b"9"]
        assert consumer._runtime.fetch.assigned.finished_offsets()[A].offset == 9


async def test_the_rest_of_a_raw_piece_is_read_again_where_what_was_at_hand_became_worthless(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(6)))
    async with reader(broker) as consumer:
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        consumer._positions[A].discard_buffered()  # as the check for truncations does, meanwhile
        consumer._delivery.give_back(fetched, 3)
        assert await consumer.position(A) == 3
        assert await take(consumer, 3) == [b"3", b"4", b"5"]


async def test_a_truncation_in_front_of_what_is_given_back_counts(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"lost 1", b"lost 2")
    async with reader(broker) as consumer:
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        log.records[0] = [(b"a", 1), (b"x", 2)]
        log.epoch = 2
        consumer._positions[A].discard_buffered()
        consumer._delivery.give_back(fetched, 2)
        assert await take(consumer, 1) == [b"x"]


async def test_a_truncation_of_what_was_taken_and_is_given_back_is_nothing_to_tell(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(b"a", b"lost 1", b"lost 2")
    async with reader(broker, replace(FAST, auto_offset_reset="none")) as consumer:
        consumer.seek(A, 0)
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        log.records[0] = [(b"a", 1), (b"x", 2)]
        log.epoch = 2
        state = consumer._positions[A]
        EpochValidation(consumer.config, consumer._lookups, lambda: None).check(
            state, EpochEnd(leader_epoch=1, end_offset=1)
        )
        consumer._delivery.give_back(fetched, 0)
        assert state.failure is None, "what was not given out yet does not differ"
        assert await take(consumer, 2) == [b"a", b"x"]


async def test_what_was_sought_meanwhile_is_not_undone_by_giving_back(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(6)))
    async with reader(broker) as consumer:
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        consumer.seek(A, 5)
        consumer._delivery.give_back(fetched, 0)
        assert await take(consumer, 1) == [b"5"]


async def test_a_partition_that_went_and_came_back_is_not_moved_by_giving_back(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(6)))
    async with Consumer(bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
        consumer.assign([A])
        (fetched,) = await consumer._delivery.take_raw(1, 5_000)
        consumer.assign([])
        consumer.assign([A])
        consumer.seek(A, 4)
        consumer._delivery.give_back(fetched, 0)
        assert await take(consumer, 1) == [b"4"]


async def test_several_tasks_may_iterate_and_every_record_comes_to_one(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=4)
    async with reader(broker) as consumer:
        tasks = [asyncio.create_task(take(consumer, 100)) for _ in range(4)]
        for round_ in range(10):
            for partition in range(4):
                log.add(*(b"%d-%d-%d" % (partition, round_, n) for n in range(10)), partition=partition)
            await asyncio.sleep(0.03)
        found = [value for task in tasks for value in await task]
    assert len(found) == len(set(found)) == 400


async def test_a_deserializer_may_seek(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.key = b"key"
    log.add(b"a", b"b", b"c")

    def seeks(key: bytes) -> bytes:
        if consumer._positions[A].position == 0:
            consumer.seek(A, 2)
        return key

    consumer = reader(broker, replace(FAST, key_deserializer=seeks, value_deserializer=bytes.upper))
    async with consumer:
        assert await take(consumer, 1) == [b"C"]


async def test_a_consumer_that_was_closed_gives_nothing_of_what_was_at_hand(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
    with pytest.raises(ConsumerClosed):
        await take(consumer, 1)


async def test_a_consumer_that_unsubscribed_gives_nothing_of_what_was_at_hand(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"b", b"c")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        consumer.unsubscribe()
        with pytest.raises(WrongMode):
            await take(consumer, 1)


NARROW = replace(FAST, fetch_max_bytes=1_000)
B = TopicPartition("t", 1)


async def fill(log: Log, consumer: Consumer) -> None:
    """Have more at hand of the first partition than the bound; then the other one gets something."""
    log.add(*(b"%d" % n for n in range(1_000)))
    await take(consumer, 1)
    log.add(b"other", partition=1)


async def test_what_is_at_hand_of_a_paused_partition_keeps_no_other_from_being_read(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker, partitions=2)
    async with reader(broker, NARROW) as consumer:
        await fill(log, consumer)
        consumer.pause(A)
        assert await take(consumer, 1) == [b"other"]


async def test_what_is_at_hand_of_others_keeps_nobody_from_asking_for_one_partition(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker, partitions=2)
    async with reader(broker, NARROW) as consumer:
        await fill(log, consumer)
        async with asyncio.timeout(BOUND_S):
            while not (found := await consumer.getmany(B)):  # noqa: ASYNC110 - who polls without waiting
                await asyncio.sleep(0.001)
        assert [record.value for record in found[B]] == [b"other"]
        assert await take(consumer, 1) == [b"1"]


async def test_no_more_than_the_bound_is_at_hand_where_all_is_asked_for(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=20)
    async with reader(broker, replace(FAST, fetch_max_bytes=1)) as consumer:
        waiting = await waits_for(consumer)
        log.add(b"x")
        await waiting
        for partition in log.records:
            log.add(b"y", partition=partition)
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert [state.partition for state in consumer._positions if state.buffered] == [A]


async def test_what_is_left_of_a_large_answer_does_not_keep_it_alive(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=2)
    log.add(b"small")
    log.add(*(b"%0100d" % n for n in range(1000)), partition=1)
    other = TopicPartition("t", 1)
    async with reader(broker, replace(FAST, fetch_max_bytes=50_000)) as consumer, asyncio.timeout(BOUND_S):
        assert len((await consumer.getmany(other, timeout_ms=None, max_records=1000))[other]) == 1000
        (fetched,) = consumer._positions[A].buffered
        assert len((await consumer.getmany(other, timeout_ms=20)).get(other, ())) == 0
        assert held_bytes([fetched]) < 1_000


async def test_what_is_in_hand_of_a_partition_counts_no_more_when_that_comes_back(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*(b"%d" % n for n in range(20)))
    async with Consumer(bootstrap_servers=broker.bootstrap_servers, config=FAST) as consumer:
        consumer.assign([A])
        assert await take(consumer, 3) == [b"0", b"1", b"2"]
        consumer.assign([])
        consumer.assign([A])
        consumer._positions[A].seek(10)  # as what others committed meanwhile does
        assert consumer._runtime.fetch.assigned.finished_offsets()[A].offset == 10


@pytest.mark.parametrize(
    ("code", "is_put_off"),
    [(ErrorCode.UNKNOWN_SERVER_ERROR, True), (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, False)],
)
async def test_a_broker_that_can_answer_nothing_at_all_is_not_asked_again_at_once(
    broker: ScriptedBroker, code: ErrorCode, is_put_off: bool
) -> None:
    log = Log(broker)
    log.add(b"a")
    refusals = [code]
    broker.on(
        FetchRequest, lambda asked: FetchResponse(error_code=refusals.pop()) if refusals else log.fetch(asked)
    )
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        assert (consumer._positions[A].fetch_not_before_s > 0) is is_put_off


class MovingClock(asyncio.SelectorEventLoop):
    """A loop in which time passes between any two readings of the clock, as in a process that has to wait."""

    passed_s = 0.0

    def time(self) -> float:
        self.passed_s += 0.002
        return super().time() + self.passed_s


def test_what_comes_due_while_the_fetcher_looks_is_not_forgotten() -> None:
    async def run() -> None:
        async with ScriptedBroker() as broker:
            log = Log(broker)
            log.errors += [ErrorCode.UNKNOWN_SERVER_ERROR] * 50  # each puts the partition off by 5 ms
            log.add(b"a")
            async with reader(broker) as consumer:
                assert await take(consumer, 1) == [b"a"]

    with asyncio.Runner(loop_factory=MovingClock) as runner:
        runner.run(run())


@pytest.mark.parametrize("of_topic", [False, True])
async def test_an_error_that_nobody_knows_is_told_by_its_number(
    broker: ScriptedBroker, of_topic: bool
) -> None:
    log = Log(broker)
    async with reader(broker) as consumer:
        await consumer.position(A)
        if of_topic:
            log.topic_error = 999
            log.errors.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            log.errors.append(999)
        with pytest.raises(UnknownServerError, match="999"):
            await take(consumer, 1)


class Slow(ScriptedBroker):
    """LookupResults when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def _next_answer(self, reader: asyncio.StreamReader) -> bytes | None:
        answer = await super()._next_answer(reader)
        if self.seen(FetchRequest):
            await self.may.wait()
        return answer


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE])
async def test_an_answer_that_another_broker_has_overtaken_is_nothing(
    broker: ScriptedBroker, error: ErrorCode
) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    async with Slow() as follower, reader(broker) as consumer:
        follower.on(FetchRequest, log.fetch_from_follower)
        log.follower, log.preferred = follower, FOLLOWER
        log.follower_errors = [error] if error else []
        while not follower.seen(FetchRequest):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

        log.preferred = -1
        consumer._positions[A].preferred_until_s = 0.0
        consumer._runtime.fetch.fetcher.wake()
        assert await take(consumer, 2) == [b"a", b"b"]
        waiting = await waits_for(consumer)
        follower.may.set()
        while FOLLOWER in consumer._runtime.fetch.fetcher._outstanding:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        log.add(b"c")
        assert await waiting == [b"c"]


async def test_what_comes_in_while_a_position_is_validated_is_not_taken_for_truncated(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    asked, may = asyncio.Event(), asyncio.Event()
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"a", b"b"]
        waiting = await waits_for(consumer)
        ask = consumer._lookups.once_epoch_ends

        async def slowly(wanted: Mapping[TopicPartition, tuple[int, int]]) -> LookupResults[EpochEnd]:
            answers = await ask(wanted)
            asked.set()
            await may.wait()
            return answers

        monkeypatch.setattr(consumer._lookups, "once_epoch_ends", slowly)
        state = consumer._positions[A]
        state.must_validate = True
        consumer._runtime.fetch.wake()
        await asked.wait()
        log.epoch = 2
        log.add(b"c", b"d")
        await consumer._runtime.fetch.fetcher._fetch(
            NODE_ID, [state]
        )  # it was out already when the leader changed
        assert [*await waiting, *await take(consumer, 1)] == [b"c", b"d"]
        may.set()
        log.add(b"e")
        assert await take(consumer, 1) == [b"e"]


async def test_who_waits_for_records_hears_that_there_is_nothing_to_read_any_more(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(b"a")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        consumer.pause(A)
        while consumer._runtime.fetch.fetcher._outstanding:  # noqa: ASYNC110 - its answer would wake whoever waits
            await asyncio.sleep(0.001)
        waiting = await waits_for(consumer)
        consumer.unsubscribe()

        with pytest.raises(WrongMode):
            await waiting


async def test_a_leader_that_came_while_a_position_was_validated_is_asked_too(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(broker)
    log.add(b"a", b"lost")
    asked, may = asyncio.Event(), asyncio.Event()
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"a", b"lost"]
        ask = consumer._lookups.once_epoch_ends

        async def slowly(wanted: Mapping[TopicPartition, tuple[int, int]]) -> LookupResults[EpochEnd]:
            answers = await ask(wanted)
            asked.set()
            await may.wait()
            return answers

        monkeypatch.setattr(consumer._lookups, "once_epoch_ends", slowly)
        state = consumer._positions[A]
        state.must_validate = True
        consumer._runtime.fetch.wake()
        await asked.wait()  # the leader says that nothing is truncated, and is none any more
        while consumer._runtime.fetch.fetcher._outstanding:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        log.records[0] = [(b"a", 1), (b"x", 2), (b"y", 2)]
        log.epoch = 2
        consumer._runtime.fetch.leaders.refresh_soon()
        while state.leader_epoch < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        may.set()

        assert await take(consumer, 2) == [b"x", b"y"]


async def test_a_topic_of_a_pattern_that_has_no_leader_for_a_while_keeps_its_place(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, config=FAST)
    consumer.subscribe(pattern="t")
    async with consumer:
        assert await take(consumer, 1) == [b"a"]
        for error in (ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NONE):
            log.topic_error = error
            asked = len(broker.seen(MetadataRequest))
            consumer._runtime.fetch.leaders.refresh_soon()
            while len(broker.seen(MetadataRequest)) < asked + 2:
                consumer._runtime.fetch.leaders.refresh_soon()
                await asyncio.sleep(0.001)
        assert await take(consumer, 1) == [b"b"]

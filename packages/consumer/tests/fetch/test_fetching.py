"""Responses and errors of brokers to Fetch requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ottla.client.config import ClientConfig
from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    Consumer,
    OffsetOutOfRange,
    TopicPartition,
)
from ottla.protocol.errors import ErrorCode, UnknownServerError
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.metadata import (
    MetadataRequest,
)
from ottla.protocol.records import Codec
from peers.scripted_topic import FAST, FOLLOWER, A, Log, reader, take, waits_for


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
    log = Log(broker, partitions=2)
    log.add(b"a")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        log.session = None
        log.add(b"b")
        assert await take(consumer, 1) == [b"b"]


async def test_a_broker_without_sessions_is_asked_in_full(broker: ScriptedBroker) -> None:
    log = Log(broker, partitions=2)
    log.has_sessions = False
    log.add(b"a")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        log.add(b"b")
        assert await take(consumer, 1) == [b"b"]
    assert {each.session_epoch for each in broker.seen(FetchRequest)} == {0}


async def test_a_single_partition_is_read_without_a_session(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a")
    async with reader(broker) as consumer:
        assert await take(consumer, 1) == [b"a"]
        log.add(b"b")
        assert await take(consumer, 1) == [b"b"]
    asked = broker.seen(FetchRequest)
    assert {(request.session_id, request.session_epoch) for request in asked} == {(0, -1)}
    assert all(len(request.topics[0].partitions) == 1 for request in asked)


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


async def test_one_error_names_all_partitions_that_are_out_of_range(broker: ScriptedBroker) -> None:
    Log(broker, partitions=2)
    other = TopicPartition("t", 1)
    async with reader(broker, replace(FAST, auto_offset_reset="none")) as consumer:
        consumer.seek(A, 5)
        consumer.seek(other, 6)
        with pytest.raises(OffsetOutOfRange) as caught:
            await take(consumer, 1)
        assert caught.value.partitions == {A: 5, other: 6}


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


def test_a_backoff_that_ends_between_two_clock_readings_is_not_forgotten() -> None:
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
async def test_an_unknown_error_code_is_raised_with_its_number(
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
    """A broker that holds its responses back until `may` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def _next_response(self, reader: asyncio.StreamReader) -> bytes | None:
        answer = await super()._next_response(reader)
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
        consumer._lifecycle.fetch.fetcher.wake()
        assert await take(consumer, 2) == [b"a", b"b"]
        waiting = await waits_for(consumer)
        follower.may.set()
        while FOLLOWER in consumer._lifecycle.fetch.fetcher._outstanding:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        log.add(b"c")
        assert await waiting == [b"c"]


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
            consumer._lifecycle.fetch.leaders.refresh_soon()
            while len(broker.seen(MetadataRequest)) < asked + 2:
                consumer._lifecycle.fetch.leaders.refresh_soon()
                await asyncio.sleep(0.001)
        assert await take(consumer, 1) == [b"b"]


PATIENT = replace(FAST, client=ClientConfig(retry_backoff_ms=300_000, retry_backoff_max_ms=300_000))
"""Requests that wait for this backoff come after the bound of the test."""


async def test_a_refusal_of_a_broker_that_is_not_asked_any_more_is_nothing(broker: ScriptedBroker) -> None:
    log = Log(broker)
    async with Slow() as follower, reader(broker, PATIENT) as consumer:
        follower.on(FetchRequest, log.fetch_from_follower)
        log.follower, log.preferred = follower, FOLLOWER
        log.follower_errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        while not follower.seen(FetchRequest):  # noqa: ASYNC110
            await asyncio.sleep(0.001)

        log.preferred = -1
        consumer._positions[A].preferred_until_s = 0.0
        consumer._lifecycle.fetch.fetcher.wake()
        follower.may.set()
        while FOLLOWER in consumer._lifecycle.fetch.fetcher._outstanding:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        log.add(b"a")
        assert await take(consumer, 1) == [b"a"]


@pytest.mark.parametrize("breaks_off", [False, True])
async def test_a_new_leader_is_asked_without_the_backoff_of_the_old_one(
    broker: ScriptedBroker, breaks_off: bool
) -> None:
    log = Log(broker)
    log.add(b"a")

    def refuse(_: FetchRequest) -> FetchResponse | None:
        log.epoch += 1
        broker.on(FetchRequest, log.fetch)
        error = PartitionData(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return None if breaks_off else log.answer([error], 77)

    async with reader(broker, PATIENT) as consumer:
        assert await take(consumer, 1) == [b"a"]
        broker.on(FetchRequest, refuse)
        log.add(b"b")
        assert await take(consumer, 1) == [b"b"]

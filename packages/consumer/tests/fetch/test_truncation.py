"""Truncated logs, and topics that were deleted and created again (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.consumer import (
    LogTruncated,
    TopicPartition,
)
from ottla.consumer.fetch.fetcher import fetch_points
from ottla.consumer.fetch.offset_lookups import EpochEnd, LookupResults
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_offsets import (
    OffsetForLeaderEpochRequest,
)
from peers.scripted_topic import FAST, A, Log, reader, take, waits_for


async def test_a_truncated_log_is_read_on_from_where_it_differs(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"lost 1", b"lost 2")
    async with reader(broker) as consumer:
        assert await take(consumer, 3) == [b"a", b"lost 1", b"lost 2"]
        log.records[0] = [(b"a", 1), (b"x", 2), (b"y", 2), (b"z", 2)]
        log.epoch = 2
        log.errors = [ErrorCode.FENCED_LEADER_EPOCH]

        assert await take(consumer, 3) == [b"x", b"y", b"z"]


async def test_a_truncated_log_raises_if_the_policy_is_none(broker: ScriptedBroker) -> None:
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


async def test_a_truncated_log_goes_on_raising_until_a_seek(broker: ScriptedBroker) -> None:
    log = Log(broker)
    log.add(b"a", b"lost")
    async with reader(broker, replace(FAST, auto_offset_reset="none")) as consumer:
        consumer.seek(A, 0)
        assert await take(consumer, 2) == [b"a", b"lost"]
        # Behind the old position there are records that must not be taken for the next ones.
        log.records[0] = [(b"a", 1), (b"x", 2), (b"y", 2), (b"z", 2)]
        log.epoch = 2
        log.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER]

        for _ in range(3):
            with pytest.raises(LogTruncated):
                await take(consumer, 1)
        consumer.seek(A, 1)
        assert await take(consumer, 3) == [b"x", b"y", b"z"]


async def test_data_fetched_before_a_truncation_is_not_delivered(broker: ScriptedBroker) -> None:
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


async def test_a_position_of_a_deleted_topic_is_not_used_in_the_one_that_was_made_again(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.add(*[b"%d" % number for number in range(60)])
    async with reader(broker) as consumer:
        await take(consumer, 60)
        log.records[0] = []
        log.topic_id = UUID(int=2)
        log.add(*[b"new %d" % number for number in range(400)])

        assert await take(consumer, 400) == [b"new %d" % number for number in range(400)]


async def test_data_that_arrives_during_a_validation_is_not_taken_for_truncated(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(broker)
    log.add(b"a", b"b")
    asked, may = asyncio.Event(), asyncio.Event()
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"a", b"b"]
        waiting = await waits_for(consumer)
        ask = consumer._lifecycle.fetch.offset_lookups.once_epoch_ends

        async def slowly(wanted: Mapping[TopicPartition, tuple[int, int]]) -> LookupResults[EpochEnd]:
            answers = await ask(wanted)
            asked.set()
            await may.wait()
            return answers

        monkeypatch.setattr(consumer._lifecycle.fetch.offset_lookups, "once_epoch_ends", slowly)
        state = consumer._positions[A]
        state.must_validate = True
        consumer._lifecycle.fetch.wake()
        await asked.wait()
        log.epoch = 2
        log.add(b"c", b"d")
        await consumer._lifecycle.fetch.fetcher._fetch(
            NODE_ID, [state], fetch_points([state])
        )  # it was out already when the leader changed
        assert [*await waiting, *await take(consumer, 1)] == [b"c", b"d"]
        may.set()
        log.add(b"e")
        assert await take(consumer, 1) == [b"e"]


async def test_a_leader_that_came_while_a_position_was_validated_is_asked_too(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(broker)
    log.add(b"a", b"lost")
    asked, may = asyncio.Event(), asyncio.Event()
    async with reader(broker) as consumer:
        assert await take(consumer, 2) == [b"a", b"lost"]
        ask = consumer._lifecycle.fetch.offset_lookups.once_epoch_ends

        async def slowly(wanted: Mapping[TopicPartition, tuple[int, int]]) -> LookupResults[EpochEnd]:
            answers = await ask(wanted)
            asked.set()
            await may.wait()
            return answers

        monkeypatch.setattr(consumer._lifecycle.fetch.offset_lookups, "once_epoch_ends", slowly)
        state = consumer._positions[A]
        state.must_validate = True
        consumer._lifecycle.fetch.wake()
        await asked.wait()  # the leader says that nothing is truncated, and is none any more
        while consumer._lifecycle.fetch.fetcher._outstanding:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        log.records[0] = [(b"a", 1), (b"x", 2), (b"y", 2)]
        log.epoch = 2
        consumer._lifecycle.fetch.leaders.refresh_soon()
        while state.leader_epoch < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        may.set()

        assert await take(consumer, 2) == [b"x", b"y"]

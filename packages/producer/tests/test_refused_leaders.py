"""Batches whose leader is not the leader any more: retried as soon as metadata name another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.config import ClientConfig
from ottla.client.retry import Backoff
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.producer import Producer, ProducerConfig
from ottla.producer.accumulator import Accumulator, Appender, Batch
from ottla.producer.sender.partition_order import RefusedLeaders
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.topics import TopicPartition
from peers.accepting_broker import acknowledged, serving

NEW_ID = NODE_ID + 1
BOUND_S = 60
# A retry that waits for its backoff comes after the test's bound.
PATIENT = ClientConfig(retry_backoff_ms=300_000, retry_backoff_max_ms=300_000)


class Move:
    """Two brokers of which the second leads once the first was asked; metadata may tell of it later."""

    def __init__(self, old: ScriptedBroker, new: ScriptedBroker, *, told_late: int = 0) -> None:
        self.brokers = {NODE_ID: old, NEW_ID: new}
        self.has_moved = False
        self._told_late = told_late
        """So many answers still name the old leader."""
        for broker in (old, new):
            broker.on(MetadataRequest, self._metadata)

    def refuse(self, request: ProduceRequest) -> ProduceResponse:
        self.has_moved = True
        return acknowledged(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def break_off(self, _: ProduceRequest) -> None:
        self.has_moved = True

    def _metadata(self, _: MetadataRequest) -> MetadataResponse:
        is_told = self.has_moved and self._told_late <= 0
        self._told_late -= self.has_moved
        answer = self.brokers[NODE_ID].metadata("t", leader=NEW_ID if is_told else NODE_ID)
        answer.brokers = [
            MetadataResponseBroker(node_id=node, host=each.host, port=each.port)
            for node, each in self.brokers.items()
        ]
        return answer


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig(client=PATIENT, linger_ms=0, **settings)


@pytest.mark.parametrize("how", [Move.refuse, Move.break_off], ids=["refused", "broken off"])
async def test_a_batch_is_retried_without_a_backoff_when_another_broker_leads(
    how: Callable[[Move, ProduceRequest], ProduceResponse | None],
) -> None:
    async with serving(ScriptedBroker()) as old, serving(ScriptedBroker()) as new:
        move = Move(old, new)
        old.on(ProduceRequest, lambda request: how(move, request))
        async with asyncio.timeout(BOUND_S), Producer(old.bootstrap_servers, config()) as producer:
            assert (await producer.send_and_wait("t", b"x")).offset == 100

    assert len(old.seen(ProduceRequest)) == 1


async def test_metadata_are_asked_for_again_while_they_name_the_leader_that_refused() -> None:
    async with serving(ScriptedBroker()) as old, serving(ScriptedBroker()) as new:
        move = Move(old, new, told_late=3)
        old.on(ProduceRequest, move.refuse)
        async with asyncio.timeout(BOUND_S), Producer(old.bootstrap_servers, config()) as producer:
            producer._sender._refreshing_backoff = Backoff(1, 4)
            assert (await producer.send_and_wait("t", b"x")).offset == 100

    assert len(old.seen(ProduceRequest)) == 1


async def test_batches_that_were_in_flight_together_are_retried_in_order() -> None:
    written: list[int] = []

    def write(request: ProduceRequest) -> ProduceResponse:
        written.append(len(request.topic_data[0].partition_data[0].records or b""))
        return acknowledged(request, ErrorCode.NONE)

    async with serving(ScriptedBroker()) as old, serving(ScriptedBroker()) as new:
        move = Move(old, new)
        new.on(ProduceRequest, write)
        async with (
            asyncio.timeout(BOUND_S),
            Producer(old.bootstrap_servers, config(batch_size=1)) as producer,
        ):
            await producer.send_and_wait("t", b"")  # nothing follows the first batch before it is written
            old.on(ProduceRequest, move.refuse)
            for acknowledgement in [await producer.send("t", b"x" * size) for size in range(1, 9)]:
                await acknowledgement

    assert len(written) == 8
    assert written == sorted(written)


def refused_batch(known: Callable[[TopicPartition], int | None]) -> tuple[RefusedLeaders, Batch]:
    accumulator = Accumulator(
        batch_size=1, linger_ms=0, buffer_memory=10_000, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )
    Appender(accumulator).append(accumulator.update_topic("t", 1, [0]), None, b"x", 0, None, None)
    (batch,) = accumulator.incomplete_batches()
    return RefusedLeaders(lambda _: NODE_ID, known, lambda _: None), batch


def test_two_brokers_that_name_each_other_get_few_retries_at_once() -> None:
    leaders, batch = refused_batch(lambda _: NEW_ID)

    at_once = []
    for attempts in range(6):
        batch.attempts = attempts
        at_once.append(leaders.refused(batch))

    assert at_once == [True, True, True, False, False, False]
    assert not leaders


def test_a_leader_is_awaited_until_the_batch_is_sent_again_or_gone() -> None:
    known: int | None = None
    leaders, batch = refused_batch(lambda _: known)

    assert not leaders.refused(batch)
    batch.not_before_ms = 500.0
    leaders.refreshed("t")
    assert leaders.awaits("t")
    assert not leaders.awaits("other")

    known = NODE_ID  # no news
    leaders.refreshed("t")
    assert leaders.awaits("t")
    assert batch.not_before_ms == 500.0

    leaders.sent(batch)
    assert not leaders.awaits("t")
    leaders.refused(batch)
    known = NEW_ID
    leaders.refreshed("t")
    assert batch.not_before_ms == 0.0
    assert not leaders.awaits("t")

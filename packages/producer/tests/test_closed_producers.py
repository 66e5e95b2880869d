"""Calls of producers that are not open: before `start`, and after `stop`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.errors import NotRunning
from ottla.client.testing import ScriptedBroker
from ottla.producer import Producer, ProducerClosed, SyncProducer
from ottla.producer.accumulator import BatchBuilder
from ottla.protocol.topics import TopicPartition
from peers.accepting_broker import serving

OFFSETS = {TopicPartition("t", 0): 1}


def _filled() -> BatchBuilder:
    batch = BatchBuilder(1_000)
    batch.append(value=b"x")
    return batch


# Of both producers: a coroutine of one, and of the other the result or error itself.
CALLS: dict[str, Callable[[Any], Any]] = {
    "send": lambda producer: producer.send("t", b"x"),
    "send_and_wait": lambda producer: producer.send_and_wait("t", b"x"),
    "send_many": lambda producer: producer.send_many("t", [b"x"]),
    "send_arrow": lambda producer: producer.send_arrow("t", pa.table({"value": [b"x"]})),
    "send_batch": lambda producer: producer.send_batch(_filled(), "t", partition=0),
    "flush": lambda producer: producer.flush(),
    "partitions_for": lambda producer: producer.partitions_for("t"),
    "begin_transaction": lambda producer: producer.begin_transaction(),
    "commit_transaction": lambda producer: producer.commit_transaction(),
    "prepare_transaction": lambda producer: producer.prepare_transaction(),
    "abort_transaction": lambda producer: producer.abort_transaction(),
    "send_offsets": lambda producer: producer.send_offsets(OFFSETS, "group"),
}


async def _called(call: Callable[[Any], Any], producer: Producer) -> None:
    result = call(producer)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize("name", [*CALLS, "send_nowait"])
async def test_a_call_before_the_start_and_after_the_stop_raises_producer_closed(name: str) -> None:
    call = CALLS.get(name, lambda producer: producer.send_nowait("t", b"x"))
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        producer = Producer(broker.bootstrap_servers)
        with pytest.raises(ProducerClosed, match="the producer is not open; use it inside `async with`"):
            await _called(call, producer)
        await producer.start()
        await producer.send_and_wait("t", b"x")
        await producer.stop()
        with pytest.raises(ProducerClosed, match="the producer is not open; use it inside `async with`"):
            await _called(call, producer)
        connections = broker.connections
        await producer.start()
        await producer.send_and_wait("t", b"x")
        await producer.flush()
        await producer.stop()

    assert broker.connections > connections


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_of_a_synchronous_producer_raises_producer_closed_as_well(name: str) -> None:
    def use(servers: str) -> None:
        producer = SyncProducer(servers)
        with pytest.raises(ProducerClosed, match="the producer is not running; use it inside `with`"):
            CALLS[name](producer)
        producer.start()
        producer.send_and_wait("t", b"x")
        producer.stop()
        with pytest.raises(ProducerClosed, match="the producer is not running; use it inside `with`"):
            CALLS[name](producer)

    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        await asyncio.to_thread(use, broker.bootstrap_servers)


async def test_a_transaction_without_an_id_is_refused_for_that_while_the_producer_is_open() -> None:
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers) as producer:
            with pytest.raises(Exception, match="transactions need a transactional_id"):
                await producer.begin_transaction()


def test_producer_closed_is_the_error_of_any_client_that_does_not_run() -> None:
    assert issubclass(ProducerClosed, NotRunning)

"""Produce requests without tasks: what they cost, their order, and what becomes of errors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from ottla.client.connection import Connection
from ottla.client.errors import BadResponse
from ottla.client.testing import ScriptedBroker
from ottla.producer import Producer, RecordMetadata
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.records import read_header
from peers.accepting_broker import acknowledged, batches, serving


async def test_a_record_that_is_awaited_costs_no_task_and_few_python_calls() -> None:
    tasks, calls = 0, 0

    def create(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **how: Any
    ) -> asyncio.Task[Any]:
        nonlocal tasks
        tasks += 1
        return asyncio.Task(work, loop=loop, **how)

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal calls
        file = frame.f_code.co_filename
        calls += event == "call" and "/ottla/" in file and not file.endswith("client/testing.py")

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"x", partition=0)
            asyncio.get_running_loop().set_task_factory(create)  # type: ignore[arg-type]
            sys.setprofile(count)
            try:
                for _ in range(20):
                    await producer.send_and_wait("t", b"x", partition=0)
            finally:
                sys.setprofile(None)
                asyncio.get_running_loop().set_task_factory(None)

    assert tasks == 0
    assert calls / 20 < 100


async def test_a_bug_in_a_pass_ends_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(*_: object) -> None:
        raise ZeroDivisionError

    async with serving(ScriptedBroker()) as broker, asyncio.timeout(30):
        with pytest.raises(ZeroDivisionError):
            async with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
                monkeypatch.setattr(producer._sender._idempotence, "number", buggy)
                await producer.send_and_wait("t", b"x")


@pytest.mark.parametrize("error", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
async def test_a_bug_in_the_handling_of_a_response_ends_the_block(
    error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buggy(*_: object) -> None:
        raise ZeroDivisionError

    async with serving(ScriptedBroker()) as broker, asyncio.timeout(30):
        with pytest.raises(ZeroDivisionError):
            async with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
                await producer.send_and_wait("t", b"x")
                monkeypatch.setattr(producer._sender._completion, "written", buggy)
                monkeypatch.setattr(producer._sender._completion, "answered", buggy)
                broker.on(ProduceRequest, lambda request: acknowledged(request, error))
                await producer.send_and_wait("t", b"x")


async def test_a_request_is_not_sent_before_one_to_the_same_leader_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(30):
        async with Producer(broker.bootstrap_servers, batch_size=1, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"first")
            cluster, may_go = producer._cluster, asyncio.Event()
            connect = cluster.connection_to_leader

            async def late(node_id: int) -> Connection:
                await may_go.wait()
                return await connect(node_id)

            monkeypatch.setattr(cluster, "connection_to_leader", late)
            with monkeypatch.context() as patched:
                patched.setattr(cluster, "opened_connection", lambda _: None)
                waiting = [producer.send_nowait("t", b"second")]
                await turns(10)
            waiting.append(producer.send_nowait("t", b"third"))
            await turns(10)
            may_go.set()
            await asyncio.gather(*(sent.future() for sent in waiting))
            await producer.send_and_wait("t", b"fourth")

    assert [read_header(batch).base_sequence for batch in batches(broker)] == [0, 1, 2, 3]


async def test_a_response_that_cannot_be_read_fails_its_records_only() -> None:
    class Damaged:
        def encode(self, version: int) -> bytes:
            return b"\xff" * version

    def damaged(request: ProduceRequest) -> Any:
        broker.on(ProduceRequest, lambda request: acknowledged(request, 0))
        return Damaged()

    async with serving(ScriptedBroker()) as broker, asyncio.timeout(30):
        async with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"x")
            broker.on(ProduceRequest, damaged)
            with pytest.raises(BadResponse):
                await producer.send_and_wait("t", b"y")
            await producer.send_and_wait("t", b"z")

    assert len(batches(broker)) == 3


async def test_a_request_that_is_not_answered_in_time_is_sent_again() -> None:
    async with serving(ScriptedBroker()) as broker, asyncio.timeout(60):
        async with Producer(broker.bootstrap_servers, linger_ms=0, request_timeout_ms=300) as producer:
            await producer.send_and_wait("t", b"x")
            broker.ignore(ProduceRequest)
            sent = producer.send_nowait("t", b"y")
            while len(batches(broker)) < 3:
                await asyncio.wait([sent.future()], timeout=0.05)
            broker.on(ProduceRequest, lambda request: acknowledged(request, 0))
            await sent

    sequences = [read_header(batch).base_sequence for batch in batches(broker)]
    assert sequences[0] == 0
    assert set(sequences[1:]) == {1}


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_pass_may_be_due_at_a_time_that_has_passed(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def send() -> RecordMetadata:
        async with serving(ScriptedBroker()) as broker, asyncio.timeout(30):
            async with Producer(broker.bootstrap_servers, linger_ms=60_000) as producer:
                sent = producer.send_nowait("t", b"x")
                await producer.partitions_for("t")
                now_ms = asyncio.get_running_loop().time() * 1_000
                for late_ms in (5, 1, 10):
                    producer._sender._pass_at(now_ms, now_ms - late_ms)
            return sent.result()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(send()).offset == 100


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)

"""Memory of requests over all connections of a server: frames that are half sent, large, or stuck."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from ottla.broker.network.testing import Client, Network, heartbeat, leave, network, produce, string
from ottla.broker.requests.routes import always
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode

BUDGET = 32 << 20
MEBI = 1 << 20


def produce_head(size: int) -> bytes:
    return struct.pack(">ihhi", size, ApiKey.PRODUCE, 3, 1) + string("test")


async def held(made: Network, at_least: int) -> None:
    await made.until(lambda: made.server.request_memory.held_bytes >= at_least)


async def send_half(made: Network, client: Client, count: int) -> None:
    """Send `count` bytes of a Produce of 100 MB."""
    client.writer.write(produce_head(100_000_000) + b"x" * count)
    await client.writer.drain()


async def test_half_sent_frames_hold_no_more_than_the_budget(caplog: pytest.LogCaptureFixture) -> None:
    most = 0
    async with network(queued_max_request_bytes=BUDGET) as made:
        good = await made.client()
        for number in range(20):
            client = await made.client()
            with_half = asyncio.create_task(send_half(made, client, 10 * MEBI))
            await made.until(lambda: with_half.done() or client.reader.at_eof())  # noqa: B023
            await asyncio.gather(with_half, return_exceptions=True)
            await made.settle()
            most = max(most, made.server.request_memory.held_bytes)
            good.send(heartbeat(number))
            assert await good.numbers(1) == [number]

        assert most <= BUDGET
        assert sum(one.kept_bytes > 0 for one in made.server.connections.all()) <= 3
    [reason] = [vars(one)["reason"] for one in caplog.records if one.levelno >= logging.WARNING]
    assert "queued.max.request.bytes" in reason


async def test_a_request_of_a_slow_link_comes_through_beside_half_sent_frames() -> None:
    async with network(queued_max_request_bytes=BUDGET) as made:
        made.stop_looking()
        slow, size = await made.client(), MEBI
        frame = heartbeat(7, "slow") + b"x" * size  # bytes behind a request are ignored
        data = struct.pack(">i", len(frame)) + frame
        for step in range(8):
            slow.writer.write(data[step * len(data) // 8 : (step + 1) * len(data) // 8])
            await slow.writer.drain()
            await made.settle()
            made.server.request_memory.look(1000.0 + step)
            attacker = await made.client()
            await asyncio.gather(send_half(made, attacker, 12 * MEBI), return_exceptions=True)
            await made.settle()

        assert await slow.numbers(1) == [7]


async def test_a_stuck_frame_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with network() as made:
        stuck, waiting, idle = await made.client(), await made.client(), await made.client()
        stuck.writer.write(produce_head(1000))
        waiting.send(heartbeat(1, "wait"), heartbeat(2))
        idle.send(heartbeat(3))
        assert await idle.numbers(1) == [3]
        await made.settle()
        made.stop_looking()

        for now_s in range(40):
            made.server.request_memory.look(now_s)

        assert await stuck.is_closed()
        made.answering.released.set()
        assert await waiting.numbers(2) == [1, 2]
        idle.send(heartbeat(4))
        assert await idle.numbers(1) == [4]
    assert "nothing came for 30 s" in vars(caplog.records[-1])["reason"]


async def test_a_large_request_other_than_produce_is_refused_at_its_head(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with network() as made:
        client = await made.client()

        client.writer.write(struct.pack(">ihhi", 8 * MEBI + 1, ApiKey.HEARTBEAT, 0, 1))

        assert await client.is_closed()
    assert "client.request.max.bytes is 8388608" in vars(caplog.records[-1])["reason"]


async def test_a_broker_may_send_larger_requests() -> None:
    async with network(is_broker=lambda _: True, queued_max_request_bytes=MEBI) as made:
        peer = await made.client()
        frame = heartbeat(7) + b"x" * (9 * MEBI)

        peer.writer.write(struct.pack(">i", len(frame)) + frame)

        assert await peer.numbers(1) == [7]


async def test_one_large_request_of_a_possible_broker_lifts_the_limit_for_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with network(is_broker=lambda _: None, heartbeats_from=always) as made:
        peer = await made.client()
        peer.send(heartbeat(7) + b"x" * (9 * MEBI))
        assert await peer.answers(1) == [(7, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]

        peer.send(leave(8) + b"x" * (9 * MEBI))

        assert await peer.is_closed()
        assert made.answering.started == []
    assert "client.request.max.bytes is 8388608" in vars(caplog.records[-1])["reason"]


async def test_requests_that_wait_for_other_clients_hold_up_no_large_request() -> None:
    async with network(queued_max_request_bytes=2 * MEBI) as made:
        waiting = [await made.client() for _ in range(2)]
        for number, one in enumerate(waiting, 1):
            one.send(heartbeat(number, "wait") + b"x" * (600 << 10))
        await made.until(lambda: len(made.answering.started) == 1)

        other = await made.client()
        other.send(leave(3) + b"x" * (600 << 10))

        assert await other.numbers(1) == [3]
        assert len(made.answering.started) == 2
        made.answering.released.set()


async def test_large_requests_begin_while_those_in_progress_leave_memory() -> None:
    def large(request: bytes) -> bytes:
        return request + b"x" * (600 << 10)

    async with network(queued_max_request_bytes=2 * MEBI) as made:
        clients = [await made.client() for _ in range(4)]
        clients[0].send(large(heartbeat(1, "wait")))
        await made.until(lambda: made.answering.started == [1])
        clients[1].send(large(heartbeat(2)))
        await made.settle()
        assert made.answering.started == [1]

        clients[2].send(heartbeat(3))
        clients[3].send(large(produce(4)))
        assert await clients[2].numbers(1) == [3]
        assert await clients[3].numbers(1) == [4]

        assert 2 not in made.answering.started
        made.answering.released.set()
        assert await clients[0].numbers(1) == [1]
        assert await clients[1].numbers(1) == [2]


async def test_producers_and_small_requests_that_wait_hold_up_no_large_request() -> None:
    async with network(queued_max_request_bytes=2 * MEBI) as made:
        producers = [await made.client() for _ in range(3)]
        for number, one in enumerate(producers, 1):
            one.send(produce(number, "wait") + b"x" * (600 << 10))
        small, large = await made.client(), await made.client()
        small.send(heartbeat(4, "wait"))
        await made.until(lambda: len(made.answering.started) == 4)

        large.send(heartbeat(5) + b"x" * MEBI)

        assert await large.numbers(1) == [5]
        made.answering.released.set()


async def test_zero_is_no_limit() -> None:
    async with network(queued_max_request_bytes=0) as made:
        client = await made.client()
        frame = heartbeat(7) + b"x" * MEBI
        data = struct.pack(">i", len(frame)) + frame
        client.writer.write(data[:1000])
        await held(made, 1000)
        client.writer.write(data[1000:])

        assert await client.numbers(1) == [7]


async def test_nothing_is_held_when_all_is_answered_or_closed() -> None:
    async with network() as made:
        client, left = await made.client(), await made.client()
        frame = heartbeat(7) + b"x" * (2 * MEBI)
        client.writer.write(struct.pack(">i", len(frame)) + frame)
        assert await client.numbers(1) == [7]
        await send_half(made, left, 2 * MEBI)
        await held(made, 2 * MEBI)

        left.writer.close()

        await made.until(lambda: made.server.request_memory.held_bytes == 0)

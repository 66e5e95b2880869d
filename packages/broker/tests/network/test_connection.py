"""Connections over real sockets, with frames made by hand: order, limits, failures, stopping."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest

from ottla.broker.config import BrokerConfig
from ottla.broker.network import open_connections
from ottla.broker.network.requests_in_progress import MAX_IN_FLIGHT
from ottla.broker.network.testing import (
    BOUND_S,
    heartbeat,
    leave,
    network,
    on_both_loops,
    produce,
    string,
    sync,
)
from ottla.protocol.api import ApiKey


@pytest.fixture(autouse=True)
def reserved_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the connection beyond the limits for its first holder, however slow the machine is."""
    monkeypatch.setattr(open_connections, "RESERVED_MS", 600_000.0)


@on_both_loops
async def test_a_request_is_answered() -> None:
    async with network() as made:
        client = await made.client()

        client.send(heartbeat(7))

        assert await client.answers(1) == [(7, 7)]


@on_both_loops
async def test_requests_that_come_together_are_answered_in_order() -> None:
    async with network() as made:
        client = await made.client()

        client.send(*(heartbeat(one) if one % 3 else leave(one) for one in range(100)))

        assert await client.answers(100) == [(one, one) for one in range(100)]
        assert made.answering.started == list(range(100))


@on_both_loops
async def test_a_frame_may_come_byte_by_byte() -> None:
    async with network() as made:
        client = await made.client()
        frame = heartbeat(1)

        for byte in struct.pack(">i", len(frame)) + frame:
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)

        assert await client.answers(1) == [(1, 1)]


@on_both_loops
async def test_a_request_starts_when_the_one_before_it_is_answered() -> None:
    async with network() as made:
        client = await made.client()

        client.send(heartbeat(1, "wait"), heartbeat(2), leave(3), produce(4), heartbeat(5))
        await made.settle()

        assert made.answering.started == [1]
        made.answering.released.set()
        assert await client.numbers(5) == [1, 2, 3, 4, 5]
        assert made.answering.started == [1, 2, 3, 4, 5]


@on_both_loops
async def test_a_produce_directly_behind_a_produce_starts_at_once_and_nothing_else_does() -> None:
    async with network() as made:
        client = await made.client()

        client.send(produce(1, "wait"), produce(2), produce(3, "wait"), heartbeat(4), produce(5), leave(6))
        await made.settle()

        assert made.answering.started == [1, 2, 3]
        made.answering.released.set()
        assert await client.numbers(6) == [1, 2, 3, 4, 5, 6]
        assert made.answering.started == [1, 2, 3, 4, 5, 6]


@on_both_loops
@pytest.mark.parametrize("first", [heartbeat(1, "wait"), leave(1, "wait")], ids=["task", "at once"])
async def test_a_produce_behind_another_request_waits(first: bytes) -> None:
    async with network() as made:
        client = await made.client()

        client.send(first, produce(2))
        await made.settle()
        client.send(produce(3))
        await made.settle()

        assert made.answering.started == [1]
        made.answering.released.set()
        assert await client.numbers(3) == [1, 2, 3]


@on_both_loops
async def test_requests_of_different_connections_do_not_wait_for_each_other() -> None:
    async with network() as made:
        waiting, other = await made.client(), await made.client()

        waiting.send(heartbeat(1, "wait"))
        await made.until(lambda: made.answering.started == [1])
        other.send(heartbeat(2))

        assert await other.numbers(1) == [2]


@pytest.mark.parametrize("size", [-1, 0, 7, 1025, 2**31 - 1])
async def test_a_frame_of_an_impossible_size_closes_the_connection_with_one_line(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with network(socket_request_max_bytes=1024) as made:
        client, other = await made.client(), await made.client()

        with caplog.at_level(logging.WARNING, "request"):
            client.writer.write(struct.pack(">i", size))
            assert await client.is_closed()

        assert len([one for one in caplog.records if one.name == "request"]) == 1
        other.send(heartbeat(1))
        assert await other.answers(1) == [(1, 1)]


@on_both_loops
async def test_many_bad_frames_of_one_address_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with network() as made:
        for number in range(40):
            client = await made.client()
            client.writer.write(struct.pack(">i", -number))
            assert await client.is_closed()

        lines = [one.getMessage() for one in caplog.records if one.name == "request"]
        assert len(lines) == 1, lines


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">hhi", 999, 0, 1) + string("test"),
        struct.pack(">hhi", -1, 0, 1) + string("test"),
        heartbeat(1, version=9),
        heartbeat(1, version=-1),
        heartbeat(1)[:-1],
        heartbeat(1)[:12],
        struct.pack(">hhih", ApiKey.HEARTBEAT, 0, 1, 30_000),
    ],
)
@on_both_loops
async def test_bytes_that_are_no_request_close_the_connection(frame: bytes) -> None:
    async with network() as made:
        client = await made.client()

        client.send(frame)

        assert await client.is_closed()


@on_both_loops
@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (
            struct.pack(">hhi", 68, 3, 5) + string("a client"),
            "CONSUMER_GROUP_HEARTBEAT v3 of client 'a client'",
        ),
        (struct.pack(">hhi", 999, 3, 5) + string("a\nclient"), "API key 999 v3 of client 'a\\nclient'"),
        (struct.pack(">hhi", 999, 3, 5) + struct.pack(">h", 9) + b"short", "API key 999 v3 of client ''"),
        (struct.pack(">hhi", 999, 3, 5), "API key 999 v3 of client ''"),
    ],
    ids=["known", "unknown", "damaged", "without a client"],
)
async def test_an_api_that_is_not_served_closes_its_connection_and_is_logged_with_its_client(
    frame: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with network() as made:
        client, other = await made.client(), await made.client()

        client.send(frame)

        assert await client.is_closed()
        other.send(heartbeat(1))
        assert await other.answers(1) == [(1, 1)]
    assert f"{name} is not served" in vars(caplog.records[-1])["reason"]


@on_both_loops
async def test_an_unknown_version_of_api_versions_gets_the_list_in_version_0() -> None:
    async with network() as made:
        client = await made.client()

        client.send(struct.pack(">hhi", ApiKey.API_VERSIONS, 99, 5) + string("test") + b"\0")
        correlation_id, body = await client.answer()

        assert correlation_id == 5
        error, count = struct.unpack_from(">hi", body)
        ranges = {struct.unpack_from(">hhh", body, 6 + 6 * one) for one in range(count)}
        assert error == 35
        assert (int(ApiKey.API_VERSIONS), 0, 3) in ranges
        assert len(ranges) == 5
        client.send(heartbeat(6))
        assert await client.answers(1) == [(6, 6)]


@on_both_loops
async def test_a_broken_handler_is_answered_with_unknown_server_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with network() as made:
        client = await made.client()

        client.send(heartbeat(1, "fail"), heartbeat(2), heartbeat(3, "kafka"))

        assert await client.answers(3) == [(1, -1), (2, 2), (3, 69)]
        assert "a handler that is broken" in caplog.text


@on_both_loops
async def test_a_request_that_cannot_even_be_answered_costs_its_connection_only() -> None:
    async with network() as net:
        unlucky, other = await net.client(), await net.client()
        unlucky.send(heartbeat(1, "impossible"))
        assert await unlucky.is_closed()

        other.send(heartbeat(2))

        assert await other.answers(1) == [(2, 2)]


@on_both_loops
async def test_a_handler_may_close_the_connection() -> None:
    async with network() as made:
        client = await made.client()

        client.send(heartbeat(1, "close"))

        assert await client.is_closed()


@on_both_loops
async def test_a_request_without_an_answer_gets_none() -> None:
    async with network() as made:
        client = await made.client()

        client.send(heartbeat(1, "silent"), heartbeat(2))

        assert await client.answers(1) == [(2, 2)]


@on_both_loops
async def test_waiting_requests_are_cancelled_when_their_client_disconnects() -> None:
    async with network() as made:
        client = await made.client()
        client.send(heartbeat(1, "wait"))
        await made.until(lambda: made.answering.started == [1])

        client.writer.close()
        await made.until(lambda: made.answering.cancelled == [1])

        assert len(made.server.connections) == 0


@on_both_loops
async def test_a_client_that_disconnects_before_its_request_starts_leaves_nothing_queued() -> None:
    async with network() as net:
        await net.client()
        await net.until(lambda: bool(net.server.connections))
        connection, request = net.server.connections.all()[0], heartbeat(1, "wait")
        frame = struct.pack(">i", len(request)) + request
        connection.get_buffer(-1)[: len(frame)] = frame
        connection.buffer_updated(len(frame))

        connection.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert net.server.queue.unstarted == 0


@on_both_loops
async def test_too_many_unanswered_requests_stop_the_reading_until_some_are_answered() -> None:
    many = MAX_IN_FLIGHT * 3
    async with network() as made:
        client = await made.client()
        client.send(*(produce(one, "wait") for one in range(many)))
        await made.until(lambda: len(made.answering.started) == MAX_IN_FLIGHT)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(made.answering.started) == MAX_IN_FLIGHT

        made.answering.released.set()

        assert await client.numbers(many) == list(range(many))


@on_both_loops
async def test_the_queue_is_bounded_over_all_connections() -> None:
    async with network(queued_max_requests=2) as made:
        clients = [await made.client() for _ in range(5)]
        for client in clients:
            client.send(*(heartbeat(one) for one in range(20)))

        for client in clients:
            assert await client.answers(20) == [(one, one) for one in range(20)]


@on_both_loops
async def test_waiting_requests_do_not_count_as_queued() -> None:
    async with network(queued_max_requests=2) as made:
        clients = [await made.client() for _ in range(6)]
        for number, client in enumerate(clients):
            client.send(heartbeat(number, "wait"))
        await made.until(lambda: len(made.answering.started) == 6)

        made.answering.released.set()

        for number, client in enumerate(clients):
            assert await client.answers(1) == [(number, number)]


@on_both_loops
async def test_reading_pauses_while_the_client_does_not_read() -> None:
    async with network(socket_send_buffer_bytes=4096, socket_receive_buffer_bytes=4096) as made:
        client = await made.client()
        count = 40_000
        frames = b"".join(struct.pack(">i", len(one)) + one for one in (leave(7) for _ in range(count)))
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(frames)
        begun = -1
        while begun != len(made.answering.started):
            begun = len(made.answering.started)
            await asyncio.sleep(0.1)

        assert begun < count
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(40):
            await client.reader.readexactly(count * 10)


@on_both_loops
async def test_a_silent_connection_is_closed_and_a_used_one_is_not() -> None:
    async with network(connections_max_idle_ms=60_000) as made:
        idle, used, waiting = await made.client(), await made.client(), await made.client()
        waiting.send(heartbeat(1, "wait"))
        used.send(heartbeat(2))
        await used.answers(1)
        now_s = asyncio.get_running_loop().time()
        for connection in made.server.connections.all():
            connection.last_active_s = connection.looked_at_s = now_s - 61
        used.send(heartbeat(3))
        await used.answers(1)

        made.server.close_idle(now_s + 1)

        assert await idle.is_closed()
        used.send(heartbeat(4))
        assert await used.answers(1) == [(4, 4)]
        made.answering.released.set()
        assert await waiting.answers(1) == [(1, 1)]


@on_both_loops
async def test_connections_from_one_address_are_limited() -> None:
    async with network(max_connections_per_ip=2) as made:
        first, _second, beyond = [await made.client() for _ in range(3)]
        for client in (first, beyond):
            client.send(heartbeat(1))
            await client.answers(1)
        refused = await made.client()
        assert await refused.is_closed()

        first.writer.close()
        beyond.writer.close()
        await made.until(lambda: len(made.server.connections) == 1)

        third = await made.client()
        third.send(heartbeat(1))
        assert await third.answers(1) == [(1, 1)]


@on_both_loops
async def test_connections_of_the_broker_are_limited() -> None:
    async with network(max_connections=1) as made:
        for _ in range(2):  # one more from this machine
            client = await made.client()
            client.send(heartbeat(1))
            await client.answers(1)

        assert await (await made.client()).is_closed()


@on_both_loops
async def test_no_limit_shuts_out_this_machine() -> None:
    async with network(max_connections=0) as made:
        for _ in range(3):  # one after the other
            client = await made.client()
            client.send(heartbeat(1))
            assert await client.answers(1) == [(1, 1)]
            assert await (await made.client()).is_closed()
            client.writer.close()
            await made.until(lambda: len(made.server.connections) == 0)


async def test_limits_may_change_while_connections_are_open() -> None:
    async with network(max_connections=2) as made:
        first = await made.client()
        first.send(heartbeat(1))
        await first.answers(1)

        made.server.connections.set_limits(BrokerConfig(max_connections=1))

        beyond = await made.client()
        beyond.send(heartbeat(1))
        await beyond.answers(1)
        assert await (await made.client()).is_closed()
        first.send(heartbeat(2))
        assert await first.answers(1) == [(2, 2)]


@on_both_loops
async def test_stopping_answers_started_requests_and_takes_no_new_ones() -> None:
    async with network() as made:
        client = await made.client()
        client.send(leave(1, "wait"))
        await made.until(lambda: made.answering.started == [1])

        async with asyncio.TaskGroup() as group:
            group.create_task(made.server.stop(drain_s=BOUND_S))
            await asyncio.sleep(0)
            client.send(leave(2))
            made.answering.released.set()
            assert await client.answers(1) == [(1, 1)]

        assert await client.is_closed()
        assert made.answering.started == [1]


@on_both_loops
async def test_stopping_does_not_wait_for_ever() -> None:
    async with network() as made:
        client = await made.client()
        client.send(leave(1, "wait"))
        await made.until(lambda: made.answering.started == [1])

        await made.server.stop(drain_s=0.05)

        assert await client.is_closed()
        assert len(made.server.connections) == 0


@on_both_loops
@pytest.mark.parametrize("waiting", [sync(1), heartbeat(1, "wait")], ids=["for clients", "for data"])
async def test_stopping_ends_requests_that_only_wait(waiting: bytes) -> None:
    async with network() as made:
        client = await made.client()
        client.send(waiting)
        await made.until(lambda: made.answering.started == [1])

        async with asyncio.timeout(30):
            await made.server.stop(drain_s=3600)

        assert await client.is_closed()
        assert len(made.server.connections) == 0


@on_both_loops
async def test_requests_are_counted() -> None:
    async with network() as made:
        client = await made.client()
        client.send(heartbeat(1), leave(2))
        await client.answers(2)

        metrics = made.server.request_metrics
        assert metrics.requests(ApiKey.HEARTBEAT, 0).count == 1
        assert metrics.requests(ApiKey.LEAVE_GROUP, 0).count == 1
        assert metrics.of(ApiKey.HEARTBEAT).total_time_ms.count == 1
        assert metrics.bytes_in.count == len(heartbeat(1)) + len(leave(2)) + 8
        assert metrics.bytes_out.count == 20

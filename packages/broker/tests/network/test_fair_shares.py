"""Clients that want more than their share: of the event loop, of memory for answers, of waits."""

from __future__ import annotations

import asyncio
import socket
import struct
from itertools import pairwise

import pytest
import uvloop

from ottla.broker.network import request_queue, response_queue
from ottla.broker.network.listener import CLOSING_MS
from ottla.broker.network.testing import heartbeat, leave, network, on_both_loops
from ottla.broker.runtime.environment import SystemClock
from ottla.broker.runtime.loop_budget import ARRIVED_REQUESTS_MS, LoopBudget


async def test_a_wait_ends_when_its_client_disconnects_while_another_request_stands_behind() -> None:
    async with network() as made:
        client = await made.client()
        client.send(heartbeat(1, "wait"), heartbeat(2))
        await made.until(lambda: made.answering.started == [1])
        await made.settle()

        client.writer.close()
        await made.settle()
        made.server.connections.end_unseen_waits()

        await made.until(lambda: len(made.server.connections) == 0)
        assert made.answering.cancelled == [1]


async def test_a_wait_that_ends_before_its_first_step_leaves_nothing_queued() -> None:
    async with network() as made:
        client = await made.client()
        await made.until(lambda: bool(made.server.connections))
        connection = made.server.connections.all()[0]
        frames = b"".join(struct.pack(">i", len(one)) + one for one in (heartbeat(1, "wait"), heartbeat(2)))
        connection.get_buffer(-1)[: len(frames)] = frames
        connection.buffer_updated(len(frames))

        connection.end_wait()

        assert await client.numbers(1) == [2]
        assert made.server.queue.unstarted == 0
        assert made.server.request_memory.in_progress == 0


async def test_many_requests_of_one_client_leave_the_loop_to_others() -> None:
    async with network(budget=LoopBudget(arrived_requests_ms=0.0)) as made:
        noisy, other = await made.client(), await made.client()
        noisy.send(*(leave(one) for one in range(1, 5001)))
        await made.until(lambda: bool(made.answering.started))

        other.send(leave(0))

        assert await other.numbers(1) == [0]
        assert len(made.answering.started) < 5001
        assert await noisy.numbers(5000) == list(range(1, 5001))


@on_both_loops
async def test_clients_that_leave_together_are_closed_in_turn() -> None:
    async with network(budget=LoopBudget(closed_connections_ms=2 * CLOSING_MS)) as made:
        clients = [await made.client() for _ in range(40)]
        connections = made.server.connections
        await made.until(lambda: len(connections) == 40)

        for client in clients:
            client.writer.close()
        open_in_each_turn = [40]
        async with asyncio.timeout(30):
            while connections:
                await asyncio.sleep(0)
                open_in_each_turn.append(len(connections))

        closed = [before - after for before, after in pairwise(open_in_each_turn)]
        assert max(closed) <= 4, "most were closed in one turn of the event loop"


@on_both_loops
async def test_a_request_does_not_wait_for_the_end_of_clients_that_leave_together() -> None:
    async with network(budget=LoopBudget(arrived_requests_ms=0.0)) as made:
        leaving = [socket.create_connection((made.host, made.port)) for _ in range(400)]
        first, second = await made.client(), await made.client()
        connections = made.server.connections
        await made.until(lambda: len(connections) == 402)
        for one in leaving:
            one.close()

        first.send(leave(1))  # uses up the turn: the other request stands in a queue
        second.send(leave(2))

        assert await first.numbers(1) == [1]
        assert await second.numbers(1) == [2]
        assert len(connections) > 100, "they were closed before an open connection was served"
        await made.until(lambda: len(connections) == 2)


@on_both_loops
async def test_a_client_that_only_ends_its_side_is_given_the_answer_in_work() -> None:
    async with network() as made:
        client = await made.client()
        client.send(leave(7, "wait"))
        await made.until(lambda: made.answering.started == [7])

        client.writer.write_eof()
        await made.settle()
        made.answering.released.set()

        assert await client.numbers(1) == [7]
        assert await client.is_closed()


async def test_answers_that_a_client_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_queue, "MAX_UNSENT_BYTES", 1000)
    async with network(socket_send_buffer_bytes=4096, socket_receive_buffer_bytes=1 << 20) as made:
        client = await made.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await made.until(lambda: bool(made.server.connections))
        connection = made.server.connections.all()[0]
        count, request = 40_000, leave(7)
        # In one receive, as a busy broker's connections have it.
        frames = (struct.pack(">i", len(request)) + request) * count
        connection.get_buffer(-1)[: len(frames)] = frames
        connection.buffer_updated(len(frames))
        await made.settle()

        waiting = connection.transport.get_write_buffer_size() + connection.responses.queued_bytes
        assert waiting <= 2000
        client.writer.close()
        await made.until(lambda: len(made.server.connections) == 0)
        assert connection.responses.queued_bytes == connection.kept_bytes == 0


def test_a_turn_ends_by_a_clock_that_runs_during_it() -> None:
    """The loop's own clock stands still during a turn of uvloop."""

    async def turn() -> bool:
        clock = SystemClock()
        queue = request_queue.RequestQueue(1, LoopBudget(clock.monotonic_ms).arrived_requests)
        began_ms = clock.monotonic_ms()
        assert not queue.turn_is_over()
        while clock.monotonic_ms() < began_ms + 2 * ARRIVED_REQUESTS_MS:
            pass
        return queue.turn_is_over()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(turn())

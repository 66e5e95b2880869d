"""A muted connection begins no request for a time, and then goes on by itself: quotas will mute."""

from __future__ import annotations

import asyncio

from ottla.broker.network.connection import Connection
from ottla.broker.network.testing import Network, heartbeat, leave, network, on_both_loops

FOR_EVER_MS = 3_600_000


def only_connection(made: Network) -> Connection:
    (connection,) = made.server.connections.all()
    return connection


def now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000


@on_both_loops
async def test_a_muted_connection_begins_no_request_and_goes_on_by_itself() -> None:
    async with network() as made:
        client = await made.client()
        client.send(leave(1))
        assert await client.numbers(1) == [1]
        connection, until_ms = only_connection(made), now_ms() + 50

        connection.mute(until_ms)
        client.send(leave(2), leave(3))

        assert await client.numbers(2) == [2, 3]
        assert now_ms() >= until_ms
        assert made.answering.started == [1, 2, 3]


@on_both_loops
async def test_requests_that_were_begun_are_answered_while_the_connection_is_muted() -> None:
    async with network() as made:
        client, other = await made.client(), await made.client()
        client.send(heartbeat(1, "wait"), heartbeat(2))
        await made.until(lambda: made.answering.started == [1])
        muted = next(known for known in made.server.connections.all() if not known.idle)

        muted.mute(now_ms() + FOR_EVER_MS)
        made.answering.released.set()

        assert await client.numbers(1) == [1]
        other.send(leave(3))  # no other client waits
        assert await other.numbers(1) == [3]
        await made.settle()
        assert made.answering.started == [1, 3]
        assert not muted.reading
        assert not muted.idle, "it is not closed for being idle"


@on_both_loops
async def test_what_stands_behind_a_request_whose_answer_mutes_waits_for_the_end() -> None:
    async with network() as made:
        client = await made.client()
        client.send(heartbeat(1, "wait"), leave(2))
        await made.until(lambda: made.answering.started == [1])
        connection, until_ms = only_connection(made), now_ms() + 50

        connection.mute(until_ms)
        made.answering.released.set()

        assert await client.numbers(2) == [1, 2]
        assert now_ms() >= until_ms


@on_both_loops
async def test_the_latest_of_several_times_counts() -> None:
    async with network() as made:
        client = await made.client()
        await made.until(lambda: len(made.server.connections) == 1)
        connection, start_ms = only_connection(made), now_ms()

        for wait_ms in (30, 80, 10):
            connection.mute(start_ms + wait_ms)
        client.send(leave(1))

        assert await client.numbers(1) == [1]
        assert now_ms() >= start_ms + 80


@on_both_loops
async def test_a_stopped_connection_stays_stopped_when_its_mute_ends() -> None:
    async with network() as made:
        client = await made.client()
        await made.until(lambda: len(made.server.connections) == 1)
        connection = only_connection(made)

        connection.mute(now_ms() + 10)
        connection.stop_taking()
        client.send(leave(1))
        await made.until(lambda: not connection.intake.is_muted)
        await made.settle()
        assert made.answering.started == []
        connection.take_again()

        assert await client.numbers(1) == [1]


@on_both_loops
async def test_a_stop_that_ends_leaves_a_connection_muted() -> None:
    async with network() as made:
        client = await made.client()
        await made.until(lambda: len(made.server.connections) == 1)
        connection = only_connection(made)

        connection.mute(now_ms() + FOR_EVER_MS)
        connection.stop_taking()
        connection.take_again()
        client.send(leave(1))
        await made.settle()

        assert made.answering.started == []


@on_both_loops
async def test_a_connection_that_closes_while_it_is_muted_leaves_no_timer() -> None:
    async with network() as made:
        client = await made.client()
        await made.until(lambda: len(made.server.connections) == 1)
        connection = only_connection(made)

        connection.mute(now_ms() + FOR_EVER_MS)
        end = connection.intake._end_of_mute
        connection.close()
        assert await client.is_closed()
        await made.until(lambda: not len(made.server.connections))

        assert end is not None
        assert end.cancelled()

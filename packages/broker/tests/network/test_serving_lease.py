"""Requests and answers after the end of the lease, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from ottla.broker.network.native_connection import WriteRound
from ottla.broker.network.serving_lease import ServingLease
from ottla.broker.network.testing import (
    BOUND_S,
    Client,
    Network,
    heartbeat,
    leave,
    network,
    on_both_loops,
    produce,
)
from ottla.broker.runtime.environment import SystemClock


def end_lease(made: Network) -> None:
    made.server.lease.extend(SystemClock().monotonic_ms() - 1_000)


def extend_lease(made: Network) -> None:
    made.server.lease.extend(SystemClock().monotonic_ms() + 3_600_000)


async def nothing_comes(client: Client) -> None:
    """Let both ends do everything that they can do; they share the loop."""
    for _ in range(50):
        await asyncio.sleep(0)
    assert not client.reader._buffer  # type: ignore[attr-defined]


@on_both_loops
async def test_requests_after_the_end_of_the_lease_wait_until_it_is_extended() -> None:
    async with network() as made:
        client = await made.client()
        client.send(heartbeat(1))
        await client.numbers(1)
        end_lease(made)

        client.send(*(leave(one) for one in range(2, 6)), produce(6), heartbeat(7))
        await made.until(lambda: made.server.lease.is_held)
        await nothing_comes(client)
        assert made.answering.started == [1]

        extend_lease(made)
        assert await client.numbers(6) == [2, 3, 4, 5, 6, 7]
        assert not made.server.lease.is_held


@on_both_loops
async def test_an_answer_that_is_ready_after_the_end_of_the_lease_waits() -> None:
    async with network() as made:
        client = await made.client()
        client.send(leave(1, "wait"))
        await made.until(lambda: made.answering.started == [1])
        end_lease(made)

        made.answering.released.set()
        await made.until(lambda: made.server.lease.is_held)
        await nothing_comes(client)

        extend_lease(made)
        assert await client.numbers(1) == [1]


@on_both_loops
async def test_a_connection_that_is_accepted_meanwhile_waits_too() -> None:
    async with network() as made:
        first = await made.client()
        end_lease(made)
        first.send(heartbeat(1))
        await made.until(lambda: made.server.lease.is_held)

        second = await made.client()
        second.send(heartbeat(2))
        await nothing_comes(second)

        extend_lease(made)
        assert (await first.numbers(1), await second.numbers(1)) == ([1], [2])


@on_both_loops
async def test_a_server_that_stops_while_it_holds_answers_drops_them() -> None:
    async with network() as made:
        client = await made.client()
        client.send(leave(1, "wait"))
        await made.until(lambda: made.answering.started == [1])
        end_lease(made)
        made.answering.released.set()
        await made.until(lambda: made.server.lease.is_held)

        async with asyncio.timeout(BOUND_S):
            await made.server.stop()
        extend_lease(made)

        assert await client.is_closed()


@on_both_loops
async def test_a_connection_that_is_closed_while_it_is_held_is_forgotten() -> None:
    async with network() as made:
        client = await made.client()
        end_lease(made)
        client.send(heartbeat(1))
        await made.until(lambda: made.server.lease.is_held)
        for connection in made.server.connections.all():
            connection.abort()
        await made.until(lambda: not made.server.connections)

        extend_lease(made)

        other = await made.client()
        other.send(heartbeat(2))
        assert await other.numbers(1) == [2]


class Noted:
    """A connection that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def stop_taking(self) -> None:
        self.told.append("stop")

    def take_again(self) -> None:
        self.told.append("again")

    def fail(self, error: Exception) -> None:
        self.told.append("failed")


class Faulty(Noted):
    """A connection that can be neither held nor served again."""

    def stop_taking(self) -> None:
        raise RuntimeError("a fault of the broker")

    take_again = stop_taking


def test_a_connection_that_fails_keeps_no_other_from_being_held_and_served_again() -> None:
    connections = [Noted(), Faulty(), Noted()]
    write_round = WriteRound([].append, int, None, None, float, int)  # type: ignore[arg-type]
    lease = ServingLease(write_round, lambda: connections)

    lease.hold()
    lease.extend(200.0)

    assert [connection.told for connection in connections] == [
        ["stop", "again"], ["failed", "failed"], ["stop", "again"]
    ]  # fmt: skip
    assert not lease.is_held


def lease_of(connection: Noted, now_ms: float) -> tuple[ServingLease, WriteRound]:
    def clock() -> float:
        return now_ms

    planned: list[object] = []
    write_round = WriteRound(planned.append, int, None, None, clock, int)  # type: ignore[arg-type]
    return ServingLease(write_round, lambda: [connection]), write_round


@pytest.mark.parametrize(("until_ms", "told"), [(99.0, ["stop"]), (100.0, []), (101.0, []), (None, [])])
def test_a_round_of_answers_compares_the_clock_with_the_lease(
    until_ms: float | None, told: list[str]
) -> None:
    connection = Noted()
    lease, write_round = lease_of(connection, now_ms=100.0)
    if until_ms is not None:
        lease.extend(until_ms)

    write_round.write_all()

    assert connection.told == told


def test_holding_and_extending_twice_is_as_once() -> None:
    connection = Noted()
    lease, _ = lease_of(connection, now_ms=100.0)

    lease.hold()
    lease.hold()
    lease.extend(200.0)
    lease.extend(300.0)

    assert connection.told == ["stop", "again"]
    assert lease.until_ms == 300.0

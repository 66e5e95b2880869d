"""Accepting connections without a free descriptor."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest
import uvloop

from ottla.broker.network.testing import heartbeat, network

HEADROOM = 60


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Let this process open only few descriptors more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(one) for one in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + HEADROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def use_up() -> list[socket.socket]:
    """Take every descriptor that is left."""
    taken: list[socket.socket] = []
    while True:
        try:
            taken.append(socket.socket())
        except OSError:
            return taken


@pytest.mark.parametrize(
    "factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_without_descriptors_accepting_pauses_with_one_line_and_goes_on(
    factory: object, caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        runner.run(pause_and_go_on(caplog))


async def test_connections_that_come_at_once_are_opened_over_many_turns_of_the_loop() -> None:
    async with network() as made:
        plugs = [socket.create_connection((made.host, made.port)) for _ in range(40)]
        open_after = [0]
        while open_after[-1] < len(plugs):
            await asyncio.sleep(0)
            open_after.append(len(made.server.connections))
        for plug in plugs:
            plug.close()

    assert max(after - before for before, after in pairwise(open_after)) <= 8


async def pause_and_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async with network() as made:
        early = await made.client()
        early.send(heartbeat(1))
        assert await early.numbers(1) == [1]
        with few_descriptors(), ExitStack() as stack:
            waiting = [stack.enter_context(socket.socket()) for _ in range(5)]
            taken = use_up()
            for plug in waiting:
                plug.setblocking(False)
                await asyncio.get_running_loop().sock_connect(plug, (made.host, made.port))
            await made.until(lambda: bool(caplog.records))
            for number in range(2, 50):
                early.send(heartbeat(number))
                assert await early.numbers(1) == [number]
            for one in taken:
                one.close()
            await made.until(lambda: len(made.server.connections) == 6)

    lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(lines) == 1, lines
    assert "ulimit -n" in lines[0]
    assert caplog.records[0].exc_info is None


async def test_hundreds_of_clients_are_connected_while_the_loop_does_something_else() -> None:
    async with network() as made:
        with ExitStack() as stack:
            for _ in range(300):
                # Nothing is accepted meanwhile: one that finds the backlog full is not connected in any time.
                stack.enter_context(socket.create_connection((made.host, made.port), timeout=20))
            await made.until(lambda: len(made.server.connections) == 300)


async def test_connections_beyond_the_rate_wait_in_the_backlog() -> None:
    async with network(max_connection_creation_rate=4, quota_window_num=2) as made:
        began_s = asyncio.get_running_loop().time()
        clients = [await made.client() for _ in range(12)]
        for number, client in enumerate(clients):
            client.send(heartbeat(number))
        for number, client in enumerate(clients):
            assert await client.numbers(1) == [number]  # all come in the end
        assert asyncio.get_running_loop().time() - began_s > 0.9  # eight of them in two windows at most

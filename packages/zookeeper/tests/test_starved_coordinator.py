"""The embedded coordinator keeps sessions while its event loop, its process or its disk is starved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from ottla.zookeeper.embedded import EmbeddedCoordinator, Fsync, Limits
from ottla.zookeeper.embedded.data_tree import Tree
from ottla.zookeeper.embedded.request_processor import Client, RequestProcessor

CONNECT = struct.Struct("!iqiqi")
PING = struct.pack("!iii", 8, -2, 11)


def connect_frame(timeout_ms: int) -> bytes:
    return CONNECT.pack(0, 0, timeout_ms, 0, 16) + bytes(16) + b"\0"


@contextlib.asynccontextmanager
async def connected(
    coordinator: EmbeddedCoordinator, timeout_ms: int
) -> AsyncIterator[tuple[socket.socket, int]]:
    """Open a session that pings only when it is told to; yield its socket and id."""
    with socket.create_connection((coordinator.host, coordinator.port)) as opened:
        frame = connect_frame(timeout_ms)
        opened.sendall(struct.pack("!i", len(frame)) + frame)
        answer = await asyncio.wait_for(asyncio.to_thread(opened.recv, 100), 60)
        yield opened, struct.unpack_from("!q", answer, 12)[0]


def stall(seconds: float) -> None:
    """Keep the event loop from running, as a machine without a free processor does."""
    time.sleep(seconds)


async def test_time_counts_only_while_the_loop_of_the_coordinator_runs() -> None:
    async with (
        EmbeddedCoordinator(tick_ms=20, limits=Limits(1_000, 40_000)) as coordinator,
        connected(coordinator, 1_000) as (_, session_id),
    ):
        for _ in range(80):  # 40 ms each: the coordinator can count every other one
            stall(0.04)
            await asyncio.sleep(0)

        assert session_id in coordinator.service.tree.sessions


class RecordingProcessor(RequestProcessor):
    """Notes in which order pings come in and time passes."""

    events: list[str]

    def frame_came(self, client: Client, body: bytes) -> None:
        self.events.append("ping")
        super().frame_came(client, body)

    def time_passed(self, elapsed_ms: float) -> None:
        self.events.append("time")
        super().time_passed(elapsed_ms)


@contextlib.asynccontextmanager
async def recording(coordinator: EmbeddedCoordinator) -> AsyncIterator[EmbeddedCoordinator]:
    async with coordinator:
        coordinator.service = service = RecordingProcessor(
            Tree(), lambda _: None, lambda: 0, Limits(1, 40_000)
        )
        service.events = []
        yield coordinator


async def test_pings_that_wait_in_a_socket_are_read_before_time_counts() -> None:
    async with (
        recording(EmbeddedCoordinator(tick_ms=200)) as coordinator,
        connected(coordinator, 1) as (opened, session_id),
    ):

        def stall_and_ping() -> None:  # in the same turn of the loop as the tick, in front of it
            stall(0.5)
            opened.sendall(PING)

        events = coordinator.service.events  # type: ignore[attr-defined]
        events.clear()
        assert coordinator._tick_handle is not None
        asyncio.get_running_loop().call_at(coordinator._tick_handle.when() - 0.0001, stall_and_ping)
        async with asyncio.timeout(60):
            while len(events) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

        assert events[:2] == ["ping", "time"]
        assert session_id in coordinator.service.tree.sessions


async def test_a_ping_is_answered_while_the_disk_is_slow(tmp_path: Path) -> None:
    go_on, is_slow = threading.Event(), threading.Event()

    def write(descriptor: int, data: memoryview) -> int:
        if is_slow.is_set():
            go_on.wait(60)
        return os.write(descriptor, data)

    async with (
        EmbeddedCoordinator(tmp_path, fsync=Fsync.NEVER, os_write=write) as coordinator,
        connected(coordinator, 5_000) as (opened, _),
    ):
        is_slow.set()
        opened.sendall(frame_of_create(b"/a"))
        opened.sendall(PING)

        answer = await asyncio.wait_for(asyncio.to_thread(opened.recv, 100), 60)

        assert struct.unpack_from("!iiqi", answer) == (16, -2, 0, 0)
        go_on.set()
        answer = await asyncio.wait_for(asyncio.to_thread(opened.recv, 100), 60)
        assert struct.unpack_from("!i", answer, 4) == (1,)


def frame_of_create(path: bytes) -> bytes:
    """Create a node without data that everybody may change, as request 1."""
    size, acl = len(path), struct.pack("!iii5si6si", 1, 31, 5, b"world", 6, b"anyone", 0)
    body = struct.pack(f"!iii{size}si", 1, 1, size, path, 0) + acl
    return struct.pack("!i", len(body)) + body

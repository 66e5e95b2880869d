"""Behaviour of the embedded coordinator alone: disk, restarts, bad clients, blocked loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import struct
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla.zookeeper.embedded import DirectoryInUse, EmbeddedCoordinator, Fsync, Limits, server
from ottla.zookeeper.embedded.access import credentials, digest_of, read_or_make_secret
from ottla.zookeeper.embedded.data_tree import Tree
from ottla.zookeeper.embedded.request_processor import Client, RequestProcessor
from ottla.zookeeper.errors import AuthFailed, ConnectionLoss, NotStored, Unavailable
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import NULL, SessionState
from ottla.zookeeper.testing import States

CONNECT = struct.Struct("!iqiqi")
NO_PASSWORD = bytes(16)
AUTHENTICATE = struct.pack("!iiii6si7s", -4, 100, 0, 6, b"digest", 7, digest_of("s"))


def service() -> RequestProcessor:
    return RequestProcessor(Tree(), lambda _: None, lambda: 1_700_000_000_000, Limits(1_000, 40_000))


def connect_frame(timeout_ms: int = 5_000, session_id: int = 0, password: bytes = NO_PASSWORD) -> bytes:
    return CONNECT.pack(0, 0, timeout_ms, session_id, len(password)) + password + b"\0"


def welcome(answers: list[tuple[Client, bytes | None]]) -> tuple[int, int, bytes]:
    """Return timeout, session id and password of the last answer to connect."""
    frame = [frame for _, frame in answers if frame is not None][-1]
    _, timeout_ms, session_id, length = struct.unpack_from("!iiqi", frame, 4)
    return timeout_ms, session_id, frame[24 : 24 + length]


def joined(served: RequestProcessor) -> tuple[Client, int, bytes]:
    client = Client()
    served.frame_came(client, connect_frame())
    _, session_id, password = welcome(served.outbox)
    return client, session_id, password


@pytest.mark.parametrize(("asked", "given"), [(1, 1_000), (5_000, 5_000), (10**9, 40_000), (-5, 1_000)])
def test_session_timeouts_are_clamped(asked: int, given: int) -> None:
    served = service()
    served.frame_came(Client(), connect_frame(asked))
    assert welcome(served.outbox)[0] == given


def test_a_session_expires_after_its_timeout_and_not_before() -> None:
    served = service()
    _, session_id, _ = joined(served)

    for _ in range(50):
        served.time_passed(100)
    assert session_id in served.tree.sessions
    for _ in range(2):
        served.time_passed(100)

    assert session_id not in served.tree.sessions


def test_a_ping_keeps_a_session() -> None:
    served = service()
    client, session_id, _ = joined(served)
    for _ in range(10):
        served.time_passed(4_000)
        served.frame_came(client, struct.pack("!ii", -2, 11))
    assert session_id in served.tree.sessions


def test_a_returning_client_takes_its_session_from_the_old_connection() -> None:
    served = service()
    before, session_id, password = joined(served)
    after = Client()

    served.frame_came(after, connect_frame(5_000, session_id, password))

    assert after.session_id == session_id
    assert before.closed
    assert (before, None) in served.outbox


def test_a_wrong_password_is_answered_like_an_expired_session() -> None:
    served = service()
    _, session_id, _ = joined(served)
    stranger = Client()

    served.frame_came(stranger, connect_frame(5_000, session_id, b"x" * 16))

    assert welcome(served.outbox)[:2] == (0, 0)
    assert stranger.closed
    assert session_id in served.tree.sessions


@pytest.mark.parametrize("body", [b"", b"\0", b"\xff" * 7, struct.pack("!i", 5)])
def test_frames_without_a_header_end_the_connection(body: bytes) -> None:
    served = service()
    client, _, _ = joined(served)
    served.frame_came(client, body)
    assert client.closed


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("!iii", 1, 4, 2**31 - 1),
        struct.pack("!iii", 1, 1, 4) + b"/a",
        struct.pack("!iii2s", 1, 3, 2, b"\xff\xfe"),
        struct.pack("!ii", 1, 14) + struct.pack("!i?i", 99, False, -1),
        struct.pack("!ii", 1, 12345),
        struct.pack("!iiq3i", 1, 101, 0, 2**30, 0, 0),
    ],
)
def test_malformed_requests_get_an_error_response(body: bytes) -> None:
    served = service()
    client, _, _ = joined(served)
    served.outbox.clear()

    served.frame_came(client, body)

    ((_, answer),) = served.outbox
    assert answer is not None
    assert struct.unpack_from("!i", answer, 16)[0] in (-5, -6, -8)


async def test_a_restart_keeps_data_sessions_and_ephemerals(tmp_path: Path) -> None:
    async with EmbeddedCoordinator(tmp_path) as first:
        port = first.port
        session = KazooSession(first.connect_string, session_timeout_ms=20_000)
        await session.__aenter__()
        await session.create("/a", b"kept")
        await session.create("/e", ephemeral=True)
        session_id, states = session.session_id, States(session)
    await states.until(SessionState.SUSPENDED)
    async with EmbeddedCoordinator(tmp_path, port=port):
        await states.until(SessionState.CONNECTED)

        assert session.session_id == session_id
        assert (await session.get("/a"))[0] == b"kept"
        stat = await session.exists("/e")
        assert stat is not None
        assert stat.ephemeral_owner == session_id
        await session.close()


async def test_without_a_directory_a_restart_forgets_and_clients_start_anew() -> None:
    async with EmbeddedCoordinator() as first:
        port = first.port
        session = KazooSession(first.connect_string, session_timeout_ms=20_000)
        await session.__aenter__()
        await session.create("/a")
        states = States(session)
    await states.until(SessionState.SUSPENDED)
    async with EmbeddedCoordinator(port=port):
        await states.until(SessionState.CONNECTED)

        assert session.session_number == 1
        assert await session.exists("/a") is None
        await session.close()


async def test_a_long_journal_is_replaced_by_a_snapshot(tmp_path: Path) -> None:
    async with (
        EmbeddedCoordinator(tmp_path, fsync=Fsync.NEVER, compact_above_bytes=50_000) as coordinator,
        KazooSession(coordinator.connect_string) as session,
    ):
        await session.create("/a")
        for _ in range(30):
            await session.set("/a", bytes(5_000))
    assert (tmp_path / "snapshot").stat().st_size < 10_000
    assert (tmp_path / "journal").stat().st_size < 60_000

    async with EmbeddedCoordinator(tmp_path) as again:
        assert again.service.tree.node("/a").version == 30


async def test_a_journal_under_constant_writes_is_replaced_too(tmp_path: Path) -> None:
    set_root = struct.pack("!iii1si", 1, 5, 1, b"/", 2_000) + bytes(2_000) + struct.pack("!i", -1)
    asked = 0
    async with EmbeddedCoordinator(tmp_path, compact_above_bytes=20_000) as coordinator, asyncio.timeout(60):
        client, _, _ = joined(coordinator.service)
        while not (tmp_path / "snapshot").exists():
            # In every iteration of the loop, so that more transactions wait when a write to the disk ends.
            coordinator.service.frame_came(client, set_root)
            coordinator.flush_soon()
            asked += 1
            await asyncio.sleep(0)

    async with EmbeddedCoordinator(tmp_path) as again:
        assert again.service.tree.node("/").version >= asked - 1  # nobody waited for the last


async def test_after_a_write_that_failed_nothing_is_written(tmp_path: Path) -> None:
    async with EmbeddedCoordinator(tmp_path, tick_ms=10) as coordinator:
        session = KazooSession(coordinator.connect_string)
        await session.__aenter__()
        assert coordinator._journal is not None
        journal_fd = coordinator._journal._file
        whole, full = os.dup(journal_fd), os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, journal_fd)
        refused = asyncio.ensure_future(session.create("/never"))
        with pytest.raises(OSError, match="No space"):
            await coordinator.serve_forever()
        with pytest.raises(ConnectionLoss):
            await refused

        # The disk has room again, and the session runs out, which would be written.
        os.dup2(whole, journal_fd)
        size = os.fstat(whole).st_size
        coordinator.expire(session.session_id)
        await asyncio.sleep(0)
        while coordinator._flusher is not None:
            await asyncio.wait([coordinator._flusher])

        assert os.fstat(whole).st_size == size
        for descriptor in (whole, full):
            os.close(descriptor)
        await session.close()


class Disk:
    """A disk that is full while `full` is set to an error number."""

    full = 0

    def write(self, descriptor: int, data: memoryview) -> int:
        if full := self.full:  # read once: the test ends it while the disk's thread is here
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(full, os.strerror(full))
        return os.write(descriptor, data)


async def test_without_room_nothing_is_changed_and_with_room_everything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PROBE_INTERVAL_S", 0.01)
    disk = Disk()
    limits = Limits(min_session_timeout_ms=1_000)
    async with (
        EmbeddedCoordinator(tmp_path, limits=limits, os_write=disk.write) as coordinator,
        KazooSession(coordinator.connect_string, session_timeout_ms=20_000) as session,
    ):
        await session.create("/a", b"before")
        await session.create("/e", ephemeral=True)
        fired: asyncio.Queue[str] = asyncio.Queue()
        await session.get("/a", lambda event: fired.put_nowait(event.type.name))
        disk.full = errno.ENOSPC
        states = States(session)

        with pytest.raises(ConnectionLoss):
            await session.set("/a", b"never")
        await states.until(SessionState.CONNECTED)

        assert (await session.get("/a"))[0] == b"before"
        for refused in (session.set("/a", b"never"), session.create("/b"), session.delete("/e")):
            with pytest.raises(NotStored):
                await refused
        coordinator.expire(session.session_id)
        with pytest.raises(Unavailable):
            await KazooSession(coordinator.connect_string, connection_timeout_ms=500).__aenter__()

        disk.full = 0
        async with asyncio.timeout(20):
            while not coordinator.service.writable:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await session.exists("/e") is not None
        await session.set("/a", b"after")
        assert fired.get_nowait() == "NONE"  # the connection broke: read again
    async with EmbeddedCoordinator(tmp_path) as again:
        assert again.service.tree.node("/a").data == b"after"
        assert again.service.tree.node("/a").version == 1
    assert not (tmp_path / "journal.torn").exists()


async def test_a_disk_that_fails_ends_the_coordinator_and_says_so(tmp_path: Path) -> None:
    disk, failures = Disk(), asyncio.Queue[OSError]()
    async with EmbeddedCoordinator(tmp_path, os_write=disk.write, failed=failures.put_nowait) as coordinator:
        async with KazooSession(coordinator.connect_string, session_timeout_ms=4_000) as session:
            disk.full = errno.EIO
            with pytest.raises(ConnectionLoss):
                await session.create("/never")
        async with asyncio.timeout(20):
            assert (await failures.get()).errno == errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            await coordinator.serve_forever()


async def test_a_snapshot_without_room_leaves_the_journal_as_it_is(tmp_path: Path) -> None:
    async with (
        EmbeddedCoordinator(tmp_path, compact_above_bytes=20_000) as coordinator,
        KazooSession(coordinator.connect_string) as session,
    ):
        (tmp_path / "snapshot.new").symlink_to("/dev/full")
        await session.create("/a")
        for _ in range(5):
            await session.set("/a", bytes(5_000))
        assert not (tmp_path / "snapshot").exists()

        for _ in range(5):
            await session.set("/a", bytes(5_000))
        async with asyncio.timeout(20):
            while not (tmp_path / "snapshot").exists():
                await session.set("/a", bytes(5_000))
        version = (await session.get("/a"))[1].version
    async with EmbeddedCoordinator(tmp_path) as again:
        assert again.service.tree.node("/a").version == version


async def test_null_data_is_told_from_empty_data() -> None:
    async with (
        EmbeddedCoordinator() as coordinator,
        KazooSession(coordinator.connect_string) as session,
    ):
        await session.create("/null", NULL)
        await session.create("/set", b"")
        assert (await session.get("/set"))[0] is not NULL
        await session.set("/set", NULL)

        assert (await session.get("/null"))[0] is NULL
        assert (await session.get("/set"))[0] is NULL


async def test_the_secret_is_in_no_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = read_or_make_secret(tmp_path)
    repeats = logging.getLogger("ottla.zookeeper.kazoo").filters[-1]
    monkeypatch.setattr(
        repeats, "filter", lambda _: True
    )  # it would hold back most of what is looked at here
    with caplog.at_level(logging.DEBUG):
        async with (
            EmbeddedCoordinator(tmp_path, secret=secret) as coordinator,
            KazooSession(coordinator.connect_string, credentials=credentials(secret)) as session,
        ):
            await session.get("/")

    assert "Sending request" in caplog.text
    assert secret not in caplog.text


async def test_strangers_are_not_served_where_a_secret_is_asked_for(tmp_path: Path) -> None:
    secret = read_or_make_secret(tmp_path)
    async with EmbeddedCoordinator(tmp_path, secret=secret) as coordinator:
        async with KazooSession(coordinator.connect_string, credentials=credentials(secret)) as session:
            await session.create("/a", b"mine")
            sessions = len(coordinator.service.tree.sessions)

            stranger = KazooClient(coordinator.connect_string, timeout=4)
            await asyncio.to_thread(stranger.start, 10)
            try:
                for asked in (
                    lambda: stranger.get("/a"),
                    lambda: stranger.get_children("/"),
                    lambda: stranger.set("/a", b"theirs"),
                    lambda: stranger.create("/b", b""),
                    lambda: stranger.delete("/a"),
                ):
                    with pytest.raises(NoAuthError):
                        await asyncio.to_thread(asked)
                assert len(coordinator.service.tree.sessions) == sessions
                await asyncio.to_thread(stranger.add_auth, "digest", f"ottla:{secret}")
                assert (await asyncio.to_thread(stranger.get, "/a"))[0] == b"mine"
            finally:
                await asyncio.to_thread(stranger.stop)
                await asyncio.to_thread(stranger.close)

            guessed = credentials("guessed")
            with pytest.raises(AuthFailed):
                await KazooSession(
                    coordinator.connect_string, credentials=guessed, connection_timeout_ms=1_000
                ).__aenter__()

            # The right client comes back to its session with the same credentials.
            session_id, states = session.session_id, States(session)
            coordinator.drop_connections()
            await states.until(SessionState.SUSPENDED)
            await states.until(SessionState.CONNECTED)
            assert session.session_id == session_id
            assert (await session.get("/a"))[0] == b"mine"


def test_a_connection_to_anothers_session_needs_the_secret_too() -> None:
    served = service()
    served.secret = "s"
    client = Client()
    served.frame_came(client, connect_frame())
    _, session_id, password = welcome(served.outbox)
    served.frame_came(client, AUTHENTICATE)
    assert served.is_served(client)

    again = Client()
    served.frame_came(again, connect_frame(5_000, session_id, password))
    served.outbox.clear()
    served.frame_came(again, struct.pack("!ii", 1, 8) + struct.pack("!i1s?", 1, b"/", False))

    ((_, answer),) = served.outbox
    assert answer is not None
    assert struct.unpack_from("!i", answer, 16)[0] == -102


async def test_the_secret_is_for_its_owner_only_and_stays(tmp_path: Path) -> None:
    first = read_or_make_secret(tmp_path / "new")

    assert read_or_make_secret(tmp_path / "new") == first
    assert len(first) == 64
    assert (tmp_path / "new" / "secret").stat().st_mode & 0o777 == 0o600


async def test_connections_that_never_authenticate_do_not_keep_others_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    async with EmbeddedCoordinator(secret="s", tick_ms=10) as coordinator:
        strangers = [await asyncio.open_connection(coordinator.host, coordinator.port) for _ in range(6)]
        async with KazooSession(coordinator.connect_string, credentials=credentials("s")) as session:
            await session.create("/a")
            monkeypatch.setattr(server, "STRANGER_TIMEOUT_S", 0.0)
            async with asyncio.timeout(20):
                for reader, writer in strangers:
                    with contextlib.suppress(ConnectionError):
                        assert await reader.read() == b""
                    writer.close()
            assert await session.exists("/a") is not None


async def test_a_blocked_loop_expires_no_session() -> None:
    async with (
        EmbeddedCoordinator(tick_ms=20) as coordinator,
        KazooSession(coordinator.connect_string) as session,
    ):
        await session.create("/e", ephemeral=True)
        session_id = session.session_id

        # The next tick finds that ten minutes have passed in which the loop did nothing.
        blocked_since_s = coordinator._last_tick = coordinator._last_tick - 600
        async with asyncio.timeout(60):
            while coordinator._last_tick == blocked_since_s:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        assert session.session_id == session_id
        assert await session.exists("/e") is not None


async def test_frames_beyond_the_limit_end_the_connection() -> None:
    async with EmbeddedCoordinator() as coordinator:
        for start in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"):
            reader, writer = await asyncio.open_connection(coordinator.host, coordinator.port)
            writer.write(start + b"more")
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                async with asyncio.timeout(60):
                    await reader.readexactly(1)
            writer.close()


async def test_four_letter_commands_are_answered() -> None:
    async with EmbeddedCoordinator() as coordinator:
        for command, expected in ((b"ruok", b"imok"), (b"srvr", b"Mode: standalone"), (b"isro", b"rw")):
            reader, writer = await asyncio.open_connection(coordinator.host, coordinator.port)
            writer.write(command)
            async with asyncio.timeout(60):
                assert expected in await reader.read()
            writer.close()


async def test_a_taken_port_and_a_taken_directory_are_reported(tmp_path: Path) -> None:
    async with EmbeddedCoordinator(tmp_path) as coordinator:
        with pytest.raises(Unavailable, match="in use"):
            await EmbeddedCoordinator(port=coordinator.port).__aenter__()
        with pytest.raises(DirectoryInUse):
            await EmbeddedCoordinator(tmp_path).__aenter__()

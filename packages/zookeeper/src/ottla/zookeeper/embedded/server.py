"""The server of the embedded coordinator: sockets, timers and the disk around `RequestProcessor`."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar, cast

from ottla.zookeeper.embedded.access import is_loopback
from ottla.zookeeper.embedded.data_tree import Transaction, Tree
from ottla.zookeeper.embedded.request_processor import Client, Limits, RequestProcessor
from ottla.zookeeper.embedded.transaction_log import RUN_OUT, Fsync, TransactionLog, encode_snapshot
from ottla.zookeeper.environment import now_ms
from ottla.zookeeper.errors import Unavailable, ZooKeeperError

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_FRAME_BYTES = 0xFFFFF
MAX_UNSENT_BYTES = 16 << 20
MAX_CONNECTIONS = 2_000
STRANGER_TIMEOUT_S = 10.0
"""How long a connection may be without a session, or without the secret."""
PROBE_INTERVAL_S = 1.0
"""How often a full disk is tried again."""
_LENGTH_BYTES = 4
_VERSION = "3.8.0-ottla"


class EmbeddedCoordinator:
    """A ZooKeeper server in this process, for one machine.

        async with EmbeddedCoordinator(Path("data/zookeeper")) as coordinator:
            print(coordinator.connect_string)

    With a directory every acknowledged write is on disk (`fsync`); without one all state is in memory.
    Sessions survive lost connections and, with a directory, restarts. While the disk is full, changes are
    refused with NotStored, and reads are answered. When the disk fails, it ends: `failed` is called.
    There is no ensemble, no ACL check and no TLS, so it listens on loopback only. With a `secret` it serves
    only clients that know it (`access.credentials`); without one, every user of this machine.
    Raises Unavailable for another address or when the port is taken, DamagedJournal or DirectoryInUse for the
    directory.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        fsync: Fsync = Fsync.ALWAYS,
        limits: Limits | None = None,
        secret: str | None = None,
        failed: Callable[[OSError], object] = lambda _: None,
        tick_ms: int = 200,
        compact_above_bytes: int = 16 << 20,
        os_write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        self.host = host
        self.port = port
        self._data_dir = data_dir
        self._fsync = fsync
        self._limits = limits or Limits()
        self._tick_ms = tick_ms
        self._compact_above_bytes = compact_above_bytes
        self._secret = secret
        self._on_failure = failed
        self._os_write = os_write
        self._journal: TransactionLog | None = None
        self._disk = ThreadPoolExecutor(1, "ottla-zookeeper-disk")
        self._connections: dict[Client, _Connection] = {}
        self._flushing = False
        self._failed: asyncio.Future[None] | None = None
        self._stack = AsyncExitStack()
        self._tick_handle: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None
        self._reading_back = False

    async def __aenter__(self) -> EmbeddedCoordinator:
        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        async with self._stack as stack:
            # Not the loop's executor: a sync would wait there behind other blocking work.
            stack.callback(self._disk.shutdown, wait=False)
            tree = self._recover(stack)
            self.service = self._serve(tree)
            self._server = await self._listen()
            self.port = self._server.sockets[0].getsockname()[1]
            self._last_tick = self._loop.time()
            self._schedule_tick()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self._server.close()
        for connection in list(self._connections.values()):
            connection.abort()
        while self._flusher is not None:
            await asyncio.wait([self._flusher])
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.wait([self._prober])
        async with asyncio.timeout(5):
            await self._server.wait_closed()
        await self._stack.aclose()
        if self._failed is not None and not self._failed.done():
            self._failed.cancel()

    @property
    def connect_string(self) -> str:
        """The address for `zookeeper.connect`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    async def serve_forever(self) -> None:
        """Run until cancelled; raises when the disk fails."""
        assert self._failed is not None
        await asyncio.shield(self._failed)

    # -- sessions, for tests and tools

    def expire(self, session_id: int) -> None:
        """Expire a session now."""
        self.service.expire(session_id)
        self.flush_soon()

    def drop_connections(self) -> None:
        """Drop every connection; the sessions stay."""
        for connection in list(self._connections.values()):
            connection.abort()

    # -- called by connections

    def joined(self, connection: _Connection) -> bool:
        """Register a connection, unless there are too many; one that is not served yet makes room."""
        connection.since_s = self._loop.time()
        if self._reading_back:
            return False
        if len(self._connections) >= MAX_CONNECTIONS:
            stranger = next(self._strangers(), None)
            if stranger is None:
                return False
            stranger.abort()
            self.left(stranger)
        self._connections[connection.client] = connection
        return True

    def _strangers(self) -> Iterator[_Connection]:
        """Connections that are not served, the oldest first."""
        return (known for known in self._connections.values() if not self.service.is_served(known.client))

    def left(self, connection: _Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection.client, None)
        self.service.client_left(connection.client)

    def four_letter_answer(self, command: bytes) -> bytes:
        """Answer the four-letter commands that tools send without a session."""
        tree = self.service.tree
        match command:
            case b"ruok":
                return b"imok"
            case b"isro":
                return b"rw"
            case b"envi":
                return f"Environment:\nzookeeper.version={_VERSION}\n".encode()
            case b"srvr" | b"stat":
                return (
                    f"Zookeeper version: {_VERSION}\nConnections: {len(self._connections)}\n"
                    f"Zxid: {tree.zxid:#x}\nMode: standalone\nNode count: {len(tree.nodes)}\n"
                ).encode()
        return b"unknown command\n"

    def flush_soon(self) -> None:
        """Send the outbox at the end of this iteration of the loop, so that one sync serves all of it."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    # -- inside

    def _recover(self, stack: AsyncExitStack) -> Tree:
        if self._data_dir is None:
            return Tree()
        self._journal = stack.enter_context(
            TransactionLog(
                self._data_dir,
                fsync=self._fsync,
                compact_above_bytes=self._compact_above_bytes,
                os_write=self._os_write,
            )
        )
        return self._journal.recover()

    def _serve(self, tree: Tree) -> RequestProcessor:
        return RequestProcessor(tree, self._remember, now_ms, self._limits, secret=self._secret)

    async def _listen(self) -> asyncio.Server:
        if not is_loopback(self.host):
            raise Unavailable(
                self.host,
                "the embedded coordinator listens on 127.0.0.1 or ::1 only: run Apache's ZooKeeper for other "
                "machines (`ottla zookeeper start` without --embedded)",
            )
        try:
            return await self._loop.create_server(
                lambda: _Connection(self), self.host, self.port, backlog=512
            )
        except OSError as error:
            raise Unavailable(f"{self.host}:{self.port}", str(error)) from error

    def _remember(self, transaction: Transaction) -> None:
        if self._journal is not None:
            self._journal.append(transaction)

    def _flush(self) -> None:
        self._flushing = False
        self._send_pongs()
        if self._flusher is not None:
            return  # the flusher takes new transactions in its next round
        if self._failed is not None and self._failed.done():
            self._take_outbox()  # nothing may be written or promised after a failed write
            return
        if self._journal is None or not self._journal.dirty:
            self._send(self._take_outbox())
            return
        self._flusher = self._loop.create_task(self._flush_durably(self._journal))

    async def _flush_durably(self, journal: TransactionLog) -> None:
        try:
            while journal.dirty or self.service.outbox:
                outbox = self._take_outbox()
                if journal.dirty:
                    await self._on_disk(journal.write, journal.take())
                self._send(outbox)
                if journal.wants_compaction:
                    tree = self.service.tree
                    await self._on_disk(journal.compact, tree.zxid, encode_snapshot(tree))
        except OSError as error:
            if error.errno in RUN_OUT:
                await self._read_back(journal, error)
            else:
                self._give_up(error)
        finally:
            # Here and not in a done callback: the next transaction must start a new flusher.
            self._flusher = None

    async def _on_disk(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(self._disk, work, *arguments)

    async def _read_back(self, journal: TransactionLog, error: OSError) -> None:
        """Return to the state on the disk, which has no room, and refuse changes until it has.

        Nobody was told of what is undone. Clients connect again, which arms the watches that it had fired.
        """
        log.error(
            "the coordinator's disk has no room, changes are refused until it has",
            extra={"directory": str(self._data_dir), "reason": str(error)},
        )
        self._reading_back = True
        self.drop_connections()
        try:
            tree = await self._on_disk(journal.read_back)
        except (OSError, ZooKeeperError):
            log.debug("the state on the disk cannot be read", exc_info=True)
            self._give_up(error)
            return
        self.service = self._serve(tree)
        self.service.writable = self._reading_back = False
        self._prober = self._loop.create_task(self._until_room(journal), name="coordinator-disk-probe")

    async def _until_room(self, journal: TransactionLog) -> None:
        try:
            while not await self._on_disk(journal.has_room):  # noqa: ASYNC110
                await asyncio.sleep(PROBE_INTERVAL_S)
        except OSError as error:
            self._give_up(error)
            return
        self.service.writable = True
        log.warning("the coordinator can write again", extra={"directory": str(self._data_dir)})

    def _give_up(self, error: OSError) -> None:
        # A second fsync after a failed one may report success for data that is lost: give up.
        log.error(
            "the coordinator stops: its disk cannot be written",
            extra={"directory": str(self._data_dir), "reason": str(error)},
        )
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()
            self._on_failure(error)
        if self._tick_handle is not None:
            self._tick_handle.cancel()  # sessions no longer expire here either
        self._server.close()
        self.drop_connections()

    def _take_outbox(self) -> list[tuple[Client, bytes | None]]:
        outbox, self.service.outbox = self.service.outbox, []
        return outbox

    def _send(self, outbox: list[tuple[Client, bytes | None]]) -> None:
        frames: dict[Client, list[bytes]] = {}
        closing: list[Client] = []
        for client, frame in outbox:
            if frame is None:
                closing.append(client)
            else:
                frames.setdefault(client, []).append(frame)
        for client, chunks in frames.items():
            if client in self._connections:
                self._connections[client].send(b"".join(chunks))
        for client in closing:
            if client in self._connections:
                self._connections[client].close()

    def _send_pongs(self) -> None:
        pongs, self.service.pongs = self.service.pongs, []
        for client, frame in pongs:
            if client in self._connections and not client.closed:
                self._connections[client].send(frame)

    def _schedule_tick(self) -> None:
        self._tick_handle = self._loop.call_later(self._tick_ms / 1000, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        elapsed_ms = (now - self._last_tick) * 1000
        self._last_tick = now
        if elapsed_ms < 2 * self._tick_ms:
            self._count(elapsed_ms, now)
            return
        # The loop was blocked, or the process had no processor, and pings wait in the sockets. The first call
        # runs before the callbacks of what the loop finds in them next, the second behind those.
        self._loop.call_soon(self._loop.call_soon, self._count, elapsed_ms, now)

    def _count(self, elapsed_ms: float, now: float) -> None:
        if not self._server.is_serving():
            return  # it was given up, or stopped, since the tick
        # Time in which the loop did not run does not count: no client could be heard.
        self.service.time_passed(min(elapsed_ms, self._tick_ms))
        for stranger in list(self._strangers()):
            if now - stranger.since_s > STRANGER_TIMEOUT_S:
                stranger.abort()
        if self.service.outbox:
            self.flush_soon()
        self._schedule_tick()


class _Connection(asyncio.Protocol):
    """One socket: splits bytes into frames and bounds both directions."""

    def __init__(self, coordinator: EmbeddedCoordinator) -> None:
        self.client = Client()
        self._coordinator = coordinator
        self._buffer = bytearray()
        self.since_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked with isinstance: uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if not self._coordinator.joined(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._coordinator.left(self)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        position = 0
        while len(buffer) - position >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[position : position + _LENGTH_BYTES], "big", signed=True)
            if not 0 <= length <= MAX_FRAME_BYTES:
                self._not_a_frame(bytes(buffer[position : position + _LENGTH_BYTES]))
                return
            end = position + _LENGTH_BYTES + length
            if end > len(buffer):
                break
            self._coordinator.service.frame_came(self.client, bytes(buffer[position + _LENGTH_BYTES : end]))
            position = end
        del buffer[:position]
        self._coordinator.flush_soon()

    def _not_a_frame(self, start: bytes) -> None:
        self._buffer.clear()
        if self.client.session_id == 0 and start.isalpha() and self._transport is not None:
            self._transport.write(self._coordinator.four_letter_answer(start))
            self._transport.close()
        else:
            self.abort()

    def pause_writing(self) -> None:
        # Requests of a client that does not read its responses are not read either.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            with suppress(RuntimeError):
                self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send data; abort the connection when the client left too much unread."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort()
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close after the sent data."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

"""A TCP proxy between a client and a ZooKeeper that misbehaves like networks and broken servers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

_LENGTH_BYTES = 4
_FIRST_ORDINARY_XID = 1


class MisbehavingProxy:
    """Forwards whole frames, with faults on demand.

    `swallow_replies` drops that many replies to requests (not to pings) and keeps the connection;
    `cut_at_reply` drops the next reply and the connection with it. `corrupt_xid` changes the xid of the next
    reply. `blackhole` forwards nothing in either direction and keeps connections open; `refuse` closes them
    at once; `mute` accepts connections and never replies, not even to connect. `cut` drops every connection.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._target_port = int(port)
        self.swallow_replies = 0
        self.cut_at_reply = False
        self.corrupt_xid = False
        self.blackhole = False
        self.refuse = False
        self.mute = False
        self.connections = 0
        self._connected = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> MisbehavingProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    @property
    def connect_string(self) -> str:
        """The address for `zookeeper.connect`."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Drop every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def more_connections_than(self, count: int) -> None:
        """Return once more than `count` connections were accepted in total."""
        while self.connections <= count:
            self._connected.clear()
            await self._connected.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if not self.refuse:
                with suppress(OSError):
                    await self._relay(reader, writer)
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._connected.set()
        if self.mute:
            await reader.read(-1)
            return
        with suppress(OSError, asyncio.IncompleteReadError):
            up_reader, up_writer = await asyncio.open_connection(self._host, self._target_port)
            self._writers.add(up_writer)
            try:
                loop = asyncio.get_running_loop()
                upward = loop.create_task(self._pass_requests(reader, up_writer))
                downward = loop.create_task(self._pass_replies(up_reader, writer))
                await asyncio.wait([upward, downward], return_when=asyncio.FIRST_COMPLETED)
                upward.cancel()
                downward.cancel()
                await asyncio.gather(upward, downward, return_exceptions=True)
            finally:
                self._writers.discard(up_writer)
                up_writer.transport.abort()

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _frame(reader)
            if not self.blackhole:
                writer.write(frame)
                await writer.drain()

    async def _pass_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await _frame(reader))  # the reply to connect has no xid
        while True:
            frame = await _frame(reader)
            if self.blackhole:
                continue
            xid = int.from_bytes(frame[_LENGTH_BYTES : 2 * _LENGTH_BYTES], "big", signed=True)
            if xid >= _FIRST_ORDINARY_XID:
                if self.cut_at_reply:
                    self.cut_at_reply = False
                    return
                if self.swallow_replies:
                    self.swallow_replies -= 1
                    continue
                if self.corrupt_xid:
                    self.corrupt_xid = False
                    wrong = (xid + 7).to_bytes(_LENGTH_BYTES, "big")
                    frame = frame[:_LENGTH_BYTES] + wrong + frame[2 * _LENGTH_BYTES :]
            writer.write(frame)
            await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(_LENGTH_BYTES)
    return length + await reader.readexactly(int.from_bytes(length, "big"))

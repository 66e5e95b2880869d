"""What goes out on a connection, in order: bytes through the transport, file regions past it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from ottla.broker.log.log import Slice
    from ottla.broker.metrics import Meter

Part: TypeAlias = "bytes | Slice"

SENDFILE_UP_TO_BYTES: Final = 64 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_scratch = memoryview(bytearray(_CHUNK_BYTES))


class FileRegion:
    """The part of a file that is still to be sent."""

    __slots__ = ("length", "position", "slice")

    def __init__(self, part: Slice) -> None:
        self.slice = part
        self.position = part.position
        self.length = part.length


class Outbox:
    """Writes answers in order and says when the peer does not keep up.

    Bytes go through the transport. A file region goes from the file to the socket without passing through
    Python; it waits until the transport has nothing left to write, and the transport gets nothing until the
    region is out. Both event loops refuse `add_writer` on a transport's descriptor, so waiting is done on a
    duplicate, made when the connection first needs it.
    """

    def __init__(self, transport: asyncio.Transport, unblocked: Callable[[], None], bytes_out: Meter) -> None:
        self._transport = transport
        self._unblocked = unblocked
        self._loop = asyncio.get_running_loop()
        self._parts: deque[bytes | FileRegion] = deque()
        self._socket: socket.socket | None = None
        self._waiting = False
        self._transport_paused = False
        self._plain = transport.get_extra_info("sslcontext") is None
        self._bytes_out = bytes_out

    @property
    def blocked(self) -> bool:
        """Whether the peer has not taken what was written; nothing new should be begun for it."""
        return self._waiting or self._transport_paused

    @property
    def empty(self) -> bool:
        """Whether everything was handed to the system."""
        return not self._parts and not self.blocked

    def put(self, parts: list[Part]) -> None:
        """Queue one answer; `flush` writes it."""
        for part in parts:
            if isinstance(part, bytes):
                self._parts.append(part)
                self._bytes_out.mark(len(part))
            elif part.length:
                self._bytes_out.mark(part.length)
                self._parts.append(FileRegion(part) if self._plain else part.read())

    def flush(self) -> None:
        """Write as much as the peer takes."""
        parts = self._parts
        while parts and not self.blocked:
            try:
                self._send_file() if isinstance(parts[0], FileRegion) else self._send_bytes()
            except BlockingIOError:
                self._wait()
            except OSError:
                self._transport.abort()
                parts.clear()

    def _send_bytes(self) -> None:
        joined: list[bytes] = []
        parts = self._parts
        while parts and isinstance(parts[0], bytes):
            joined.append(parts.popleft())  # type: ignore[arg-type]
        data = joined[0] if len(joined) == 1 else b"".join(joined)
        if not parts or self._transport.get_write_buffer_size():
            self._transport.write(data)
            return
        # A region follows: MSG_MORE lets its first bytes travel in the same segment.
        parts.appendleft(data)
        sent = self._duplicate().send(data, socket.MSG_MORE)
        parts.popleft()
        if sent < len(data):
            parts.appendleft(data[sent:])

    def _send_file(self) -> None:
        region = self._parts[0]
        assert isinstance(region, FileRegion)
        if self._transport.get_write_buffer_size():
            self._transport_paused = True  # resume_writing comes when it is empty: its high mark is 0
            return
        sent = send_region(self._duplicate(), region)
        region.position += sent
        region.length -= sent
        if not sent:
            raise OSError("the file ended before the region did")
        if not region.length:
            self._parts.popleft()

    def _duplicate(self) -> socket.socket:
        if self._socket is None:
            original = self._transport.get_extra_info("socket")
            self._socket = socket.socket(fileno=os.dup(original.fileno()))
            self._socket.setblocking(False)
        return self._socket

    def _wait(self) -> None:
        self._waiting = True
        self._loop.add_writer(self._duplicate().fileno(), self._writable)

    def _stop_waiting(self) -> None:
        if self._waiting and self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
        self._waiting = False

    def _writable(self) -> None:
        self._stop_waiting()
        self.flush()
        if not self.blocked:
            self._unblocked()

    def pause_writing(self) -> None:
        """The transport could not write everything."""
        self._transport_paused = True

    def resume_writing(self) -> None:
        """The transport has written everything."""
        self._transport_paused = False
        self.flush()
        if not self.blocked:
            self._unblocked()

    def close(self) -> None:
        """Drop what is left, with the files it holds open."""
        self._stop_waiting()
        self._parts.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def send_region(to: socket.socket, region: FileRegion) -> int:
    """Send some of a file region and return how much; raises BlockingIOError when the peer takes nothing."""
    if region.length <= SENDFILE_UP_TO_BYTES:
        return os.sendfile(to.fileno(), region.slice.fileno(), region.position, region.length)
    sent = 0
    while sent < region.length:
        count = os.preadv(
            region.slice.fileno(),
            [_scratch[: min(_CHUNK_BYTES, region.length - sent)]],
            region.position + sent,
        )
        try:
            taken = to.send(_scratch[:count]) if count else 0
        except BlockingIOError:
            if sent:
                break
            raise
        sent += taken
        if taken < count or not count:
            break
    return sent

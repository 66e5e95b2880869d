"""The response queue of a connection: bytes go through the transport, file regions through sendfile."""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from ottla.broker.network._response_sending import UnsentParts, send_parts

if TYPE_CHECKING:
    from ottla.broker.log.log import Slice
    from ottla.broker.metrics import Meter

Part: TypeAlias = "bytes | Slice"

MOST_PARTS_AT_ONCE: Final = 512
"""Parts of responses that are sent in one turn of the event loop: a system call each takes 2 µs and more."""
MAX_UNSENT_BYTES: Final = 1 << 20
"""Bytes of responses at which they are written before the next request begins; one may be larger."""
ENCRYPTED_AT_ONCE: Final = 131_072
"""Bytes that are read and encrypted before the socket is asked whether it takes more: eight records."""

_ONCE: Final = select.EPOLLOUT | select.EPOLLONESHOT


class FullSockets:
    """The sockets of all connections that take no more for now, behind one descriptor of the event loop.

    Both event loops refuse to watch the descriptor of a transport, and to watch a duplicate costs uvloop six
    system calls and a handle for each wait; here it is one call. A file region of 64 KB fills a socket with
    Kafka's default of 100 KB at every third response.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll: select.epoll | None = None
        self._writable: dict[int, Callable[[], None]] = {}

    def wait(self, descriptor: int, writable: Callable[[], None]) -> None:
        """Call `writable` once when the socket takes more."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._look)
        self._writable[descriptor] = writable
        try:
            self._epoll.modify(descriptor, _ONCE)
        except FileNotFoundError:  # its first wait; the kernel forgets a socket when it is closed
            self._epoll.register(descriptor, _ONCE)

    def forget(self, descriptor: int) -> None:
        """Wait for a socket no longer."""
        self._writable.pop(descriptor, None)

    def _look(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            writable = self._writable.pop(descriptor, None)
            if writable is not None:
                self._loop.call_soon(writable)

    def close(self) -> None:
        """Wait for no socket any more."""
        self._writable.clear()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None


class LongResponse(list["Part"]):
    """A response that was made in steps, none of which is empty, with its size."""

    def __init__(self, parts: Iterable[Part], size: int) -> None:
        super().__init__(parts)
        self.size = size


class ResponseQueue(UnsentParts):
    """Writes responses in order and reports whether the client keeps up.

    Bytes pass through the transport. A file region is sent from the file to the socket without passing
    through Python: it waits until the transport has nothing left to write, and the transport gets nothing
    until the region is sent.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        unblocked: Callable[[], None],
        bytes_out: Meter,
        full_sockets: FullSockets,
    ) -> None:
        self._transport = transport
        self._unblocked = unblocked
        self._loop = asyncio.get_running_loop()
        self._sent = 0
        """Bytes of the first part that are sent."""
        self._full_sockets = full_sockets
        self._descriptor = -1
        """The socket's, once regions were sent."""
        self._plain = transport.get_extra_info("sslcontext") is None
        self._bytes_out = bytes_out
        self.max_queued_bytes = MAX_UNSENT_BYTES

    @property
    def blocked(self) -> bool:
        """Whether the socket has not taken everything; no new request of this client should be started."""
        return self.waiting or self.transport_paused

    @property
    def empty(self) -> bool:
        """Whether everything was written to the socket."""
        return not self.parts and not self.blocked

    def put(self, parts: list[Part]) -> None:
        """Queue one response; `flush` writes it."""
        if isinstance(parts, LongResponse):
            self.put_all(parts, parts.size)
            return
        for part in parts:
            if isinstance(part, bytes):
                self.parts.append(part)
                self._bytes_out.count += len(part)
                self.queued_bytes += len(part)
            elif part.length:
                self._bytes_out.count += part.length
                self.queued_bytes += part.length
                self.parts.append(part)
                self.has_regions = True

    def put_all(self, parts: list[Part], size: int) -> None:
        """Queue responses of `size` bytes without an empty part; they may have regions."""
        self.parts.extend(parts)
        self._bytes_out.count += size
        self.queued_bytes += size
        self.has_regions = True

    def flush(self) -> None:
        """Write as much as the socket takes."""
        parts = self.parts
        if not parts or self.waiting or self.transport_paused:
            return
        if not self.has_regions:
            self._write_bytes()
        elif self._transport.get_write_buffer_size():
            self.transport_paused = True  # until resume_writing: the transport is empty then
        elif self._plain:
            self._send()
        else:
            self._write_regions()

    def _write_bytes(self) -> None:
        data = b"".join(self.parts)  # type: ignore[arg-type]
        self.parts.clear()
        self.queued_bytes = 0
        self._transport.write(data)

    def _write_regions(self) -> None:
        """Write through a transport that encrypts, as much as the socket takes, some parts in each turn."""
        try:
            for _ in range(MAX_UNSENT_BYTES // ENCRYPTED_AT_ONCE):
                if not self.parts or self.transport_paused:
                    break
                self._transport.write(self._next_bytes())
        except OSError:
            self._transport.abort()
            self.parts.clear()
            return
        if not self.parts:
            self.has_regions, self.queued_bytes = False, 0
        elif not self.transport_paused:
            self._go_on_soon()

    def _next_bytes(self) -> bytes:
        """Take the next parts, or as much of a region as is encrypted at once. Raises OSError."""
        data: list[bytes] = []
        room = ENCRYPTED_AT_ONCE
        while self.parts and room > 0 and len(data) < MOST_PARTS_AT_ONCE:
            part = self.parts[0]
            if isinstance(part, bytes):
                data.append(part)
                self.parts.popleft()
            else:
                size = min(room, part.length - self._sent)
                data.append(part.file.pread(size, part.position + self._sent))
                if len(data[-1]) < size:
                    raise OSError("the file ended before the region did")
                self._sent += size
                if self._sent == part.length:
                    self._sent = 0
                    self.parts.popleft()
            room -= len(data[-1])
        return data[0] if len(data) == 1 else b"".join(data)

    def _go_on_soon(self) -> None:
        self.waiting = True
        self._loop.call_soon(self._writable)

    def _send(self) -> None:
        """Send bytes and regions to the socket directly; the transport has nothing left to write."""
        if self._transport.is_closing():  # its descriptor may be another connection's by now
            self.parts.clear()
            return
        if self._descriptor < 0:
            self._descriptor = self._transport.get_extra_info("socket").fileno()
        try:
            is_all = self._send_some(self._descriptor)
        except OSError:
            self._transport.abort()
            self.parts.clear()
            return
        if is_all:
            self.has_regions, self.queued_bytes = False, 0

    def _send_some(self, descriptor: int) -> bool:
        """Send the first parts; return whether they were all, or go on when the socket takes more."""
        parts, some = self.parts, self.parts
        if len(parts) > MOST_PARTS_AT_ONCE:
            some = deque(parts.popleft() for _ in range(MOST_PARTS_AT_ONCE))
        try:
            sent = send_parts(some, descriptor, self._sent)
        finally:
            if some is not parts:
                parts.extendleft(reversed(some))
        self._sent = max(0, sent)
        if parts:
            self._wait()
        return not parts

    def _wait(self) -> None:
        self.waiting = True
        self._full_sockets.wait(self._descriptor, self._writable)

    def _writable(self) -> None:
        self.waiting = False
        self.flush()
        if not self.blocked:
            self._unblocked()

    def pause_writing(self) -> None:
        """The transport could not write everything."""
        self.transport_paused = True

    def resume_writing(self) -> None:
        """The transport has written everything."""
        self.transport_paused = False
        self.flush()
        if not self.blocked:
            self._unblocked()

    def close(self) -> None:
        """Drop unsent parts and close the files they hold."""
        if self.waiting:
            self._full_sockets.forget(self._descriptor)
        self.waiting = False
        # The connection and its response queue refer to each other; without this, thousands of closed
        # connections would stay in memory until the garbage collector looks at its oldest generation.
        self._unblocked = _ignore
        self.parts.clear()
        self.queued_bytes = 0


def _ignore() -> None:
    """Do nothing: the connection is closed."""

"""The wire of a connection: its socket, bytes out, frames in, and the queue of waiting requests."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final, Protocol, cast

from ottla.client.authentication import certificate_problem
from ottla.client.config import Address, ClientConfig
from ottla.client.errors import AuthenticationFailed, BadResponse, ConnectionClosed, RequestTimeout
from ottla.client.frames import FrameReader, FrameTooLarge
from ottla.protocol.api import ApiKey

CLOSE_TIMEOUT_S: Final = 2.0
# Parts that one `writev` takes everywhere (IOV_MAX).
_MOST_PARTS: Final = 1_024
_LEADS_ELSEWHERE: Final = frozenset(
    {errno.EADDRNOTAVAIL, errno.EINVAL, errno.ENETUNREACH, errno.EHOSTUNREACH}
)
"""Errors of a source address. Any other is the other side's, and would meet each source."""


class Reply(Protocol):
    """Takes the outcome of a request, once, where the event loop delivers it; neither method may raise."""

    def done(self) -> bool:
        """Whether the outcome is not awaited any more."""

    def set_result(self, frame: memoryview, /) -> None:
        """Take the response, its header included."""

    def set_exception(self, error: BaseException, /) -> None:
        """Take the error of a request without a response: one of `ottla.client.errors`."""


class WireProtocol(asyncio.BufferedProtocol):
    """The asyncio protocol of a connection: frames in, bytes out, and a queue of waiting requests."""

    def __init__(self, address: Address, config: ClientConfig) -> None:
        self.address = address
        self.failure: BaseException | None = None
        self._frames = FrameReader(config.max_response_bytes)
        self._timeout_s = config.request_timeout_ms / 1_000
        # A reply that was enqueued by `expect_reply` has an API and the time at which it is due. One timer
        # watches all of them: nearly all arrive long before it fires.
        self._waiting: deque[tuple[int, Reply, float, ApiKey | None]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._writes_directly = False
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._may_write: asyncio.Future[None] | None = None

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._writes_directly = _joins(self._transport)
        if self._writes_directly:
            self._fd: int = transport.get_extra_info("socket").fileno()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._frames.received(nbytes):
                self._answered(frame)
        except FrameTooLarge as error:
            failure = BadResponse(f"{self.address}: {error}")
            failure.__cause__ = error
            self.fail(failure)
        except BadResponse as error:
            self.fail(error)

    def eof_received(self) -> None:
        self.fail(ConnectionClosed(*self.address))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and (problem := certificate_problem(exc)) is not None:
            self.fail(AuthenticationFailed(f"{self.address}: {problem}"))
        reason = f"the connection broke: {exc}" if exc else "the broker closed the connection"
        self.fail(ConnectionClosed(*self.address, reason))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._may_write = self._loop.create_future()

    def resume_writing(self) -> None:
        may_write, self._may_write = self._may_write, None
        if may_write is not None and not may_write.done():
            may_write.set_result(None)

    # --- called by the connection

    @property
    def in_flight(self) -> int:
        """How many futures wait for responses."""
        return len(self._waiting)

    def expect(self, correlation_id: int) -> asyncio.Future[memoryview]:
        """Enqueue a future for the response of the next request; the caller writes it without an await."""
        response: asyncio.Future[memoryview] = self._loop.create_future()
        self._waiting.append((correlation_id, response, 0.0, None))
        return response

    def expect_reply(self, correlation_id: int, reply: Reply, api_key: ApiKey) -> None:
        """Enqueue a reply for the next request, within the request timeout."""
        due_s = self._loop.time() + self._timeout_s
        self._waiting.append((correlation_id, reply, due_s, api_key))
        self._watch_until(due_s)

    def discard(self, response: asyncio.Future[memoryview], due_s: float, api_key: ApiKey) -> None:
        """Read the response to a request whose sender was cancelled in its turn, and drop it.

        It stays due: a broker that never answers it never answers those behind it, either.
        """
        for place, (correlation_id, reply, _, _) in enumerate(self._waiting):
            if reply is response:
                response.cancel()  # not cancelled yet if the sender still waited to write
                self._waiting[place] = (correlation_id, reply, due_s, api_key)
                self._watch_until(due_s)
                break

    @property
    def is_writable(self) -> bool:
        """Whether the transport's write buffer has room."""
        return self._may_write is None

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Hand bytes to the transport."""
        assert self._transport is not None
        if len(parts) > 1 and self._writes_directly and not self._transport.get_write_buffer_size():
            parts = self._write_directly(parts)
        if len(parts) == 1:
            self._transport.write(parts[0])
        elif parts:
            self._transport.writelines(parts)

    def _write_directly(self, parts: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
        """Write parts to the socket without joining them, and return what it did not take.

        Nothing may wait in the transport. An error is the transport's: it meets the same one, and reports it.
        """
        try:
            left = os.writev(self._fd, parts[:_MOST_PARTS])
        except OSError:
            return parts
        for number, part in enumerate(parts):
            if left < len(part):
                return [memoryview(part)[left:], *parts[number + 1 :]]
            left -= len(part)
        return []

    async def writable(self) -> None:
        """Wait while the transport's write buffer is full."""
        while self._may_write is not None:
            await asyncio.shield(self._may_write)

    def fail(self, error: BaseException) -> None:
        """End the connection and fail all waiting requests. Only the first error counts."""
        if self.failure is not None:
            return
        self.failure = error
        waiting, self._waiting = self._waiting, deque()
        if self._watch is not None:
            self._watch.cancel()
        for _, response, _, _ in waiting:
            if not response.done():
                response.set_exception(error)
        self.resume_writing()
        if self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """End the connection; the transport closes in the loop's next turn."""
        self.fail(ConnectionClosed(*self.address, "the connection was closed"))

    async def close(self) -> None:
        """End the connection and wait until the transport is closed."""
        self.abort()
        await self.wait_closed(CLOSE_TIMEOUT_S)  # the transport is aborted: nothing else is left to wait for

    async def wait_closed(self, within_s: float) -> None:
        """Return when the transport is closed, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._closed)

    def _check_due(self) -> None:
        """Fail if the oldest reply is late; watch the next one otherwise."""
        self._watch = None
        oldest = next(((due_s, key) for _, _, due_s, key in self._waiting if key is not None), None)
        if oldest is None:
            return
        due_s, key = oldest
        if due_s <= self._loop.time():
            self.fail(RequestTimeout(*self.address, key.name, self._timeout_s))
        else:
            self._watch_until(due_s)

    def _watch_until(self, due_s: float) -> None:
        if self._watch is not None and self._watch.when() > due_s:
            self._watch.cancel()
            self._watch = None
        if self._watch is None:
            self._watch = self._loop.call_at(due_s, self._check_due)

    def _answered(self, frame: memoryview) -> None:
        if len(frame) < 4 or not self._waiting:
            raise BadResponse(f"{self.address} sent a response without a request")
        correlation_id, response, _, _ = self._waiting.popleft()
        got = int.from_bytes(frame[:4], "big")
        if got != correlation_id:
            failure = BadResponse(f"{self.address} answered request {got} instead of {correlation_id}")
            if not response.done():
                response.set_exception(failure)
            raise failure
        if not response.done():  # a cancelled sender's response is read all the same
            response.set_result(frame)


def _joins(transport: asyncio.Transport) -> bool:
    """Whether it is a plain socket's transport whose `writelines` copies: asyncio's up to Python 3.11."""
    of_asyncio = sys.version_info < (3, 12) and type(transport).__module__.startswith("asyncio.selector")
    return of_asyncio and hasattr(os, "writev")


# --- the socket


def has_buffer_sizes(config: ClientConfig) -> bool:
    """Return whether a size is set: most programs leave both to the system."""
    return config.send_buffer_bytes >= 0 or config.receive_buffer_bytes >= 0


async def connect_socket(
    address: Address, config: ClientConfig, source_host: str | None = None
) -> socket.socket:
    """Connect to the first address of a host that accepts. Raises the OSError of the last one.

    The sizes are set before: TCP agrees on the scale of its window as it connects. The connection comes from
    an address of `source_host`, where this machine has such a one and it leads there; from the system's
    choice otherwise.
    """
    loop = asyncio.get_running_loop()
    failure = OSError(f"{address.host} has no address")
    sources = await _addresses_of(source_host)
    for family, kind, protocol, _, target in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        for source in _sources_for(target[0], sources):
            opened = _socket_with_buffers(family, kind, protocol, config)
            try:
                if source is not None:
                    opened.bind((source, 0))
                await loop.sock_connect(opened, target)
            except OSError as error:
                opened.close()
                failure = error
                if error.errno not in _LEADS_ELSEWHERE:
                    break
            except BaseException:
                opened.close()
                raise
            else:
                return opened
    raise failure


async def _addresses_of(host: str | None) -> Sequence[str]:
    if host is None:
        return ()
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return [str(address[0]) for *_, address in entries]


def _sources_for(target: Any, sources: Sequence[str]) -> Iterator[str | None]:
    """Yield the sources that may lead to an address, then None, the system's choice.

    A loopback address leads nowhere else, and Debian resolves a machine's own name to one.
    """
    wanted = ip_address(target)
    for source in map(ip_address, sources):
        if source.version == wanted.version and source.is_loopback == wanted.is_loopback:
            yield str(source)
    yield None


def _socket_with_buffers(family: int, kind: int, protocol: int, config: ClientConfig) -> socket.socket:
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    sizes = ((socket.SO_SNDBUF, config.send_buffer_bytes), (socket.SO_RCVBUF, config.receive_buffer_bytes))
    for option, size_bytes in sizes:
        if size_bytes >= 0:
            opened.setsockopt(socket.SOL_SOCKET, option, size_bytes)
    return opened

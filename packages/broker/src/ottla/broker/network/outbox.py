"""What goes out on a connection, in order: bytes through the transport, file regions past it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ottla.broker.network._sending import send_parts

if TYPE_CHECKING:
    from ottla.broker.log.log import Slice
    from ottla.broker.metrics import Meter

Part: TypeAlias = "bytes | Slice"


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
        self._parts: deque[Part] = deque()
        self._has_regions = False
        self._sent = 0
        """Bytes of the first part that are out."""
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
                self._bytes_out.count += len(part)
            elif part.length:
                self._bytes_out.count += part.length
                self._parts.append(part if self._plain else part.read())
                self._has_regions = self._plain

    def put_all(self, parts: list[Part], size: int) -> None:
        """Queue answers with `size` bytes and at least one region, none of it empty."""
        if not self._plain:
            self.put(parts)
            return
        self._parts.extend(parts)
        self._bytes_out.count += size
        self._has_regions = True

    def flush(self) -> None:
        """Write as much as the peer takes."""
        parts = self._parts
        if not parts or self._waiting or self._transport_paused:
            return
        if not self._has_regions:
            self._write_bytes()
        elif self._transport.get_write_buffer_size():
            self._transport_paused = True  # resume_writing comes when it is empty: its high mark is 0
        else:
            self._send()

    def _write_bytes(self) -> None:
        data = b"".join(self._parts)  # type: ignore[arg-type]
        self._parts.clear()
        self._transport.write(data)

    def _send(self) -> None:
        """Send bytes and regions past the transport, which has nothing left to write."""
        try:
            sent = send_parts(self._parts, (self._socket or self._duplicate()).fileno(), self._sent)
        except OSError:
            self._transport.abort()
            self._parts.clear()
            return
        if sent >= 0:
            self._sent = sent
            self._wait()
        else:
            self._sent, self._has_regions = 0, False

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
        # The connection and its outbox refer to each other; without this, thousands of lost connections
        # would lie about until the garbage collector looks at its oldest generation.
        self._unblocked = _nobody_waits
        self._parts.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _nobody_waits() -> None:
    """Stand for a connection that is gone."""

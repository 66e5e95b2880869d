"""One client's connection: the transport's side, between its socket and the intake of its requests."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.network.native_connection import NativeConnection
from ottla.broker.network.request_intake import RequestIntake
from ottla.broker.network.response_queue import ResponseQueue
from ottla.broker.network.session import Session, SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.config import BrokerConfig
    from ottla.broker.network.shared import Shared
    from ottla.broker.security.principal import Principal
    from ottla.broker.security.sasl.login import Login


LOGIN_WITHIN_S: Final = 10.0
"""How long a client may take for its first login, with the TLS handshake before it."""


class Connection(NativeConnection, asyncio.BufferedProtocol):
    """Receives for the intake (`request_intake`), writes its responses, and closes.

    The native half receives and writes. Reading pauses while the intake takes no more.
    """

    intake: RequestIntake

    def __init__(
        self,
        shared: Shared[Connection],
        listener_name: str,
        state: SessionState,
        begin_login: Callable[[], Login] | None = None,
    ) -> None:
        """`begin_login` makes the login of a session that begins without one."""
        self.shared = shared
        self._listener_name = listener_name
        self._initial_state = state
        self._begin_login = begin_login
        self._end_of_login: asyncio.TimerHandle | None = None
        """Ends a login that takes too long, and later the time for which it is good."""
        self.reading = True
        self._client_has_left = False
        self._end_of_close: asyncio.TimerHandle | None = None
        self.last_active_s = 0.0
        self.looked_at_s = 0.0

    # ---- the transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        shared = self.shared
        self.session = Session(
            listener_name=self._listener_name,
            client_host=str(peer[0]) if peer else "",
            connection_id=f"{_address(local)}-{_address(peer)}-{shared.connections.next_number()}",
            state=self._initial_state,
            login=None if self._begin_login is None else self._begin_login(),
        )
        # With a high mark of 0, "paused" means that the socket has not taken everything.
        self.transport.set_write_buffer_limits(high=0)
        self.responses = ResponseQueue(
            self.transport, self._unblocked, shared.times.metrics.bytes_out, shared.full_sockets
        )
        self.intake = RequestIntake(shared, self, self.session, self.responses)
        self.descriptor = _set_socket_options(self.transport, shared.config)
        self.last_active_s = self.looked_at_s = shared.now_s()
        if not shared.connections.admit(self, transport.get_extra_info("holder")):
            self.abort()
        elif self.session.login is not None:
            self.session.on_login = self._logged_in
            since_s = transport.get_extra_info("since_s", asyncio.get_running_loop().time())
            self._end_of_login = asyncio.get_running_loop().call_at(
                since_s + LOGIN_WITHIN_S, self._end_slow_login
            )

    def eof_received(self) -> bool:
        """Close soon: thousands of clients that leave together stop no other client."""
        if not self.transport.can_write_eof():
            return False  # the transport closes by itself
        self._client_has_left = self.session.is_gone = True
        self.shared.closing.put(self._close_when_answered)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = self.session.is_gone = True
        if self._end_of_close is not None:
            self._end_of_close.cancel()
        if self._end_of_login is not None:
            self._end_of_login.cancel()
        self.session.on_login = None
        self.responses.close()
        if self.session.on_gone is not None:
            self.session.on_gone(self.session.connection_id)
        self.intake.client_is_gone()
        self.shared.queue.forget(self)
        self.shared.connections.forget(self)

    def pause_writing(self) -> None:
        self.responses.pause_writing()

    def resume_writing(self) -> None:
        self.responses.resume_writing()

    # ---- logins

    def began(self, principal: Principal | None) -> None:
        """Take the identity that the client's certificate has proved, if the listener goes by it."""
        if principal is not None and not self.closing:
            self.session.authenticated(principal)

    def _end_slow_login(self) -> None:
        if not self.closing:
            self.refuse(TimeoutError(f"no login within {LOGIN_WITHIN_S:g} s"))
            self.abort()

    def _logged_in(self, ends_after_ms: float | None) -> None:
        """Take requests of all sizes, and hold the session to the end of its login."""
        if self._end_of_login is not None:
            self._end_of_login.cancel()
            self._end_of_login = None
        self.intake.logged_in()
        self.shared.connections.logged_in(self)
        if ends_after_ms is not None:
            loop = asyncio.get_running_loop()
            self._end_of_login = loop.call_later(ends_after_ms / 1000, self.session.begin_login)

    # ---- its state, for the parts that all connections share

    @property
    def idle(self) -> bool:
        """Whether no request is being answered, and none is held back."""
        intake = self.intake
        return not intake.requests.pending and self.responses.empty and not intake.is_muted

    @property
    def busy(self) -> bool:
        """Whether a stopping broker has to wait for this connection; not for requests that only wait."""
        return self.intake.requests.are_worked_on or not self.responses.empty

    @property
    def is_of_broker(self) -> bool:
        """Whether the other end is known to be a broker, which no limit concerns."""
        return self.shared.is_broker(self.session) is True

    @property
    def socket_descriptor(self) -> int:
        """The descriptor of the socket, also beneath TLS; -1 where it is not known."""
        plug = self.transport.get_extra_info("socket")
        return -1 if plug is None else int(plug.fileno())

    @property
    def kept_bytes(self) -> int:
        """Bytes received that were not taken as requests yet."""
        return self.intake.reader.kept_bytes

    @property
    def is_receiving(self) -> bool:
        """Whether the request that is not complete waits for its client."""
        return self.reading and self.intake.reader.exhausted

    @property
    def waits_unseen(self) -> bool:
        """Whether reading is paused for long, so that no end would be seen.

        A request that only waits holds back others, or the connection is muted.
        """
        return not self.reading and (self.intake.requests.first_only_waits or self.intake.is_muted)

    # ---- reading and writing

    def flush(self) -> None:
        """Write responses and go on reading; if the client has left, close behind the requests in work."""
        if self._client_has_left:
            self.shared.closing.put(self._close_when_answered)
        elif not self.closing:
            self.intake.pump()
        self.shared.connections.settled()

    def _close_when_answered(self) -> None:
        if not self.intake.requests.are_worked_on:
            self.close()

    def _unblocked(self) -> None:
        if not self.closing:
            self.intake.pump()
        elif not self.responses.parts:
            self.transport.close()
        self.shared.connections.settled()

    def set_reading(self, reading: bool) -> None:
        """Read from the socket, or pause."""
        if reading is self.reading or self.transport.is_closing():
            return
        self.reading = reading
        if reading:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def stop_taking(self) -> None:
        """Take no more requests; requests that were started are still answered."""
        self.intake.stop()
        self.set_reading(False)

    def take_again(self) -> None:
        """Undo `stop_taking`, and begin the requests that were received."""
        if not self.closing:
            self.intake.go_on()
            self.shared.queue.flush_soon(self)

    def mute(self, until_ms: float) -> None:
        """Begin and read no requests until then, for a quota; requests that were begun are answered.

        `until_ms` is a time of the clock of `RequestContext.received_ms`. The connection goes on by itself.
        """
        if not self.closing:
            self.intake.mute(until_ms / 1000)
            self.set_reading(False)

    # ---- the end

    def end_wait(self) -> None:
        """Drop the request that waits, for the client is gone; requests behind it are still read.

        A muted connection closes: what stands behind the end of its mute has no reader.
        """
        if self.intake.is_muted:
            self.eof_received()
            return
        self.intake.requests.end_wait()

    def refuse(self, error: Exception) -> None:
        """Close because of a request that cannot be served."""
        session = self.session
        facts = {"connection": session.connection_id, "reason": str(error)}
        self.shared.warnings.warn(session.client_host, "connection closed", extra=facts)
        self.close()

    def fail(self, error: Exception) -> None:
        """Close because of a fault of this broker, and drop unsent responses."""
        facts = {"connection": self.session.connection_id}
        self.shared.warnings.warn(repr(error), "connection failed", extra=facts, exc_info=error)
        self.abort()

    def close(self) -> None:
        """Close once the pending responses are written, or after `request.timeout.ms`."""
        if not self.closing:
            self.responses.flush()
        self.intake.stop()
        self.closing = True
        if not self.responses.parts:  # what the transport has, it writes before it closes
            self.transport.close()
        elif self._end_of_close is None:
            self.set_reading(False)
            within_s = self.shared.config.request_timeout_ms / 1000
            self._end_of_close = asyncio.get_running_loop().call_later(within_s, self.abort)

    def forget_frames(self) -> None:
        """Free the memory of received bytes, now and not when the transport reports the end."""
        self.intake.reader.forget()

    def abort(self) -> None:
        """Close now and drop unsent responses."""
        self.intake.stop()
        self.closing = True
        self.transport.abort()


def _set_socket_options(transport: asyncio.Transport, config: BrokerConfig) -> int:
    """Return the descriptor to send to; -1 where bytes have to go through the transport."""
    plug = transport.get_extra_info("socket")
    if plug is None:
        return -1
    if plug.family in (socket.AF_INET, socket.AF_INET6):
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if config.socket_send_buffer_bytes > 0:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes)
    return int(plug.fileno()) if transport.get_extra_info("sslcontext") is None else -1


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"

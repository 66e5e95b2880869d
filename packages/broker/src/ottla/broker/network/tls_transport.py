"""TLS beneath a connection: asyncio's own costs 280 KiB for each, this about 23.

The layer is a protocol to the transport of the socket, and the transport of the connection. OpenSSL gets
what was received record by record, and gives what is sent away in the same way, so that its buffers, which
never shrink, stay as small as a record. All connections receive into one buffer.

Until the handshake is done there is no connection and no session, and until the first bytes come nothing of
TLS either. Steps of handshakes are paced by a share of the event loop's turns, because each takes about a
millisecond of arithmetic.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ottla.zookeeper.frozen_classes import frozen

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.network.open_connections import OpenConnections
    from ottla.broker.quotas.handshakes import UnfinishedHandshakes
    from ottla.broker.runtime.log_lines import LimitedWarnings
    from ottla.broker.runtime.loop_budget import StepQueue
    from ottla.broker.security.principal import Principal
    from ottla.broker.security.tls.contexts import ListenerTls

RECEIVE_BYTES: Final = 65_536
PIECE_BYTES: Final = 16_384
"""A record's most plaintext."""
RECORD_HEADER_BYTES: Final = 5
MOST_RECORD_BYTES: Final = RECORD_HEADER_BYTES + PIECE_BYTES + 2_048
"""Of TLS 1.2, whose records may grow by 2,048 bytes with encryption."""
MOST_HANDSHAKE_BYTES: Final = 131_072
"""A client with a long chain of certificates sends a few thousand."""
HANDSHAKE_STEP_MS: Final = 0.7
"""A step with RSA of 2,048 bits; with elliptic curves it is less."""

MOST_ANSWERS: Final = 256
"""Bytes that OpenSSL may answer by itself to what was received at once: to nine updates of keys."""
MOST_UNSENT_ANSWERS: Final = 16_384
"""Such bytes while the client reads nothing."""

_HANDSHAKE_RECORD: Final = 0x16
_ABOUT_VERSIONS: Final = ("VERSION", "PROTOCOL")


class Client(Protocol):
    """The connection above, as this layer sees it."""

    def connection_made(self, transport: asyncio.BaseTransport, /) -> None: ...

    def get_buffer(self, sizehint: int, /) -> memoryview: ...

    def buffer_updated(self, nbytes: int, /) -> None: ...

    def eof_received(self) -> bool | None: ...

    def connection_lost(self, exc: Exception | None, /) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def began(self, principal: Principal | None) -> None:
        """Take the identity that the client's certificate has proved, if the listener goes by it."""
        ...


@frozen(kw_only=True)
class TlsShared:
    """Parts that all TLS connections of one broker share."""

    buffer: memoryview
    handshakes: StepQueue
    unfinished: UnfinishedHandshakes
    places: OpenConnections[Any]
    warnings: LimitedWarnings


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The TLS of one connection."""

    __slots__ = (
        "_answered_bytes",
        "_client",
        "_has_ended",
        "_has_record",
        "_incoming",
        "_is_closing",
        "_is_paused",
        "_is_planned",
        "_is_ready",
        "_listener",
        "_make",
        "_missing_bytes",
        "_outgoing",
        "_place",
        "_proves_identity",
        "_received_bytes",
        "_shared",
        "_since_s",
        "_ticket",
        "_tls",
        "_transport",
        "_unread",
    )

    def __init__(
        self,
        shared: TlsShared,
        listener: ListenerTls,
        make: Callable[[], Client],
        *,
        proves_identity: bool,
    ) -> None:
        """`make` makes the connection once the handshake is done.

        With `proves_identity` its principal is the client certificate's; else a login follows.
        """
        super().__init__()
        self._shared = shared
        self._listener = listener
        self._make: Callable[[], Client] | None = make
        self._proves_identity = proves_identity
        self._client: Client | None = None
        self._place: str | None = None
        """The host whose place this has within the limits, until there is a connection that has it."""
        self._tls: ssl.SSLObject | None = None
        self._incoming: ssl.MemoryBIO
        self._outgoing: ssl.MemoryBIO
        self._unread = b""
        """Received bytes that OpenSSL has not got yet."""
        self._received_bytes = 0
        """Of the handshake."""
        self._answered_bytes = 0
        """Answers of OpenSSL since everything was sent the last time."""
        self._ticket = b""
        """For the client's next connection; it goes out with the first answer."""
        self._has_record = False
        """Whether OpenSSL has a whole record that was not read, or the rest of one."""
        self._missing_bytes = 0
        """Of the record whose beginning OpenSSL has."""
        self._is_planned = self._is_ready = self._is_paused = self._is_closing = self._has_ended = False

    # ---- the events of the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self._since_s = asyncio.get_running_loop().time()
        if not self._shared.places.take_place(self, self.listener_name, self._host):
            self.abort()
            return
        self._place = self._host
        refusal = self._shared.unfinished.begin(self, self._place)
        if refusal is not None:
            self._failed(refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        received = self._shared.buffer[:nbytes]
        if not self._is_ready:
            self._handshake_bytes(received)
        elif self._is_paused or self._is_planned:
            self._unread += received  # read by the transport before it was paused
        elif self._unread:  # less than the header of a record
            unread, self._unread = self._unread + received, b""
            self._take(memoryview(unread))
        else:
            self._take(received)

    def eof_received(self) -> bool:
        if not self._is_ready and self._is_planned:
            self._step()  # the last bytes may say why the client leaves
        if not self._is_ready:
            if not self._is_closing and self._received_bytes:
                self._failed("the client hung up in the handshake: perhaps it does not trust the certificate")
            return False
        if self._is_paused or self._is_planned:
            # Without this the end would overtake requests that were received.
            self._has_ended = True
            return True
        return self._has_ended or self._end_of_client()

    def _end_of_client(self) -> bool:
        self._has_ended = True
        return self._client is not None and bool(self._client.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._shared.unfinished.end(self)
        client, self._client, self._make = self._client, None, None
        self._tls = None
        self._unread = b""
        if client is not None:
            client.connection_lost(exc)
        elif self._place is not None:
            self._shared.places.give_place_back(self, self.listener_name, self._place)

    def pause_writing(self) -> None:
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.resume_writing()

    # ---- the handshake

    def _handshake_bytes(self, received: memoryview) -> None:
        if self._is_closing:
            return
        if not self._received_bytes and received[0] != _HANDSHAKE_RECORD:
            self._failed(
                "the client does not speak TLS: its security.protocol has to be "
                f"{'SSL' if self._proves_identity else 'SASL_SSL'}"
            )
            return
        self._received_bytes += len(received)
        if self._received_bytes > MOST_HANDSHAKE_BYTES:
            self._failed(f"the client sent more than {MOST_HANDSHAKE_BYTES} bytes in the handshake")
            return
        self._unread += received
        if not self._is_planned:
            self._is_planned = True
            self._shared.handshakes.call(self._step)

    def _step(self) -> None:
        """Go on with the handshake as far as the received bytes allow."""
        self._is_planned = False
        if self._is_closing:
            return
        if self._tls is None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = self._listener.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(self._unread)
        self._unread = b""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_records()
        except (ssl.SSLError, ValueError) as error:
            self._send_records()  # the alert
            self._failed(why_failed(error))
        else:
            if self._tls.version() == "TLSv1.3":  # the client waits for nothing more
                self._ticket = self._outgoing.read()
            else:
                self._send_records()
            self._begin(self._tls)

    def _begin(self, tls: ssl.SSLObject) -> None:
        assert self._make is not None
        try:
            principal = self._listener.principal_of(tls) if self._proves_identity else None
        except ValueError as error:
            self._failed(str(error))
            return
        self._shared.unfinished.end(self)
        self._client, self._make = self._make(), None
        self._is_ready = True
        self._client.connection_made(self)
        self._client.began(principal)
        self._take(memoryview(self._incoming.read()))  # what came behind the client's last message

    @property
    def listener_name(self) -> str:
        """The listener that the client has connected to."""
        return self._listener.name

    def give_up(self, reason: str) -> None:
        """Close a handshake that takes too long, or makes room for another."""
        self._failed(reason)

    def _failed(self, reason: str) -> None:
        """Close before there is a connection, with one line at a limited rate."""
        facts = {"listener": self._listener.name, "client": self._host, "reason": reason}
        self._shared.warnings.warn(self._host, "TLS handshake failed", extra=facts)
        self._is_closing = True
        self._shared.unfinished.end(self)
        self._transport.close()

    @property
    def _host(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    # ---- receiving

    def _take(self, received: memoryview) -> None:
        """Decrypt what was received into the connection, as far as it takes it."""
        try:
            is_more = True
            while is_more and self._client is not None and not self._is_paused and not self._is_closing:
                received, is_more = self._fill(self._client, received)
        except ssl.SSLError as error:
            self._broken(why_failed(error))
            return
        if received and not self._is_closing:
            self._unread = bytes(received)
        if self._tls is not None and self._outgoing.pending and not self._is_closing:
            self._answer()

    def _answer(self) -> None:
        """Send the answers to updates of keys, or close a client that asks for many of them.

        Each costs 30 µs, and is kept where the client does not read: nothing else would limit them.
        """
        size = self._outgoing.pending
        if not self._transport.get_write_buffer_size():
            self._answered_bytes = 0
        self._answered_bytes += size
        if size > MOST_ANSWERS or self._answered_bytes > MOST_UNSENT_ANSWERS:
            self._broken("the client asks for new keys or handshakes, and sends nothing else")
        else:
            self._send_records()

    def _fill(self, client: Client, received: memoryview) -> tuple[memoryview, bool]:
        """Decrypt into one buffer of the connection; return the rest, and whether there is more to decrypt.

        The connection gets all records at once: it copies the beginning of a request with each call.
        """
        tls, buffer, have = self._tls, client.get_buffer(-1), 0
        assert tls is not None
        room, count, failure = len(buffer), -1, None
        while have < room:
            if not self._has_record:
                received = self._feed(received)
                if not self._has_record:
                    break
            try:
                count = cast(int, tls.read(room - have, cast(Any, buffer[have:] if have else buffer)))
            except ssl.SSLWantReadError:  # a record of TLS itself: new keys, for instance
                self._has_record = False
                if self._outgoing.pending > MOST_ANSWERS:
                    break
                continue
            except ssl.SSLZeroReturnError:
                count = 0
            except ssl.SSLError as error:
                failure = error
                break
            if not count:
                break
            have += count
            self._has_record = have == room and tls.pending() > 0
        if have:
            client.buffer_updated(have)
        if failure is not None:
            raise failure
        if not count:
            self._client_ended()
        return received, bool(count) and have == room

    def _feed(self, received: memoryview) -> memoryview:
        """Give OpenSSL the received part of the next record, and return the rest.

        It is asked for whole records only: to be asked in vain costs it as much as to decrypt 10 KB.
        """
        if not self._missing_bytes:
            if len(received) < RECORD_HEADER_BYTES:
                return received
            size = RECORD_HEADER_BYTES + (received[3] << 8 | received[4])
            # OpenSSL refuses a longer one by its header.
            self._missing_bytes = RECORD_HEADER_BYTES if size > MOST_RECORD_BYTES else size
        part = received[: self._missing_bytes]
        self._incoming.write(part)
        self._missing_bytes -= len(part)
        self._has_record = not self._missing_bytes
        return received[len(part) :]

    def _client_ended(self) -> None:
        """Take the alert that announces the end for the end of the stream."""
        if not self._has_ended and not self._end_of_client():
            self._transport.close()

    def _broken(self, reason: str) -> None:
        facts = {"listener": self._listener.name, "client": self._host, "reason": reason}
        self._shared.warnings.warn(self._host, "TLS connection failed", extra=facts)
        self.abort()

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            if not self._has_ended:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_paused:
            return
        self._is_paused = False
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Decrypt what came before the pause, then read again."""
        self._is_planned = False
        if self._is_closing or self._is_paused:
            return
        unread, self._unread = self._unread, b""
        self._take(memoryview(unread))
        self._read_again()

    def _read_again(self) -> None:
        if self._is_closing or self._is_paused:
            return
        if not self._has_ended:
            self._transport.resume_reading()
        elif not self._end_of_client():
            self._transport.close()

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    # ---- sending

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        tls = self._tls
        if tls is None or self._is_closing or not data:
            return
        view, records = memoryview(data), []
        if self._ticket:
            records, self._ticket = [self._ticket], b""
        try:
            while view:
                view = view[tls.write(cast(Any, view[:PIECE_BYTES])) :]
                records.append(self._outgoing.read())
        except ssl.SSLError as error:
            self._broken(why_failed(error))
            return
        self._transport.write(records[0] if len(records) == 1 else b"".join(records))

    def _send_records(self) -> None:
        if self._outgoing.pending:
            records, self._ticket = self._ticket + self._outgoing.read(), b""
            self._transport.write(records)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return True

    # ---- the end

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Announce the end to the client, and close once everything is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._tls is not None:
            with suppress(ssl.SSLError):  # the client's own announcement is not waited for
                self._tls.unwrap()
            self._send_records()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._listener.context
        if name == "ssl_object":
            return self._tls
        if name == "holder":
            return self
        if name == "since_s":
            return self._since_s
        return self._transport.get_extra_info(name, default)


def why_failed(error: Exception) -> str:
    """Return the cause of a failed handshake, in words that name the side to change."""
    reason = str(getattr(error, "reason", None) or error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"the client refused: {alert}; perhaps it does not trust the broker's certificate"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the client has no certificate, and ssl.client.auth is required"
    if "NO_SHARED_CIPHER" in reason or any(word in reason for word in _ABOUT_VERSIONS):
        return f"client and broker have no version or cipher suite in common ({reason.lower()})"
    return reason.replace("_", " ").lower()

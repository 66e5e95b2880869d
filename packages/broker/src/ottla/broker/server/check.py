"""Ask the broker of this machine for its API versions, as the health check of a container does.

The request needs no login. A broker whose event loop hangs, or that is still starting, does not answer it.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable
from typing import Final

from ottla.broker.config import Listener, parse_listeners
from ottla.protocol.api import ApiKey, RequestHeader, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest

_PROTOCOLS: Final = ",".join(f"{name}:{name}" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"))
"""The protocols of listeners that are named after theirs."""

_CORRELATION_ID: Final = 1
_MOST_BYTES: Final = 65_536
_ALL_INTERFACES: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class NoAnswer(OSError):
    """A broker does not answer a request that every broker answers."""

    def __init__(self, listener: Listener, reason: Exception) -> None:
        super().__init__(f"{listener} does not answer: {reason}")


def check_broker(configured: Iterable[Listener] | None, address: str | None, timeout_s: float) -> str:
    """Ask a broker at an address, or one of its listeners; return what to print. Raises NoAnswer."""
    listeners = parse_listeners("--listen", address, _PROTOCOLS) if address else configured or ()
    listener = local_listener(listeners)
    try:
        ask(listener, timeout_s)
    except OSError as error:
        raise NoAnswer(listener, error) from error
    return f"{listener} answers"


def local_listener(listeners: Iterable[Listener]) -> Listener:
    """Return the listener to ask: one without TLS if there is one, at an address of this machine."""
    listener = min(listeners, key=lambda found: found.security_protocol.endswith("SSL"))
    return listener._replace(host=_ALL_INTERFACES.get(listener.host, listener.host))


def ask(listener: Listener, timeout_s: float) -> None:
    """Send an ApiVersions request and read the response. Raises OSError if there is none."""
    with socket.create_connection((listener.host, listener.port), timeout_s) as connection:
        if not listener.security_protocol.endswith("SSL"):
            _exchange(connection)
            return
        try:
            with _trusting().wrap_socket(connection) as encrypted:
                _exchange(encrypted)
        except ssl.SSLError as error:
            # An alert is an answer: a listener may ask for the certificate of a client.
            if "ALERT" not in (error.reason or ""):
                raise


def _trusting() -> ssl.SSLContext:
    # No secret is sent, and the certificate need not name 127.0.0.1.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _exchange(connection: socket.socket) -> None:
    header = RequestHeader(ApiKey.API_VERSIONS, 0, _CORRELATION_ID, "ottla broker check")
    request = encode_request(header, ApiVersionsRequest())
    connection.sendall(struct.pack(">i", len(request)) + request)
    size, correlation_id = struct.unpack(">ii", _read(connection, 8))
    if correlation_id != _CORRELATION_ID or not 4 < size <= _MOST_BYTES:
        raise OSError("its answer is not one of Kafka's protocol")
    _read(connection, size - 4)


def _read(connection: socket.socket, count: int) -> bytes:
    read = b""
    while len(read) < count:
        if not (more := connection.recv(count - len(read))):
            raise OSError("it closed the connection without an answer")
        read += more
    return read

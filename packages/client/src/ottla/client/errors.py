"""Errors of a client itself: connections, timeouts, authentication, retries.

Error codes of a broker are `ottla.protocol.errors.KafkaError`. Both have `retriable`: whether the same
request may succeed later.
"""

from __future__ import annotations

from typing import ClassVar

from ottla.protocol.api import ApiKey


class ClientError(Exception):
    """The base of all errors of a client; the message says what to check."""

    retriable: ClassVar[bool] = False


class ConnectFailed(ClientError):
    """No connection could be made."""

    retriable = True

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot connect to {host}:{port}: {reason}")
        self.host = host
        self.port = port
        self.reason = reason


class ConnectionClosed(ClientError):
    """The connection ended before the response. The broker may or may not have executed the request."""

    retriable = True

    def __init__(self, host: str, port: int, reason: str = "the broker closed the connection") -> None:
        super().__init__(f"{host}:{port}: {reason}")
        self.host = host
        self.port = port
        self.reason = reason


class ClientClosed(ClientError):
    """The client was closed."""


class NotRunning(ClientError):
    """The client was not started, or is closed."""


class RequestTimeout(ClientError):
    """The broker did not respond in time. The connection is closed: later responses wait behind this one."""

    retriable = True

    def __init__(self, host: str, port: int, api: str, timeout_s: float) -> None:
        super().__init__(f"{host}:{port} did not answer {api} within {timeout_s:g} s")
        self.api = api
        self.timeout_s = timeout_s


class UnsupportedByBroker(ClientError):
    """The broker has no version of an API that this client can use."""

    def __init__(self, key: int, ours: tuple[int, int], theirs: tuple[int, int] | None) -> None:
        name = ApiKey(key).name
        has = "does not serve it" if theirs is None else f"serves versions {theirs[0]} to {theirs[1]}"
        super().__init__(f"{name} is needed in a version from {ours[0]} to {ours[1]}; the broker {has}")
        self.is_served = theirs is not None
        self.api_key = key
        self.ours = ours
        self.theirs = theirs


class BadResponse(ClientError):
    """The received bytes are not Kafka's protocol, or not the response to the request."""


class AuthenticationFailed(ClientError):
    """The broker or the client rejected the other's credentials or certificate."""


NO_TLS_THERE = "hung up on our TLS greeting; if that port speaks no TLS, connect with security.protocol"
"""The words about a port that ends connections when they begin with TLS."""


class NoBrokerAvailable(ClientError):
    """No known broker could be reached."""

    retriable = True

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("no broker can be reached: " + "; ".join(reasons or ["no address is known"]))
        self.reasons = reasons


class DeadlineExceeded(ClientError):
    """A call did not succeed before its deadline; `__cause__` is the last error."""

    def __init__(self, what: str, timeout_s: float, last: BaseException | None) -> None:
        because = f": {last}" if last is not None else ""
        super().__init__(f"{what} did not succeed within {timeout_s:g} s{because}")

"""Errors of a client itself: connections, timeouts, authentication, retries.

Error codes of a broker are `ottla.protocol.errors.KafkaError`. Both have `retriable`: whether the same
request may succeed later.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from ottla.protocol.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError, error_for


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


class Need(NamedTuple):
    """A permission that a request needs."""

    operation: Operation
    resource_type: ResourceType
    name: str = CLUSTER_NAME

    def __str__(self) -> str:
        return f"not permitted to {self.operation.name} {self.resource_type.name} {self.name!r}"


IDEMPOTENT_WRITE: Final = Need(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
ALTER_CLUSTER: Final = Need(Operation.ALTER, ResourceType.CLUSTER)
DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, ResourceType.CLUSTER)

_DENIED: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ResourceType.TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ResourceType.GROUP,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ResourceType.CLUSTER,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceType.TRANSACTIONAL_ID,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: ResourceType.USER,
}


def error_about(code: int, message: str | None, *needs: Need) -> KafkaError:
    """Return the error of a response's code; it names the permission that is missing, if one is.

    Brokers name neither. `needs` has what the request needs, at most one for each type of resource.
    """
    kind = next((kind for denied, kind in _DENIED.items() if denied == code), None)
    missing = next((str(need) for need in needs if need.resource_type == kind), None)
    text = (message or "").removesuffix(".")
    return error_for(code, message if missing is None else f"{text}: {missing}" if text else missing)


class AuthenticationFailed(ClientError):
    """The broker or the client rejected the other's credentials or certificate."""


OTHER_PROTOCOL: Final = "connect with security.protocol"
NO_TLS_THERE: Final = f"hung up on our TLS greeting; if that port speaks no TLS, {OTHER_PROTOCOL}"
"""The words about a port that ends connections when they begin with TLS."""
ONLY_TLS_THERE: Final = f"it does not answer our first request; if that port speaks TLS, {OTHER_PROTOCOL}"
"""The words about a port that ends connections which begin without TLS, as Java's with an alert of TLS."""
NO_LOGIN: Final = f"it hung up on our first request; if that port asks for a login, {OTHER_PROTOCOL}"
"""The words about a port that ends connections without a login."""


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

"""Dispatch: decode a request, call its handler, encode the response."""

from __future__ import annotations

import inspect
import logging
import struct
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic

from ottla.broker.handlers.request_context import CloseConnection, RequestContext, S
from ottla.broker.network.session import BEFORE_LOGIN, SessionState
from ottla.protocol.api import ApiKey, request_class, response_class
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.headers import decode_request_header, response_header
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.primitives import MalformedMessage

if TYPE_CHECKING:
    from ottla.broker.handlers.request_context import Handler
    from ottla.broker.network.response_queue import Part
    from ottla.broker.network.session import Session

log = logging.getLogger("request")

_HEAD: Final = struct.Struct(">hhi")
_SIZE: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Route(Generic[S]):
    """One API that the broker serves, the versions it serves, and the API's handler.

    ApiVersions is computed from the list of routes.
    """

    api_key: ApiKey
    min_version: int
    max_version: int
    handler: Handler[S]
    stops_with_connection: bool = False
    """Whether the handler is cancelled when its client disconnects: for handlers that only wait."""
    waits_for_clients: bool = False
    """Whether the handler may wait for what other clients do: a stopping broker ends it at once."""
    borrows_buffer: bool = False
    """Whether the request keeps views of the receive buffer instead of owning its bytes.

    The handler is then called as soon as the request is decoded, and the buffer is lent to it until it
    returns: its response must not hold a view, and an awaitable that it returns must not read one.
    """

    def __post_init__(self) -> None:
        if self.borrows_buffer and inspect.iscoroutinefunction(self.handler):
            # The body of a coroutine function runs after the call has returned, when the buffer is reused.
            raise ValueError(f"the handler of {self.api_key!r} is a coroutine function: it cannot borrow")


class Routes(Generic[S]):
    """The APIs of one broker by key. A second route for a key raises ValueError."""

    def __init__(self, routes: Iterable[Route[S]]) -> None:
        self._by_key: dict[int, Route[S]] = {}
        for route in routes:
            if int(route.api_key) in self._by_key:
                raise ValueError(f"two routes for {route.api_key!r}")
            self._by_key[int(route.api_key)] = route

    def __iter__(self) -> Iterator[Route[S]]:
        return iter(self._by_key.values())

    def find(self, api_key: int) -> Route[S] | None:
        """Return the route of an API key, or None where the broker does not serve it."""
        return self._by_key.get(api_key)


@dataclass(slots=True)
class Call:
    """One decoded request with its route."""

    route: Route[Any]
    request: Any
    context: RequestContext
    size: int


class BadRequest(Exception):
    """The bytes are not a request that this broker can answer: the connection is closed, as Kafka does."""


class Dispatcher(Generic[S]):
    """Reads requests, calls their handlers with the broker's services, and writes the responses."""

    def __init__(self, routes: Routes[S], services: S) -> None:
        self._routes = routes
        self._services = services

    def read(self, frame: memoryview, session: Session, received_ms: float) -> Call | list[Part]:
        """Read one request; returns the response itself where only the network can give it.

        Raises `BadRequest`, also for an API that may not be called before login: it is the only place that
        checks the session's state. The request of a route that borrows the buffer keeps views of `frame`; any
        other request owns its bytes.
        """
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        if session.state is not SessionState.AUTHENTICATED and api_key not in BEFORE_LOGIN:
            raise BadRequest(f"API key {api_key} before authentication")
        route = self._routes.find(api_key)
        if route is None:
            raise BadRequest(f"API key {api_key} is not served")
        if not route.min_version <= version <= route.max_version:
            return self._refuse_version(api_key, version, correlation_id)
        body = frame if route.borrows_buffer else memoryview(bytes(frame))
        try:
            header, offset = decode_request_header(body)
            # librdkafka appends bytes to a Metadata request for all topics, and Kafka ignores them.
            request = request_class(ApiKey(api_key)).decode(body[offset:], version, exact=False)
        except MalformedMessage as error:
            raise BadRequest(f"{ApiKey(api_key).name} v{version} cannot be read: {error}") from error
        if session.client_id != header.client_id:
            session.client_named(header.client_id)
        return Call(
            route, request, RequestContext(header, session, received_ms, session.index_epoch), len(frame)
        )

    def _refuse_version(self, api_key: int, version: int, correlation_id: int) -> list[Part]:
        if api_key != ApiKey.API_VERSIONS:
            raise BadRequest(f"version {version} of {ApiKey(api_key).name} is not served")
        # A client that asks in a newer version parses this response as version 0 and retries (KIP-511).
        ranges = [
            ApiVersion(api_key=int(one.api_key), min_version=one.min_version, max_version=one.max_version)
            for one in self._routes
        ]
        body = ApiVersionsResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION), api_keys=ranges).encode(0)
        return frame_of(response_header(correlation_id, ApiKey.API_VERSIONS, 0), [body])

    def begin(self, call: Call) -> Any:
        """Call the handler; returns the response, None, or an awaitable of either."""
        return call.route.handler(self._services, call.request, call.context)

    async def answer(self, call: Call, begun: Awaitable[Any] | None = None) -> list[Part] | None:
        """Run the handler, or await what it returned, and encode the response."""
        try:
            response = self.begin(call) if begun is None else begun
            if inspect.isawaitable(response):
                response = await response
            return self.encode(call, response)
        except Exception as error:
            return self.answer_error(call, error)

    def encode(self, call: Call, response: Any) -> list[Part] | None:
        """Encode a response as a frame; None stands for no response."""
        if response is None:
            return None
        header = call.context.header
        head = response_header(header.correlation_id, ApiKey(header.api_key), header.api_version)
        if hasattr(response, "encode_parts"):
            return frame_of(head, response.encode_parts(header.api_version))
        return frame_of(head, [response.encode(header.api_version)])

    def answer_error(self, call: Call, error: Exception) -> list[Part] | None:
        """Encode the error of a handler; raises `CloseConnection` if the response has no error code."""
        if isinstance(error, CloseConnection):
            raise error
        if not isinstance(error, KafkaError):
            log.error(
                "%s v%d from %s failed",
                call.route.api_key.name,
                call.context.api_version,
                call.context.session.connection_id,
                exc_info=error,
            )
        response = response_class(call.route.api_key)()
        if not hasattr(response, "error_code"):
            raise CloseConnection from error
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        response.error_code = int(code)
        return self.encode(call, response)


def frame_of(head: bytes, body: list[Part]) -> list[Part]:
    """Prepend size and header to a body."""
    size = len(head) + sum(len(part) if isinstance(part, bytes) else part.length for part in body)
    if len(body) and isinstance(body[0], bytes):
        return [b"".join((_SIZE.pack(size), head, body[0])), *body[1:]]
    return [_SIZE.pack(size) + head, *body]

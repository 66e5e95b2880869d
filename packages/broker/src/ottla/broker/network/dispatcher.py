"""Dispatch: decode a request, call its handler, encode the response."""

from __future__ import annotations

import inspect
import logging
import struct
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic

from ottla.broker.network.response_queue import LongResponse
from ottla.broker.network.session import SessionState
from ottla.broker.peers.client import beyond_level
from ottla.broker.quotas import Quota
from ottla.broker.quotas.rates import UNLIMITED
from ottla.broker.requests.authorization import RequestAuthorization
from ottla.broker.requests.context import CloseConnection, RequestContext, S
from ottla.broker.runtime.environment import SystemClock
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.runtime.loop_budget import Disconnected, LoopBudget
from ottla.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_request_header,
    request_class,
    response_class,
    response_header,
)
from ottla.protocol.errors import ErrorCode, InvalidRequest, KafkaError
from ottla.protocol.primitives import MalformedMessage, UnsupportedField

if TYPE_CHECKING:
    from ottla.broker.network.response_queue import Part
    from ottla.broker.network.session import Session
    from ottla.broker.quotas.clients import ClientQuotas
    from ottla.broker.quotas.connections import AddressRates
    from ottla.broker.quotas.rates import SessionQuotas
    from ottla.broker.requests.fast_path import FastPath
    from ottla.broker.requests.routes import Route, Routes
    from ottla.protocol.schema import Message

log = logging.getLogger("request")

_HEAD: Final = struct.Struct(">hhi")
_SIZE: Final = struct.Struct(">i")
_SHORT_FRAME: Final = 16_384
"""Bytes that are decoded at once. Longer frames are decoded in steps, if they have lists that need it."""
_MAX_ELEMENTS: Final = 100_000
_LONGEST_SHOWN: Final = 255
"""Bytes of a client id that a log shows."""


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One decoded request with its route."""

    route: Route[Any]
    request: Any
    context: RequestContext
    size: int
    reading: Generator[tuple[int, Any], None, Any] | None = None
    """The steps that read a long request; `answer` takes them."""
    is_raw_token: bool = False
    """Whether the frame is a login's token without a header, and so is its response."""


class BadRequest(Exception):
    """The bytes are not a request that this broker can answer: the connection is closed, as Kafka does."""


class Dispatcher(Generic[S]):
    """Reads requests, calls their handlers with the broker's services, and writes the responses."""

    def __init__(
        self,
        routes: Routes[S],
        services: S,
        *,
        max_elements: int = _MAX_ELEMENTS,
        access: RequestAuthorization | None = None,
        budget: LoopBudget | None = None,
        quotas: ClientQuotas | None = None,
    ) -> None:
        """`max_elements` limits the elements of all lists in one request, unless a broker sends it."""
        self.routes = routes
        self._services = services
        self._max_elements = max_elements
        self._access = access or RequestAuthorization()
        self._budget = budget or LoopBudget()
        self._quotas = quotas
        self._warnings = LimitedWarnings(log, SystemClock().monotonic_ms)

    def fast_paths(self) -> list[FastPath]:
        """Return the fast paths that the routes bring."""
        return self.routes.fast_paths(self._services)

    @property
    def address_rates(self) -> AddressRates | None:
        """The quotas of addresses for new connections."""
        return None if self._quotas is None else self._quotas.address_rates

    def close(self) -> None:
        """Give back the budget of long requests: no request comes any more."""
        self._budget.close()

    def read(self, frame: memoryview, session: Session, received_ms: float) -> Call | list[Part]:
        """Read one request; returns the response itself where only the network can give it.

        Raises `BadRequest`, also for an API that may not be called before login: it is the only place that
        checks the session's state. The request of a route that borrows the buffer keeps views of `frame`; any
        other request owns its bytes. A long request is read by `answer`: its context says `is_long`.
        """
        if session.state is not SessionState.AUTHENTICATED:
            login = session.login
            if login is not None and frame and login.begins_with_token(frame[0]):
                login.begin_with_token()
            if login is not None and login.takes_raw_tokens:
                return self._take_raw_token(frame, session, received_ms)
            self._check_login(frame, session)
        api_key, version, correlation_id = _HEAD.unpack_from(frame)
        route = self.routes.find(api_key)
        if route is None:
            raise BadRequest(f"{_name_of(api_key)} v{version} of client {_client_of(frame)!r} is not served")
        if not route.min_version <= version <= route.max_version:
            return self._refuse_version(route, version, correlation_id)
        body = frame if route.borrows_buffer else memoryview(bytes(frame))
        try:
            header, offset = decode_request_header(body)
            cls, reading = request_class(ApiKey(api_key)), None
            # librdkafka appends bytes to a Metadata request for all topics, and Kafka ignores them.
            if len(frame) <= _SHORT_FRAME:
                request: Any = cls.decode(body[offset:], version, exact=False)
            else:
                request, reading = _first_step(cls, route, body[offset:], version)
        except MalformedMessage as error:
            raise BadRequest(f"{ApiKey(api_key).name} v{version} cannot be read: {error}") from error
        if session.client_id != header.client_id:
            session.client_named(header.client_id)
        context = RequestContext(
            header,
            session,
            received_ms,
            session.index_epoch,
            budget=self._budget,
            authorizer=self._access.authorizer,
            quotas=self._quotas_of(session),
            is_long=reading is not None,
        )
        return Call(route, request, context, len(frame), reading)

    def _check_login(self, frame: memoryview, session: Session) -> None:
        """Raise `BadRequest` for a request that may not be sent before a login, or not yet."""
        if len(frame) < _HEAD.size:
            raise BadRequest(f"a frame of {len(frame)} bytes before authentication")
        api_key = int.from_bytes(frame[:2], signed=True)
        route = self.routes.find(api_key)
        if route is None or not route.before_login:
            reason = session.login.why_not(api_key) if session.login is not None else None
            raise BadRequest(reason or f"API key {api_key} before authentication")
        if session.login is not None and (reason := session.login.why_not(api_key)) is not None:
            raise BadRequest(reason)

    def _take_raw_token(self, frame: memoryview, session: Session, received_ms: float) -> Call:
        """Take a token that follows version 0 of SaslHandshake without the header of a request."""
        route = self.routes.of_raw_tokens
        assert route.raw_tokens is not None
        header = RequestHeader(route.api_key, 0, 0, session.client_id)
        context = RequestContext(header, session, received_ms, session.index_epoch, budget=self._budget)
        request = route.raw_tokens.request_of(bytes(frame))
        return Call(route, request, context, len(frame), is_raw_token=True)

    def _refuse_version(self, route: Route[S], version: int, correlation_id: int) -> list[Part]:
        api_key = route.api_key
        if route.unsupported is None:
            advice = beyond_level(api_key, version)
            raise BadRequest(f"version {version} of {api_key.name} is not served{advice}")
        body = route.unsupported(self.routes).encode(0)
        return frame_of(response_header(correlation_id, api_key, 0), [body])

    def take(
        self, header: RequestHeader, request: Message, session: Session, received_ms: float, size: int
    ) -> Call:
        """Take a request that a fast path has read and cannot answer."""
        route = self.routes.find(header.api_key)
        assert route is not None  # the fast path came with it
        header = header._replace(client_id=session.client_id)  # a fast path does not read it
        context = RequestContext(
            header,
            session,
            received_ms,
            session.index_epoch,
            budget=self._budget,
            authorizer=self._access.authorizer,
            quotas=self._quotas_of(session),
        )
        return Call(route, request, context, size)

    def _quotas_of(self, session: Session) -> SessionQuotas:
        """Return the session's quotas, looked up again where they are stale; none before a login."""
        if session.state is not SessionState.AUTHENTICATED:
            return UNLIMITED
        if session.quotas.is_stale:
            session.quotas = (
                UNLIMITED
                if self._quotas is None
                else self._quotas.of(session.principal.name, session.client_id)
            )
        return session.quotas

    def begin(self, call: Call) -> Any:
        """Call the handler if the sender has access; returns the response, None, or an awaitable of either.

        It is the only place that calls handlers, and asks for access. Raises the error of a refusal.
        """
        if call.context.quotas.request is not None:
            return timed(partial(self._begin, call), call.context, call.context.quotas.now_ms)
        if self._quotas is not None and self._quotas.measures_time and _is_exempt(call):
            return timed(partial(self._begin, call), call.context, self._quotas.now_ms)
        return self._begin(call)

    def _begin(self, call: Call) -> Any:
        if call.route.is_of_brokers:
            return self._begin_for_broker(call)
        self._access.check_permissions(call.route, call.request, call.context)
        return call.route.handler(self._services, call.request, call.context)

    async def _begin_for_broker(self, call: Call) -> Any:
        await self._access.check_broker(call.context)
        self._access.check_permissions(call.route, call.request, call.context)
        response = call.route.handler(self._services, call.request, call.context)
        return await response if inspect.isawaitable(response) else response

    async def answer(self, call: Call, begun: Awaitable[Any] | None = None) -> list[Part] | None:
        """Run the handler, or await the response that it has begun, and encode it.

        None stands for no response, also where the client has gone. Raises `BadRequest` for a long request
        that cannot be read.
        """
        try:
            if call.reading is not None:
                await self._finish_reading(call, call.reading)
            response = self.begin(call) if begun is None else begun
            if inspect.isawaitable(response):
                response = await response
            if call.context.needs_steps and response is not None:
                return await self._encode_in_steps(call, response)
            return self.encode(call, response)
        except Disconnected:
            return None
        except BadRequest:
            raise
        except Exception as error:
            return self.answer_error(call, error)

    async def _finish_reading(self, call: Call, steps: Generator[tuple[int, Any], None, Any]) -> None:
        turn, limited = call.context.turn, True
        while True:
            try:
                announced, so_far = next(steps)
            except StopIteration as end:
                call.request = end.value
                break
            except MalformedMessage as error:
                raise BadRequest(f"{_name(call)} cannot be read: {error}") from error
            if limited and announced > self._max_elements:
                if not (call.route.of_brokers(so_far) and await self._access.is_broker(call.context)):
                    self._refuse_length(call, announced)
                limited = False
            turn.steps = max(turn.steps, announced)
            await turn.yield_if_spent()
        turn.charge()

    def _refuse_length(self, call: Call, announced: int) -> None:
        limit = f"request.max.elements ({self._max_elements})"
        reason = f"{_name(call)} announces {announced} elements, more than {limit}"
        fields, version = response_class(call.route.api_key).FIELDS, call.context.api_version
        if not any(field.name == "error_code" and field.is_in(version) for field in fields):
            raise BadRequest(reason)  # every element would need an answer: Kafka closes the connection
        session = call.context.session
        facts = {"connection": session.connection_id, "reason": reason}
        self._warnings.warn(session.client_host, "request refused", extra=facts)
        raise InvalidRequest(reason)

    async def _encode_in_steps(self, call: Call, response: Any) -> list[Part]:
        self._throttle(call, response)
        header, turn = call.context.header, call.context.turn
        head = response_header(header.correlation_id, ApiKey(header.api_key), header.api_version)
        parts: list[Part] = [head]
        size = len(head)
        for part in response.encode_in_steps(header.api_version):
            if length := _length(part):
                parts.append(part)
                size += length
                await turn.yield_if_spent()
        parts[0] = _SIZE.pack(size) + head
        turn.charge()
        return LongResponse(parts, size + _SIZE.size)

    def encode(self, call: Call, response: Any) -> list[Part] | None:
        """Encode a response as a frame, with its throttle time; None stands for no response."""
        if call.context.quotas.is_limited or call.context.busy_ms:
            self._throttle(call, response)
        if response is None:
            return None
        if call.is_raw_token:
            return _raw_token(call, response)
        header = call.context.header
        head = response_header(header.correlation_id, ApiKey(header.api_key), header.api_version)
        if hasattr(response, "encode_parts"):
            return frame_of(head, response.encode_parts(header.api_version))
        return frame_of(head, [response.encode(header.api_version)])

    def _throttle(self, call: Call, response: Any) -> None:
        """Charge the client's quotas, and say in the response how long it has to wait."""
        context, route = call.context, call.route
        quotas = context.quotas
        if _is_exempt(call):
            if context.busy_ms and self._quotas is not None:
                self._quotas.exempt.record(context.busy_ms / 10, self._quotas.now_ms())
            return
        if not quotas.is_limited:
            return
        throttle_time_ms = context.throttle_time_ms
        if route.quota is Quota.PRODUCE:
            throttle_time_ms = quotas.charge_produce(call.size)
        if response is not None:  # Kafka throttles a request without a response for its bytes alone
            # A fetch was throttled before it was answered: what it took counts for the next.
            taken_ms = quotas.throttle_request(context.busy_ms)
            if route.quota is not Quota.FETCH:
                throttle_time_ms = max(throttle_time_ms, taken_ms)
        context.throttle_time_ms = throttle_time_ms
        if throttle_time_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = throttle_time_ms

    def answer_error(self, call: Call, error: Exception) -> list[Part] | None:
        """Encode the error of a handler; raises `CloseConnection` if the response has no error code."""
        if isinstance(error, CloseConnection):
            raise error
        if not isinstance(error, KafkaError):
            log.error(
                "request failed",
                extra={
                    "api": call.route.api_key.name, "version": call.context.api_version,
                    "connection": call.context.session.connection_id,
                },
                exc_info=error,
            )  # fmt: skip
        response = response_class(call.route.api_key)()
        if not hasattr(response, "error_code"):
            raise CloseConnection from error
        code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        response.error_code = int(code)
        try:
            return self.encode(call, response)
        except UnsupportedField:  # this version has error codes in its elements alone
            raise CloseConnection from error


def _is_exempt(call: Call) -> bool:
    """Whether only a broker sends such a request: it has no quota."""
    return call.route.quota is Quota.EXEMPT or call.route.of_brokers(call.request)


def _raw_token(call: Call, response: Any) -> list[Part]:
    """Write a token without a header. Raises `CloseConnection` for an error, which has no place in it."""
    assert call.route.raw_tokens is not None
    token = call.route.raw_tokens.token_of(response)
    if token is None:
        raise CloseConnection
    return [_SIZE.pack(len(token)) + token]


def timed(begin: Callable[[], Any], context: RequestContext, now_ms: Callable[[], float]) -> Any:
    """Call a handler, and add the time in which it holds the event loop to the request's."""
    began_ms = now_ms()
    try:
        begun = begin()
    finally:
        context.busy_ms += now_ms() - began_ms
    return TimedSteps(begun, context, now_ms) if inspect.isawaitable(begun) else begun


class TimedSteps(Awaitable[Any]):
    """An awaitable whose time on the event loop is added to its request's, step by step."""

    __slots__ = ("_begun", "_context", "_now_ms")

    def __init__(self, begun: Awaitable[Any], context: RequestContext, now_ms: Callable[[], float]) -> None:
        self._begun, self._context, self._now_ms = begun, context, now_ms

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._begun.__await__()
        thrown: BaseException | None = None
        while True:
            began_ms = self._now_ms()
            try:
                awaited = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as end:
                return end.value
            finally:
                self._context.busy_ms += self._now_ms() - began_ms
            thrown = None
            try:
                yield awaited
            except BaseException as error:
                thrown = error


def _name_of(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API key {api_key}"


def _client_of(frame: memoryview) -> str:
    """Return the client id of a request whose API is unknown; it stands at one place in all headers."""
    start = _HEAD.size + 2
    size = int.from_bytes(frame[_HEAD.size : start], signed=True)
    if not 0 < size <= min(_LONGEST_SHOWN, len(frame) - start):
        return ""
    return bytes(frame[start : start + size]).decode(errors="replace")


def _name(call: Call) -> str:
    return f"{call.route.api_key.name} v{call.context.api_version}"


def _first_step(
    cls: type[Message], route: Route[Any], body: memoryview, version: int
) -> tuple[Any, Generator[tuple[int, Any], None, Any] | None]:
    """Read a request that is not long; of a long one, return the steps that read it."""
    steps = cls.decode_in_steps(body, version, exact=False)
    try:
        next(steps)
    except StopIteration as end:
        return end.value, None
    # Begun again, on bytes of its own: the receive buffer is not lent for that long.
    owned = memoryview(bytes(body)) if route.borrows_buffer else body
    return None, cls.decode_in_steps(owned, version, exact=False)


def frame_of(head: bytes, body: list[Part]) -> list[Part]:
    """Prepend size and header to a body."""
    size = len(head) + sum(map(_length, body))
    if len(body) and isinstance(body[0], bytes):
        return [b"".join((_SIZE.pack(size), head, body[0])), *body[1:]]
    return [_SIZE.pack(size) + head, *body]


def _length(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part.length

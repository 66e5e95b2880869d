"""One connection to one broker: pipelined requests, responses in the order of the requests.

No task runs in here. Received bytes are parsed where the event loop delivers them, and the sender of a
request awaits a future in a queue.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ottla.client.api_versions import BEFORE_API_VERSIONS, VersionRange, choose_version, must_wait
from ottla.client.authentication import authenticate, certificate_problem, renewal_s
from ottla.client.config import Address, ClientConfig
from ottla.client.environment import chance
from ottla.client.errors import (
    NO_LOGIN,
    NO_TLS_THERE,
    ONLY_TLS_THERE,
    AuthenticationFailed,
    BadResponse,
    ClientError,
    ConnectFailed,
    ConnectionClosed,
    RequestTimeout,
)
from ottla.client.frames import FrameTooLarge
from ottla.client.wire import Reply, WireProtocol, connect_socket, has_buffer_sizes
from ottla.protocol.api import ApiKey, RequestHeader, decode_response_header, encode_request_header
from ottla.protocol.errors import ErrorCode, error_for
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.schema import Message

if TYPE_CHECKING:
    import ssl

R = TypeVar("R", bound=Message)

SOFTWARE_NAME = "ottla"
API_VERSIONS_OPENING = 3
_FIRST_REQUESTS: Final = 4
"""Correlation ids up to which a request is among the first of a connection."""


Encode = Callable[[int], Sequence[bytes]]
"""Returns the parts of a framed request with a given correlation id."""


class Connection:
    """A connection to a broker, with API versions negotiated.

        async with Connection(Address("127.0.0.1", 9092)) as connection:
            response = await connection.send(MetadataRequest(topics=None), MetadataResponse)

    Several tasks may send requests. The end of the connection fails all waiting requests with one of
    `ottla.client.errors`; a closed connection is never opened again.
    """

    def __init__(
        self, address: Address, config: ClientConfig | None = None, *, source_host: str | None = None
    ) -> None:
        """`source_host` is the host whose address the connection comes from, if it is one of this machine."""
        self.address = address
        self._source_host = source_host
        self.config = config or ClientConfig()
        self.versions: Mapping[int, VersionRange] = {}
        self.features: Mapping[str, int] = {}
        """The levels of the cluster's features that the broker knew as the connection began (KIP-584)."""
        self.features_epoch = -1
        """How often these levels had changed by then; -1 where the broker does not know any."""
        self._wire: WireProtocol | None = None
        self._slots = asyncio.Semaphore(self.config.max_in_flight_requests_per_connection)
        self._correlation_id = 0
        self._may_send = asyncio.Lock()
        """Held while requests wait for the end of a throttle or for a login: they go on in their order."""
        self._renew_at_s: float | None = None
        self._throttled_until_s: float | None = None
        self._chosen: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._wire is not None and self._wire.failure is None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their responses."""
        return 0 if self._wire is None else self._wire.in_flight

    @property
    def timed_out(self) -> bool:
        """Whether it ended because the broker did not answer in time."""
        return self._wire is not None and isinstance(self._wire.failure, RequestTimeout)

    async def connect(self) -> None:
        """Connect, negotiate API versions and authenticate, all within the setup timeout.

        Raises ConnectFailed, AuthenticationFailed, and the errors of an ApiVersions request.
        """
        timeout_s = self.config.socket_connection_setup_timeout_ms / 1_000
        try:
            async with asyncio.timeout(timeout_s):
                await self._open()
                await self._agree_on_versions()
                if self.config.security.uses_sasl:
                    await self._log_in()
        except TimeoutError as error:
            await self.close()
            raise ConnectFailed(*self.address, f"not ready within {timeout_s:g} s") from error
        except BaseException:
            await self.close()
            raise

    async def send(
        self,
        request: Message,
        response_type: type[R],
        *,
        timeout_s: float | None = None,
        min_version: int | None = None,
        max_version: int | None = None,
        in_thread: bool = False,
    ) -> R:
        """Send a request in the highest version both sides speak and return the response.

        With `in_thread` a thread decodes the response: that of a whole cluster would hold the loop up for a
        tenth of a second. Raises UnsupportedByBroker before anything is sent; ConnectionClosed,
        RequestTimeout and BadResponse afterwards. The caller reads error codes inside the response.
        """
        kind = type(request)
        version = choose_version(kind, self.versions, min_version=min_version, max_version=max_version)
        frame = await self._exchange(request, version, timeout_s)
        if in_thread:
            response = await asyncio.to_thread(self.decode, frame, kind.API_KEY, response_type, version)
        else:
            response = self.decode(frame, kind.API_KEY, response_type, version)
        self.throttle(kind.API_KEY, version, getattr(response, "throttle_time_ms", 0))
        return response

    def throttle(self, api_key: int, version: int, throttle_time_ms: int) -> None:
        """Send no request for the throttle time of a response that was just received (KIP-219)."""
        if throttle_time_ms > 0 and must_wait(api_key, version):
            until_s = asyncio.get_running_loop().time() + throttle_time_ms / 1_000
            self._throttled_until_s = max(self._throttled_until_s or 0.0, until_s)

    async def end_of_throttle(self) -> None:
        """Wait until requests may be sent again, or the connection has ended: `send` waits for it, too.

        A caller that waits before it makes its request decides late what is in it. Several callers go on in
        their order.
        """
        await self._wait_for_turn()

    def version_for(self, kind: type[Message]) -> int:
        """Return the version in which a request is sent. Raises UnsupportedByBroker."""
        found = self._chosen.get(kind.API_KEY)
        if found is None:
            found = self._chosen[kind.API_KEY] = choose_version(kind, self.versions)
        return found

    def send_now(self, api_key: ApiKey, encode: Encode, reply: Reply) -> bool:
        """Send a request, unless that needs to wait for anything; return whether it was sent.

        This costs no task, future or timer, and takes none of the slots for requests in flight: the caller
        limits its own. `reply` gets the response, or RequestTimeout after `request_timeout_ms`, as in `send`.
        """
        wire = self._wire
        if wire is None or wire.failure is not None or not wire.is_writable or self._must_wait():
            return False
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        parts = encode(self._correlation_id)
        wire.expect_reply(self._correlation_id, reply, api_key)
        wire.write(parts)
        return True

    async def send_unanswered(self, request: Message, *, max_version: int | None = None) -> None:
        """Send a request that has no response: Produce with acks=0."""
        version = choose_version(type(request), self.versions, max_version=max_version)
        await self._wait_for_turn()
        wire = self._open_wire()
        wire.write(self._frame(request, version))
        try:
            async with asyncio.timeout(self.config.request_timeout_ms / 1_000):
                await wire.writable()
        except TimeoutError:
            raise self._too_late(wire, request, self.config.request_timeout_ms / 1_000) from None
        if wire.failure is not None:
            raise ConnectionClosed(*self.address, str(wire.failure)) from wire.failure

    async def send_ahead(
        self, request: Message, response_type: type[R], *, min_version: int | None = None
    ) -> R:
        """Send a request of a login, ahead of all requests that wait for the login or for a slot."""
        version = choose_version(type(request), self.versions, min_version=min_version)
        frame = await self._ask(request, version, None)
        return self.decode(frame, request.API_KEY, response_type, version)

    def abort(self) -> None:
        """Fail the waiting requests with ConnectionClosed; the event loop closes the socket."""
        if self._wire is not None:
            self._wire.abort()

    async def close(self) -> None:
        """Close the connection; waiting requests fail with ConnectionClosed."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        tls = None
        try:
            tls = await self._tls_context()
            if self._source_host is not None or has_buffer_sizes(self.config):
                connected = await connect_socket(self.address, self.config, self._source_host)
                _, self._wire = await loop.create_connection(
                    lambda: WireProtocol(self.address, self.config),
                    ssl=tls,
                    sock=connected,
                    server_hostname=self.address.host if tls else None,
                )
            else:
                _, self._wire = await loop.create_connection(
                    lambda: WireProtocol(self.address, self.config), *self.address, ssl=tls
                )
        except (UnicodeError, OverflowError) as error:  # metadata may hold any text as a host
            raise ConnectFailed(*self.address, f"not an address: {error}") from error
        except OSError as error:
            if (problem := certificate_problem(error)) is not None:
                raise AuthenticationFailed(f"{self.address}: {problem}") from error
            # asyncio gives no reason when the other side closes the connection during the TLS handshake.
            hung_up = f"it {NO_TLS_THERE}={self._without_tls()}" if tls else "it hung up"
            raise ConnectFailed(*self.address, _reason(error) or hung_up) from error

    async def _tls_context(self) -> ssl.SSLContext | None:
        security = self.config.security
        if not security.uses_tls or security.ssl_context is not None:
            return security.tls_context()
        return await asyncio.to_thread(security.tls_context)

    def _without_tls(self) -> str:
        return "SASL_PLAINTEXT" if self.config.security.uses_sasl else "PLAINTEXT"

    async def _log_in(self) -> None:
        lifetime_ms = await authenticate(self, self.config.security, self.address.host)
        now_s = asyncio.get_running_loop().time()
        self._renew_at_s = now_s + renewal_s(lifetime_ms, chance()) if lifetime_ms > 0 else None

    def _must_wait(self) -> bool:
        """Whether `_wait_for_turn` would wait."""
        if self._renew_at_s is None and self._throttled_until_s is None:
            return False
        now_s = asyncio.get_running_loop().time()
        is_login_due = self._renew_at_s is not None and now_s >= self._renew_at_s
        return self._may_send.locked() or is_login_due or now_s < (self._throttled_until_s or 0.0)

    async def _wait_for_turn(self) -> None:
        """Wait for the end of a throttle, and authenticate again before the login ends (KIP-368).

        No other request may be sent meanwhile. Callers await nothing between the return of this method and
        the write of a request.
        """
        if self._renew_at_s is None and self._throttled_until_s is None:
            return
        async with self._may_send:
            await self._wait_for_throttle()
            await self._stay_logged_in()

    async def _wait_for_throttle(self) -> None:
        now_s = asyncio.get_running_loop().time
        while (wire := self._wire) is not None and wire.failure is None:
            if (left_s := (self._throttled_until_s or 0.0) - now_s()) <= 0:
                break
            await wire.wait_closed(left_s)

    async def _stay_logged_in(self) -> None:
        if self._renew_at_s is None or asyncio.get_running_loop().time() < self._renew_at_s:
            return
        within_s = self.config.socket_connection_setup_timeout_ms / 1_000
        try:
            async with asyncio.timeout(within_s):
                await self._log_in()
        except TimeoutError as error:
            late = ConnectionClosed(*self.address, f"not logged in again within {within_s:g} s")
            self._end_half_a_login(late)
            raise late from error
        except BaseException as error:
            self._end_half_a_login(
                error if isinstance(error, AuthenticationFailed) else ConnectionClosed(*self.address)
            )
            raise

    def _end_half_a_login(self, error: ClientError) -> None:
        if self._wire is not None:  # the broker accepts no other request on it
            self._wire.fail(error)

    async def _agree_on_versions(self) -> None:
        response = await self._first_versions()
        if response is None:
            self.versions = BEFORE_API_VERSIONS
            return
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            served = {api.api_key: api.max_version for api in response.api_keys}
            response = await self._ask_versions(min(served.get(ApiKey.API_VERSIONS, 0), API_VERSIONS_OPENING))
        if response.error_code != ErrorCode.NONE:
            raise error_for(response.error_code)
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}
        self.features_epoch = response.finalized_features_epoch

    async def _first_versions(self) -> ApiVersionsResponse | None:
        """Send ApiVersions; return None for a broker older than 0.10, which closes the connection at it.

        Newer brokers close connections too, as they start or stop or on a bad network. Taking one for that
        old would cost headers, timestamps and idempotence. So the broker counts as old only if it closes the
        connection at ApiVersions right after it answered a Metadata request.
        """
        for version in (API_VERSIONS_OPENING, 0):
            try:
                return await self._ask_versions(version)
            except ConnectionClosed:
                await self._reopen()
            except BadResponse as error:
                if isinstance(error.__cause__, FrameTooLarge) and error.__cause__.is_tls_alert:
                    raise self._without_answer(error) from error
                raise
        self.versions = BEFORE_API_VERSIONS
        await self._hear_of_it()
        try:
            return await self._ask_versions(0)
        except ConnectionClosed:
            await self._reopen()
        return None

    async def _hear_of_it(self) -> None:
        """Get an answer without ApiVersions. Raises ConnectionClosed."""
        try:
            await self.send(MetadataRequest(topics=[]), MetadataResponse)
        except ConnectionClosed as error:
            raise self._without_answer(error) from error

    def _without_answer(self, error: ConnectionClosed | BadResponse) -> ConnectionClosed | BadResponse:
        """Return the error of a first request: a port for TLS gives no answer, or an alert of TLS."""
        if self.config.security.uses_tls:
            return error
        fits = "SASL_SSL" if self.config.security.uses_sasl else "SSL or SASL_SSL"
        return ConnectionClosed(*self.address, f"{ONLY_TLS_THERE}={fits}")

    async def _reopen(self) -> None:
        await self.close()
        await self._open()

    async def _ask_versions(self, version: int) -> ApiVersionsResponse:
        from ottla.client import __version__

        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=__version__)
        frame = await self._exchange(request, version, None)
        # A broker without our version responds in version 0; every version begins with the error (KIP-511).
        unsupported = frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
        return self.decode(frame, ApiKey.API_VERSIONS, ApiVersionsResponse, 0 if unsupported else version)

    async def _exchange(self, request: Message, version: int, timeout_s: float | None) -> memoryview:
        async with self._slots:
            await self._wait_for_turn()
            return await self._ask(request, version, timeout_s)

    async def _ask(self, request: Message, version: int, timeout_s: float | None) -> memoryview:
        bound_s = self.config.request_timeout_ms / 1_000 if timeout_s is None else timeout_s
        wire = self._open_wire()
        frame = self._frame(request, version)
        due_s = asyncio.get_running_loop().time() + bound_s
        response = wire.expect(self._correlation_id)
        wire.write(frame)
        try:
            async with asyncio.timeout_at(due_s):
                await wire.writable()
                return await response
        except TimeoutError:
            raise self._too_late(wire, request, bound_s) from None
        except asyncio.CancelledError:
            wire.discard(response, due_s, ApiKey(request.API_KEY))
            raise
        except ConnectionClosed as error:
            if self._correlation_id > _FIRST_REQUESTS or not self._may_lack_login:
                raise
            fits = "SASL_SSL" if self.config.security.uses_tls else "SASL_PLAINTEXT"
            raise ConnectionClosed(*self.address, f"{NO_LOGIN}={fits}") from error

    @property
    def _may_lack_login(self) -> bool:
        """Whether a broker may hang up for want of a login: without one it answers ApiVersions alone."""
        is_negotiated = bool(self.versions) and self.versions is not BEFORE_API_VERSIONS
        return is_negotiated and not self.config.security.uses_sasl

    def _too_late(self, wire: WireProtocol, request: Message, bound_s: float) -> RequestTimeout:
        late = RequestTimeout(*self.address, ApiKey(type(request).API_KEY).name, bound_s)
        wire.fail(late)
        return late

    def _open_wire(self) -> WireProtocol:
        if self._wire is None:
            raise ConnectionClosed(*self.address, "the connection is not open")
        if self._wire.failure is not None:
            raise ConnectionClosed(*self.address, str(self._wire.failure)) from self._wire.failure
        return self._wire

    def _frame(self, request: Message, version: int) -> Sequence[bytes | memoryview]:
        # In parts: the records of a Produce request are not copied into the bytes around them.
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = encode_request_header(
            RequestHeader(request.API_KEY, version, self._correlation_id, self.config.client_id)
        )
        body = request.encode_parts(version)
        size = len(header) + sum(map(len, body))
        return [size.to_bytes(4, "big") + header, *body]

    def decode(self, frame: memoryview, key: int, response_type: type[R], version: int) -> R:
        """Decode a response with its header. Raises BadResponse."""
        try:
            _, position = decode_response_header(frame, key, version)
            return response_type.decode(frame[position:], version)
        except MalformedMessage as error:
            raise BadResponse(f"{self.address}: {error}") from error


def _reason(error: OSError) -> str:
    """Return why a connection failed; asyncio joins the refusals of several addresses into one text."""
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\] Connect call failed", str(error))}
    return os.strerror(numbers.pop()) if len(numbers) == 1 else error.strerror or str(error)

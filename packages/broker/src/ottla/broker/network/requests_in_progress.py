"""The requests of one connection that were begun and have no response yet, in their order.

A request begins when the one before it is answered, so it sees all of its effects. Requests that append
records may begin behind unanswered ones of their API: their effects happen in order when they begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.network.dispatcher import BadRequest
from ottla.broker.network.native_connection import Unanswered
from ottla.broker.network.request_memory import share_of
from ottla.broker.requests.context import CloseConnection

if TYPE_CHECKING:
    from ottla.broker.network.dispatcher import Call
    from ottla.broker.network.response_queue import Part, ResponseQueue
    from ottla.broker.network.session import Session
    from ottla.broker.network.shared import Shared
    from ottla.broker.requests.fast_path import FastAnswers, FastPath, Wait


MAX_IN_FLIGHT: Final = 128
"""Unanswered requests of a connection at which reading from it pauses."""
MAX_IN_FLIGHT_BYTES: Final = 8 << 20
"""Bytes of unanswered requests at which reading pauses; one request is always admitted."""
NO_OVERLAP: Final = -1


class Client(Protocol):
    """A connection as its requests see it."""

    closing: bool

    def refuse(self, error: Exception) -> None:
        """Close because of a request that cannot be served."""
        ...

    def flush(self) -> None:
        """Write responses and go on with requests."""
        ...

    def write_soon(self) -> None:
        """Write responses at the end of this turn of the event loop."""
        ...

    def close(self) -> None:
        """Close once the responses are written."""
        ...

    def abort(self) -> None:
        """Close now and drop unsent responses."""
        ...

    def mute(self, until_ms: float) -> None:
        """Begin no request until then, for a quota."""
        ...

    def fail(self, error: Exception, /) -> None:
        """Log a fault of this broker, and abort."""
        ...


class PendingResponse:
    """A request without its response, or the response of a request that overlapped with such a one."""

    __slots__ = ("cancel", "done", "only_waits", "parts", "stops_with_broker")

    def __init__(
        self,
        parts: list[Part] | None = None,
        *,
        done: bool = False,
        only_waits: bool = False,
        stops_with_broker: bool = False,
    ) -> None:
        self.parts = parts
        self.done = done
        self.only_waits = only_waits
        """Whether it may be dropped when the client disconnects."""
        self.stops_with_broker = stops_with_broker
        """Whether a stopping broker drops it at once."""
        self.cancel: Callable[[], object] | None = None
        """Ends the work on it, without a response."""


class RequestsInProgress(Unanswered):
    """Runs the requests of one connection, and queues their responses in order."""

    def __init__(
        self, shared: Shared[Any], client: Client, session: Session, responses: ResponseQueue
    ) -> None:
        self._shared = shared
        self._client: Client | None = client
        self._session = session
        self._responses = responses
        self._bytes = 0
        self.pending: deque[PendingResponse] = deque()
        self.overlap_key = NO_OVERLAP
        """The API whose requests may begin behind those that are pending."""

    @property
    def are_worked_on(self) -> bool:
        """Whether any of them is answered without waiting for records or for other clients."""
        return any(not pending.done and not pending.stops_with_broker for pending in self.pending)

    @property
    def first_only_waits(self) -> bool:
        """Whether the first may be dropped when its client disconnects."""
        return bool(self.pending) and self.pending[0].only_waits

    @property
    def has_room(self) -> bool:
        """Whether one more may begin."""
        return len(self.pending) < MAX_IN_FLIGHT and self._bytes < MAX_IN_FLIGHT_BYTES

    # ---- the general path

    def begin(self, frame: memoryview, received_ms: float) -> None:
        """Begin the request in a frame, which is only lent. Raises `BadRequest`."""
        in_line = self.unstarted > 0  # a task starts later: the next request must not overtake it
        read = self._shared.dispatcher.read(
            memoryview(bytes(frame)) if in_line else frame, self._session, received_ms
        )
        if isinstance(read, list):
            self.answer_now(read)
        elif read.route.borrows_buffer and not in_line and not read.context.is_long:
            self._begin_at_once(read)
        else:
            self._begin_task(read, None)

    def answer_now(self, parts: list[Part]) -> None:
        """Queue a response behind those of earlier requests."""
        if self.pending:
            self.pending.append(PendingResponse(parts, done=True))
        else:
            self._responses.put(parts)

    def _begin_at_once(self, call: Call) -> None:
        dispatcher = self._shared.dispatcher
        call.context.begun_ms = call.context.received_ms
        try:
            begun = dispatcher.begin(call)
            if isinstance(begun, Awaitable):
                self._begin_task(call, begun)
                return
            parts = dispatcher.encode(call, begun)
        except Exception as error:
            try:
                parts = dispatcher.answer_error(call, error)
            except CloseConnection:
                self._close()
                return
        self._shared.times.measure(call)
        self._throttle(call)
        if parts is not None:
            self.answer_now(parts)

    def _throttle(self, call: Call) -> None:
        throttle_time_ms = call.context.throttle_time_ms
        if throttle_time_ms and self._client is not None:
            self._client.mute(self._shared.now_s() * 1000 + throttle_time_ms)

    def _begin_task(self, call: Call, begun: Awaitable[Any] | None) -> None:
        route = call.route
        pending = PendingResponse(
            only_waits=route.stops_with_connection,
            stops_with_broker=route.stops_with_connection or route.waits_for_clients,
        )
        self.pending.append(pending)
        self._begin_task_of(pending, call, begun)

    def _begin_task_of(self, pending: PendingResponse, call: Call, begun: Awaitable[Any] | None) -> None:
        route = call.route
        # The records of a long request are not appended yet when the next request could begin.
        overlaps = route.appends and not call.context.is_long
        self.overlap_key = int(route.api_key) if overlaps else NO_OVERLAP
        self._bytes += call.size
        self._shared.memory.begun(call.size, share_of(route))
        self.unstarted += 1
        self._shared.queue.unstarted += 1
        pending.cancel = self._shared.spawn(self._run(pending, call, begun)).cancel

    async def _run(self, pending: PendingResponse, call: Call, begun: Awaitable[Any] | None) -> None:
        shared = self._shared
        self.unstarted -= 1
        call.context.begun_ms = shared.now_s() * 1000
        shared.queue.started()
        try:
            pending.parts = await shared.dispatcher.answer(call, begun)
            self._throttle(call)
        except CloseConnection:
            self._close()
        except BadRequest as error:
            if self._client is not None:
                self._client.refuse(error)
        except Exception as error:
            self._fail(error)
        finally:
            pending.done = True
            self._bytes -= call.size
            shared.memory.ended(call.size, share_of(call.route))
            shared.queue.wake()
            self._release()
        shared.times.measure(call)

    # ---- fast paths

    def begin_wait(self, fast_path: FastPath, answers: FastAnswers, received_ms: float) -> None:
        """Wait for the responses of requests that a fast path has begun or taken."""
        if answers.wait is not None:
            self._begin_delayed(fast_path, answers.wait, received_ms)
            return
        pending = PendingResponse()
        self.pending.append(pending)
        self.overlap_key = fast_path.api_key
        begun_ms = self._shared.now_s() * 1000
        task = self._shared.spawn(self._finish(pending, fast_path, answers, received_ms, begun_ms))
        pending.cancel = task.cancel

    async def _finish(
        self,
        pending: PendingResponse,
        fast_path: FastPath,
        answers: FastAnswers,
        received_ms: float,
        begun_ms: float,
    ) -> None:
        assert answers.awaited is not None
        try:
            pending.parts = [await answers.awaited]
        except Exception as error:
            self._fail(error)
        finally:
            pending.done = True
        self._shared.times.measure_waited(fast_path.api_key, answers, received_ms, begun_ms)
        self._release()

    def _begin_delayed(self, fast_path: FastPath, wait: Wait, received_ms: float) -> None:
        pending = PendingResponse(only_waits=True, stops_with_broker=True)

        def answered(answers: FastAnswers | None) -> None:
            if answers is None:
                self._serve_delayed(pending, wait, received_ms)
                return
            pending.parts = answers.parts
            self._shared.times.measure_waited(fast_path.api_key, answers, received_ms, received_ms)
            self._end_delayed(pending)

        def cancel() -> None:
            wait.end()
            self._end_delayed(pending)

        pending.cancel = cancel
        self.pending.append(pending)
        self.overlap_key = NO_OVERLAP
        wait.begin(answered)

    def _serve_delayed(self, pending: PendingResponse, wait: Wait, received_ms: float) -> None:
        """Serve a request that has waited on the general path, where it waits for the rest of its time."""
        header, request, size = wait.request(self._shared.now_s() * 1000 - received_ms)
        call = self._shared.dispatcher.take(header, request, self._session, received_ms, size)
        self._begin_task_of(pending, call, None)

    def _end_delayed(self, pending: PendingResponse) -> None:
        pending.done = True
        self._release()

    # ---- responses, and the end

    def _release(self) -> None:
        """Queue every response that has none before it to wait for."""
        while self.pending and self.pending[0].done:
            parts = self.pending.popleft().parts
            if parts is not None and self._client is not None and not self._client.closing:
                self._responses.put(parts)
                if self._session.is_refused:
                    self._client.close()
        if self._client is not None:
            self._shared.queue.flush_soon(self._client)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()

    def _fail(self, error: Exception) -> None:
        facts = {"connection": self._session.connection_id}
        event = "connection closed: a response could not be made"
        self._shared.warnings.warn(repr(error), event, extra=facts, exc_info=error)
        if self._client is not None:
            self._client.abort()

    def end_wait(self) -> None:
        """Drop the first, which only waits: its client is gone."""
        cancel = self.pending[0].cancel
        if cancel is not None:
            # Soon, not now: a task cancelled before its first step would leave its request queued.
            self._shared.closing.put(cancel)

    def client_is_gone(self) -> None:
        """Drop all that only wait; the others are worked on, and their responses go nowhere."""
        self._client = None  # not kept alive by its requests
        for pending in self.pending:
            if pending.cancel is not None and pending.only_waits:
                self._shared.closing.put(pending.cancel)

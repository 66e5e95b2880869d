"""One client's connection: frames in, responses out in the order of their requests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.api.produce.fast_path import NotPlain
from ottla.broker.network.dispatcher import BadRequest, Call
from ottla.broker.network.frames import BadFrame, FrameReader, ProduceRun, TooLarge
from ottla.broker.network.native_connection import NativeConnection
from ottla.broker.network.pending_response import PendingResponse, are_worked_on
from ottla.broker.network.request_memory import SENT_BY_BROKERS, SMALL_BYTES, share_of
from ottla.broker.network.response_queue import ResponseQueue
from ottla.broker.network.session import Session, SessionState
from ottla.broker.requests.context import CloseConnection
from ottla.protocol.api import ApiKey

if TYPE_CHECKING:
    from ottla.broker.api.fetch.fast_path import Answers
    from ottla.broker.network.frames import PlainFetch
    from ottla.broker.network.response_queue import Part
    from ottla.broker.network.shared import Shared

log = logging.getLogger("request")

MAX_IN_FLIGHT: Final = 128
"""Unanswered requests of a connection at which reading from it pauses."""
MAX_IN_FLIGHT_BYTES: Final = 8 << 20
"""Bytes of unanswered requests at which reading pauses; one request is always admitted."""
MAX_UNSENT_BYTES: Final = 1 << 20
"""Bytes of responses at which they are written before the next request begins; one may be larger."""


class Connection(NativeConnection, asyncio.BufferedProtocol):
    """Reads requests, starts them in order, and sends their responses in order.

    A request starts when the one before it is answered, so it sees all of its effects. Only a Produce behind
    nothing but Produces starts before they are answered: its records are appended behind theirs. Reading
    pauses while a whole request waits for that, while the client does not read its responses, and while the
    broker has too many requests that were not started.
    """

    def __init__(self, shared: Shared[Connection], listener_name: str, state: SessionState) -> None:
        self._shared = shared
        self._queue, self._queue_limit = shared.queue, shared.queue.limit
        self._listener_name = listener_name
        self._initial_state = state
        self._write_round, self._now_s = shared.write_round, shared.now_s
        tally = shared.times.fast_produces
        self._times, self._sizes, self._versions = tally.times, tally.sizes, tally.versions
        config = shared.config
        self._reader = FrameReader(
            shared.receive_buffer, config.socket_request_max_bytes, config.client_request_max_bytes
        )
        self._pending: deque[PendingResponse] = deque()
        self._pending_bytes = 0
        self._last_is_produce = False
        """Whether the last of the pending requests is a Produce; then all of them are."""
        self._unstarted = 0
        self._reading = True
        self._taking = True
        self._closing = False
        self._ended = False  # whether the client sends nothing any more
        self._pumping = False
        self._exhausted = True
        self.last_active_s = 0.0
        self.looked_at_s = 0.0

    # ---- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.session = Session(
            listener_name=self._listener_name,
            client_host=str(peer[0]) if peer else "",
            connection_id=f"{_address(local)}-{_address(peer)}-{self._shared.connections.next_number()}",
            state=self._initial_state,
        )
        self._ordering = self.session.ordering
        # With a high mark of 0, "paused" means that the socket has not taken everything.
        self._transport.set_write_buffer_limits(high=0)
        bytes_out = self._shared.times.metrics.bytes_out
        self._response_queue = ResponseQueue(self._transport, self._on_unblocked, bytes_out)
        self._set_socket_options(self._transport)
        self.last_active_s = self.looked_at_s = self._now_s()
        if not self._shared.connections.admit(self):
            self.abort()

    def _set_socket_options(self, transport: asyncio.Transport) -> None:
        plug = transport.get_extra_info("socket")
        if plug is not None and transport.get_extra_info("sslcontext") is None:
            self._descriptor = plug.fileno()
        if plug is not None and plug.family in (socket.AF_INET, socket.AF_INET6):
            plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            send_buffer_bytes = self._shared.config.socket_send_buffer_bytes
            if send_buffer_bytes > 0:
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)

    def eof_received(self) -> bool:
        """Close soon: a thousand clients that leave together stop nobody else."""
        if self._descriptor < 0:
            return False  # the transport closes by itself
        self._ended = self.session.is_gone = True
        self._shared.closing.put(self._close_when_answered)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._taking, self._closing = False, True
        self.session.is_gone = True
        self._response_queue.close()
        for pending in self._pending:
            if pending.cancel is not None and pending.only_waits:
                # Soon, not now: a task cancelled before its first step would leave its request queued.
                self._shared.closing.put(pending.cancel)
        self._reader.forget()
        self._queue.forget(self)
        self._shared.connections.forget(self)

    def pause_writing(self) -> None:
        self._response_queue.pause_writing()

    def resume_writing(self) -> None:
        self._response_queue.resume_writing()

    # ---- requests

    @property
    def connection_id(self) -> str:
        """Both ends of the connection and a number: how logs name it."""
        return self.session.connection_id

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return not self._pending and self._response_queue.empty

    @property
    def is_of_broker(self) -> bool:
        """Whether the other end is known to be a broker, which no limit concerns."""
        return self._shared.is_broker(self.session) is True

    @property
    def kept_bytes(self) -> int:
        """Bytes received that were not taken as requests yet."""
        return self._reader.kept_bytes

    @property
    def is_receiving(self) -> bool:
        """Whether the request that is not complete waits for its client."""
        return self._reading and self._reader.exhausted

    @property
    def busy(self) -> bool:
        """Whether a stopping broker has to wait for this connection; not for requests that only wait."""
        return are_worked_on(self._pending) or not self._response_queue.empty

    def pump(self) -> None:
        """Start the requests that were received, as far as limits allow, and write responses."""
        if self._pumping:
            return
        self._pumping = True
        try:
            exhausted = self._begin_requests()
        except TooLarge as error:
            if self._may_be_large(error.api_key):
                self._reader.lift_limit(once=not self.is_of_broker)
                self._queue.flush_soon(self)
                exhausted = False
            else:
                self._refuse(error)
                return
        except (BadFrame, BadRequest) as error:
            self._refuse(error)
            return
        finally:
            self._pumping = False
            self._reader.park()
        self._exhausted = exhausted
        self._write_round.add(self)

    def _may_be_large(self, api_key: int) -> bool:
        is_broker = self._shared.is_broker(self.session)
        return is_broker is True or (is_broker is None and api_key in SENT_BY_BROKERS)

    def _refuse(self, error: Exception) -> None:
        """Close the connection for what came over it."""
        self._shared.bad_frames.warn(self.session.client_host, "closing %s: %s", self.connection_id, error)
        self.close()

    def _begin_requests(self) -> bool:
        """Start requests; return whether all whole frames were taken."""
        received_ms = self._now_s() * 1000
        reader, session = self._reader, self.session
        while self._taking:
            if self._pending and not self._last_is_produce:
                return reader.exhausted  # reading goes on: a client that disconnects is noticed
            if not self._has_room():
                return False
            if not self._unstarted and session.ordering.behind is None:
                if session.produce_targets is not None:
                    run = reader.next_produces(session.produce_targets)
                    if run is not None and self._append(run, received_ms):
                        continue
                if session.fetch_targets is not None and not self._pending:
                    answers = self._shared.fetch_fast_path.answer(reader, session.fetch_targets)
                    if answers is not None and answers.waiting is not None:
                        self._begin_delayed_fetch(answers.waiting, received_ms)
                        continue
                    if answers is not None:
                        self._answer_fetches(answers, received_ms)
                        if reader.exhausted:
                            return True
                        if self._queue.turn_is_over():
                            self._queue.flush_soon(self)
                            return False
                        continue
            frame = reader.next_frame()
            if frame is None:
                return True
            if self._queue.turn_is_over():
                reader.give_back_frame(frame)
                self._queue.flush_soon(self)
                return False
            if self._pending and not _is_produce(frame):
                reader.give_back_frame(frame)
                return False
            if len(frame) > SMALL_BYTES and not self._may_begin(frame):
                reader.give_back_frame(frame)
                self._queue.stall(self)
                return False
            self._begin(frame, received_ms)
        return False

    def _has_room(self) -> bool:
        if len(self._pending) >= MAX_IN_FLIGHT or self._pending_bytes >= MAX_IN_FLIGHT_BYTES:
            return False
        if self._response_queue.queued_bytes > MAX_UNSENT_BYTES:
            self._response_queue.flush()
        if self._response_queue.blocked:
            return False
        if self._pending and not self.session.is_authenticated:
            return False  # the outcome of a login decides about the requests behind it
        return self._queue.unstarted < self._queue_limit or self._queue.has_room(self)

    def _may_begin(self, frame: memoryview) -> bool:
        """Whether there is memory for a large request."""
        share = share_of(self._shared.dispatcher.route_of(frame))
        return self._shared.memory.has_room(len(frame), share) or self.is_of_broker

    def _append(self, run: ProduceRun, received_ms: float) -> bool:
        """Append a run of produce requests; False, and its frames are given back, if it is not plain."""
        try:
            answers = self._shared.produce_fast_path.append(run, self.session.listener_name)
        except NotPlain:
            self.session.drop_produces(run.key)
            self._reader.give_back(run)
            return False
        if isinstance(answers, bytes):
            self._answer_now([answers])
            self._shared.times.measure_run(run, received_ms)
        else:
            self._begin_wait(run, answers, received_ms)
        return True

    def _answer_fetches(self, answers: Answers, received_ms: float) -> None:
        self._response_queue.put_all(answers.parts, answers.size)
        self._shared.times.measure_fetches(answers, received_ms)

    def _begin_delayed_fetch(self, fetch: PlainFetch, received_ms: float) -> None:
        reader, shared = self._reader, self._shared
        reader.give_back_fetch(fetch)
        frame = bytes(reader.next_frame() or b"")  # for the general path
        pending = PendingResponse(only_waits=True, stops_with_broker=True)

        def answered(answers: Answers | None) -> None:
            if answers is None:
                self._serve_delayed_fetch(pending, frame, received_ms)
                return
            pending.parts = answers.parts
            shared.times.measure_waited_fetch(answers, received_ms)
            self._end_delayed_fetch(pending)

        delayed = shared.fetch_fast_path.delay(fetch, answered)

        def cancel() -> None:
            delayed.end()
            self._end_delayed_fetch(pending)

        pending.cancel = cancel
        self._pending.append(pending)
        self._last_is_produce = False

    def _serve_delayed_fetch(self, pending: PendingResponse, frame: bytes, received_ms: float) -> None:
        """Serve a fetch that has waited on the general path, where it waits for the rest of its time."""
        call = self._shared.dispatcher.read(memoryview(frame), self.session, received_ms)
        assert isinstance(call, Call)  # the fast path has read it
        waited_ms = self._now_s() * 1000 - received_ms
        call.request.max_wait_ms = max(0, call.request.max_wait_ms - int(waited_ms))
        self._begin_task_of(pending, call, None)

    def _end_delayed_fetch(self, pending: PendingResponse) -> None:
        pending.done = True
        self._release()

    def _begin_wait(self, run: ProduceRun, answers: Awaitable[bytes], received_ms: float) -> None:
        pending = PendingResponse()
        self._pending.append(pending)
        self._last_is_produce = True
        appended_ms = self._now_s() * 1000
        task = self._shared.spawn(self._finish_run(pending, run, answers, received_ms, appended_ms))
        pending.cancel = task.cancel

    async def _finish_run(
        self,
        pending: PendingResponse,
        run: ProduceRun,
        answers: Awaitable[bytes],
        received_ms: float,
        appended_ms: float,
    ) -> None:
        try:
            pending.parts = [await answers]
        except Exception:
            log.exception("closing %s: the response of a request could not be made", self.connection_id)
            self.abort()
        finally:
            pending.done = True
        self._shared.times.measure_waited_run(run, received_ms, appended_ms)
        self._release()

    def _begin(self, frame: memoryview, received_ms: float) -> None:
        in_line = self._unstarted > 0  # a task starts later: the next request must not overtake it
        read = self._shared.dispatcher.read(
            memoryview(bytes(frame)) if in_line else frame, self.session, received_ms
        )
        if isinstance(read, list):
            self._answer_now(read)
        elif read.route.borrows_buffer and not in_line and not read.context.is_long:
            self._begin_at_once(read)
        else:
            self._begin_task(read, None)

    def _begin_at_once(self, call: Call) -> None:
        call.context.begun_ms = call.context.received_ms
        try:
            begun = self._shared.dispatcher.begin(call)
            if isinstance(begun, Awaitable):
                self._begin_task(call, begun)
                return
            parts = self._shared.dispatcher.encode(call, begun)
        except Exception as error:
            try:
                parts = self._shared.dispatcher.answer_error(call, error)
            except CloseConnection:
                self.close()
                return
        self._shared.times.measure(call)
        if parts is not None:
            self._answer_now(parts)

    def _answer_now(self, parts: list[Part]) -> None:
        if self._pending:
            self._pending.append(PendingResponse(parts, done=True))
        else:
            self._response_queue.put(parts)

    def _begin_task(self, call: Call, begun: Awaitable[Any] | None) -> None:
        route = call.route
        pending = PendingResponse(
            only_waits=route.stops_with_connection,
            stops_with_broker=route.stops_with_connection or route.waits_for_clients,
        )
        self._pending.append(pending)
        self._begin_task_of(pending, call, begun)

    def _begin_task_of(self, pending: PendingResponse, call: Call, begun: Awaitable[Any] | None) -> None:
        route = call.route
        # The records of a long Produce are not appended yet when the next request could start.
        is_produce = route.api_key == ApiKey.PRODUCE
        self._last_is_produce = is_produce and not call.context.is_long
        self._pending_bytes += call.size
        self._shared.memory.begun(call.size, share_of(route))
        self._unstarted += 1
        self._queue.unstarted += 1
        pending.cancel = self._shared.spawn(self._run(pending, call, begun)).cancel

    async def _run(self, pending: PendingResponse, call: Call, begun: Awaitable[Any] | None) -> None:
        self._unstarted -= 1
        call.context.begun_ms = self._now_s() * 1000
        self._queue.started()
        try:
            pending.parts = await self._shared.dispatcher.answer(call, begun)
        except CloseConnection:
            self.close()
        except BadRequest as error:
            self._refuse(error)
        except Exception:
            log.exception("closing %s: the response of a request could not be made", self.connection_id)
            self.abort()
        finally:
            pending.done = True
            self._pending_bytes -= call.size
            self._shared.memory.ended(call.size, share_of(call.route))
            self._queue.wake()
            self._release()
        self._shared.times.measure(call)

    def _release(self) -> None:
        """Send every response that has none before it to wait for."""
        while self._pending and self._pending[0].done:
            parts = self._pending.popleft().parts
            if parts is not None and not self._closing:
                self._response_queue.put(parts)
        self._queue.flush_soon(self)

    def flush(self) -> None:
        """Write responses and go on reading; if the client has left, close behind the requests in work."""
        if self._ended:
            self._shared.closing.put(self._close_when_answered)
        elif not self._closing:
            self.pump()
        self._shared.connections.settled()

    def _close_when_answered(self) -> None:
        if not are_worked_on(self._pending):
            self.close()

    def _on_unblocked(self) -> None:
        if not self._closing:
            self.pump()
        self._shared.connections.settled()

    def _set_reading(self, reading: bool) -> None:
        if reading is self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # ---- the end

    @property
    def waits_unseen(self) -> bool:
        """Whether a request that only waits holds back others: reading is paused, so no end would be seen."""
        return not self._reading and bool(self._pending) and self._pending[0].only_waits

    def end_wait(self) -> None:
        """Drop the request that waits, for the client is gone; what it sent behind it is still read."""
        cancel = self._pending[0].cancel
        if cancel is not None:
            self._shared.closing.put(cancel)  # soon, as in `connection_lost`

    @property
    def descriptor(self) -> int:
        """The socket's descriptor; negative where it is not known."""
        return self._descriptor

    def stop_taking(self) -> None:
        """Take no more requests; requests that were started are still answered."""
        self._taking = False
        self._set_reading(False)

    def take_again(self) -> None:
        """Undo `stop_taking`, and begin with what was received."""
        if not self._closing:
            self._taking = True
            self._queue.flush_soon(self)

    def close(self) -> None:
        """Close once the pending responses are written."""
        if not self._closing:
            self._response_queue.flush()
        self._taking, self._closing = False, True
        self._transport.close()

    def forget_frames(self) -> None:
        """Free the memory of what was received, now and not when the transport reports the end."""
        self._reader.forget()

    def abort(self) -> None:
        """Close now and drop unsent responses."""
        self._taking, self._closing = False, True
        self._transport.abort()


def _is_produce(frame: memoryview) -> bool:
    return frame[0] == 0 and frame[1] == ApiKey.PRODUCE


def _address(name: Any) -> str:
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"

"""The intake of one connection: begins the requests that were received, in order, as far as limits allow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.network.dispatcher import BadRequest
from ottla.broker.network.frames import SHORTEST_FRAME, BadFrame, FrameReader, TooLarge
from ottla.broker.network.native_connection import NativeIntake
from ottla.broker.network.request_memory import SMALL_BYTES, share_of
from ottla.broker.network.requests_in_progress import NO_OVERLAP, RequestsInProgress
from ottla.broker.requests.fast_path import Outcome

if TYPE_CHECKING:
    from ottla.broker.network.requests_in_progress import Client
    from ottla.broker.network.response_queue import ResponseQueue
    from ottla.broker.network.session import Session
    from ottla.broker.network.shared import Shared

LOOK_AT_CLOCK_EVERY: Final = 64
"""Requests of fast paths after which the intake asks whether its turn of the event loop is over."""


class RequestIntake(NativeIntake):
    """Begins requests; between them it offers the received bytes to the fast path of the first request.

    It stops while a whole request waits for an earlier one, while the client does not read its responses,
    and while the broker has too many requests that were not started.
    """

    requests: RequestsInProgress
    responses: ResponseQueue

    def __init__(
        self, shared: Shared[Any], client: Client, session: Session, responses: ResponseQueue
    ) -> None:
        config = shared.config
        self._shared = shared
        self._client: Client | None = client
        self.session, self.ordering, self.responses = session, session.ordering, responses
        self.requests = RequestsInProgress(shared, client, session, responses)
        self.queue, self.queue_limit = shared.queue, shared.queue.limit
        self.write_round, self.now_s = shared.write_round, shared.now_s
        self.reader = FrameReader(
            shared.receive_buffer,
            config.socket_request_max_bytes,
            config.client_request_max_bytes,
            shared.record_keys,
        )
        if session.login is not None:
            limit = session.login.rules.max_token_bytes
            self.reader.set_limits(limit, limit, shortest=0)  # a token may be empty
        self.taking, self.exhausted = True, True
        self._is_stopped = False
        self._muted_until_s = 0.0
        self._end_of_mute: asyncio.TimerHandle | None = None

    def client_is_gone(self) -> None:
        """Forget received bytes, and end requests that only wait for the client."""
        self._client = None  # not kept alive by its parts
        self.stop()
        if self._end_of_mute is not None:
            self._end_of_mute.cancel()
        self.reader.forget()
        self.requests.client_is_gone()

    def logged_in(self) -> None:
        """Take requests of any size that is allowed behind a login."""
        config = self._shared.config
        self.reader.set_limits(
            config.socket_request_max_bytes, config.client_request_max_bytes, SHORTEST_FRAME
        )

    # ---- whether requests may begin

    @property
    def is_muted(self) -> bool:
        """Whether requests wait for the end of a time."""
        return self._end_of_mute is not None

    def stop(self) -> None:
        """Begin no more requests."""
        self._is_stopped, self.taking = True, False

    def go_on(self) -> None:
        """Undo `stop`."""
        self._is_stopped, self.taking = False, not self.is_muted

    def mute(self, until_s: float) -> None:
        """Begin no request until a time of the loop's clock; the latest of several times counts."""
        if self._client is None or (self.is_muted and until_s <= self._muted_until_s):
            return
        if self._end_of_mute is not None:
            self._end_of_mute.cancel()
        self.taking, self._muted_until_s = False, until_s
        self._end_of_mute = asyncio.get_running_loop().call_at(until_s, self._unmute)

    def throttle(self, throttle_time_ms: int) -> None:
        """Mute the connection for a quota, from now on."""
        if self._client is not None:
            self._client.mute(self.now_s() * 1000 + throttle_time_ms)

    def _unmute(self) -> None:
        self._end_of_mute = None
        self.taking = not self._is_stopped
        if self.taking and self._client is not None:
            self.queue.flush_soon(self._client)

    # ---- requests

    def pump(self) -> None:
        """Begin the requests that were received, as far as limits allow, and write responses soon."""
        client = self._client
        if self.pumping or client is None:
            return
        self.pumping = True
        try:
            exhausted = self._begin_requests(client)
        except TooLarge as error:
            if not self._may_be_large(error.api_key):
                client.refuse(error)
                return
            self.reader.lift_limit(once=self._is_broker() is not True)
            self.queue.flush_soon(client)
            exhausted = False
        except (BadFrame, BadRequest) as error:
            client.refuse(error)
            return
        finally:
            self.pumping = False
            self.reader.park()
        self.exhausted = exhausted
        client.write_soon()

    def _is_broker(self) -> bool | None:
        return self._shared.is_broker(self.session)

    def _may_be_large(self, api_key: int) -> bool:
        """Whether a request may be larger than a client's.

        One that only brokers send may be while its sender is unknown: clients are refused before its handler.
        """
        is_broker, route = self._is_broker(), self._shared.dispatcher.routes.find(api_key)
        return is_broker is True or (is_broker is None and route is not None and route.is_of_brokers)

    def _begin_requests(self, client: Client) -> bool:
        """Begin requests; return whether all whole frames were taken."""
        received_s, reader, requests, served = self.now_s(), self.reader, self.requests, 0
        while self.taking:
            if requests.pending and requests.overlap_key == NO_OVERLAP:
                return reader.exhausted  # reading goes on: a client that disconnects is noticed
            if not self._has_room(client):
                return False
            outcome = self.offer(received_s)
            if outcome == Outcome.GENERAL:
                frame = self._next_frame(client)
                if frame is None:
                    return reader.exhausted
                requests.begin(frame, received_s * 1000)
            elif outcome == Outcome.ANSWERED:
                served += self.write_round.answers.count
                if served >= LOOK_AT_CLOCK_EVERY and self._turn_is_over(client):
                    return reader.exhausted
        return False

    def _next_frame(self, client: Client) -> memoryview | None:
        """Take the next frame if it may begin now; otherwise see that the client is flushed when it may."""
        reader, requests = self.reader, self.requests
        frame = reader.next_frame()
        if frame is None:
            return None
        if self._turn_is_over(client):
            may_begin = False
        elif requests.pending and int.from_bytes(frame[:2]) != requests.overlap_key:
            may_begin = False  # it begins when they are answered
        else:
            may_begin = len(frame) <= SMALL_BYTES or self._has_memory(frame)
            if not may_begin:
                self.queue.stall(client)
        if may_begin:
            return frame
        reader.give_back_frame(frame)
        return None

    def _turn_is_over(self, client: Client) -> bool:
        if not self.queue.turn_is_over():
            return False
        self.queue.flush_soon(client)
        return True

    def _has_room(self, client: Client) -> bool:
        requests, responses, queue = self.requests, self.responses, self.queue
        if not requests.has_room:
            return False
        if responses.queued_bytes > responses.max_queued_bytes:
            responses.flush()
        if responses.blocked:
            return False
        if requests.pending and not self.session.is_authenticated:
            return False  # the outcome of a login decides about the requests behind it
        return queue.unstarted < self.queue_limit or queue.has_room(client)

    def _has_memory(self, frame: memoryview) -> bool:
        """Whether there is memory for a large request."""
        share = share_of(self._shared.dispatcher.routes.find(int.from_bytes(frame[:2])))
        return self._shared.memory.has_room(len(frame), share) or self._is_broker() is True

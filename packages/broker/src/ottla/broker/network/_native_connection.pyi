from collections import deque
from collections.abc import Callable
from typing import Any

from ottla.broker.metrics import Meter
from ottla.broker.network.frames import FrameReader
from ottla.broker.network.request_queue import RequestQueue
from ottla.broker.network.response_queue import ResponseQueue
from ottla.broker.network.session import Session
from ottla.broker.requests.context import Ordering
from ottla.broker.requests.fast_path import FastAnswers, TurnClock

class Unanswered:
    """The unanswered requests of a connection, with the fields that the native intake uses."""

    pending: deque[Any]
    """Those that were begun, in their order."""
    unstarted: int
    """Those whose task has not made its first step."""
    overlap_key: int
    """The API whose requests may begin behind those that are pending, or -1."""

class NativeIntake:
    """The native half of an intake: it offers received bytes to fast paths, and queues their answers.

    Its subclass has `pump`, its requests have `answer_now` and `begin_wait`, and its responses `put_all`.
    """

    reader: FrameReader
    responses: ResponseQueue
    requests: Any
    write_round: WriteRound
    session: Session
    ordering: Ordering
    queue: RequestQueue
    queue_limit: int
    now_s: Callable[[], float]
    taking: bool
    """Whether requests may begin."""
    pumping: bool
    exhausted: bool
    """Whether every whole frame was taken: only then the connection reads on."""

    def offer(self, received_s: float) -> int:
        """Offer the bytes at hand to the fast path of the request that stands first; returns its `Outcome`.

        Its answers are queued, or its wait begun, behind the requests that are pending. Nothing is offered
        while an earlier request has still to begin, or is pending and must not overlap.
        """

class NativeConnection:
    """The native half of a connection: receiving, and writing at the end of a turn of the event loop.

    Its subclass has `set_reading`, `stop_taking`, and `fail` for an error of `write` in a round.
    """

    shared: Any
    intake: Any
    transport: Any
    descriptor: int
    """The socket's; -1 where bytes have to go through the transport."""
    reading: bool
    closing: bool
    last_active_s: float

    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def write_soon(self) -> None:
        """Write at the end of this turn of the event loop."""
    def write(self) -> None:
        """Write the answers; read on if the peer takes them and no request is left to begin."""

class WriteRound(TurnClock):
    """The connections that write at the end of this iteration of the event loop.

    An answer that is written at once wakes its client for itself alone; on a busy broker that costs more than
    the answer. `monotonic_ms` is read in each round that has a lease; uvloop's clock stands still meanwhile.
    """

    answers: FastAnswers
    """Those of the last `offer` on any connection."""
    serve_until_ms: float
    """Nothing is begun or written later than this on the monotonic clock; infinity without a lease."""
    overdue: Callable[[], object]
    """Called when something is to be begun or written later."""

    def __init__(
        self,
        call_soon: Callable[..., Any],
        now_ms: Callable[[], int],
        bytes_in: Meter,
        bytes_out: Meter,
        monotonic_ms: Callable[[], float],
        fast_path_used: Callable[[], object],
    ) -> None:
        """`fast_path_used` is called at the end of a round in which a fast path has answered."""
    def add(self, connection: NativeConnection) -> None:
        """Plan that a connection writes at the end of this iteration, after every request was begun."""
    def write_all(self) -> None:
        """Write the answers of the connections, and begin the next round; after the lease, keep them."""

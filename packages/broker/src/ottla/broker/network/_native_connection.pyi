from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ottla.broker.metrics import Histogram, Meter
from ottla.broker.network.frames import FrameReader
from ottla.broker.network.request_queue import RequestQueue
from ottla.broker.network.response_queue import ResponseQueue
from ottla.broker.network.session import Session
from ottla.broker.requests.context import Ordering

class Tally:
    """Counts values in a histogram's buckets, so that the histogram is updated once for many of them."""

    count: int
    def __init__(self, bounds: Sequence[float]) -> None: ...
    def note(self, value: float, times: int) -> None: ...
    def flush(self, *histograms: Histogram) -> None:
        """Add all counts to each of the histograms, and set them to zero."""

class NativeConnection:
    """The native half of a connection: receiving, the fast path of Produce, sending.

    Requests that it does not answer at once stay in the reader for `Connection.pump`.
    """

    last_active_s: float
    _shared: Any
    _queue: RequestQueue
    _queue_limit: int
    _reader: FrameReader
    session: Session
    _response_queue: ResponseQueue
    _transport: Any
    _ordering: Ordering
    _pending: deque[Any]
    _times: Tally
    _sizes: Tally
    _versions: dict[int, int]
    _descriptor: int
    _write_round: WriteRound
    _now_s: Callable[[], float]
    _unstarted: int
    _reading: bool
    _taking: bool
    _closing: bool
    _pumping: bool
    _exhausted: bool

    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def write(self) -> None:
        """Write the answers; read on if the peer takes them and no request is left to begin."""

class WriteRound:
    """The connections that write at the end of this iteration of the event loop.

    An answer that is written at once wakes its client for itself alone; on a busy broker that costs more than
    the answer. `monotonic_ms` is read in each round that has a lease; uvloop's clock stands still meanwhile.
    """

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
    ) -> None: ...
    def add(self, connection: NativeConnection) -> None:
        """Have a connection write at the end of this iteration, after every received request was begun."""
    def now_ms(self) -> int:
        """Return the wall-clock time of this iteration."""
    def write_all(self) -> None:
        """Write what the connections have, and begin the next round; too late for that, keep it."""

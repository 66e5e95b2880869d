from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ottla.broker.handlers.context import Ordering
from ottla.broker.metrics import Histogram, Meter
from ottla.broker.network.frames import FrameReader
from ottla.broker.network.outbox import Outbox
from ottla.broker.network.request_queue import RequestQueue
from ottla.broker.network.session import Session

class Tally:
    count: int
    def __init__(self, bounds: Sequence[float]) -> None: ...
    def note(self, value: float, times: int) -> None: ...
    def flush(self, *histograms: Histogram) -> None:
        """Give everything to the histograms, each all of it, and begin anew."""

class Wire:
    """What every produced batch goes through: bytes in, the fast path of Produce, bytes out."""

    last_active_s: float
    _shared: Any
    _queue: RequestQueue
    _queue_limit: int
    _reader: FrameReader
    session: Session
    _outbox: Outbox
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
        """Write what is answered; read on if the peer takes it and nothing is left to begin."""

class WriteRound:
    """Who has something to write at the end of this turn of the event loop.

    Written at once, every answer would wake its client by itself; on a busy broker that costs more than the
    answer.
    """

    def __init__(
        self, call_soon: Callable[..., Any], now_ms: Callable[[], int], bytes_in: Meter, bytes_out: Meter
    ) -> None: ...
    def add(self, wire: Wire) -> None:
        """Write at the end of this turn, when all connections that had something to say have been heard."""
    def now_ms(self) -> int:
        """The wall-clock time of this turn."""
    def write_all(self) -> None: ...

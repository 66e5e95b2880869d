from collections.abc import Awaitable, Sequence
from typing import Any

from ottla.broker.log.files.file_slices import Slice
from ottla.broker.metrics import Histogram
from ottla.broker.quotas.rates import SessionQuotas
from ottla.broker.requests.context import ClientSession
from ottla.broker.requests.fast_path import Wait

class ReceivedBytes:
    """Bytes of one connection that were received and not taken as requests, as fast paths see them.

    A fast path takes whole requests from the front, and moves `position` behind them.
    """

    @property
    def key_at_hand(self) -> int:
        """The API key of the request that stands first; -1 where it was not received yet."""

class FastAnswers:
    """Responses of a fast path to one or more requests of one version."""

    parts: list[bytes | Slice]
    """Whole responses, one behind the other, in the order of their requests."""
    has_regions: bool
    size: int
    """Of the responses."""
    version: int
    count: int
    size_in_bytes: int
    """Of the requests, without the sizes of their frames."""
    awaited: Awaitable[bytes] | None
    """With `Outcome.BEGUN`: the responses."""
    wait: Wait | None
    """With `Outcome.WAITS`: the wait, which has not begun."""
    quotas: SessionQuotas
    """The session's, which are not stale: a fast path charges them."""
    credit: int
    """Bytes that responses may have: the general path throttles a request whose response is larger."""
    throttle_time_ms: int
    """How long no further request of the session may begin."""
    def put(self, part: bytes) -> None:
        """Add whole responses."""

class TurnClock:
    """The wall clock, read once in a turn of the event loop."""

    def now_ms(self) -> int:
        """Return the time of this turn."""

class Tally:
    """Counts values in a histogram's buckets, so that the histogram is updated once for many of them."""

    count: int
    def __init__(self, bounds: Sequence[float]) -> None: ...
    def note(self, value: float, times: int) -> None: ...
    def flush(self, *histograms: Histogram) -> None:
        """Add all counts to each of the histograms, and set them to zero."""

class FastPath:
    """Serves the plain requests of one API from their bytes, without a message object.

    The network offers received bytes to the fast path of the request that stands first, if the general
    path has admitted a partition of that API to the session. A fast path refuses nothing: requests that
    are not plain, or fail, are left to the general path.
    """

    api_key: int
    times: Tally
    """Milliseconds of the requests that were answered at once. The network moves them to the metrics."""
    sizes: Tally
    """Bytes of these requests."""
    versions: dict[int, int]
    """How many of them had which version."""
    def __init__(self, *arguments: Any) -> None: ...
    def serve(
        self,
        received: ReceivedBytes,
        targets: dict[bytes, Any],
        session: ClientSession,
        clock: TurnClock,
        answers: FastAnswers,
    ) -> int:
        """Serve requests from the front of `received`; returns an `Outcome`.

        `targets` is the session's index for this API. The responses, or how to wait for them, are put into
        the empty `answers`.
        """
    def note(self, answers: FastAnswers, took_ms: float) -> None:
        """Count requests that were answered at once."""
    def flush(self) -> None:
        """Bring the metrics of topics up to date with the requests that were served."""

class KnownTargets:
    """The index of one session for one fast path: its partitions by key."""

    def __init__(self, fast_path: FastPath) -> None: ...
    @property
    def fast_path(self) -> FastPath: ...
    @property
    def targets(self) -> dict[bytes, Any]: ...

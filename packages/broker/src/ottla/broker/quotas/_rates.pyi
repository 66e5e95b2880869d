from collections.abc import Callable

class SampledRate:
    """The sum of values per second over the last windows, as Kafka's `Rate` measures it.

    A window begins with its first value. The rate covers the time since the oldest window began, and all
    windows but one where that is shorter: the first second of a client has not one second's rate. A window
    that reaches into the time that is covered counts as a whole.
    """

    window_ms: float
    most: int
    """Samples that are kept: the windows, and one more."""
    def __init__(self, window_ms: float, count: int) -> None: ...
    def record(self, value: float, now_ms: float) -> None: ...
    def per_s(self, now_ms: float) -> float: ...
    def span_ms(self, now_ms: float) -> float:
        """Return the time that the rate covers now."""
    @property
    def last_ms(self) -> float:
        """When a value was last recorded; 0 before."""

class ThrottleTimes:
    """The throttle times of the last half to whole minute, as a mean."""

    def note(self, throttle_ms: float, now_ms: float) -> None: ...
    def average_ms(self, now_ms: float) -> float: ...

class QuotaBucket:
    """One rate with its quota: all clients that share the quota record here.

    `record` and `excess_ms` are Kafka's, and limit connections. That rate forgets a window with all that was
    beyond the quota in it, and a new client's covers windows that have not passed: large requests, or many
    clients at once, get several times the quota. So `charge` and `wait_ms` hold a client to what the quota
    has granted since it was idle: at once as much as Kafka, the worth of all windows but one, and from the
    end of these windows on the quota.
    """

    bound: float
    """Of a second. Another one forgives what was used."""
    longest_ms: float
    """The longest throttle time."""
    rate: SampledRate
    throttle_times: ThrottleTimes
    def __init__(self, bound: float, window_ms: float, count: int, longest_ms: float = ...) -> None: ...
    def record(self, value: float, now_ms: float) -> float:
        """Record a value; return the throttle time in milliseconds, 0 within the quota."""
    def excess_ms(self, now_ms: float) -> float:
        """Return the time in which the rate falls to the quota if nothing comes."""
    def charge(self, value: float, now_ms: float) -> int:
        """Record a value; return the throttle time that its client is given, and note it."""
    def wait_ms(self, now_ms: float) -> float:
        """Return the throttle time for what was charged so far.

        An older debt counts for five minutes at most, and for all windows where `longest_ms` is finite.
        """
    def room(self, now_ms: float) -> float:
        """Return how much may be recorded now within the quota; negative above it."""

class TokenBucket:
    """A client's tokens for controller mutations (KIP-599): the rate fills them, up to all windows' worth."""

    bound: float
    burst_s: float
    left: float
    rate: SampledRate
    throttle_times: ThrottleTimes
    def __init__(self, bound: float, window_ms: float, count: int, now_ms: float) -> None: ...
    def tokens(self, now_ms: float) -> float:
        """Return the tokens that are left; negative above the quota."""
    def record(self, permits: float, now_ms: float) -> float:
        """Take tokens; return the throttle time in milliseconds."""
    def excess_ms(self, now_ms: float) -> float:
        """Return the time in which missing tokens are filled up."""

class SessionQuotas:
    """The quotas of one user and client id; None where no quota is set.

    All sessions of the pair share it, and the fast paths charge it without the general path. A change of
    quotas makes it stale: the general path then looks up another before the session's next request.
    """

    produce: QuotaBucket | None
    fetch: QuotaBucket | None
    request: QuotaBucket | None
    """In percent of the event loop's time."""
    mutation: TokenBucket | None
    is_limited: bool
    """Whether there is any quota."""
    is_stale: bool
    now_ms: Callable[[], float]
    """The monotonic clock."""
    def __init__(
        self,
        now_ms: Callable[[], float],
        produce: QuotaBucket | None = None,
        fetch: QuotaBucket | None = None,
        request: QuotaBucket | None = None,
        mutation: TokenBucket | None = None,
    ) -> None: ...
    def charge_produce(self, size: int) -> int:
        """Record produced bytes; return the throttle time in milliseconds."""
    def throttle_fetch(self, size: int) -> int:
        """Record fetched bytes and return 0, or return the throttle time for which nothing is sent."""
    def throttle_request(self, busy_ms: float) -> int:
        """Record time of the event loop; return the throttle time in milliseconds."""
    @property
    def most_fetch_bytes(self) -> int:
        """The most bytes that one response may have without exceeding the quota by itself."""

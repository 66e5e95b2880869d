# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Rates over windows, and the quotas of one client, natively. `_rates.pyi` documents them."""

from libc.math cimport INFINITY, floor, fmax, fmin
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t
from libc.stdlib cimport free, realloc

from ottla.broker.runtime.clock import SystemClock

cdef extern from "python_clock.h" nogil:
    bint OTTLA_HAS_PYTHON_CLOCK
    double python_clock_ms()

cdef enum:
    FIRST_SAMPLES = 4
    AVERAGED_MS = 30_000
    LONGEST_DEBT_MS = 300_000
    LONGEST_STALL_MS = 25_000   # clients give up a request after 30 s


cdef class SampledRate:

    def __cinit__(self, double window_ms, int count):
        self.window_ms = window_ms
        self.most = count + 1  # and one that the oldest window overlaps

    def __dealloc__(self):
        free(self.samples)

    def record(self, double value, double now_ms):
        self.put(value, now_ms)

    cdef int put(self, double value, double now_ms) except -1:
        cdef Sample *sample = NULL
        if self.count:
            sample = &self.samples[self.current]
        if sample == NULL or now_ms - sample.start_ms >= self.window_ms:
            sample = self.advance(now_ms)
        sample.total += value
        sample.last_ms = self.recorded_ms = now_ms
        return 0

    cdef Sample *advance(self, double now_ms) except NULL:
        """Begin a sample, in the place of the oldest once there are enough."""
        cdef Sample *grown
        cdef int wanted
        self.current = self.current + 1 if self.count else 0
        if self.current == self.most:
            self.current = 0
        if self.current == self.count:
            if self.count == self.capacity:
                wanted = self.capacity * 2 if self.capacity else FIRST_SAMPLES
                grown = <Sample *> realloc(self.samples, wanted * sizeof(Sample))
                if grown == NULL:
                    raise MemoryError
                self.samples, self.capacity = grown, wanted
            self.count += 1
        self.samples[self.current] = Sample(now_ms, now_ms, 0)
        return &self.samples[self.current]

    cdef void purge(self, double now_ms) noexcept:
        """Empty the samples whose last event is older than all windows; one that overlaps them counts."""
        cdef int i
        for i in range(self.count):
            if now_ms - self.samples[i].last_ms >= self.window_ms * (self.most - 1):
                self.samples[i] = Sample(now_ms, now_ms, 0)

    cdef double span(self, double now_ms) noexcept:
        """Return the time that the rate covers: full windows, and the elapsed part of the last."""
        cdef double oldest_ms = now_ms, elapsed_ms, missing
        cdef int i
        self.purge(now_ms)
        for i in range(self.count):
            oldest_ms = fmin(oldest_ms, self.samples[i].start_ms)
        elapsed_ms = now_ms - oldest_ms
        missing = self.most - 2 - floor(elapsed_ms / self.window_ms)
        if missing > 0:
            elapsed_ms += missing * self.window_ms
        return fmax(elapsed_ms, 1)

    cdef double sum(self) noexcept:
        cdef double total = 0
        cdef int i
        for i in range(self.count):
            total += self.samples[i].total
        return total

    def per_s(self, double now_ms):
        cdef double span_ms = self.span(now_ms)  # purges before the sum
        return self.sum() * 1000 / span_ms

    def span_ms(self, double now_ms):
        return self.span(now_ms)

    @property
    def last_ms(self):
        return self.recorded_ms


cdef class ThrottleTimes:

    def note(self, double throttle_ms, double now_ms):
        self.rotate(now_ms)
        self.total_ms += throttle_ms
        self.count += 1

    cdef int rotate(self, double now_ms) except -1:
        if now_ms - self.from_ms >= AVERAGED_MS:
            if now_ms - self.from_ms < 2 * AVERAGED_MS:
                self.earlier_total_ms, self.earlier_count = self.total_ms, self.count
            else:
                self.earlier_total_ms = self.earlier_count = 0
            self.total_ms = self.count = 0
            self.from_ms = now_ms
        return 0

    def average_ms(self, double now_ms):
        self.rotate(now_ms)
        cdef int64_t count = self.count + self.earlier_count
        return (self.total_ms + self.earlier_total_ms) / count if count else 0.0


cdef class QuotaBucket:

    def __cinit__(self, double bound, double window_ms, int count, double longest_ms=INFINITY):
        self.longest_ms, self.burst_ms = longest_ms, window_ms * (count - 1)
        self.debt_ms = LONGEST_DEBT_MS if longest_ms == INFINITY else longest_ms * count
        self.rate = SampledRate(window_ms, count)
        self.throttle_times = ThrottleTimes()
        self.bound = bound

    @property
    def bound(self):
        return self.limit

    @bound.setter
    def bound(self, double bound):
        if bound != self.limit:
            self.limit, self.used, self.busy_since_ms = bound, 0, 0

    cpdef double record(self, double value, double now_ms) except *:
        self.rate.put(value, now_ms)
        return self.excess_ms(now_ms)

    cpdef double excess_ms(self, double now_ms) except *:
        cdef double span_ms = self.rate.span(now_ms)
        cdef double per_s = self.rate.sum() * 1000 / span_ms
        if per_s <= self.limit:
            return 0
        if self.limit <= 0:
            return self.longest_ms
        return fmin(floor((per_s - self.limit) / self.limit * span_ms + 0.5), self.longest_ms)

    # ---- clients: what they used since they were idle, whatever the rate forgets

    cdef int count(self, double value, double now_ms) except -1:
        cdef double granted = self.limit * (now_ms - self.busy_since_ms) / 1000
        if self.used <= 0 or granted - self.used >= self.burst():
            self.busy_since_ms, self.used, granted = now_ms, 0, 0
        self.used = fmin(self.used, granted + self.limit * self.debt_ms / 1000) + value
        return self.rate.put(value, now_ms)

    cdef double burst(self) noexcept:
        """Return what a client that was idle may use at once."""
        return self.limit * self.burst_ms / 1000

    cdef double granted_ms(self, double now_ms) noexcept:
        """Return the time whose worth a client may have used by now."""
        return fmax(now_ms - self.busy_since_ms, self.burst_ms)

    cpdef double wait_ms(self, double now_ms) except *:
        cdef double used_ms, until_ms
        if self.used * 1000 <= self.limit * self.granted_ms(now_ms):
            return 0
        if self.limit <= 0:
            return self.longest_ms
        used_ms = self.used * 1000 / self.limit
        # Nothing is granted before the burst's time is over, but a wait for that alone is bounded.
        until_ms = fmin(used_ms - now_ms + self.busy_since_ms, LONGEST_STALL_MS)
        return fmin(floor(fmax(until_ms, used_ms - self.granted_ms(now_ms)) + 0.5), self.longest_ms)

    cpdef int32_t charge(self, double value, double now_ms) except -1:
        cdef double throttle_ms
        self.count(value, now_ms)
        throttle_ms = fmin(self.wait_ms(now_ms), INT32_MAX)
        if throttle_ms > 0:
            self.throttle_times.note(throttle_ms, now_ms)
        return <int32_t> throttle_ms

    cpdef double room(self, double now_ms) except *:
        return fmin(self.limit * self.granted_ms(now_ms) / 1000 - self.used, self.burst())


cdef class TokenBucket:

    def __cinit__(self, double bound, double window_ms, int count, double now_ms):
        self.bound, self.burst_s = bound, window_ms * count / 1000
        self.left, self.filled_ms = bound * self.burst_s, now_ms
        self.rate = SampledRate(window_ms, count)
        self.throttle_times = ThrottleTimes()

    cpdef double tokens(self, double now_ms) except *:
        cdef double elapsed_ms = fmax(0, now_ms - self.filled_ms)
        self.left = fmin(self.bound * self.burst_s, self.left + self.bound * elapsed_ms / 1000)
        self.filled_ms = now_ms
        return self.left

    def record(self, double permits, double now_ms):
        self.left = fmin(self.bound * self.burst_s, self.tokens(now_ms) - permits)
        self.rate.put(permits, now_ms)
        return self.excess_ms(now_ms)

    def excess_ms(self, double now_ms):
        cdef double left = self.tokens(now_ms)
        return floor(-left * 1000 / self.bound + 0.5) if left < 0 else 0.0


cdef int64_t credit_of(double room) noexcept:
    return <int64_t> fmax(-1, fmin(floor(room), 1e18))


cdef class SessionQuotas:

    def __init__(self, now_ms, produce=None, fetch=None, request=None, mutation=None):
        self.now_ms = now_ms
        self.is_of_system = OTTLA_HAS_PYTHON_CLOCK and isinstance(getattr(now_ms, "__self__", None), SystemClock)
        self.produce, self.fetch, self.request, self.mutation = produce, fetch, request, mutation
        self.is_limited = not (produce is None and fetch is None and request is None and mutation is None)

    cdef double clock_ms(self) except *:
        """Read the clock: the machine's at a fifth of what a call of Python costs."""
        return python_clock_ms() if self.is_of_system else <double> self.now_ms()

    cdef bint serves_fast(self) except -1:
        """Whether the next request may take a fast path: the general path answers where a throttle is due.

        What is served is charged at the time that is read here.
        """
        self.served_ms = self.clock_ms()
        return self.request is None or self.request.wait_ms(self.served_ms) <= 0

    cdef int64_t produce_credit(self) except -2:
        """Return how many bytes may be produced by what is served; -1 without any."""
        return INT64_MAX if self.produce is None else credit_of(self.produce.room(self.served_ms))

    cdef int64_t fetch_credit(self) except -2:
        """Return how many bytes may be fetched by what is served; -1 without any."""
        return INT64_MAX if self.fetch is None else credit_of(self.fetch.room(self.served_ms))

    cdef int32_t charge_served(self, int64_t size) except -1:
        """Record bytes that are produced by what is served; return the throttle time in milliseconds."""
        return 0 if self.produce is None else self.produce.charge(size, self.served_ms)

    cdef int charge_fetch(self, int64_t size) except -1:
        if self.fetch is not None:
            self.fetch.count(size, self.served_ms)
        return 0

    cdef int charge_time(self) except -1:
        cdef double now_ms
        if self.request is not None:
            now_ms = self.clock_ms()
            self.request.count((now_ms - self.served_ms) / 10, now_ms)  # percent of a second
        return 0

    cpdef int32_t charge_produce(self, int64_t size) except -1:
        return 0 if self.produce is None else self.produce.charge(size, self.clock_ms())

    # ---- the general path

    def throttle_fetch(self, int64_t size):
        cdef double now_ms
        cdef int32_t throttle_ms
        if self.fetch is None:
            return 0
        now_ms = self.clock_ms()
        if size > self.fetch.burst() and self.fetch.wait_ms(now_ms) <= 0:
            # A batch that is never within the quota: a client that owes nothing gets it, and then owes it.
            self.fetch.count(size, now_ms)
            return 0
        throttle_ms = self.fetch.charge(size, now_ms)
        if throttle_ms > 0:
            self.fetch.count(-size, now_ms)
        return throttle_ms

    def throttle_request(self, double busy_ms):
        return 0 if self.request is None else self.request.charge(busy_ms / 10, self.clock_ms())

    @property
    def most_fetch_bytes(self):
        if self.fetch is None:
            return INT64_MAX
        return <int64_t> fmin(self.fetch.burst(), 1e18)

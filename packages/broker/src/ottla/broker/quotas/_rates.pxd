# cython: language_level=3
"""The rates and quotas of clients, for compiled modules: see `rates.py`."""

from libc.stdint cimport int32_t, int64_t


cdef struct Sample:
    double start_ms
    double last_ms      # of the last event
    double total


cdef class SampledRate:
    cdef readonly double window_ms
    cdef readonly int most
    cdef Sample *samples
    cdef int count
    cdef int capacity
    cdef int current
    cdef double recorded_ms

    cdef int put(self, double value, double now_ms) except -1
    cdef Sample *advance(self, double now_ms) except NULL
    cdef void purge(self, double now_ms) noexcept
    cdef double span(self, double now_ms) noexcept
    cdef double sum(self) noexcept


cdef class ThrottleTimes:
    cdef double from_ms
    cdef double total_ms
    cdef int64_t count
    cdef double earlier_total_ms
    cdef int64_t earlier_count
    cdef int rotate(self, double now_ms) except -1


cdef class QuotaBucket:
    cdef object __weakref__
    cdef double limit
    cdef readonly double longest_ms
    cdef double burst_ms        # the time whose worth a client that was idle may use at once
    cdef double debt_ms         # the most that is remembered of what was used beyond the quota
    cdef double busy_since_ms   # a client that was idle began to use it
    cdef double used            # since then
    cdef readonly SampledRate rate
    cdef readonly ThrottleTimes throttle_times

    cpdef double record(self, double value, double now_ms) except *
    cpdef double excess_ms(self, double now_ms) except *
    cdef int count(self, double value, double now_ms) except -1
    cdef double burst(self) noexcept
    cdef double granted_ms(self, double now_ms) noexcept
    cpdef double wait_ms(self, double now_ms) except *
    cpdef int32_t charge(self, double value, double now_ms) except -1
    cpdef double room(self, double now_ms) except *


cdef class TokenBucket:
    cdef object __weakref__
    cdef public double bound
    cdef readonly double burst_s
    cdef readonly double left
    cdef double filled_ms
    cdef readonly SampledRate rate
    cdef readonly ThrottleTimes throttle_times

    cpdef double tokens(self, double now_ms) except *


cdef class SessionQuotas:
    cdef object __weakref__
    cdef readonly QuotaBucket produce
    cdef readonly QuotaBucket fetch
    cdef readonly QuotaBucket request
    cdef readonly TokenBucket mutation
    cdef readonly bint is_limited
    cdef public bint is_stale
    cdef readonly object now_ms
    cdef bint is_of_system  # whether now_ms is the machine's clock
    cdef double served_ms   # when a fast path began to serve what it charges

    cdef double clock_ms(self) except *
    cdef bint serves_fast(self) except -1
    cdef int64_t fetch_credit(self) except -2
    cdef int32_t charge_served(self, int64_t size) except -1
    cdef int charge_fetch(self, int64_t size) except -1
    cdef int charge_time(self) except -1
    cdef int64_t produce_credit(self) except -2
    cpdef int32_t charge_produce(self, int64_t size) except -1

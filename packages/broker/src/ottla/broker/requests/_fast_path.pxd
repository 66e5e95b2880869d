# cython: language_level=3
"""The contract of fast paths for compiled modules: every field that one side reads of the other stands here."""

from libc.stdint cimport int64_t

from ottla.broker.quotas._rates cimport SessionQuotas
from ottla.protocol.records._batch cimport get16

cdef enum:
    MAX_BUCKETS = 128

cdef enum Outcome:
    GENERAL     # the first request at hand is one for the general path: nothing was taken or done
    ANSWERED    # requests were taken, and their responses are in the answers
    BEGUN       # requests were taken and have had their effects; their responses have to be awaited
    WAITS       # one request was taken and waits for records: nothing was done


cdef class ReceivedBytes:
    cdef bytearray source       # holds the bytes that were not taken yet; None before anything was received
    cdef object source_view     # a memoryview of it
    cdef Py_ssize_t position    # of the first byte that was not taken
    cdef Py_ssize_t end         # behind the last byte
    cdef Py_ssize_t limit       # of the size of a frame

    cdef inline int api_key(self) noexcept:
        """Return the API key of the request at hand; -1 where it was not received yet."""
        if self.source is None or self.end - self.position < 6:
            return -1
        return get16(<const unsigned char *> (<char *> self.source) + self.position + 4)


cdef class FastAnswers:
    cdef public list parts              # whole responses in the order of their requests: bytes and file regions
    cdef public bint has_regions
    cdef public int64_t size            # of the responses
    cdef public int version             # of all requests
    cdef public Py_ssize_t count        # of requests
    cdef public int64_t size_in_bytes   # of the requests
    cdef public object awaited          # with BEGUN: an awaitable of the responses as bytes
    cdef public object wait             # with WAITS: a `Wait`
    cdef public SessionQuotas quotas    # of the session
    cdef public int64_t credit          # bytes that the responses may have within them
    cdef public int throttle_time_ms    # how long no further request of the session may begin


cdef class TurnClock:
    cpdef now_ms(self)


cdef class Tally:
    cdef double bounds[MAX_BUCKETS]
    cdef int64_t counts[MAX_BUCKETS]
    cdef int buckets
    cdef readonly int64_t count
    cdef double total
    cdef double largest

    cdef void put(self, double value, int64_t times) noexcept


cdef class FastPath:
    cdef public int api_key
    cdef readonly Tally times
    cdef readonly Tally sizes
    cdef readonly dict versions

    cpdef int serve(
        self, ReceivedBytes received, dict targets, object session, TurnClock clock, FastAnswers answers
    ) except -1
    cdef int count_served(self, FastAnswers answers, double took_ms) except -1


cdef class KnownTargets:
    cdef readonly FastPath fast_path
    cdef readonly dict targets

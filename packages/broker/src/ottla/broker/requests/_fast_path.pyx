# cython: language_level=3, boundscheck=False, wraparound=False
"""Fast paths as the network sees them, natively. `_fast_path.pyi` documents it, `fast_path.py` is the way in."""

from libc.stdint cimport INT64_MAX, int64_t

from ottla.broker.quotas._rates cimport SessionQuotas

from ottla.broker.metrics import BUCKET_BOUNDS
from ottla.broker.quotas.rates import UNLIMITED


cdef class ReceivedBytes:

    @property
    def key_at_hand(self):
        return self.api_key()


cdef class FastAnswers:

    def __cinit__(self):
        self.parts = []
        self.quotas = UNLIMITED
        self.credit = INT64_MAX

    def put(self, bytes part):
        self.parts.append(part)
        self.size += len(part)


cdef class TurnClock:

    cpdef now_ms(self):
        raise NotImplementedError


cdef class Tally:

    def __cinit__(self, bounds):
        self.buckets = len(bounds)
        if self.buckets >= MAX_BUCKETS:
            raise ValueError("too many buckets")
        for i in range(self.buckets):
            self.bounds[i] = bounds[i]

    def note(self, double value, int64_t times):
        self.put(value, times)

    cdef void put(self, double value, int64_t times) noexcept:
        cdef int low = 0, high = self.buckets, middle
        while low < high:
            middle = (low + high) >> 1
            if self.bounds[middle] < value:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += times
        self.count += times
        self.total += value * times
        if value > self.largest:
            self.largest = value

    def flush(self, *histograms):
        if not self.count:
            return
        counts = [self.counts[i] for i in range(self.buckets + 1)]
        for histogram in histograms:
            histogram.take(counts, self.count, self.total, self.largest)
        for i in range(self.buckets + 1):
            self.counts[i] = 0
        self.count, self.total, self.largest = 0, 0, 0


cdef class FastPath:

    def __cinit__(self, *arguments, **more):
        self.times, self.sizes, self.versions = Tally(BUCKET_BOUNDS), Tally(BUCKET_BOUNDS), {}

    cpdef int serve(
        self, ReceivedBytes received, dict targets, object session, TurnClock clock, FastAnswers answers
    ) except -1:
        raise NotImplementedError

    cdef int count_served(self, FastAnswers answers, double took_ms) except -1:
        cdef int64_t count = answers.count
        self.times.put(took_ms, count)
        self.sizes.put(answers.size_in_bytes / <double> count, count)
        self.versions[answers.version] = <int64_t> self.versions.get(answers.version, 0) + count
        return 0

    def note(self, FastAnswers answers, double took_ms):
        self.count_served(answers, took_ms)

    def flush(self):
        pass


cdef class KnownTargets:

    def __init__(self, FastPath fast_path):
        self.fast_path = fast_path
        self.targets = {}

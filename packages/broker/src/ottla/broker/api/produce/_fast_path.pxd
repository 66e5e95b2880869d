# cython: language_level=3
"""The fast path of Produce, natively: see `_fast_path.pyi`."""

from libc.stdint cimport int64_t

from ottla.broker.quotas._rates cimport SessionQuotas
from ottla.broker.replication._append cimport PartitionAppends
from ottla.protocol.native.produce cimport ProduceRun


cdef class Target:
    cdef readonly bytes key      # of the partition in a session's index
    cdef readonly PartitionAppends partition
    cdef readonly object meters
    cdef readonly bint retired
    cdef object _core, _all_meters
    cdef int64_t _requests, _records, _bytes  # not metered yet

    cpdef bytes append_now(self, ProduceRun run, now_ms, SessionQuotas quotas)
    cpdef int count(self, ProduceRun run) except -1
    cpdef int flush(self) except -1

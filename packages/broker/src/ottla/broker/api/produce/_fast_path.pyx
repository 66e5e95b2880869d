# cython: language_level=3
"""Produce runs whose answer has to wait for nothing, natively. `_produce_fast_path.pyi` documents it."""

from libc.stdint cimport int64_t

from ottla.broker.replication._append cimport PartitionAppends
from ottla.protocol.native.produce cimport ProduceRun


cdef class Target:

    def __init__(self, partition, meters, all_meters):
        topic, number = partition.topic_partition
        self.key = topic.encode() + number.to_bytes(4)
        self.partition = partition
        self._core = partition.core
        self.meters, self._all_meters = meters, all_meters

    cpdef bytes append_now(self, ProduceRun run, now_ms):
        cdef int64_t base_offset
        if self.retired or self._core.followers:
            return None
        base_offset = self.partition.append_plain(run.batches, run.acks, now_ms)
        if base_offset < 0:
            return None
        self.count(run)
        return run.answers(base_offset, -1, self.partition.log.log_start_offset)

    cpdef int count(self, ProduceRun run) except -1:
        self._requests += run.count
        self._records += run.records
        self._bytes += run.size_in_bytes
        return 0

    def retire(self):
        self.flush()
        self.retired = True
        self.partition = self._core = None

    cpdef int flush(self) except -1:
        if not self._requests:
            return 0
        for meters in (self.meters, self._all_meters):
            meters.produce_requests.count += self._requests
            meters.messages_in.count += self._records
            meters.bytes_in.count += self._bytes
        self._requests = self._records = self._bytes = 0
        return 0

# cython: language_level=3
"""Appending a run where nothing has to be waited for, natively. `produce_run` says what is promised."""

from libc.stdint cimport int64_t

from ottla.broker.replication.partition import Role

cdef object LEADER = Role.LEADER


cdef class Target:
    cdef readonly object partition
    cdef readonly object meters
    cdef object core, log, all_meters
    cdef list requests, records, bytes

    def __init__(self, partition, meters, all_meters):
        self.partition = partition
        self.core, self.log = partition.core, partition.log
        self.meters = meters
        self.requests = [meters.produce_requests, all_meters.produce_requests]
        self.records = [meters.messages_in, all_meters.messages_in]
        self.bytes = [meters.bytes_in, all_meters.bytes_in]

    def append_alone(self, run, int64_t now_ms):
        cdef int64_t base_offset
        core, log, partition = self.core, self.log, self.partition
        if core.role is not LEADER or core.followers:
            return None
        base_offset = log.append_common(run.batches, core.leader_epoch, now_ms)
        if base_offset < 0:
            return None
        if partition.watchers or partition._waiting:
            partition.grown(now_ms)
        else:
            next_offset = log.tail.next_offset
            core.log_end_offset = core.high_watermark = log.high_watermark = next_offset
        self.count(run)
        return run.answers(base_offset, -1, log.log_start_offset)

    def count(self, run):
        add(self.requests, run.count)
        add(self.records, run.records)
        add(self.bytes, run.size_in_bytes)


cdef int add(list meters, int64_t events) except -1:
    for meter in meters:
        meter.count += events
    return 0

# cython: language_level=3
"""Appending a run where nothing has to be waited for, natively. `produce_run` says what is promised."""

from libc.stdint cimport int64_t

from ottla.broker.replication.partition import Role

cdef object LEADER = Role.LEADER


cdef class Target:
    cdef readonly bytes key         # of the partition in a session's index
    cdef readonly object partition
    cdef readonly object meters
    cdef readonly bint retired
    cdef object core, log, all_meters
    cdef int64_t requests, records, bytes  # not metered yet

    def __init__(self, partition, meters, all_meters):
        topic, number = partition.topic_partition
        self.key = topic.encode() + number.to_bytes(4)
        self.partition = partition
        self.core, self.log = partition.core, partition.log
        self.meters, self.all_meters = meters, all_meters

    def append_alone(self, run, int64_t now_ms):
        cdef int64_t base_offset
        core, log, partition = self.core, self.log, self.partition
        if self.retired or core.role is not LEADER or core.followers:
            return None
        tail = log.tail
        try:
            base_offset = tail.append_common(run.batches, core.leader_epoch, now_ms, log.producers)
        except OSError as error:
            raise log.append_failed(error) from error
        if base_offset < 0:
            return None
        if partition.watchers or partition._waiting:
            partition.grown(now_ms)
        else:
            core.appended_alone(tail.next_offset)
        self.count(run)
        return run.answers(base_offset, -1, log.log_start_offset)

    cpdef count(self, run):
        self.requests += <int64_t> run.count
        self.records += <int64_t> run.records
        self.bytes += <int64_t> run.size_in_bytes

    def retire(self):
        self.pour()
        self.retired = True
        self.partition = self.core = self.log = None

    cpdef pour(self):
        if not self.requests:
            return
        for meters in (self.meters, self.all_meters):
            meters.produce_requests.count += self.requests
            meters.messages_in.count += self.records
            meters.bytes_in.count += self.bytes
        self.requests = self.records = self.bytes = 0

# cython: language_level=3
"""Appends to a hosted partition, natively. `_append.pyi` documents it, `hosted_partition.py` is the way in."""

from heapq import heappop

from libc.stdint cimport int64_t

from ottla.broker.log.append._log_end cimport LogEnd
from ottla.broker.log.segments._offset_lookup cimport Slice

from ottla.broker.replication.partition import Role
from ottla.protocol.errors import NotEnoughReplicas, NotLeaderOrFollower

cdef object LEADER = Role.LEADER

cdef enum:
    ALL_ACKS = -1
    RECENT_BYTES = 32 << 20


cdef class PartitionAppends:

    def __init__(self, topic_partition, log, core):
        self.topic_partition = topic_partition
        self.log = log
        self.core = core
        self.watchers = {}
        self._waiting = []
        self._first_new_offset = log.log_end_offset

    cpdef int set_log(self, log) except -1:
        self.log = log
        self._first_new_offset = log.log_end_offset
        return 0

    cpdef int check_append(self, int required_acks) except -1:
        core = self.core
        if core.role is not LEADER:
            raise NotLeaderOrFollower
        if required_acks == ALL_ACKS and core.followers:
            core.min_insync_replicas = self.log.config.min_insync_replicas
            if core.is_under_min_isr:
                raise NotEnoughReplicas(
                    f"{len(core.isr)} in-sync replicas, {core.effective_min_isr} are required"
                )
        return 0

    cpdef int64_t append_plain(self, batches, int required_acks, now_ms) except? -2:
        cdef LogEnd log_end = self.log.log_end
        cdef int64_t base_offset
        self.check_append(required_acks)
        base_offset = log_end.append_plain(batches, self.core.leader_epoch, now_ms, self.log)
        if base_offset >= 0:
            self.grown(now_ms)
        return base_offset

    cpdef int grown(self, now_ms) except -1:
        cdef LogEnd log_end = self.log.log_end
        core = self.core
        if core.followers:
            effects = core.appended(log_end.next_offset, now_ms)
            if effects:
                self.perform(effects)
            elif self.watchers:
                self.wake()
            return 0
        core.appended_alone(log_end.next_offset)
        if self._waiting:
            self.release(log_end.next_offset)
        if self.watchers:
            self.wake()
        return 0

    cpdef bint is_cold(self, int64_t offset, Slice records) except -1:
        cdef LogEnd log_end = self.log.log_end
        if (
            offset >= self._first_new_offset
            and records.file is log_end.file
            and log_end.position - records.position <= RECENT_BYTES
        ):
            return False
        return not records.is_hot()

    def perform(self, effects):
        raise NotImplementedError

    cpdef int wake(self) except -1:
        cdef list watchers = list(self.watchers)
        self.watchers.clear()
        for watcher in watchers:
            watcher()
        return 0

    cpdef int release(self, int64_t high_watermark) except -1:
        cdef list waiting = self._waiting
        while waiting and <int64_t> waiting[0][0] <= high_watermark:
            future = heappop(waiting)[2]
            if not future.done():
                future.set_result(None)
        return 0

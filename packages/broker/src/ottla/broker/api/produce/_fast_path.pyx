# cython: language_level=3
"""Produce runs whose answer has to wait for nothing, natively. `_fast_path.pyi` documents it."""

from libc.stdint cimport int64_t

from ottla.broker.quotas._rates cimport SessionQuotas
from ottla.broker.replication._append cimport PartitionAppends
from ottla.broker.requests._fast_path cimport ANSWERED, GENERAL, FastAnswers, FastPath, ReceivedBytes, TurnClock
from ottla.protocol.native.produce cimport ProduceRun, take_run

from ottla.protocol.api import ApiKey
from ottla.protocol.errors import KafkaError


cdef class Target:

    def __init__(self, partition, meters, all_meters):
        topic, number = partition.topic_partition
        self.key = topic.encode() + number.to_bytes(4)
        self.partition = partition
        self._core = partition.core
        self.meters, self._all_meters = meters, all_meters

    def id_key(self):
        topic_id = self.partition.log.topic_id
        if topic_id is None:
            return None
        return b"\0" + topic_id.bytes + self.key[-4:]

    cpdef bytes append_now(self, ProduceRun run, now_ms, SessionQuotas quotas):
        cdef int64_t base_offset
        if self.retired or self._core.followers:
            return None
        base_offset = self.partition.append_plain(run.batches, run.acks, now_ms)
        if base_offset < 0:
            return None
        self.count(run)
        charge(run, quotas)
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


cpdef ProduceRun run_at_hand(ReceivedBytes received, dict targets, SessionQuotas quotas):
    cdef Py_ssize_t end = received.end
    cdef int64_t credit
    if received.source is None:
        return None
    if quotas.is_limited:
        # Beyond the quota requests go one by one, on the general path: each is throttled as Kafka does.
        credit = quotas.produce_credit()
        if credit < end - received.position:
            end = received.position + max(0, credit)
    return take_run(
        received.source, received.source_view, received.position, end, received.limit, targets
    )


cpdef int charge(ProduceRun run, SessionQuotas quotas) except -1:
    if quotas.is_limited:
        run.throttle_time_ms = quotas.charge_served(run.request_bytes())
    return 0


cpdef int pass_run(ReceivedBytes received, ProduceRun run) except -1:
    received.position = run.end
    return 0


cdef class NativeProduceFastPath(FastPath):

    def __cinit__(self, *arguments, **more):
        self.api_key = ApiKey.PRODUCE

    cpdef int serve(
        self, ReceivedBytes received, dict targets, object session, TurnClock clock, FastAnswers answers
    ) except -1:
        cdef ProduceRun run = run_at_hand(received, targets, answers.quotas)
        cdef Target target
        cdef bytes data
        cdef int outcome = ANSWERED
        if run is None:
            return GENERAL
        now_ms = clock.now_ms()
        try:
            target = run.target
            data = target.append_now(run, now_ms, answers.quotas)
        except (KafkaError, OSError):
            return self.leave(run, targets)
        if data is not None:
            answers.parts.append(data)
            answers.size = len(data)
        else:
            outcome = self.append(run, session, now_ms, answers)
            if outcome == GENERAL:
                return self.leave(run, targets)
        answers.throttle_time_ms = run.throttle_time_ms
        answers.version, answers.count, answers.size_in_bytes = run.version, run.count, run.size_in_bytes
        pass_run(received, run)
        return outcome

    cdef int leave(self, ProduceRun run, dict targets) except -1:
        """Leave a run to the general path, which answers with the error, and admits the partition again."""
        targets.pop(run.key, None)
        return GENERAL

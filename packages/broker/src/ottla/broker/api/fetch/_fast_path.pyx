# cython: language_level=3
"""Answers to plain fetches, natively. `fast_path` documents it."""

from libc.stdint cimport int64_t

from ottla.broker.log.append._log_end cimport LogEnd
from ottla.broker.log.segments._offset_lookup cimport Slice
from ottla.broker.quotas._rates cimport SessionQuotas
from ottla.broker.replication._append cimport PartitionAppends
from ottla.broker.requests._fast_path cimport (
    ANSWERED,
    GENERAL,
    WAITS,
    FastAnswers,
    FastPath,
    Outcome,
    ReceivedBytes,
    TurnClock,
)
from ottla.protocol.native.fetch cimport PlainFetch, take_fetch

from ottla.broker.replication.partition import Role
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import KafkaError
from ottla.protocol.storage import CorruptStorage

cdef object LEADER = Role.LEADER
cdef bytes NO_TAGS = b"\0\0\0"     # behind the records: of the partition, the topic and the response

cdef enum:
    FIRST_WITH_ZSTD = 10
    FIRST_FLEXIBLE = 12
    MOST_HEAD_BYTES = 512    # of a response beside its records, with a topic's name
    MAX_TOGETHER = 64


cdef class Target:
    cdef readonly bytes key         # of the partition in a session's index, by its topic's name
    cdef readonly PartitionAppends partition
    cdef readonly object core
    cdef readonly object bytes_out
    cdef readonly bint retired

    def __init__(self, partition, bytes_out):
        topic, number = partition.topic_partition
        self.key = topic.encode() + number.to_bytes(4)
        self.partition = partition
        self.core = partition.core
        self.bytes_out = bytes_out

    def id_key(self):
        topic_id = self.partition.log.topic_id
        if topic_id is None:
            return None
        return b"\0" + topic_id.bytes + self.key[-4:]

    def retire(self):
        self.retired = True
        self.partition = self.core = None


cdef Outcome answer(PlainFetch ask, FastAnswers answers, int64_t most_bytes, bint is_over=False) except *:
    """Answer one request; with what there is, if its time is over."""
    cdef Target target = ask.target
    cdef bint may_wait = ask.max_wait_ms > 0 and not is_over
    cdef int64_t high_watermark, stable, up_to, log_start, size
    cdef Slice records
    core = target.core
    if target.retired or core.role is not LEADER:
        return GENERAL
    log = target.partition.log  # of now: a replica may have moved to another log directory
    if ask.leader_epoch != -1 and ask.leader_epoch != <int> core.leader_epoch:
        return GENERAL
    high_watermark, log_start = core.watermark.offset, log.log_start_offset
    stable = log.last_stable_offset if log.producers.has_transactions else high_watermark
    up_to = stable if ask.committed_only else high_watermark
    if ask.offset < log_start or ask.offset > up_to:
        return GENERAL
    if answers.version < FIRST_WITH_ZSTD and log.config.compression_type == "zstd":
        return GENERAL
    if ask.offset == up_to:
        if may_wait and ask.min_bytes > 0:
            return WAITS
        if not is_over:
            return GENERAL
        add(answers, ask, ask.head(high_watermark, stable, log_start, 0), None, 0)
        return ANSWERED
    records = read_records(log, ask, most_bytes, up_to)
    size = records.length
    if not size:
        return GENERAL
    if size < ask.min_bytes and may_wait:
        return WAITS
    if answers.size + size + MOST_HEAD_BYTES > answers.credit:
        return GENERAL  # which throttles it
    if target.partition.is_cold(ask.offset, records):
        return GENERAL
    if ask.committed_only and log.aborted_transactions(ask.offset, records.end_offset):
        return GENERAL
    add(answers, ask, ask.head(high_watermark, stable, log_start, size), records, size)
    target.bytes_out.count += size
    return ANSWERED


cdef Outcome try_answer(PlainFetch ask, FastAnswers answers, int64_t most_bytes, bint is_over=False) except *:
    """Answer one request; one that fails takes the general path, which answers with the error."""
    try:
        return answer(ask, answers, most_bytes, is_over)
    except (KafkaError, OSError, CorruptStorage):
        return GENERAL


cdef Slice read_records(log, PlainFetch ask, int64_t most_bytes, int64_t up_to):
    """Read without waiting for the disk."""
    cdef int64_t limit = min(min(<int64_t> ask.partition_max_bytes, <int64_t> ask.max_bytes), most_bytes)
    cdef LogEnd log_end = log.log_end
    cdef Slice records = log_end.read_now(ask.offset, limit, up_to)
    return log.read(ask.offset, limit, up_to=up_to, wait=False) if records is None else records


cdef int add(FastAnswers answers, PlainFetch ask, bytes head, Slice records, int64_t size) except -1:
    """Add one response; without records where its time is over."""
    answers.parts.append(head)
    answers.size += len(head) + size
    if records is not None:
        answers.parts.append(records)
        answers.has_regions = True
    if answers.version >= FIRST_FLEXIBLE:
        answers.parts.append(NO_TAGS)
        answers.size += 3
    answers.size_in_bytes += ask.size_in_bytes
    answers.count += 1
    return 0


cpdef PlainFetch fetch_at_hand(ReceivedBytes received, dict targets):
    if received.source is None:
        return None
    return take_fetch(received.source, received.position, received.end, received.limit, targets)


cpdef int pass_fetch(ReceivedBytes received, PlainFetch fetch) except -1:
    received.position = fetch.end
    return 0


cdef class NativeFetchFastPath(FastPath):
    cdef public int64_t fetch_max_bytes
    cdef public object all_meters

    def __cinit__(self, *arguments, **more):
        self.api_key = ApiKey.FETCH

    cpdef int serve(
        self, ReceivedBytes received, dict targets, object session, TurnClock clock, FastAnswers answers
    ) except -1:
        cdef PlainFetch ask
        cdef Outcome outcome
        if answers.quotas.is_limited:
            answers.credit = answers.quotas.fetch_credit()
        while answers.count < MAX_TOGETHER:
            ask = fetch_at_hand(received, targets)
            if ask is None:
                break
            if not answers.count:
                answers.version = ask.version
            elif answers.version != ask.version:
                break
            if ask.min_bytes > answers.credit:
                break  # it would wait for more than it may have
            outcome = try_answer(ask, answers, self.fetch_max_bytes)
            if outcome == WAITS and not answers.count:
                pass_fetch(received, ask)
                answers.count, answers.size_in_bytes = 1, ask.size_in_bytes
                answers.wait = self.wait_of(ask, session)
                return WAITS
            if outcome != ANSWERED:
                break
            pass_fetch(received, ask)
        if not answers.count:
            return GENERAL
        self.count_answered(answers)
        return ANSWERED

    cdef int count_answered(self, FastAnswers answers) except -1:
        cdef int64_t records_size = 0
        cdef Slice records
        for part in answers.parts:
            if type(part) is Slice:
                records = part
                records_size += records.length
        if answers.quotas.is_limited:
            answers.quotas.charge_fetch(answers.size)
        self.all_meters.fetch_requests.count += answers.count
        self.all_meters.bytes_out.count += records_size
        return 0

    def answer_waiting(self, PlainFetch ask, bint is_over, SessionQuotas quotas):
        cdef FastAnswers answers = FastAnswers()
        cdef Outcome outcome
        if quotas.is_stale or quotas.is_limited and not quotas.serves_fast():
            return None
        answers.version, answers.quotas = ask.version, quotas
        if quotas.is_limited:
            answers.credit = quotas.fetch_credit()
        outcome = try_answer(ask, answers, self.fetch_max_bytes, is_over)
        if quotas.request is not None:
            quotas.charge_time()
        if outcome == ANSWERED:
            self.count_answered(answers)
        return None if outcome == GENERAL else answers

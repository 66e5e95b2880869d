# cython: language_level=3
"""Answers to plain fetches, natively. `fetch_fast_path` documents it."""

from libc.stdint cimport int64_t

from ottla.broker.log.append._log_end cimport LogEnd
from ottla.broker.log.segments._offset_lookup cimport Slice
from ottla.broker.replication._append cimport PartitionAppends
from ottla.protocol.native.fetch cimport PlainFetch

from ottla.broker.replication.partition import Role
from ottla.protocol.errors import KafkaError
from ottla.protocol.storage import CorruptStorage

cdef object LEADER = Role.LEADER
cdef bytes NO_TAGS = b"\0\0\0"     # behind the records: of the partition, the topic and the response

cdef enum:
    FIRST_WITH_ZSTD = 10
    FIRST_FLEXIBLE = 12
    MAX_TOGETHER = 64

cdef enum Outcome:
    ANSWERED
    WAITS           # for records: nothing was done
    NOT_PLAIN       # it takes the general path: nothing was done


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


cdef class Answers:
    cdef readonly list parts
    cdef readonly int version
    cdef readonly Py_ssize_t count
    cdef readonly int64_t size_in_bytes     # of the requests
    cdef readonly int64_t size              # of the answers
    cdef readonly int64_t records_size
    cdef readonly PlainFetch waiting

    cdef int add(self, bytes head, Slice records, int64_t size, Py_ssize_t asked) except -1:
        self.parts.append(head)
        self.parts.append(records)
        self.size += len(head) + size
        self.records_size += size
        self.size_in_bytes += asked
        self.count += 1
        return self.end()

    cdef int add_empty(self, bytes head, Py_ssize_t asked) except -1:
        self.parts.append(head)
        self.size += len(head)
        self.size_in_bytes += asked
        self.count += 1
        return self.end()

    cdef int end(self) except -1:
        if self.version >= FIRST_FLEXIBLE:
            self.parts.append(NO_TAGS)
            self.size += 3
        return 0


cdef Outcome answer(PlainFetch ask, Answers answers, int64_t most_bytes, bint is_over=False) except *:
    """Answer one request; with what there is, if its time is over."""
    cdef Target target = ask.target
    cdef bint may_wait = ask.max_wait_ms > 0 and not is_over
    cdef int64_t high_watermark, stable, up_to, log_start, size
    cdef Slice records
    core = target.core
    if target.retired or core.role is not LEADER:
        return NOT_PLAIN
    log = target.partition.log  # of now: a replica may have moved to another log directory
    if ask.leader_epoch != -1 and ask.leader_epoch != <int> core.leader_epoch:
        return NOT_PLAIN
    high_watermark, log_start = core.watermark.offset, log.log_start_offset
    stable = log.last_stable_offset if log.producers.has_transactions else high_watermark
    up_to = stable if ask.committed_only else high_watermark
    if ask.offset < log_start or ask.offset > up_to:
        return NOT_PLAIN
    if answers.version < FIRST_WITH_ZSTD and log.config.compression_type == "zstd":
        return NOT_PLAIN
    if ask.offset == up_to:
        if may_wait and ask.min_bytes > 0:
            return WAITS
        if not is_over:
            return NOT_PLAIN
        answers.add_empty(ask.head(high_watermark, stable, log_start, 0), ask.size_in_bytes)
        return ANSWERED
    records = read_records(log, ask, most_bytes, up_to)
    size = records.length
    if not size:
        return NOT_PLAIN
    if size < ask.min_bytes and may_wait:
        return WAITS
    if target.partition.is_cold(ask.offset, records):
        return NOT_PLAIN
    if ask.committed_only and log.aborted_transactions(ask.offset, records.end_offset):
        return NOT_PLAIN
    answers.add(ask.head(high_watermark, stable, log_start, size), records, size, ask.size_in_bytes)
    target.bytes_out.count += size
    return ANSWERED


cdef Outcome try_answer(PlainFetch ask, Answers answers, int64_t most_bytes, bint is_over=False) except *:
    """Answer one request; one that fails takes the general path, which answers with the error."""
    try:
        return answer(ask, answers, most_bytes, is_over)
    except (KafkaError, OSError, CorruptStorage):
        return NOT_PLAIN


cdef Slice read_records(log, PlainFetch ask, int64_t most_bytes, int64_t up_to):
    """Read without waiting for the disk."""
    cdef int64_t limit = min(min(<int64_t> ask.partition_max_bytes, <int64_t> ask.max_bytes), most_bytes)
    cdef LogEnd log_end = log.log_end
    cdef Slice records = log_end.read_now(ask.offset, limit, up_to)
    return log.read(ask.offset, limit, up_to=up_to, wait=False) if records is None else records


cdef Answers answers_to(PlainFetch ask):
    cdef Answers answers = Answers.__new__(Answers)
    answers.parts, answers.version = [], ask.version
    return answers


def answer_all(reader, dict index, int64_t most_bytes):
    cdef Answers answers = None
    cdef PlainFetch ask
    cdef Outcome outcome
    while answers is None or answers.count < MAX_TOGETHER:
        ask = reader.next_fetch(index)
        if ask is None:
            break
        if answers is None:
            answers = answers_to(ask)
        outcome = try_answer(ask, answers, most_bytes) if answers.version == ask.version else NOT_PLAIN
        if outcome == WAITS and not answers.count:
            answers.waiting = ask
            return answers
        if outcome != ANSWERED:
            reader.give_back_fetch(ask)
            break
    return answers if answers is not None and answers.count else None


def answer_waiting(PlainFetch ask, int64_t most_bytes, bint is_over):
    cdef Answers answers = answers_to(ask)
    cdef Outcome outcome = try_answer(ask, answers, most_bytes, is_over)
    if outcome == WAITS:
        answers.waiting = ask
    return None if outcome == NOT_PLAIN else answers

# cython: language_level=3
"""Answers to plain fetches, natively. `fetch_plain` says what is promised."""

from libc.stdint cimport int64_t

from ottla.broker.log.search import read_now
from ottla.broker.replication.partition import Role
from ottla.protocol.errors import KafkaError
from ottla.protocol.storage import CorruptStorage

cdef object LEADER = Role.LEADER
cdef bytes NO_TAGS = b"\0\0\0"     # behind the records: of the partition, the topic and the response

cdef enum:
    FIRST_WITH_ZSTD = 10
    FIRST_FLEXIBLE = 12
    MOST_TOGETHER = 64


cdef class Target:
    cdef readonly bytes key         # of the partition in a session's index
    cdef readonly object partition
    cdef readonly object core
    cdef readonly object bytes_out
    cdef readonly bint retired

    def __init__(self, partition, bytes_out):
        topic, number = partition.topic_partition
        self.key = topic.encode() + number.to_bytes(4)
        self.partition = partition
        self.core = partition.core
        self.bytes_out = bytes_out

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

    cdef object add(self, bytes head, records, int64_t size, Py_ssize_t asked):
        self.parts.append(head)
        self.parts.append(records)
        self.size += len(head) + size
        self.records_size += size
        self.size_in_bytes += asked
        self.count += 1
        if self.version >= FIRST_FLEXIBLE:
            self.parts.append(NO_TAGS)
            self.size += 3


cdef bint answer(ask, Answers answers, int64_t most_bytes) except -1:
    cdef Target target = ask.target
    cdef int64_t offset = ask.offset, high_watermark, stable, up_to, log_start, size, limit
    cdef int epoch = ask.leader_epoch
    core = target.core
    if target.retired or core.role is not LEADER or (epoch != -1 and epoch != <int> core.leader_epoch):
        return False
    log = target.partition.log
    high_watermark, log_start = core.high_watermark, log.log_start_offset
    stable = log.last_stable_offset
    up_to = stable if ask.committed_only else high_watermark
    if offset < log_start or offset >= up_to:
        return False
    if answers.version < FIRST_WITH_ZSTD and log.config.compression_type == "zstd":
        return False
    limit = min(min(<int64_t> ask.partition_max_bytes, <int64_t> ask.max_bytes), most_bytes)
    tail = log.tail
    records = read_now(tail, offset, limit, up_to)
    if records is None:
        records = log.read(offset, limit, up_to=up_to, wait=False)
    size = records.length
    if not size or (size < <int64_t> ask.min_bytes and ask.max_wait_ms > 0) or not records.is_hot():
        return False
    if ask.committed_only and log.aborted_transactions(offset, up_to):
        return False
    answers.add(ask.head(high_watermark, stable, log_start, size), records, size, ask.size_in_bytes)
    target.bytes_out.count += size
    return True


def answer_all(reader, dict index, int64_t most_bytes):
    cdef Answers answers = None
    cdef bint answered
    while answers is None or answers.count < MOST_TOGETHER:
        ask = reader.next_fetch(index)
        if ask is None:
            break
        if answers is None:
            answers = Answers.__new__(Answers)
            answers.parts, answers.version = [], ask.version
        try:
            answered = answers.version == <int> ask.version and answer(ask, answers, most_bytes)
        except (KafkaError, OSError, CorruptStorage):
            answered = False
        if not answered:
            reader.give_back_fetch(ask)
            break
    return answers if answers is not None and answers.count else None

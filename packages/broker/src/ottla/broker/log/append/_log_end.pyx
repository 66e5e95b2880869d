# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The end of a log, natively. `_log_end.pyi` documents it, `log_end.py` is the way in."""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t

from ottla.broker.log.segments._offset_lookup cimport (
    CHUNK_BYTES,
    HEAD_BYTES,
    Entry,
    Slice,
    Walk,
    begin,
    following,
    indexed,
    new_slice,
    whole,
)
from ottla.protocol.records._batch cimport (
    BASE_SEQUENCE_AT,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    BASE_TIMESTAMP_AT,
    HEADER_SIZE,
    RECORD_COUNT_AT,
    codec_at,
    entry_size,
    get16,
    get32,
    get64,
    is_plain,
    put32,
    put64,
)
from ottla.protocol.records._codec cimport is_sound
from ottla.protocol.records._record cimport RawRecord, parse_record

from ottla.protocol.errors import KafkaError
from ottla.protocol.records import scan_records

from ottla.broker.log.append.record_checks import (
    FEW_PACKED_BYTES,
    MAX_INLINE_BYTES,
    MAX_INLINE_GZIP_BYTES,
    MAX_INLINE_PLAIN_BYTES,
    is_slow_to_open,
)
from ottla.broker.log.files.file_system import DiskFile
from ottla.broker.log.state.producer_state import KeptBatch
from ottla.broker.log.segments.segment import MAX_RELATIVE_OFFSET, UNKNOWN

cdef extern from "unistd.h" nogil:
    Py_ssize_t pwrite(int fd, const void *data, size_t size, int64_t position)

cdef enum:
    MAX_HINTS = 128
    MAX_READ_HINTS = 1024
    RELEASE_ABOVE = 64 << 10    # bytes; a larger write releases the GIL

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF
cdef Py_ssize_t few_packed_bytes = FEW_PACKED_BYTES
cdef int64_t most_unfolded_bytes = 2 * MAX_INLINE_BYTES
cdef int64_t cost_of_gzip_byte = most_unfolded_bytes // MAX_INLINE_GZIP_BYTES
cdef int GZIP = 1
cdef Py_ssize_t max_inline_plain_bytes = MAX_INLINE_PLAIN_BYTES
cdef int64_t LARGEST_SEQUENCE = 0x7FFFFFFF
cdef int64_t REACH = MAX_RELATIVE_OFFSET
cdef object _new_tuple = tuple.__new__


cdef bint are_good(const unsigned char *p, Py_ssize_t size, int64_t *budget):
    """Whether the records of a plain batch are well-formed and dense, and its largest timestamp is theirs."""
    cdef RawRecord r
    cdef const unsigned char *end = p + size
    cdef const unsigned char *at = p + HEADER_SIZE
    cdef int64_t largest = get64(p + MAX_TIMESTAMP_AT) - get64(p + BASE_TIMESTAMP_AT)
    cdef int32_t number, count = get32(p + RECORD_COUNT_AT)
    cdef bint has_largest = False
    if codec_at(p):
        return are_good_packed(p, size, budget)
    if size > max_inline_plain_bytes:
        return False
    for number in range(count):
        at = parse_record(at, end, &r)
        if at is NULL or r.offset_delta != number or r.timestamp_delta > largest:
            return False
        has_largest |= r.timestamp_delta == largest
    return at is end and has_largest


cdef bint are_good_packed(const unsigned char *p, Py_ssize_t size, int64_t *budget):
    """Whether the compressed records of a plain batch are; false also for those that take long to open.

    `budget` has the bytes that may still be unfolded at once: many small batches take as long as a large one.
    Those of gzip cost more than they unfold to, where they are blocks of nothing.
    """
    if budget[0] <= 0:
        return False
    batch = PyMemoryView_FromMemory(<char *> p, size, PyBUF_READ)
    if size > few_packed_bytes and is_slow_to_open(batch):
        return False
    try:
        scan = scan_records(batch, max_decompressed_bytes=MAX_INLINE_BYTES, dense=True)
    except KafkaError:
        return False
    budget[0] -= max(<int64_t> scan.plain_bytes, size * cost_of_gzip_byte if codec_at(p) == GZIP else 0)
    return scan.max_timestamp == get64(p + MAX_TIMESTAMP_AT)


cdef bint read(
    const unsigned char *p, Py_ssize_t size, Py_ssize_t max_batch_bytes, bint checks_records, Batches *out
):
    """Look at all batches; false unless they are plain and sound, of one idempotent producer or of none."""
    cdef Py_ssize_t one
    cdef int64_t sequence, budget = most_unfolded_bytes
    out.count = 0
    out.largest = -1
    out.largest_at = out.next_offset
    while size:
        if not is_plain(p, size):
            return False
        one = entry_size(p)
        if one > max_batch_bytes or not is_sound(p, one) or (checks_records and not are_good(p, one, &budget)):
            return False
        if out.count == 0:
            out.producer_id = get64(p + PRODUCER_ID_AT)
            out.producer_epoch = get16(p + PRODUCER_EPOCH_AT)
            out.first_sequence = get32(p + BASE_SEQUENCE_AT)
        elif get64(p + PRODUCER_ID_AT) != out.producer_id:
            return False
        elif out.producer_id >= 0 and (
            get16(p + PRODUCER_EPOCH_AT) != out.producer_epoch or get32(p + BASE_SEQUENCE_AT) != <int64_t> out.last_sequence + 1
        ):
            return False
        sequence = <int64_t> get32(p + BASE_SEQUENCE_AT) + get32(p + LAST_OFFSET_DELTA_AT)
        if out.producer_id >= 0 and (get32(p + BASE_SEQUENCE_AT) < 0 or sequence > LARGEST_SEQUENCE):
            return False
        out.last_sequence = <int32_t> sequence
        out.next_offset += get32(p + RECORD_COUNT_AT)
        if get64(p + MAX_TIMESTAMP_AT) > out.largest:
            out.largest, out.largest_at = get64(p + MAX_TIMESTAMP_AT), out.next_offset - 1
        out.count += 1
        p += one
        size -= one
    return out.count > 0


cdef class LogEnd:

    def __init__(self, segment, int64_t next_offset, int64_t now_ms):
        self.segment = segment
        self.file = segment.file
        self._write_with = self.file.pwrite
        self.descriptor = self.file.fileno() if type(self.file) is DiskFile else -1
        self.offsets = segment.offsets
        self.times = segment.times
        self.position = segment.size
        self.next_offset = next_offset
        self.max_timestamp = segment.max_timestamp
        self.max_timestamp_offset = segment.max_timestamp_offset
        self.bytes_since_index = 0
        self.created_ms = now_ms
        self.leader_epoch = -1
        self.base_offset = segment.base_offset
        self.max_next_offset = self.base_offset + REACH + 1
        self.index_full = self.offsets.full or self.times.full
        self.hints = {}
        self.max_bytes = self.index_interval_bytes = self.segment_ms = self.max_plain_bytes = 0
        self.checks_records = True
        self.roll_above_timestamp = self.roll_after_ms = NEVER

    @property
    def write(self):
        return self._write_with

    @write.setter
    def write(self, write):
        self._write_with, self.descriptor, self.file = write, -1, None

    def limit(self, config, int64_t jitter_ms):
        self.max_bytes = config.segment_bytes
        self.index_interval_bytes = config.index_interval_bytes
        self.segment_ms = <int64_t> config.segment_ms - jitter_ms
        self.checks_records = config.record_validation == "all"
        self._set_age()

    cdef int _set_age(self) except -1:
        # The age of a segment is measured by its records' timestamps, from the first one on; by the broker's
        # clock where they have none.
        cdef int64_t unknown = UNKNOWN
        cdef int64_t first = self.segment.first_timestamp if self.position else unknown
        self.roll_above_timestamp = self.roll_after_ms = NEVER
        if first >= 0:
            self.roll_above_timestamp = after(first, self.segment_ms)
        elif first != unknown and self.created_ms:
            self.roll_after_ms = after(self.created_ms, self.segment_ms)
        return 0

    cpdef bint fits(self, int64_t size, int64_t next_offset, int64_t largest, int64_t now_ms):
        return not (
            self.position + size > self.max_bytes
            or largest > self.roll_above_timestamp
            or now_ms > self.roll_after_ms
            or next_offset > self.max_next_offset
            or self.index_full
        )

    cpdef int64_t append_plain(self, batches, int32_t leader_epoch, int64_t now_ms, log) except? -2:
        cdef Py_buffer view
        if leader_epoch != self.leader_epoch or type(batches) is bytes:
            return -1
        if type(batches) is memoryview and batches.readonly:
            return -1
        PyObject_GetBuffer(batches, &view, PyBUF_WRITABLE)
        try:
            return self._append_plain(<unsigned char *> view.buf, view.len, now_ms, log)
        except OSError as error:
            raise log.append_failed(error) from error
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _append_plain(self, unsigned char *data, Py_ssize_t size, int64_t now_ms, log) except? -2:
        cdef Batches found
        cdef int64_t base_offset = self.next_offset
        if not self.position or not self.fits(size, base_offset, -1, now_ms):
            return -1
        found.next_offset = base_offset
        if not read(data, size, self.max_plain_bytes, self.checks_records, &found):
            return -1
        if not self.fits(size, found.next_offset, found.largest, now_ms):
            return -1
        producer = producers = None
        if found.producer_id >= 0:
            producers = log.producers
            producer = self._next_of(producers, &found)
            if producer is None:
                return -1
        self._assign_offsets(data, size)
        self._write(data, size)
        self._placed(size, found.next_offset, found.largest, found.largest_at)
        if producer is not None:
            note(producer, data, size)
            producers.end_offset = found.next_offset
        return base_offset

    cdef object _next_of(self, producers, Batches *found):
        """Return the producer if its last sequence is the one before these batches, or None."""
        producer = producers.get(found.producer_id)
        if producer is None or producer.epoch != found.producer_epoch or producer.transaction_start != -1:
            return None
        batches = producer.batches
        if not batches or <int64_t> batches[len(batches) - 1].last_sequence + 1 != found.first_sequence:
            return None
        return producer

    cdef int _assign_offsets(self, unsigned char *p, Py_ssize_t size) except -1:
        cdef int64_t offset = self.next_offset
        cdef unsigned char *end = p + size
        while p < end:
            put64(p, offset)
            put32(p + LEADER_EPOCH_AT, self.leader_epoch)
            offset += get32(p + RECORD_COUNT_AT)
            p += entry_size(p)
        return 0

    cdef int _write(self, unsigned char *data, Py_ssize_t size) except -1:
        cdef int64_t position = self.position
        cdef Py_ssize_t written
        if self.descriptor < 0:
            self._write_with(PyMemoryView_FromMemory(<char *> data, size, 0x100), position)
            return 0
        while size:
            if size > RELEASE_ABOVE:
                with nogil:
                    written = pwrite(self.descriptor, data, size, position)
            else:
                written = pwrite(self.descriptor, data, size, position)
            if written < 0:
                if errno != EINTR:
                    PyErr_SetFromErrno(OSError)
                    return -1
                PyErr_CheckSignals()
                continue
            # On a disk that is getting full a write is short; the next one fails.
            data += written
            position += written
            size -= written
        return 0

    def append(self, data, int64_t next_offset, int64_t largest, int64_t largest_at, int64_t now_ms):
        cdef bint first = not self.position
        self._write_with(data, self.position)
        self._placed(len(data), next_offset, largest, largest_at)
        if first:
            self.segment.set_first_timestamp(self.max_timestamp)
            self.created_ms = self.created_ms or now_ms
            self._set_age()

    cdef int _placed(self, int64_t size, int64_t next_offset, int64_t largest, int64_t largest_at) except -1:
        """Index what was written at the end, and move the end behind it."""
        if largest <= self.max_timestamp:
            largest, largest_at = self.max_timestamp, self.max_timestamp_offset
        if self.bytes_since_index > self.index_interval_bytes:
            self.offsets.append(next_offset - 1, self.position)
            self.times.maybe_append(largest, largest_at)
            self.bytes_since_index = 0
            self.index_full = self.offsets.full or self.times.full
        if largest > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = largest, largest_at
            self.segment.set_max_timestamp(largest, largest_at)
        self.bytes_since_index += size
        if len(self.hints) > MAX_HINTS:
            self.hints.clear()
        self.hints[self.next_offset] = self.position
        self.next_offset = next_offset
        self.position += size
        self.segment.size = self.position
        return 0

    cpdef Slice read_now(self, int64_t offset, int64_t max_bytes, int64_t up_to):
        cdef Walk walk
        cdef Slice found
        cdef int64_t start, stop = self.position, end, next_offset, end_offset = up_to
        if self.descriptor < 0 or offset < self.base_offset:
            return None
        if up_to < self.next_offset:
            known = self.hints.get(up_to)
            if known is None:
                return None
            stop = known
        start = self._position_of(offset)
        if start < 0:
            return None
        end = stop
        walk.chunk_at = walk.have = 0
        if stop - start > max_bytes:
            begin(&walk, self.descriptor, False, stop, HEAD_BYTES, start)
            end = whole(&walk, self.offsets.mapping, self.offsets.count, start, start + max_bytes, True, &next_offset)
            if next_offset >= 0:
                self._remember(next_offset, end)
                end_offset = next_offset
        found = new_slice(self.file, self.descriptor, start, end - start if end > start else 0, end_offset)
        found.seen_at, found.seen_bytes = walk.chunk_at, walk.have
        return found

    cdef int64_t _position_of(self, int64_t offset) except -2:
        """Return where the entry with an offset begins; -1 where the file ends before."""
        cdef Walk walk
        cdef Entry entry
        known = self.hints.get(offset)
        if known is not None:
            return known
        begin(
            &walk, self.descriptor, False, self.position, CHUNK_BYTES,
            indexed(self.offsets.mapping, self.offsets.count, 0, offset - self.base_offset),
        )
        while following(&walk, &entry):
            if entry.last_offset >= offset:
                self._remember(offset, entry.position)
                return entry.position
        return -1

    cdef int _remember(self, int64_t offset, int64_t position) except -1:
        if len(self.hints) >= MAX_READ_HINTS:
            self.hints.clear()
        self.hints[offset] = position
        return 0

    def undo(self):
        self.segment.file.truncate(self.position)
        self.offsets.truncate_to(self.next_offset)
        self.times.truncate_to(self.next_offset)

    def seal(self):
        self.segment.set_max_timestamp(self.max_timestamp, self.max_timestamp_offset)
        self.segment.seal()


cdef int64_t after(int64_t time_ms, int64_t more_ms) noexcept:
    return NEVER if more_ms > NEVER - time_ms else time_ms + more_ms


cdef int note(producer, const unsigned char *p, Py_ssize_t size) except -1:
    """Add appended batches to the state of their producer, as `ProducerStates.apply` does."""
    cdef const unsigned char *end = p + size
    cdef int32_t first, delta
    kept = producer.batches
    while p < end:
        first, delta = get32(p + BASE_SEQUENCE_AT), get32(p + LAST_OFFSET_DELTA_AT)
        timestamp_ms = get64(p + MAX_TIMESTAMP_AT)
        kept.append(_new_tuple(KeptBatch, (first, first + delta, get64(p) + delta, delta, timestamp_ms)))
        p += entry_size(p)
    producer.last_timestamp_ms = timestamp_ms
    return 0

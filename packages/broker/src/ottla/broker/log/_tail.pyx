# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The end of a log, natively. `tail` says what is promised."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.errno cimport EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ottla.broker.log.files import DiskFile
from ottla.broker.log.producer_state import KeptBatch
from ottla.broker.log.segment import MAX_RELATIVE_OFFSET, UNKNOWN
from ottla.protocol.records import _codec

cdef extern from "unistd.h" nogil:
    Py_ssize_t pwrite(int fd, const void *data, size_t size, int64_t position)

cdef extern from *:
    """
    #include <stdint.h>
    static inline int16_t ottla_get16(const unsigned char *p) {
        uint16_t v; __builtin_memcpy(&v, p, 2); return (int16_t)__builtin_bswap16(v);
    }
    static inline int32_t ottla_get32(const unsigned char *p) {
        uint32_t v; __builtin_memcpy(&v, p, 4); return (int32_t)__builtin_bswap32(v);
    }
    static inline int64_t ottla_get64(const unsigned char *p) {
        uint64_t v; __builtin_memcpy(&v, p, 8); return (int64_t)__builtin_bswap64(v);
    }
    static inline void ottla_put32(unsigned char *p, int32_t value) {
        uint32_t v = __builtin_bswap32((uint32_t)value); __builtin_memcpy(p, &v, 4);
    }
    static inline void ottla_put64(unsigned char *p, int64_t value) {
        uint64_t v = __builtin_bswap64((uint64_t)value); __builtin_memcpy(p, &v, 8);
    }
    """
    int16_t get16 "ottla_get16"(const unsigned char *p) nogil
    int32_t get32 "ottla_get32"(const unsigned char *p) nogil
    int64_t get64 "ottla_get64"(const unsigned char *p) nogil
    void put32 "ottla_put32"(unsigned char *p, int32_t value) nogil
    void put64 "ottla_put64"(unsigned char *p, int64_t value) nogil

ctypedef uint32_t (*Checksum)(uint32_t value, const unsigned char *data, Py_ssize_t size) noexcept
cdef Checksum checksum = <Checksum> PyCapsule_GetPointer(_codec.crc32c_function, "ottla.crc32c")

cdef enum:
    HEADER = 61
    OVERHEAD = 12
    CRC_AT = 17
    CRC_FROM = 21
    SMALLEST_RECORD = 7
    UNCOMMON = 0x38             # transactional, control, log append time: looked at by the general way
    CODEC = 0x07
    LAST_CODEC = 4
    MOST_HINTS = 128
    RELEASE_ABOVE = 64 << 10    # the interpreter is let go while more than this is written

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF
cdef int64_t LARGEST_SEQUENCE = 0x7FFFFFFF
cdef int64_t REACH = MAX_RELATIVE_OFFSET
cdef object _new_tuple = tuple.__new__


cdef struct Batches:
    int64_t next_offset
    int64_t largest
    int64_t largest_at
    int64_t producer_id
    int32_t first_sequence
    int32_t last_sequence
    int16_t producer_epoch
    int count


cdef bint common(const unsigned char *p, Py_ssize_t left, Py_ssize_t max_batch_bytes, Py_ssize_t *size) noexcept:
    """Whether a whole batch begins here that a producer may send and that asks for nothing special."""
    cdef int32_t length, count
    cdef int attributes
    if left < HEADER:
        return False
    length = get32(p + 8)
    size[0] = <Py_ssize_t> length + OVERHEAD
    if length < HEADER - OVERHEAD or size[0] > left or size[0] > max_batch_bytes or p[16] != 2:
        return False
    attributes = get16(p + 21)
    count = get32(p + 57)
    if attributes & UNCOMMON or attributes & CODEC > LAST_CODEC:
        return False
    if count <= 0 or get32(p + 23) != count - 1:
        return False
    if attributes & CODEC == 0 and <int64_t> count * SMALLEST_RECORD > size[0] - HEADER:
        return False
    return <uint32_t> get32(p + CRC_AT) == checksum(0, p + CRC_FROM, size[0] - CRC_FROM)


cdef bint read(const unsigned char *p, Py_ssize_t size, Py_ssize_t max_batch_bytes, Batches *out) noexcept:
    """Look at all batches; False unless they are common ones, by one idempotent producer or by none."""
    cdef Py_ssize_t one
    cdef int64_t sequence
    out.count = 0
    out.largest = -1
    out.largest_at = out.next_offset
    while size:
        if not common(p, size, max_batch_bytes, &one):
            return False
        if out.count == 0:
            out.producer_id = get64(p + 43)
            out.producer_epoch = get16(p + 51)
            out.first_sequence = get32(p + 53)
        elif get64(p + 43) != out.producer_id:
            return False
        elif out.producer_id >= 0 and (
            get16(p + 51) != out.producer_epoch or get32(p + 53) != <int64_t> out.last_sequence + 1
        ):
            return False
        sequence = <int64_t> get32(p + 53) + get32(p + 23)
        if out.producer_id >= 0 and (get32(p + 53) < 0 or sequence > LARGEST_SEQUENCE):
            return False
        out.last_sequence = <int32_t> sequence
        out.next_offset += get32(p + 57)
        if get64(p + 35) > out.largest:
            out.largest, out.largest_at = get64(p + 35), out.next_offset - 1
        out.count += 1
        p += one
        size -= one
    return out.count > 0


cdef class Tail:
    cdef readonly object segment
    cdef readonly object offsets
    cdef readonly object times
    cdef object _write_with
    cdef int descriptor         # of a file of the operating system, else -1
    cdef readonly int64_t position
    cdef readonly int64_t next_offset
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t bytes_since_index
    cdef readonly int64_t created_ms
    cdef public int32_t leader_epoch
    cdef readonly int64_t max_next_offset
    cdef readonly bint index_full
    cdef readonly dict hints
    cdef readonly int64_t max_bytes
    cdef readonly int64_t index_interval_bytes
    cdef readonly int64_t segment_ms
    cdef readonly int64_t roll_above_timestamp
    cdef readonly int64_t roll_after_ms
    cdef public int64_t max_common_bytes

    def __init__(self, segment, int64_t next_offset, int64_t now_ms):
        self.segment = segment
        file = segment.file
        self._write_with = file.pwrite
        self.descriptor = file.fileno() if type(file) is DiskFile else -1
        self.offsets = segment.offsets
        self.times = segment.times
        self.position = segment.size
        self.next_offset = next_offset
        self.max_timestamp = segment.max_timestamp
        self.max_timestamp_offset = segment.max_timestamp_offset
        self.bytes_since_index = 0
        self.created_ms = now_ms
        self.leader_epoch = -1
        self.max_next_offset = <int64_t> segment.base_offset + REACH + 1
        self.index_full = self.offsets.full or self.times.full
        self.hints = {}
        self.max_bytes = self.index_interval_bytes = self.segment_ms = self.max_common_bytes = 0
        self.roll_above_timestamp = self.roll_after_ms = NEVER

    @property
    def write(self):
        return self._write_with

    @write.setter
    def write(self, write):
        self._write_with, self.descriptor = write, -1

    def limit(self, config, int64_t jitter_ms):
        self.max_bytes = config.segment_bytes
        self.index_interval_bytes = config.index_interval_bytes
        self.segment_ms = <int64_t> config.segment_ms - jitter_ms
        self._set_age()

    cdef int _set_age(self) except -1:
        # The age counts in the records' own time, from the first one on; without timestamps, in the broker's.
        cdef int64_t unknown = UNKNOWN
        cdef int64_t first = self.segment.first_timestamp if self.position else unknown
        self.roll_above_timestamp = self.roll_after_ms = NEVER
        if first >= 0:
            self.roll_above_timestamp = after(first, self.segment_ms)
        elif first != unknown and self.created_ms:
            self.roll_after_ms = after(self.created_ms, self.segment_ms)
        return 0

    def append_common(self, batches, int32_t leader_epoch, int64_t now_ms, producers):
        cdef Py_buffer view
        if leader_epoch != self.leader_epoch or type(batches) is bytes:
            return -1
        if type(batches) is memoryview and batches.readonly:
            return -1
        PyObject_GetBuffer(batches, &view, PyBUF_WRITABLE)
        try:
            return self._append_common(<unsigned char *> view.buf, view.len, now_ms, producers)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _append_common(self, unsigned char *data, Py_ssize_t size, int64_t now_ms, producers) except? -2:
        cdef Batches found
        cdef int64_t base_offset = self.next_offset
        if not self.position or self.position + size > self.max_bytes or now_ms > self.roll_after_ms:
            return -1
        found.next_offset = base_offset
        if self.index_full or not read(data, size, self.max_common_bytes, &found):
            return -1
        if found.largest > self.roll_above_timestamp or found.next_offset > self.max_next_offset:
            return -1
        producer = None
        if found.producer_id >= 0:
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
        """The producer whose next batches these are, or None."""
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
            put32(p + 12, self.leader_epoch)
            offset += get32(p + 57)
            p += get32(p + 8) + OVERHEAD
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
            # A short write is how a full disk begins; the next one says so.
            data += written
            position += written
            size -= written
        return 0

    def append(self, data, int64_t next_offset, int64_t largest, int64_t largest_at, int64_t now_ms):
        cdef bint first = not self.position
        self._write_with(data, self.position)
        self._placed(len(data), next_offset, largest, largest_at)
        if first:
            self.segment.first_timestamp = self.max_timestamp
            self.created_ms = self.created_ms or now_ms
            self._set_age()

    cdef int _placed(self, int64_t size, int64_t next_offset, int64_t largest, int64_t largest_at) except -1:
        """Index what was written behind the end, and make it the end."""
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
        if len(self.hints) > MOST_HINTS:
            self.hints.clear()
        self.hints[self.next_offset] = self.position
        self.next_offset = next_offset
        self.position += size
        self.segment.size = self.position
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
    """Take appended batches into what is known of their producer, as `ProducerStates.apply` does."""
    cdef const unsigned char *end = p + size
    cdef int32_t first, delta
    kept = producer.batches
    while p < end:
        first, delta = get32(p + 53), get32(p + 23)
        timestamp_ms = get64(p + 35)
        kept.append(_new_tuple(KeptBatch, (first, first + delta, get64(p) + delta, delta, timestamp_ms)))
        p += get32(p + 8) + OVERHEAD
    producer.last_timestamp_ms = timestamp_ms
    return 0

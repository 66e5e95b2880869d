# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Frames, natively. `_frames_py` is the same in plain Python and says what is promised."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame

cdef extern from *:
    """
    #include <stdint.h>
    static inline int32_t ottla_be32(const char *p) {
        uint32_t v; __builtin_memcpy(&v, p, 4); return (int32_t)__builtin_bswap32(v);
    }
    """
    int32_t ottla_be32(const char *p) nogil

cdef Py_ssize_t SHORTEST = SHORTEST_FRAME

cdef enum:
    SIZE = 4
    # A frame above this is received into memory of its own, without a copy; below it, the copy of its
    # first part costs less than a receive that ends with it.
    DIRECT_ABOVE = 128 << 10
    GROW_FROM = 1 << 20
    SPARE_BYTES = 8 << 20


# ------------------------------------------------------------------------------------------------ produce

cdef enum:
    LEAST_PRODUCE = 8 + 2 + 2 + 2 + 4 + 4 + 2 + 4 + 4 + 4 + 61 - 16
    BATCH_HEADER = 61
    RUN_BYTES = 1 << 20
    TRANSACTIONAL_OR_CONTROL = 0x30
    CODEC = 0x07
    ZSTD = 4
    FIRST_WITH_ZSTD = 7

cdef struct Produce:
    int version
    int acks
    int32_t timeout_ms
    int32_t correlation_id
    const char *topic
    Py_ssize_t topic_size
    int32_t partition
    const char *batch
    Py_ssize_t batch_size
    int32_t record_count


cdef inline int be16(const char *p) noexcept nogil:
    return <short> ((<unsigned char> p[0]) << 8 | <unsigned char> p[1])


cdef inline const char *uvarint(const char *p, const char *end, Py_ssize_t *value) noexcept nogil:
    """Read an unsigned varint of at most 5 bytes; NULL if there is none."""
    cdef Py_ssize_t result = 0
    cdef int shift = 0
    cdef unsigned char byte
    while p < end and shift < 35:
        byte = <unsigned char> p[0]
        p += 1
        result |= <Py_ssize_t> (byte & 0x7F) << shift
        if not byte & 0x80:
            value[0] = result
            return p
        shift += 7
    return NULL


cdef bint parse_produce(const char *p, Py_ssize_t size, Produce *out) noexcept nogil:
    """Read a request if it is a plain Produce; every byte of it is accounted for."""
    cdef const char *end = p + size
    cdef Py_ssize_t length
    if be16(p) != 0:
        return False
    out.version = be16(p + 2)
    if out.version < 3 or out.version > 9:
        return False
    out.correlation_id = ottla_be32(p + 4)
    length = be16(p + 8)
    p += 10
    if length < -1 or end - p < length + 32:
        return False
    while length > 0:
        if p[0] & 0x80:  # whether it is text at all is judged on the long way
            return False
        p += 1
        length -= 1
    return parse_flexible(p, end, out) if out.version == 9 else parse_fixed(p, end, out)


cdef bint parse_fixed(const char *p, const char *end, Produce *out) noexcept nogil:
    if be16(p) != -1:
        return False
    out.acks = be16(p + 2)
    out.timeout_ms = ottla_be32(p + 4)
    if ottla_be32(p + 8) != 1:
        return False
    out.topic_size = be16(p + 12)
    out.topic = p + 14
    if out.topic_size <= 0 or end - out.topic < out.topic_size + 12:
        return False
    p = out.topic + out.topic_size
    if ottla_be32(p) != 1:
        return False
    out.partition = ottla_be32(p + 4)
    out.batch_size = ottla_be32(p + 8)
    out.batch = p + 12
    return end - out.batch == out.batch_size and plain_batch(out)


cdef bint parse_flexible(const char *p, const char *end, Produce *out) noexcept nogil:
    cdef Py_ssize_t value
    if p[0] != 0 or p[1] != 0:  # no tags in the header, no transactional id
        return False
    out.acks = be16(p + 2)
    out.timeout_ms = ottla_be32(p + 4)
    p = uvarint(p + 8, end, &value)
    if p == NULL or value != 2:
        return False
    p = uvarint(p, end, &out.topic_size)
    out.topic_size -= 1
    if p == NULL or out.topic_size <= 0 or end - p < out.topic_size + 6:
        return False
    out.topic = p
    p = uvarint(p + out.topic_size, end, &value)
    if p == NULL or value != 2 or end - p < 5:
        return False
    out.partition = ottla_be32(p)
    p = uvarint(p + 4, end, &out.batch_size)
    out.batch_size -= 1
    if p == NULL or out.batch_size < 0 or end - p != out.batch_size + 3:
        return False
    out.batch = p
    p += out.batch_size
    return p[0] == 0 and p[1] == 0 and p[2] == 0 and plain_batch(out)  # no tags anywhere


cdef bint plain_batch(Produce *out) noexcept nogil:
    cdef const char *batch = out.batch
    if out.batch_size < BATCH_HEADER or batch[16] != 2 or out.acks == 0 or out.acks < -1 or out.acks > 1:
        return False
    if ottla_be32(batch + 8) + 12 != out.batch_size or batch[22] & TRANSACTIONAL_OR_CONTROL:
        return False
    if out.version < FIRST_WITH_ZSTD and batch[22] & CODEC == ZSTD:
        return False
    out.record_count = ottla_be32(batch + 57)
    return out.record_count > 0 and ottla_be32(batch + 23) == out.record_count - 1


cdef bint same_run(const Produce *first, const Produce *one) noexcept nogil:
    return (
        one.version == first.version and one.acks == first.acks and one.timeout_ms == first.timeout_ms
        and one.partition == first.partition
        and one.topic_size == first.topic_size
        and memcmp(one.topic, first.topic, one.topic_size) == 0
    )


cdef ProduceRun start_run(const Produce *one, dict index):
    cdef bytes key = PyBytes_FromStringAndSize(NULL, one.topic_size + 4)
    cdef char *into = PyBytes_AS_STRING(key)
    cdef ProduceRun run
    memcpy(into, one.topic, one.topic_size)
    put32(into + one.topic_size, one.partition)
    target = index.get(key)
    if target is None:
        return None
    run = ProduceRun.__new__(ProduceRun)
    run.key, run.target = key, target
    run.version, run.acks, run.timeout_ms = one.version, one.acks, one.timeout_ms
    return run


cdef struct Taken:
    int32_t correlation_id
    int32_t record_count
    const char *batch
    Py_ssize_t batch_size


cdef class ProduceRun:
    """Plain Produce requests to one partition that came one behind the other."""

    cdef readonly bytes key
    cdef readonly object target
    cdef readonly int version
    cdef readonly int acks
    cdef readonly int32_t timeout_ms
    cdef readonly Py_ssize_t count
    cdef readonly int64_t records
    cdef readonly Py_ssize_t size_in_bytes
    cdef readonly object batches
    cdef Py_ssize_t start
    cdef Taken few[32]
    cdef Taken *taken
    cdef Py_ssize_t room

    def __cinit__(self):
        self.taken = self.few
        self.room = 32

    def __dealloc__(self):
        if self.taken != self.few:
            free(self.taken)

    cdef int add(self, const Produce *one) except -1:
        cdef Taken *grown
        if self.count == self.room:
            grown = <Taken *> malloc(2 * self.room * sizeof(Taken))
            if grown == NULL:
                raise MemoryError
            memcpy(grown, self.taken, self.count * sizeof(Taken))
            if self.taken != self.few:
                free(self.taken)
            self.taken = grown
            self.room *= 2
        self.taken[self.count] = Taken(one.correlation_id, one.record_count, one.batch, one.batch_size)
        self.count += 1
        self.size_in_bytes += one.batch_size
        self.records += one.record_count
        return 0

    cdef int finish(self, bytearray source, object view) except -1:
        """One batch is given where it stands; several are put one behind the other."""
        cdef Py_ssize_t at, i
        cdef bytearray joined
        if self.count == 1:
            at = self.taken[0].batch - PyByteArray_AS_STRING(source)
            self.batches = view[at:at + self.size_in_bytes]
            return 0
        joined = PyByteArray_FromStringAndSize(NULL, self.size_in_bytes)
        at = 0
        for i in range(self.count):
            memcpy(PyByteArray_AS_STRING(joined) + at, self.taken[i].batch, self.taken[i].batch_size)
            at += self.taken[i].batch_size
        self.batches = joined
        return 0

    cpdef bytes answers(self, int64_t base_offset, int64_t log_append_time_ms, int64_t log_start_offset):
        """Return the responses, framed, when the batches were appended one behind the other from `base_offset`."""
        return self.responses(0, base_offset, log_append_time_ms, log_start_offset)

    cpdef bytes failures(self, int error_code):
        """Return the responses, framed, with an error instead of an offset."""
        return self.responses(error_code, -1, -1, -1)

    cdef bytes responses(
        self, int error_code, int64_t base_offset, int64_t log_append_time_ms, int64_t log_start_offset
    ):
        cdef Py_ssize_t topic = PyBytes_GET_SIZE(self.key) - 4, i, size
        cdef char *p
        cdef char *first
        cdef bytes out
        size = 4 + 4 + (self.version >= 9) + 5 + 3 + topic + 5 + 4 + 2 + 8 + 8 + 8 + 4 + 2 + 3 + 4 + 1
        out = PyBytes_FromStringAndSize(NULL, size * self.count)
        first = p = PyBytes_AS_STRING(out)
        for i in range(self.count):
            p = self.answer(
                p, topic, self.taken[i].correlation_id, error_code, base_offset, log_append_time_ms, log_start_offset
            )
            if not error_code:
                base_offset += self.taken[i].record_count
        return out if p - first == size * self.count else out[:p - first]

    cdef char *answer(
        self, char *at, Py_ssize_t topic, int32_t correlation_id, int error_code,
        int64_t base_offset, int64_t log_append_time_ms, int64_t log_start_offset,
    ) noexcept:
        cdef char *p = at + 4
        cdef const char *key = PyBytes_AS_STRING(self.key)
        cdef bint flexible = self.version >= 9
        p = put32(p, correlation_id)
        if flexible:
            p[0] = 0
            p[1] = 2
            p = put_uvarint(p + 2, topic + 1)
        else:
            p = put32(p, 1)
            p[0], p[1] = <char> (topic >> 8), <char> topic
            p += 2
        memcpy(p, key, topic)
        p += topic
        if flexible:
            p[0] = 2
            p += 1
        else:
            p = put32(p, 1)
        memcpy(p, key + topic, 4)
        p[4], p[5] = <char> (error_code >> 8), <char> error_code
        p = put64(p + 6, base_offset)
        p = put64(p, log_append_time_ms)
        if self.version >= 5:
            p = put64(p, log_start_offset)
        if flexible:
            p[0], p[1], p[2], p[3] = 1, 0, 0, 0  # no record errors, no message, no tags: partition, topic
            p = put32(p + 4, 0)
            p[0] = 0
            p += 1
        else:
            if self.version == 8:
                p = put32(p, 0)
                p[0], p[1] = <char> 0xFF, <char> 0xFF
                p += 2
            p = put32(p, 0)
        put32(at, <int32_t> (p - at - 4))
        return p


cdef inline char *put32(char *p, int32_t value) noexcept nogil:
    cdef unsigned int bits = <unsigned int> value
    p[0], p[1], p[2], p[3] = <char> (bits >> 24), <char> (bits >> 16), <char> (bits >> 8), <char> bits
    return p + 4


cdef inline char *put64(char *p, int64_t value) noexcept nogil:
    put32(p, <int32_t> (value >> 32))
    return put32(p + 4, <int32_t> value)


cdef inline char *put_uvarint(char *p, Py_ssize_t value) noexcept nogil:
    while value > 0x7F:
        p[0] = <char> (value & 0x7F | 0x80)
        p += 1
        value >>= 7
    p[0] = <char> value
    return p + 1


# -------------------------------------------------------------------------------------------------- fetch

cdef enum:
    LEAST_FETCH = 8 + 2 + 4 + 4 + 4 + 4 + 1 + 4 + 2 + 4 + 4 + 8 + 4 - 8
    MOST_FETCH = 2048


cdef class PlainFetch:
    """A Fetch request of a consumer for one partition."""

    cdef readonly object target
    cdef readonly bytes key
    cdef readonly int version
    cdef readonly int32_t correlation_id
    cdef readonly int32_t max_wait_ms
    cdef readonly int32_t min_bytes
    cdef readonly int32_t max_bytes
    cdef readonly bint committed_only
    cdef readonly int32_t leader_epoch
    cdef readonly int64_t offset
    cdef readonly int32_t partition_max_bytes
    cdef readonly Py_ssize_t size_in_bytes
    cdef Py_ssize_t start

    cpdef bytes head(
        self, int64_t high_watermark, int64_t last_stable_offset, int64_t log_start_offset, Py_ssize_t size
    ):
        """Return the response up to its `size` bytes of records, with its frame's size in front."""
        cdef Py_ssize_t topic = PyBytes_GET_SIZE(self.key) - 4
        cdef const char *key = PyBytes_AS_STRING(self.key)
        cdef bint flexible = self.version >= 12
        cdef bytes out = PyBytes_FromStringAndSize(NULL, 96 + topic)
        cdef char *first = PyBytes_AS_STRING(out)
        cdef char *p = put32(first + 4, self.correlation_id)
        if flexible:
            p[0] = 0
            p += 1
        p = put32(p, 0)  # throttle time
        if self.version >= 7:
            p[0], p[1] = 0, 0
            p = put32(p + 2, 0)  # no error, no session
        if flexible:
            p[0] = 2
            p = put_uvarint(p + 1, topic + 1)
        else:
            p = put32(p, 1)
            p[0], p[1] = <char> (topic >> 8), <char> topic
            p += 2
        memcpy(p, key, topic)
        p += topic
        if flexible:
            p[0] = 2
            p += 1
        else:
            p = put32(p, 1)
        memcpy(p, key + topic, 4)
        p[4], p[5] = 0, 0
        p = put64(p + 6, high_watermark)
        p = put64(p, last_stable_offset)
        if self.version >= 5:
            p = put64(p, log_start_offset)
        if flexible:  # aborted transactions: none, or not asked for
            p[0] = self.committed_only
            p = put_uvarint(put32(p + 1, -1), size + 1)
            size += 3  # no tags: partition, topic, response
        else:
            p = put32(p, 0 if self.committed_only else -1)
            if self.version >= 11:
                p = put32(p, -1)
            p = put32(p, <int32_t> size)
        put32(first, <int32_t> (p - first - 4 + size))
        return out[:p - first]


cdef PlainFetch parse_fetch(const char *p, Py_ssize_t size, dict index):
    """Read a request if it is a plain Fetch; every byte of it is accounted for."""
    cdef const char *end = p + size
    cdef const char *topic
    cdef char *into
    cdef Py_ssize_t length, value
    cdef PlainFetch fetch
    cdef bytes key
    cdef int version
    if be16(p) != 1:
        return None
    version = be16(p + 2)
    if version < 4 or version > 12:
        return None
    fetch = PlainFetch.__new__(PlainFetch)
    fetch.version = version
    fetch.correlation_id = ottla_be32(p + 4)
    length = be16(p + 8)
    p += 10
    if length < -1 or end - p < length + 32:
        return None
    while length > 0:
        if p[0] & 0x80:  # whether it is text at all is judged on the long way
            return None
        p += 1
        length -= 1
    if version >= 12:
        if p[0] != 0:  # tags of the header
            return None
        p += 1
    if ottla_be32(p) != -1:  # a follower
        return None
    fetch.max_wait_ms = ottla_be32(p + 4)
    fetch.min_bytes = ottla_be32(p + 8)
    fetch.max_bytes = ottla_be32(p + 12)
    fetch.committed_only = p[16] == 1
    p += 17
    if version >= 7:
        if ottla_be32(p) != 0 or ottla_be32(p + 4) != -1:  # a session, or one to begin
            return None
        p += 8
    # From here on, what every request has behind a name or a length is looked for before it is read.
    if version >= 12:
        p = uvarint(p, end, &value)
        if p == NULL or value != 2:
            return None
        p = uvarint(p, end, &length)
        length -= 1
    else:
        if end - p < 6 or ottla_be32(p) != 1:
            return None
        length = be16(p + 4)
        p += 6
    if p == NULL or length <= 0 or end - p < length + 1:
        return None
    topic = p
    p += length
    if version >= 12:
        p = uvarint(p, end, &value)
        if p == NULL or value != 2:
            return None
    else:
        if end - p < 4 or ottla_be32(p) != 1:
            return None
        p += 4
    value = 16 + (4 if version >= 9 else 0) + (8 if version >= 5 else 0) + (4 + 2 + 2 if version >= 12 else 0)
    if end - p < value:
        return None
    key = PyBytes_FromStringAndSize(NULL, length + 4)
    into = PyBytes_AS_STRING(key)
    memcpy(into, topic, length)
    memcpy(into + length, p, 4)
    p += 4
    fetch.leader_epoch = -1
    if version >= 9:
        fetch.leader_epoch = ottla_be32(p)
        p += 4
    fetch.offset = <int64_t> ottla_be32(p) << 32 | <unsigned int> ottla_be32(p + 4)
    p += 8
    if version >= 12:
        if ottla_be32(p) != -1:  # it wants to know whether its log has diverged
            return None
        p += 4
    if version >= 5:
        p += 8  # a follower's log start
    fetch.partition_max_bytes = ottla_be32(p)
    p += 4
    if version >= 12:
        if p[0] != 0 or p[1] != 0 or p[2] != 1:  # tags of partition and topic; nothing is forgotten
            return None
        p = uvarint(p + 3, end, &length)
        length -= 1
        if p == NULL or length < 0 or end - p != length + 1 or p[length] != 0:  # rack, no tags
            return None
    elif version >= 7:
        if end - p < 4 or ottla_be32(p) != 0:
            return None
        p += 4
        if version >= 11:
            if end - p < 2:
                return None
            length = be16(p)
            p += 2
            if length < 0 or end - p < length:
                return None
            p += length
        if p != end:
            return None
    elif p != end:
        return None
    if version >= 11:  # the rack is not used, but has to be text
        if version >= 12:
            end -= 1
        while length > 0:
            length -= 1
            if end[-1 - length] & 0x80:
                return None
    fetch.target = index.get(key)
    if fetch.target is None:
        return None
    fetch.key = key
    return fetch


# ------------------------------------------------------------------------------------------------- frames

cdef class ReceiveBuffer:
    """The one buffer that all connections of an event loop receive into."""

    cdef readonly bytearray memory
    cdef readonly object view
    cdef list spare             # memory of large frames, used again: fresh pages cost more than the bytes in them
    cdef readonly Py_ssize_t spare_bytes

    def __cinit__(self, Py_ssize_t size=RECEIVE_BUFFER_BYTES):
        self.memory = bytearray(size)
        self.view = memoryview(self.memory)
        self.spare = []

    cdef bytearray take(self, Py_ssize_t size):
        """Memory of at least `size` bytes that nobody looks at; what is in it is not cleared."""
        cdef bytearray one
        cdef Py_ssize_t i
        for i in range(len(self.spare) - 1, -1, -1):
            one = self.spare[i]
            if PyByteArray_GET_SIZE(one) >= size and Py_REFCNT(one) == 2:  # the list's and ours
                del self.spare[i]
                self.spare_bytes -= PyByteArray_GET_SIZE(one)
                return one
        return PyByteArray_FromStringAndSize(NULL, size)

    cdef int give_back(self, bytearray one) except -1:
        """Keep memory for another frame. Event loops still look at it now, so that is checked in `take`."""
        cdef Py_ssize_t size = PyByteArray_GET_SIZE(one)
        if size > DIRECT_ABOVE and self.spare_bytes + size <= SPARE_BYTES:
            self.spare.append(one)
            self.spare_bytes += size
        return 0


cdef class FrameReader:
    """Splits what one connection receives into frames."""

    cdef ReceiveBuffer shared
    cdef Py_ssize_t limit
    cdef bytearray kept         # memory of its own: what is not a whole frame yet
    cdef object kept_view
    cdef Py_ssize_t kept_bytes_
    cdef bint direct            # the last get_buffer gave room behind `kept`
    cdef bytearray source       # where the bytes not taken yet are
    cdef object source_view
    cdef Py_ssize_t position
    cdef Py_ssize_t end

    def __cinit__(self, ReceiveBuffer shared, Py_ssize_t max_frame_bytes):
        self.shared = shared
        self.limit = max_frame_bytes

    @property
    def kept_bytes(self):
        return self.kept_bytes_

    @property
    def exhausted(self):
        cdef Py_ssize_t rest = self.end - self.position, size
        if rest < SIZE:
            return True
        size = ottla_be32(PyByteArray_AS_STRING(self.source) + self.position)
        return SHORTEST <= size <= self.limit and rest - SIZE < size

    cpdef object get_buffer(self):
        cdef Py_ssize_t need
        self.direct = False
        if self.kept is None:
            return self.shared.view
        if self.kept_bytes_ >= SIZE:
            need = SIZE + <Py_ssize_t> ottla_be32(PyByteArray_AS_STRING(self.kept))
            if need > DIRECT_ABOVE and self.kept_bytes_ < need:
                self.direct = True
                self._grow(need)
                return self.kept_view[self.kept_bytes_:min(need, PyByteArray_GET_SIZE(self.kept))]
        if self.kept_bytes_ >= PyByteArray_GET_SIZE(self.shared.memory) // 2:
            return self._whole_frames_wait()
        memcpy(PyByteArray_AS_STRING(self.shared.memory), PyByteArray_AS_STRING(self.kept), self.kept_bytes_)
        return self.shared.view[self.kept_bytes_:]

    cdef object _whole_frames_wait(self):
        """Room behind more than fits in front of the shared memory: frames that nobody has taken yet."""
        self.direct = True
        self._grow(2 * self.kept_bytes_)
        return self.kept_view[self.kept_bytes_:]

    cdef int _grow(self, Py_ssize_t need) except -1:
        """Make room for more, no more than twice what has come: a size alone takes no memory."""
        cdef Py_ssize_t room = max(<Py_ssize_t> GROW_FROM, 2 * self.kept_bytes_)
        cdef bytearray grown
        if room > need:
            room = need
        if PyByteArray_GET_SIZE(self.kept) > self.kept_bytes_:
            return 0
        grown = self.shared.take(room)
        memcpy(PyByteArray_AS_STRING(grown), PyByteArray_AS_STRING(self.kept), self.kept_bytes_)
        self._keep(grown)
        return 0

    cdef int _keep(self, bytearray memory) except -1:
        cdef bytearray before = self.kept
        self.kept, self.kept_view = memory, None if memory is None else memoryview(memory)
        self.source, self.source_view = None, None
        if before is not None:
            self.shared.give_back(before)
        return 0

    cpdef bint received(self, Py_ssize_t count):
        if self.direct:
            if self.kept_bytes_ + count < SIZE + <Py_ssize_t> ottla_be32(PyByteArray_AS_STRING(self.kept)):
                self.kept_bytes_ += count
                self.direct = False
                return False
            self.source, self.source_view = self.kept, self.kept_view
            self.end = self.kept_bytes_ + count
        else:
            self.source, self.source_view = self.shared.memory, self.shared.view
            self.end = self.kept_bytes_ + count
        self.position = 0
        self.direct = False
        return True

    cpdef object next_frame(self):
        cdef Py_ssize_t start = self.position, have = self.end - self.position, size
        if have < SIZE:
            return None
        size = ottla_be32(PyByteArray_AS_STRING(self.source) + start)
        if size < SHORTEST or size > self.limit:
            raise BadFrame(size, self.limit)
        if have - SIZE < size:
            return None
        self.position = start + SIZE + size
        return self.source_view[start + SIZE:self.position]

    cpdef object park(self):
        cdef Py_ssize_t rest = self.end - self.position, room = self.end - self.position, need
        cdef const char *start
        cdef bytearray kept
        if rest <= 0:
            self.kept_bytes_ = 0
            if self.kept is not None:
                self._keep(None)
        elif self.source is not self.kept or self.position:
            start = PyByteArray_AS_STRING(self.source) + self.position
            if rest >= SIZE:
                need = SIZE + <Py_ssize_t> ottla_be32(start)
                if DIRECT_ABOVE < need <= SIZE + self.limit:
                    room = max(rest, min(need, max(<Py_ssize_t> GROW_FROM, 2 * rest)))
            kept = self.shared.take(room)
            memcpy(PyByteArray_AS_STRING(kept), start, rest)
            self._keep(kept)
            self.kept_bytes_ = rest
        else:
            self.kept_bytes_ = self.end
        self.source, self.source_view = self.kept, self.kept_view
        self.position, self.end = 0, self.kept_bytes_

    cpdef object next_produces(self, dict index):
        """Take the run of plain Produce requests to one known partition that stands here, or return None.

        Plain is: version 3 to 9, acks 1 or all, no transaction, one topic, one partition, one whole v2 batch
        that is neither transactional nor control. `index` maps the topic's bytes and the partition's four
        bytes to whatever the caller knows the partition by. A run ends where version, acks or partition do.
        """
        cdef const char *source
        cdef Py_ssize_t have, size, at = self.position
        cdef Produce one, first
        cdef ProduceRun run = None
        if self.source is None:
            return None
        memset(&first, 0, sizeof(Produce))
        source = PyByteArray_AS_STRING(self.source)
        while True:
            have = self.end - at
            if have < SIZE + LEAST_PRODUCE:
                break
            size = ottla_be32(source + at)
            if size < LEAST_PRODUCE or size > self.limit or have - SIZE < size:
                break
            if not parse_produce(source + at + SIZE, size, &one):
                break
            if run is None:
                run = start_run(&one, index)
                if run is None:
                    return None
                run.start = at
                first = one
            elif not same_run(&first, &one):
                break
            run.add(&one)
            at += SIZE + size
            if run.size_in_bytes >= RUN_BYTES:
                break
        if run is not None:
            self.position = at
            run.finish(self.source, self.source_view)
        return run

    cpdef object give_back(self, ProduceRun run):
        """Put a run back: its requests are frames again."""
        self.position = run.start

    cpdef object next_fetch(self, dict index):
        """Take the request that stands here if it is a plain Fetch of a known partition, or return None.

        Plain is: version 4 to 12, from a consumer, without a session, one topic, one partition. `index` is as
        for `next_produces`.
        """
        cdef Py_ssize_t have = self.end - self.position, size
        cdef const char *source
        cdef PlainFetch fetch
        if self.source is None or have < SIZE + LEAST_FETCH:
            return None
        source = PyByteArray_AS_STRING(self.source) + self.position
        size = ottla_be32(source)
        if size < LEAST_FETCH or size > MOST_FETCH or size > self.limit or have - SIZE < size:
            return None
        fetch = parse_fetch(source + SIZE, size, index)
        if fetch is not None:
            fetch.start = self.position
            fetch.size_in_bytes = size
            self.position += SIZE + size
        return fetch

    cpdef object give_back_fetch(self, PlainFetch fetch):
        """Put a request back: it is a frame again."""
        self.position = fetch.start

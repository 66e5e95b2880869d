# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The layout of plain Produce requests and of their responses, versions 3 to 13, natively."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from ottla.protocol.native._requests cimport (
    Cursor,
    RequestHead,
    take,
    take16,
    take32,
    take_count,
    take_head,
    take_no_tags,
    take_only_topic,
    take_only_topic_id,
    take_text_length,
    write16,
    write32,
    write64,
    write_only_topic,
    write_only_topic_id,
    write_tags,
)
from ottla.protocol.records._batch cimport RECORD_COUNT_AT, ZSTD, codec_at, entry_size, get32, is_plain, put32

cdef enum:
    API_KEY = 0
    FIRST_VERSION = 3
    FIRST_WITH_LOG_START = 5
    FIRST_WITH_ZSTD = 7
    FIRST_WITH_RECORD_ERRORS = 8
    FIRST_FLEXIBLE = 9
    FIRST_BY_ID = 13
    LAST_VERSION = 13
    ID_BYTES = 16
    SIZE = 4                     # in front of every frame
    MIN_REQUEST_BYTES = 8 + 2 + 2 + 2 + 4 + 4 + 2 + 4 + 4 + 4 + 61 - 16
    MAX_RESPONSE_BYTES = 4 + 4 + 1 + 5 + 3 + 5 + 4 + 2 + 8 + 8 + 8 + 4 + 2 + 3 + 4 + 1  # beside the topic
    MAX_RUN_BYTES = 1 << 20


# ---- requests


cdef bint parse_produce(const unsigned char *p, Py_ssize_t size, PlainProduce *out) noexcept nogil:
    """Read a request if it is a plain Produce; every byte of it is accounted for."""
    cdef Cursor c = Cursor(p, p + size, False, False)
    cdef RequestHead head
    if not take_head(&c, API_KEY, FIRST_VERSION, LAST_VERSION, FIRST_FLEXIBLE, &head):
        return False
    out.version, out.correlation_id = head.version, head.correlation_id
    if take_text_length(&c) != -1:  # a transactional id
        return False
    out.acks = take16(&c)
    out.timeout_ms = take32(&c)
    if out.acks != 1 and out.acks != -1:
        return False
    if out.version >= FIRST_BY_ID:
        out.topic, out.topic_size = take_only_topic_id(&c), ID_BYTES
    else:
        out.topic = take_only_topic(&c, &out.topic_size)
    out.partition = take32(&c)
    out.batch_size = take_count(&c)
    out.batch = take(&c, out.batch_size)
    # No tags: of the partition, the topic and the request.
    if not (take_no_tags(&c) and take_no_tags(&c) and take_no_tags(&c)):
        return False
    return not c.failed and out.topic != NULL and c.at == c.end and has_plain_batch(out)


cdef inline bint has_plain_batch(PlainProduce *out) noexcept nogil:
    """Whether the records are one plain batch, of a codec that this version may carry."""
    if not is_plain(out.batch, out.batch_size) or entry_size(out.batch) != out.batch_size:
        return False
    out.record_count = get32(out.batch + RECORD_COUNT_AT)
    return out.version >= FIRST_WITH_ZSTD or codec_at(out.batch) != ZSTD


cdef inline bint goes_on(const PlainProduce *first, const PlainProduce *one) noexcept nogil:
    """Whether a request may be appended and answered together with the first of a run."""
    return (
        one.version == first.version and one.acks == first.acks and one.timeout_ms == first.timeout_ms
        and one.partition == first.partition
        and one.topic_size == first.topic_size
        and memcmp(one.topic, first.topic, one.topic_size) == 0
    )


cdef ProduceRun take_run(
    bytearray source, view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_frame_bytes, dict index
):
    """Take the run of plain requests to one partition of `index` that begins at `start`, or return None.

    The bytes between `start` and `end` are frames with their sizes in front; `view` is `source`'s memory.
    """
    cdef const unsigned char *data = <const unsigned char *> PyByteArray_AS_STRING(source)
    cdef Py_ssize_t size, at = start
    cdef PlainProduce one, first
    cdef ProduceRun run = None
    memset(&first, 0, sizeof(PlainProduce))
    while end - at >= SIZE + MIN_REQUEST_BYTES:
        size = get32(data + at)
        if size < MIN_REQUEST_BYTES or size > max_frame_bytes or end - at - SIZE < size:
            break
        if not parse_produce(data + at + SIZE, size, &one):
            break
        if run is None:
            run = start_run(&one, index)
            if run is None:
                return None
            first = one
        elif not goes_on(&first, &one):
            break
        run.add(&one)
        at += SIZE + size
        if run.size_in_bytes >= MAX_RUN_BYTES:
            break
    if run is not None:
        run.start, run.end = start, at
        run.finish(source, view)
    return run


cdef ProduceRun start_run(const PlainProduce *one, dict index):
    """Begin a run if `index` knows the partition."""
    cdef bint by_id = one.version >= FIRST_BY_ID
    cdef bytes key = PyBytes_FromStringAndSize(NULL, by_id + one.topic_size + 4)
    cdef unsigned char *into = <unsigned char *> PyBytes_AS_STRING(key)
    cdef ProduceRun run
    if by_id:  # a zero, which no topic's name has, keeps ids and names apart
        into[0] = 0
        into += 1
    memcpy(into, one.topic, one.topic_size)
    put32(into + one.topic_size, one.partition)
    target = index.get(key)
    if target is None:
        return None
    run = ProduceRun.__new__(ProduceRun)
    run.key, run.target = key, target
    run.version, run.acks, run.timeout_ms = one.version, one.acks, one.timeout_ms
    return run


cdef class ProduceRun:

    def __cinit__(self):
        self.requests = self.few
        self.capacity = 32

    def __dealloc__(self):
        if self.requests != self.few:
            free(self.requests)

    cdef int add(self, const PlainProduce *one) except -1:
        cdef PlacedRequest *grown
        if self.count == self.capacity:
            grown = <PlacedRequest *> malloc(2 * self.capacity * sizeof(PlacedRequest))
            if grown == NULL:
                raise MemoryError
            memcpy(grown, self.requests, self.count * sizeof(PlacedRequest))
            if self.requests != self.few:
                free(self.requests)
            self.requests = grown
            self.capacity *= 2
        self.requests[self.count] = PlacedRequest(
            one.correlation_id, one.record_count, one.batch, one.batch_size
        )
        self.count += 1
        self.size_in_bytes += one.batch_size
        self.records += one.record_count
        return 0

    cdef int finish(self, bytearray source, view) except -1:
        """Give one batch where it stands, and several joined."""
        cdef Py_ssize_t at, i
        cdef bytearray joined
        if self.count == 1:
            at = self.requests[0].batch - <const unsigned char *> PyByteArray_AS_STRING(source)
            self.batches = view[at:at + self.size_in_bytes]
            return 0
        joined = PyByteArray_FromStringAndSize(NULL, self.size_in_bytes)
        at = 0
        for i in range(self.count):
            memcpy(PyByteArray_AS_STRING(joined) + at, self.requests[i].batch, self.requests[i].batch_size)
            at += self.requests[i].batch_size
        self.batches = joined
        return 0

    cdef Py_ssize_t request_bytes(self) noexcept:
        """Return the bytes of the requests, without the sizes in front of them."""
        return self.end - self.start - SIZE * self.count

    # ---- responses

    cpdef bytes repeated(self, bytes body):
        cdef bint flexible = self.version >= FIRST_FLEXIBLE
        cdef Py_ssize_t size = PyBytes_GET_SIZE(body), one = SIZE + 4 + flexible + size, i
        cdef bytes out = PyBytes_FromStringAndSize(NULL, one * self.count)
        cdef unsigned char *p = <unsigned char *> PyBytes_AS_STRING(out)
        for i in range(self.count):
            p = write32(write32(p, <int32_t> (one - SIZE)), self.requests[i].correlation_id)
            p = write_tags(p, flexible, 1)
            memcpy(p, PyBytes_AS_STRING(body), size)
            p += size
        return out

    cpdef bytes answers(self, int64_t base_offset, int64_t log_append_time_ms, int64_t log_start_offset):
        cdef Py_ssize_t size = (MAX_RESPONSE_BYTES + PyBytes_GET_SIZE(self.key) - 4) * self.count, i
        cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
        cdef unsigned char *first = <unsigned char *> PyBytes_AS_STRING(out)
        cdef unsigned char *p = first
        for i in range(self.count):
            p = write_response(
                p, self.version, self.key, self.requests[i].correlation_id,
                base_offset, log_append_time_ms, log_start_offset, self.throttle_time_ms,
            )
            base_offset += self.requests[i].record_count
        return out[:p - first]


cdef unsigned char *write_response(
    unsigned char *frame, int version, bytes key, int32_t correlation_id,
    int64_t base_offset, int64_t log_append_time_ms, int64_t log_start_offset, int32_t throttle_time_ms,
) noexcept:
    """Write one response with its frame's size in front; return where it ends."""
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef const unsigned char *topic = <const unsigned char *> PyBytes_AS_STRING(key)
    cdef unsigned char *p = write_tags(write32(frame + SIZE, correlation_id), flexible, 1)
    if version >= FIRST_BY_ID:
        p = write_only_topic_id(p, topic + 1)
    else:
        p = write_only_topic(p, flexible, topic, PyBytes_GET_SIZE(key) - 4)
    p = write64(write64(write16(p, 0), base_offset), log_append_time_ms)
    if version >= FIRST_WITH_LOG_START:
        p = write64(p, log_start_offset)
    if flexible:
        p[0], p[1] = 1, 0  # no record errors, no message
        p = write_tags(p + 2, flexible, 2)  # of the partition and the topic
    elif version >= FIRST_WITH_RECORD_ERRORS:
        p = write16(write32(p, 0), -1)
    p = write_tags(write32(p, throttle_time_ms), flexible, 1)
    put32(frame, <int32_t> (p - frame - SIZE))
    return p

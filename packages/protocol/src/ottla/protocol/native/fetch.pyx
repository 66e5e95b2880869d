# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The layout of plain Fetch requests and of their responses, versions 4 to 18, natively."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from ottla.protocol.native._requests cimport (
    Cursor,
    RequestHead,
    take8,
    take32,
    take64,
    take_ascii,
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
    write_uvarint,
)
from ottla.protocol.records._batch cimport get32, put32

cdef enum:
    API_KEY = 1
    FIRST_VERSION = 4
    FIRST_WITH_LOG_START = 5
    FIRST_WITH_SESSION = 7
    FIRST_WITH_LEADER_EPOCH = 9
    FIRST_WITH_RACK = 11
    FIRST_FLEXIBLE = 12
    FIRST_BY_ID = 13
    FIRST_WITH_REPLICA_STATE = 15
    LAST_VERSION = 18
    ID_BYTES = 16
    CONSUMER = -1                # the replica id of a client that is no broker
    NO_EPOCH = -1
    READ_COMMITTED = 1
    SIZE = 4                     # in front of every frame
    MIN_REQUEST_BYTES = 8 + 2 + 4 + 4 + 4 + 4 + 1 + 4 + 2 + 4 + 4 + 8 + 4 - 8
    MAX_REQUEST_BYTES = 2048
    MAX_HEAD_BYTES = 96          # beside the topic


# ---- requests


cdef struct Fields:
    RequestHead head
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    bint committed_only
    const unsigned char *topic
    Py_ssize_t topic_size
    int32_t partition
    int32_t leader_epoch
    int64_t offset
    int32_t partition_max_bytes
    const unsigned char *rack
    Py_ssize_t rack_size


cdef PlainFetch take_fetch(
    bytearray source, Py_ssize_t start, Py_ssize_t end, Py_ssize_t max_frame_bytes, dict index
):
    """Take the request at `start` if it is a plain Fetch of a partition of `index`, or return None."""
    cdef const unsigned char *data = <const unsigned char *> PyByteArray_AS_STRING(source) + start
    cdef Py_ssize_t size
    cdef Fields fields
    cdef PlainFetch fetch
    if end - start < SIZE + MIN_REQUEST_BYTES:
        return None
    size = get32(data)
    if size < MIN_REQUEST_BYTES or size > MAX_REQUEST_BYTES or size > max_frame_bytes:
        return None
    if end - start - SIZE < size or not parse_fetch(data + SIZE, size, &fields):
        return None
    fetch = fetch_of(&fields, index)
    if fetch is not None:
        fetch.size_in_bytes = size
        fetch.start, fetch.end = start, start + SIZE + size
    return fetch


cdef bint parse_fetch(const unsigned char *p, Py_ssize_t size, Fields *out) noexcept nogil:
    """Read a request if it is a plain Fetch; every byte of it is accounted for."""
    cdef Cursor c = Cursor(p, p + size, False, False)
    return (
        take_head(&c, API_KEY, FIRST_VERSION, LAST_VERSION, FIRST_FLEXIBLE, &out.head)
        and take_limits(&c, out)
        and take_partition(&c, out)
        and take_rest(&c, out)
    )


cdef inline bint take_limits(Cursor *c, Fields *out) noexcept nogil:
    """Read what counts for the whole request; false for a follower, and for an incremental session.

    Since version 15 a follower says at the end that it is one, in a tagged field.
    """
    if out.head.version < FIRST_WITH_REPLICA_STATE and take32(c) != CONSUMER:
        return False
    out.max_wait_ms = take32(c)
    out.min_bytes = take32(c)
    out.max_bytes = take32(c)
    out.committed_only = take8(c) == READ_COMMITTED
    if out.head.version >= FIRST_WITH_SESSION and (take32(c) != 0 or take32(c) != NO_EPOCH):
        return False  # a session, or one to begin
    return not c.failed


cdef inline bint take_partition(Cursor *c, Fields *out) noexcept nogil:
    """Read the only partition; false for more than one, and where a diverging log is asked about."""
    cdef int version = out.head.version
    if version >= FIRST_BY_ID:
        out.topic, out.topic_size = take_only_topic_id(c), ID_BYTES
    else:
        out.topic = take_only_topic(c, &out.topic_size)
    if out.topic == NULL:
        return False
    out.partition = take32(c)
    out.leader_epoch = take32(c) if version >= FIRST_WITH_LEADER_EPOCH else NO_EPOCH
    out.offset = take64(c)
    if version >= FIRST_FLEXIBLE and take32(c) != NO_EPOCH:  # the last fetched epoch (KIP-595)
        return False
    if version >= FIRST_WITH_LOG_START:
        take64(c)  # a follower's log start
    out.partition_max_bytes = take32(c)
    return take_no_tags(c) and take_no_tags(c) and not c.failed  # of the partition and the topic


cdef inline bint take_rest(Cursor *c, Fields *out) noexcept nogil:
    """Read up to the end; false where topics are forgotten, and where the rack is no ASCII text."""
    cdef int version = out.head.version
    out.rack_size = 0
    if version >= FIRST_WITH_SESSION and take_count(c) != 0:
        return False
    if version >= FIRST_WITH_RACK:
        out.rack_size = take_text_length(c)
        out.rack = c.at
        if not take_ascii(c, out.rack_size):
            return False
    return take_no_tags(c) and not c.failed and c.at == c.end


cdef PlainFetch fetch_of(const Fields *fields, dict index):
    """Make the object of a request if `index` knows its partition."""
    cdef bint by_id = fields.head.version >= FIRST_BY_ID
    cdef bytes key = PyBytes_FromStringAndSize(NULL, by_id + fields.topic_size + 4)
    cdef unsigned char *into = <unsigned char *> PyBytes_AS_STRING(key)
    cdef PlainFetch fetch
    if by_id:  # a zero, which no topic's name has, keeps ids and names apart
        into[0] = 0
        into += 1
    memcpy(into, fields.topic, fields.topic_size)
    put32(into + fields.topic_size, fields.partition)
    target = index.get(key)
    if target is None:
        return None
    fetch = PlainFetch.__new__(PlainFetch)
    fetch.target, fetch.key = target, key
    fetch.version, fetch.correlation_id = fields.head.version, fields.head.correlation_id
    fetch.max_wait_ms, fetch.min_bytes, fetch.max_bytes = fields.max_wait_ms, fields.min_bytes, fields.max_bytes
    fetch.committed_only, fetch.leader_epoch = fields.committed_only, fields.leader_epoch
    fetch.offset, fetch.partition_max_bytes = fields.offset, fields.partition_max_bytes
    fetch.rack = PyBytes_FromStringAndSize(<const char *> fields.rack, fields.rack_size) if fields.rack_size else b""
    return fetch


# ---- responses


cdef class PlainFetch:

    cpdef bytes head(
        self, int64_t high_watermark, int64_t last_stable_offset, int64_t log_start_offset, Py_ssize_t size
    ):
        cdef bint flexible = self.version >= FIRST_FLEXIBLE
        cdef Py_ssize_t topic = PyBytes_GET_SIZE(self.key) - 4
        cdef bytes out = PyBytes_FromStringAndSize(NULL, MAX_HEAD_BYTES + topic)
        cdef unsigned char *first = <unsigned char *> PyBytes_AS_STRING(out)
        cdef unsigned char *p = write_tags(write32(first + SIZE, self.correlation_id), flexible, 1)
        p = write32(p, 0)  # no throttling
        if self.version >= FIRST_WITH_SESSION:
            p = write32(write16(p, 0), 0)  # no error, no session
        if self.version >= FIRST_BY_ID:
            p = write_only_topic_id(p, <const unsigned char *> PyBytes_AS_STRING(self.key) + 1)
        else:
            p = write_only_topic(p, flexible, <const unsigned char *> PyBytes_AS_STRING(self.key), topic)
        p = write64(write64(write16(p, 0), high_watermark), last_stable_offset)
        if self.version >= FIRST_WITH_LOG_START:
            p = write64(p, log_start_offset)
        p = self.write_sizes(p, size)
        put32(first, <int32_t> (p - first - SIZE + size + (3 if flexible else 0)))
        return out[:p - first]

    cdef unsigned char *write_sizes(self, unsigned char *p, Py_ssize_t size) noexcept:
        """Write that no transaction was aborted, or that none was asked for; then the size of the records."""
        if self.version >= FIRST_FLEXIBLE:
            p[0] = self.committed_only
            return write_uvarint(write32(p + 1, -1), size + 1)
        p = write32(p, 0 if self.committed_only else -1)
        if self.version >= FIRST_WITH_RACK:
            p = write32(p, -1)
        return write32(p, <int32_t> size)

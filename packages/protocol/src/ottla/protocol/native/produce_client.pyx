# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The client's side of Produce: requests written, and responses read that report no error. Versions 3 to 11."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from ottla.protocol.native._requests cimport (
    Cursor,
    take,
    take16,
    take32,
    take64,
    take_count,
    take_no_tags,
    take_text_length,
    write16,
    write32,
    write_tags,
    write_uvarint,
)

cdef enum:
    API_KEY = 0
    FIRST_WITH_LOG_START = 5
    FIRST_WITH_RECORD_ERRORS = 8
    FIRST_FLEXIBLE = 9
    SIZE = 4                     # in front of every frame
    MOST_JOINED_BYTES = 32768    # up to here a copy costs less than one more part to send
    MOST_BYTES_OF_LENGTH = 5

FIRST_VERSION, LAST_VERSION = 3, 12


def produce_request(
    int version, int32_t correlation_id, bytes client_id, bytes transactional_id, int acks, int32_t timeout_ms,
    list topics not None,
):
    cdef Py_ssize_t data_bytes = 0, room = 4 + SIZE + 2 + 2 + 4 + 2 + 1 + MOST_BYTES_OF_LENGTH + 2 + 4 + 5 + 1
    cdef bytes name, data
    cdef list partitions
    check_version(version)
    room += 0 if client_id is None else PyBytes_GET_SIZE(client_id)
    room += 0 if transactional_id is None else PyBytes_GET_SIZE(transactional_id)
    for name, partitions in topics:
        room += 2 * MOST_BYTES_OF_LENGTH + PyBytes_GET_SIZE(name) + 1
        for _, data in partitions:
            room += 4 + MOST_BYTES_OF_LENGTH + 1
            data_bytes += PyBytes_GET_SIZE(data)
    cdef Parts parts = Parts.__new__(Parts)
    parts.begin(room + (data_bytes if data_bytes <= MOST_JOINED_BYTES else 0), data_bytes > MOST_JOINED_BYTES)
    write_request(parts, version, correlation_id, client_id, transactional_id, acks, timeout_ms, topics)
    return parts.finish()


cdef int check_version(int version) except -1:
    if not 3 <= version <= 12:
        raise ValueError(f"version {version} of Produce: {FIRST_VERSION} to {LAST_VERSION} are known here")
    return 0


cdef int write_request(
    Parts parts, int version, int32_t correlation_id, bytes client_id, bytes transactional_id, int acks,
    int32_t timeout_ms, list topics,
) except -1:
    cdef bint flexible = version >= FIRST_FLEXIBLE
    cdef bytes name, data
    cdef list partitions
    cdef int32_t index
    cdef unsigned char *p = write16(write16(parts.at + SIZE, API_KEY), version)
    p = write_text(write32(p, correlation_id), False, client_id)  # of two bytes in every version
    p = write_text(write_tags(p, flexible, 1), flexible, transactional_id)
    p = write_count(write32(write16(p, acks), timeout_ms), flexible, len(topics))
    for name, partitions in topics:
        p = write_count(write_text(p, flexible, name), flexible, len(partitions))
        for index, data in partitions:
            p = parts.put(write_count(write32(p, index), flexible, PyBytes_GET_SIZE(data)), data)
            p = write_tags(p, flexible, 1)
        p = write_tags(p, flexible, 1)
    parts.at = write_tags(p, flexible, 1)
    return 0


cdef unsigned char *write_count(unsigned char *p, bint flexible, Py_ssize_t count) noexcept nogil:
    """Write the length of an array, or of bytes."""
    return write_uvarint(p, count + 1) if flexible else write32(p, <int32_t> count)


cdef unsigned char *write_text(unsigned char *p, bint flexible, bytes text) noexcept:
    """Write a string; None is null."""
    cdef Py_ssize_t size = -1 if text is None else PyBytes_GET_SIZE(text)
    p = write_uvarint(p, size + 1) if flexible else write16(p, <int> size)
    if size > 0:
        memcpy(p, PyBytes_AS_STRING(text), size)
        p += size
    return p


cdef class Parts:
    """A frame as bytes objects one behind the other, so that much data is not copied."""

    cdef bytes _written
    cdef unsigned char *_start
    cdef unsigned char *at       # where to write next
    cdef list _parts
    cdef Py_ssize_t _size, _cut
    cdef bint _apart             # data stays in the objects that it came in

    cdef int begin(self, Py_ssize_t room, bint apart) except -1:
        self._written = PyBytes_FromStringAndSize(NULL, room)
        self._start = self.at = <unsigned char *> PyBytes_AS_STRING(self._written)
        self._parts, self._apart = [], apart
        return 0

    cdef unsigned char *put(self, unsigned char *p, bytes data) except NULL:
        """Add data behind what was written up to `p`; return where to write next."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if not self._apart:
            memcpy(p, PyBytes_AS_STRING(data), size)
            return p + size
        self._parts.append((p - self._start, data))
        self._size += size
        return p

    cdef list finish(self):
        """Write the frame's size in front and return its parts."""
        cdef Py_ssize_t end = self.at - self._start, at = 0, cut
        cdef list out = []
        write32(self._start, <int32_t> (end + self._size - SIZE))
        for cut, data in self._parts:
            out.append(self._written[at:cut])
            out.append(data)
            at = cut
        if at < end:
            out.append(self._written[at:end])
        return out


def offsets_of(response, int version):
    cdef Py_buffer view
    cdef Cursor c
    cdef dict out = {}
    cdef int32_t throttle_ms
    check_version(version)
    PyObject_GetBuffer(response, &view, PyBUF_SIMPLE)
    try:
        c = Cursor(<const unsigned char *> view.buf, <const unsigned char *> view.buf + view.len, False, False)
        take32(&c)  # the correlation id
        c.flexible = version >= FIRST_FLEXIBLE
        if not (take_no_tags(&c) and read_topics(&c, version, out)):
            return None
        throttle_ms = take32(&c)
        if not take_no_tags(&c) or c.failed or c.at != c.end:
            return None
        return throttle_ms, out
    except UnicodeDecodeError:
        return None
    finally:
        PyBuffer_Release(&view)


cdef bint read_topics(Cursor *c, int version, dict out) except -1:
    cdef Py_ssize_t topics = take_count(c), size, partitions
    cdef const unsigned char *name
    while topics > 0:
        topics -= 1
        size = take_text_length(c)
        name = take(c, size)
        partitions = take_count(c)
        if name == NULL or c.failed:
            return False
        topic = name[:size].decode("utf-8")
        while partitions > 0:
            partitions -= 1
            if not read_partition(c, version, topic, out):
                return False
        if not take_no_tags(c):
            return False
    return not c.failed


cdef bint read_partition(Cursor *c, int version, topic, dict out) except -1:
    """Read where a batch was appended; false if the leader reports an error."""
    cdef int32_t index = take32(c)
    cdef int error_code = take16(c)
    cdef int64_t base_offset = take64(c), log_append_time_ms = take64(c)
    if version >= FIRST_WITH_LOG_START:
        take64(c)
    if version >= FIRST_WITH_RECORD_ERRORS and (take_count(c) > 0 or take_text_length(c) >= 0):
        return False
    if error_code or not take_no_tags(c) or c.failed:
        return False
    out[(topic, index)] = (base_offset, log_append_time_ms)
    return True

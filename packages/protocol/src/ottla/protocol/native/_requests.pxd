# cython: language_level=3
"""Reading a request's fields and writing a response's, as `native.produce` and `native.fetch` do it.

A read never passes the end: it marks the cursor as failed instead, and what is read from then on is zero.
"""

from libc.stdint cimport int16_t, int32_t, int64_t
from libc.string cimport memcpy

from ottla.protocol.records._batch cimport get16, get32, get64, put16, put32, put64

cdef enum:
    MAX_STRING_BYTES = 0x7FFF    # as ottla.protocol.primitives has it

cdef struct Cursor:
    const unsigned char *at
    const unsigned char *end
    bint flexible                # KIP-482: compact lengths and tagged fields
    bint failed


cdef struct RequestHead:
    int version
    int32_t correlation_id


cdef inline const unsigned char *take(Cursor *c, Py_ssize_t size) noexcept nogil:
    """Return the next `size` bytes, or NULL where fewer are left."""
    cdef const unsigned char *p = c.at
    if c.failed or size < 0 or c.end - p < size:
        c.failed = True
        return NULL
    c.at = p + size
    return p


cdef inline int take8(Cursor *c) noexcept nogil:
    cdef const unsigned char *p = take(c, 1)
    return 0 if p == NULL else p[0]


cdef inline int take16(Cursor *c) noexcept nogil:
    cdef const unsigned char *p = take(c, 2)
    return 0 if p == NULL else get16(p)


cdef inline int32_t take32(Cursor *c) noexcept nogil:
    cdef const unsigned char *p = take(c, 4)
    return 0 if p == NULL else get32(p)


cdef inline int64_t take64(Cursor *c) noexcept nogil:
    cdef const unsigned char *p = take(c, 8)
    return 0 if p == NULL else get64(p)


cdef inline Py_ssize_t take_uvarint(Cursor *c) noexcept nogil:
    """Read an unsigned varint of at most five bytes."""
    cdef Py_ssize_t value = 0
    cdef int shift = 0, byte
    while shift < 35 and not c.failed:
        byte = take8(c)
        value |= <Py_ssize_t> (byte & 0x7F) << shift
        if not byte & 0x80:
            return value
        shift += 7
    c.failed = True
    return 0


cdef inline Py_ssize_t take_text_length(Cursor *c) noexcept nogil:
    """Read the length of a string; -1 is null. A longer one than Kafka's marks the cursor as failed."""
    cdef Py_ssize_t size = take_uvarint(c) - 1 if c.flexible else take16(c)
    if size > MAX_STRING_BYTES:
        c.failed = True
        return 0
    return size


cdef inline Py_ssize_t take_count(Cursor *c) noexcept nogil:
    """Read the length of an array, or of bytes; -1 is null."""
    return take_uvarint(c) - 1 if c.flexible else take32(c)


cdef inline bint take_no_tags(Cursor *c) noexcept nogil:
    """Whether no tagged field stands here; true where the version knows none."""
    return not c.flexible or take8(c) == 0 and not c.failed


cdef inline bint take_ascii(Cursor *c, Py_ssize_t size) noexcept nogil:
    """Pass over text; false unless it is ASCII: the general path checks the encoding of any other."""
    cdef const unsigned char *p = take(c, size)
    if p == NULL:
        return False
    while size > 0:
        size -= 1
        if p[size] & 0x80:
            return False
    return True


cdef inline bint take_head(
    Cursor *c, int api_key, int first_version, int last_version, int first_flexible, RequestHead *head
) noexcept nogil:
    """Read a request's header; false unless it is of this API and of one of these versions."""
    cdef Py_ssize_t client_id
    if take16(c) != api_key:
        return False
    head.version = take16(c)
    if head.version < first_version or head.version > last_version:
        return False
    head.correlation_id = take32(c)
    client_id = take16(c)
    if client_id < -1 or (client_id > 0 and not take_ascii(c, client_id)):
        return False
    c.flexible = head.version >= first_flexible
    return take_no_tags(c) and not c.failed


cdef inline const unsigned char *take_only_topic(Cursor *c, Py_ssize_t *size) noexcept nogil:
    """Read an array of one topic and one partition as far as its index; NULL unless it is such a one."""
    cdef const unsigned char *topic
    if take_count(c) != 1:
        return NULL
    size[0] = take_text_length(c)
    if size[0] <= 0:
        return NULL
    topic = take(c, size[0])
    return NULL if take_count(c) != 1 or c.failed else topic


cdef inline const unsigned char *take_only_topic_id(Cursor *c) noexcept nogil:
    """Read an array of one topic, by its id, and one partition as far as its index, as `take_only_topic` does."""
    cdef const unsigned char *topic
    if take_count(c) != 1:
        return NULL
    topic = take(c, 16)
    return NULL if take_count(c) != 1 or c.failed else topic


# ---- writing: the room is the caller's


cdef inline unsigned char *write16(unsigned char *p, int value) noexcept nogil:
    put16(p, <int16_t> value)
    return p + 2


cdef inline unsigned char *write32(unsigned char *p, int32_t value) noexcept nogil:
    put32(p, value)
    return p + 4


cdef inline unsigned char *write64(unsigned char *p, int64_t value) noexcept nogil:
    put64(p, value)
    return p + 8


cdef inline unsigned char *write_uvarint(unsigned char *p, Py_ssize_t value) noexcept nogil:
    while value > 0x7F:
        p[0] = <unsigned char> (value & 0x7F | 0x80)
        p += 1
        value >>= 7
    p[0] = <unsigned char> value
    return p + 1


cdef inline unsigned char *write_tags(unsigned char *p, bint flexible, int count) noexcept nogil:
    """Write that none of `count` structures has tagged fields."""
    while flexible and count > 0:
        p[0] = 0
        p += 1
        count -= 1
    return p


cdef inline unsigned char *write_only_topic(
    unsigned char *p, bint flexible, const unsigned char *key, Py_ssize_t topic
) noexcept nogil:
    """Write an array of one topic and one partition, from `key`: the topic's bytes, the partition's four."""
    if flexible:
        p[0] = 2
        p = write_uvarint(p + 1, topic + 1)
    else:
        p = write16(write32(p, 1), <int> topic)
    memcpy(p, key, topic)
    p += topic
    if flexible:
        p[0] = 2
        p += 1
    else:
        p = write32(p, 1)
    memcpy(p, key + topic, 4)
    return p + 4


cdef inline unsigned char *write_only_topic_id(unsigned char *p, const unsigned char *key) noexcept nogil:
    """Write an array of one topic and one partition, from `key`: the topic's id, the partition's four bytes."""
    p[0] = 2
    memcpy(p + 1, key, 16)
    p[17] = 2
    memcpy(p + 18, key + 16, 4)
    return p + 22

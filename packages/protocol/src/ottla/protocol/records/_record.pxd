# cython: language_level=3
"""One record of a v2 batch in memory. Compile-time only."""

from libc.stdint cimport int32_t, int64_t

from ottla.protocol.records._batch cimport get_varint, get_varlong


cdef struct RawRecord:
    int64_t timestamp_delta
    const unsigned char *key
    const unsigned char *value
    const unsigned char *headers
    int32_t offset_delta
    int32_t key_size             # -1 for null, as the value's
    int32_t value_size
    int32_t header_count


cdef inline const unsigned char *read_fields(
    const unsigned char *p, const unsigned char *end, RawRecord *r
) noexcept nogil:
    """Read one record up to its headers; return where its length ends, or NULL when it is malformed."""
    cdef int32_t size
    cdef const unsigned char *record_end
    p = get_varint(p, end, &size)
    if p is NULL or size < 1 or size > end - p:
        return NULL
    record_end = p + size
    p = get_varlong(p + 1, record_end, &r.timestamp_delta)
    if p is NULL:
        return NULL
    p = get_varint(p, record_end, &r.offset_delta)
    if p is NULL:
        return NULL
    p = get_varint(p, record_end, &r.key_size)
    if p is NULL or r.key_size > record_end - p:
        return NULL
    r.key = p
    if r.key_size > 0:
        p += r.key_size
    p = get_varint(p, record_end, &r.value_size)
    if p is NULL or r.value_size > record_end - p:
        return NULL
    r.value = p
    if r.value_size > 0:
        p += r.value_size
    p = get_varint(p, record_end, &r.header_count)
    if p is NULL:
        return NULL
    r.headers = p
    return record_end


cdef inline const unsigned char *parse_record(
    const unsigned char *p, const unsigned char *end, RawRecord *r
) noexcept nogil:
    """Read one record wholly inside [p, end); return where the next begins, or NULL when it is malformed.

    A record that does not fill its length is as malformed as one that is longer.
    """
    cdef const unsigned char *record_end = read_fields(p, end, r)
    if record_end is NULL:
        return NULL
    p = r.headers
    if r.header_count:
        p = skip_headers(p, record_end, r.header_count)
    return record_end if p is record_end else NULL


cdef inline const unsigned char *read_record(
    const unsigned char *p, const unsigned char *end, RawRecord *r, int32_t remaining, int32_t delta_before,
    int32_t last_offset_delta,
) noexcept nogil:
    """Read the next of the `remaining` records of a batch as a consumer must; NULL when it is malformed.

    Offset deltas rise up to the batch's last one, with gaps where compaction removed records: a reader
    continues after the last offset it delivered, and would pass over records at or below that. The last
    record ends the batch. `delta_before` is the delta of the record before, -1 for the first.
    """
    p = parse_record(p, end, r)
    if p is NULL or r.offset_delta <= delta_before or r.offset_delta > last_offset_delta:
        return NULL
    return NULL if remaining == 1 and p is not end else p


cdef inline const unsigned char *skip_headers(
    const unsigned char *p, const unsigned char *end, int32_t count
) noexcept nogil:
    """Return where `count` headers end, or NULL when one is malformed."""
    cdef int32_t size, i
    # Every header takes at least two bytes: a hostile count costs no walk.
    if count < 0 or count > (end - p) // 2:
        return NULL
    for i in range(count):
        p = get_varint(p, end, &size)
        if p is NULL or size < 0 or size > end - p:
            return NULL
        p = get_varint(p + size, end, &size)
        if p is NULL or size > end - p:
            return NULL
        if size > 0:
            p += size
    return p

# The walk over records, and the checks that need it.

cdef struct Walk:
    int32_t parsed               # records before the first bad one
    int32_t keyless
    int32_t last_offset_delta
    int64_t min_timestamp_delta
    int64_t max_timestamp_delta
    bint whole                   # every byte belongs to a good record
    bint dense                   # offset deltas are 0, 1, 2, ...
    bint rising                  # offset deltas rise


cdef Walk _walk(const unsigned char* p, const unsigned char* end, int32_t count) noexcept nogil:
    cdef Walk walk
    cdef RawRecord r
    walk.parsed = 0
    walk.keyless = 0
    walk.last_offset_delta = -1
    walk.min_timestamp_delta = 0
    walk.max_timestamp_delta = 0
    walk.whole = False
    walk.dense = True
    walk.rising = True
    while walk.parsed < count:
        p = parse_record(p, end, &r)
        if p is NULL:
            return walk
        if r.key_size < 0:
            walk.keyless += 1
        if r.offset_delta != walk.parsed:
            walk.dense = False
        if r.offset_delta <= walk.last_offset_delta:
            walk.rising = False
        walk.last_offset_delta = <int32_t>r.offset_delta
        if walk.parsed == 0 or r.timestamp_delta < walk.min_timestamp_delta:
            walk.min_timestamp_delta = r.timestamp_delta
        if walk.parsed == 0 or r.timestamp_delta > walk.max_timestamp_delta:
            walk.max_timestamp_delta = r.timestamp_delta
        walk.parsed += 1
    walk.whole = p is end
    return walk


cdef int _check_counts(const unsigned char* p, Py_ssize_t size, bint dense) except -1:
    cdef int32_t count = get32(p + RECORD_COUNT_AT)
    cdef int32_t delta = get32(p + LAST_OFFSET_DELTA_AT)
    if count < 0 or delta < 0 or <int64_t>count > <int64_t>delta + 1:
        raise CorruptRecords(f"a batch of {count} records cannot have the last offset delta {delta}")
    if dense and (count == 0 or <int64_t>count != <int64_t>delta + 1):
        raise CorruptRecords(f"a produced batch of {count} records has the last offset delta {delta}")
    _codec_of(get16(p + ATTRIBUTES_AT))
    if codec_at(p) == 0 and <int64_t>count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        raise CorruptRecords(f"{size - HEADER_SIZE} bytes cannot hold {count} records")
    return 0


cdef int _check_crc(const unsigned char* p, Py_ssize_t size) except -1:
    cdef uint32_t expected = <uint32_t>get32(p + CRC_AT)
    cdef uint32_t actual = checksum(0, p + CRC_FROM, size - CRC_FROM)
    if expected != actual:
        raise CorruptRecords(
            f"the batch at offset {get64(p)} has checksum {actual:08x}, its header says {expected:08x}"
        )
    return 0


cdef int _check_walk(Walk walk, int32_t count, int32_t last_delta, bint dense) except -1:
    if walk.parsed < count:
        raise CorruptRecords(f"record {walk.parsed} of {count} is malformed")
    if not walk.whole:
        raise CorruptRecords(f"bytes follow the last of {count} records")
    if not walk.rising or walk.last_offset_delta > last_delta or (dense and not walk.dense):
        raise CorruptRecords(f"the offset deltas of {count} records do not run up to {last_delta}")
    return 0


cdef Walk _walk_body(const unsigned char* p, Py_ssize_t size, Py_ssize_t limit) except *:
    """Walk the records of a checked batch, decompressed when need be."""
    cdef Walk walk
    cdef int32_t count = get32(p + RECORD_COUNT_AT)
    cdef int attributes = get16(p + ATTRIBUTES_AT)
    cdef const unsigned char* body = p + HEADER_SIZE
    cdef Py_ssize_t body_size = size - HEADER_SIZE
    cdef bytearray plain
    if attributes & CODEC_MASK:
        plain = _plain_body(body, body_size, attributes, limit)
        body = <const unsigned char*>PyByteArray_AS_STRING(plain)
        body_size = PyByteArray_GET_SIZE(plain)
    if body_size < RELEASE_ABOVE:
        walk = _walk(body, body + body_size, count)
    else:
        with nogil:
            walk = _walk(body, body + body_size, count)
    return walk


cdef bytearray _plain_body(const unsigned char* body, Py_ssize_t size, int attributes, Py_ssize_t limit):
    codec = _codec_of(attributes)
    packed = PyMemoryView_FromMemory(<char*>body, size, PyBUF_READ)
    return _decompress(codec, packed, max_bytes=limit)


def validate_batch(batch, *, bint dense=False, bint check_records=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t size
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char*>view.buf
        size = _batch_at(p, view.len, 0)
        if size != view.len:
            raise CorruptRecords(f"{view.len - size} bytes follow the batch")
        _validate(p, size, dense, check_records)
        return _header_at(p, 0)
    finally:
        PyBuffer_Release(&view)


def validate_batches(buffer, *, bint dense=False, bint check_records=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef list headers = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            size = _batch_at(p, view.len - position, position)
            _validate(p, size, dense, check_records)
            headers.append(_header_at(p, position))
            position += size
        return headers
    finally:
        PyBuffer_Release(&view)


cdef int _validate(const unsigned char* p, Py_ssize_t size, bint dense, bint check_records) except -1:
    _check_crc(p, size)
    _check_counts(p, size, dense)
    # compressed records are left alone here: opening them belongs on a thread, see scan_records
    if check_records and codec_at(p) == 0:
        _check_walk(_walk_body(p, size, 0), get32(p + RECORD_COUNT_AT), get32(p + LAST_OFFSET_DELTA_AT), dense)
    return 0


@cython.final
cdef class RecordScan:
    cdef readonly int32_t record_count, keyless_count
    cdef readonly int64_t min_timestamp, max_timestamp


def scan_records(batch, *, max_decompressed_bytes=_DEFAULT_MAX, bint dense=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t size
    cdef Walk walk
    cdef RecordScan scan
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char*>view.buf
        size = _batch_at(p, view.len, 0)
        _check_counts(p, size, dense)
        walk = _walk_body(p, size, max_decompressed_bytes)
        _check_walk(walk, get32(p + RECORD_COUNT_AT), get32(p + LAST_OFFSET_DELTA_AT), dense)
        scan = RecordScan.__new__(RecordScan)
        scan.record_count = walk.parsed
        scan.keyless_count = walk.keyless
        scan.min_timestamp = get64(p + BASE_TIMESTAMP_AT) + walk.min_timestamp_delta
        scan.max_timestamp = get64(p + BASE_TIMESTAMP_AT) + walk.max_timestamp_delta
        return scan
    finally:
        PyBuffer_Release(&view)

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
    int64_t plain_bytes          # of the records without compression


cdef void _begin(Walk* walk) noexcept nogil:
    walk.parsed = 0
    walk.keyless = 0
    walk.last_offset_delta = -1
    walk.min_timestamp_delta = 0
    walk.max_timestamp_delta = 0
    walk.whole = False
    walk.dense = True
    walk.rising = True
    walk.plain_bytes = 0


cdef inline void _add(Walk* walk, const RawRecord* r) noexcept nogil:
    """Count one good record."""
    if r.key_size < 0:
        walk.keyless += 1
    if r.offset_delta != walk.parsed:
        walk.dense = False
    if r.offset_delta <= walk.last_offset_delta:
        walk.rising = False
    walk.last_offset_delta = r.offset_delta
    if walk.parsed == 0 or r.timestamp_delta < walk.min_timestamp_delta:
        walk.min_timestamp_delta = r.timestamp_delta
    if walk.parsed == 0 or r.timestamp_delta > walk.max_timestamp_delta:
        walk.max_timestamp_delta = r.timestamp_delta
    walk.parsed += 1


cdef Walk _walk(const unsigned char* p, const unsigned char* end, int32_t count) noexcept nogil:
    cdef Walk walk
    cdef RawRecord r
    _begin(&walk)
    while walk.parsed < count:
        p = parse_record(p, end, &r)
        if p is NULL:
            return walk
        _add(&walk, &r)
    walk.whole = p is end
    return walk


cdef int _check_counts(const unsigned char* p, Py_ssize_t size, bint dense) except -1:
    cdef int32_t count = get32(p + RECORD_COUNT_AT)
    cdef int32_t delta = get32(p + LAST_OFFSET_DELTA_AT)
    if count < 0 or delta < 0 or <int64_t>count > <int64_t>delta + 1:
        raise UnreadableRecords(f"a batch of {count} records cannot have the last offset delta {delta}")
    if dense and (count == 0 or <int64_t>count != <int64_t>delta + 1):
        raise UnreadableRecords(f"a produced batch of {count} records has the last offset delta {delta}")
    _codec_of(get16(p + ATTRIBUTES_AT))
    if codec_at(p) == 0 and <int64_t>count * MIN_RECORD_SIZE > size - HEADER_SIZE:
        raise UnreadableRecords(f"{size - HEADER_SIZE} bytes cannot hold {count} records")
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
        raise UnreadableRecords(f"record {walk.parsed} of {count} is malformed")
    if not walk.whole:
        raise UnreadableRecords(f"bytes follow the last of {count} records")
    if not walk.rising or walk.last_offset_delta > last_delta or (dense and not walk.dense):
        raise UnreadableRecords(f"the offset deltas of {count} records do not run up to {last_delta}")
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
    walk.plain_bytes = body_size
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
    cdef readonly int64_t min_timestamp, max_timestamp, plain_bytes


cdef RecordScan _scan_of(Walk walk, int64_t base_timestamp):
    cdef RecordScan scan = RecordScan.__new__(RecordScan)
    scan.record_count = walk.parsed
    scan.keyless_count = walk.keyless
    scan.min_timestamp = base_timestamp + walk.min_timestamp_delta
    scan.max_timestamp = base_timestamp + walk.max_timestamp_delta
    scan.plain_bytes = walk.plain_bytes
    return scan


def scan_records(batch, *, max_decompressed_bytes=_DEFAULT_MAX, bint dense=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t size
    cdef Walk walk
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        p = <const unsigned char*>view.buf
        size = _batch_at(p, view.len, 0)
        _check_counts(p, size, dense)
        if dense and codec_at(p) == LZ4:
            _check_lz4_frame(PyMemoryView_FromMemory(<char*>p + HEADER_SIZE, size - HEADER_SIZE, PyBUF_READ))
        walk = _walk_body(p, size, max_decompressed_bytes)
        _check_walk(walk, get32(p + RECORD_COUNT_AT), get32(p + LAST_OFFSET_DELTA_AT), dense)
        return _scan_of(walk, get64(p + BASE_TIMESTAMP_AT))
    finally:
        PyBuffer_Release(&view)


# The same walk over records that come in blocks. A record that lies in one block is parsed as above; one that
# crosses the end of a block goes through its fields byte by byte, so that a value of any size is passed over
# without being held.

cdef enum Field:
    IN_LENGTH, IN_ATTRIBUTES, IN_TIMESTAMP, IN_OFFSET, IN_KEY, IN_VALUE, IN_HEADER_COUNT, IN_HEADER_KEY, IN_HEADER_VALUE


@cython.final
cdef class BlockScanner:
    cdef Walk _walk
    cdef RawRecord _record
    cdef Field _field
    cdef int64_t _left           # bytes of the record that are still to come, once its length is known
    cdef int64_t _skip           # bytes of the present key or value that are still to come
    cdef uint64_t _bits          # of the varint so far
    cdef int _shift
    cdef int32_t _headers_left
    cdef int32_t _count, _last_offset_delta
    cdef int64_t _base_timestamp
    cdef bint _dense

    def __init__(self, batch, *, bint dense=False):
        cdef Py_buffer view
        cdef const unsigned char* p
        cdef Py_ssize_t size
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        try:
            p = <const unsigned char*>view.buf
            size = _batch_at(p, view.len, 0)
            _check_counts(p, size, dense)
            self._count, self._last_offset_delta = get32(p + RECORD_COUNT_AT), get32(p + LAST_OFFSET_DELTA_AT)
            self._base_timestamp = get64(p + BASE_TIMESTAMP_AT)
        finally:
            PyBuffer_Release(&view)
        self._dense = dense
        _begin(&self._walk)
        self._start_record()

    cdef void _start_record(self) noexcept nogil:
        self._field, self._bits, self._shift, self._skip = IN_LENGTH, 0, 0, 0

    def feed(self, block):
        cdef Py_buffer view
        cdef bint good
        PyObject_GetBuffer(block, &view, PyBUF_SIMPLE)
        try:
            self._walk.plain_bytes += view.len
            if view.len < RELEASE_ABOVE:
                good = self._feed(<const unsigned char*>view.buf, view.len)
            else:
                with nogil:
                    good = self._feed(<const unsigned char*>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        if not good:
            if self._walk.parsed < self._count:
                raise UnreadableRecords(f"record {self._walk.parsed} of {self._count} is malformed")
            raise UnreadableRecords(f"bytes follow the last of {self._count} records")

    cdef bint _feed(self, const unsigned char* p, Py_ssize_t size) noexcept nogil:
        """Walk on; false for a malformed record, and for bytes behind the last one."""
        cdef const unsigned char* end = p + size
        cdef const unsigned char* body
        cdef int32_t length
        while p < end:
            if self._walk.parsed == self._count:
                return False
            if self._field == IN_LENGTH and self._shift == 0 and self._skip == 0:
                body = get_varint(p, end, &length)
                if body is not NULL and length <= end - body:
                    p = parse_record(p, end, &self._record)
                    if p is NULL:
                        return False
                    _add(&self._walk, &self._record)
                    continue
            p = self._step(p, end)
            if p is NULL:
                return False
        return True

    cdef const unsigned char* _step(self, const unsigned char* p, const unsigned char* end) noexcept nogil:
        """Take one byte of a number or what is there of a key or value; NULL for a malformed record."""
        cdef int64_t taken
        if self._skip:
            taken = min(self._skip, <int64_t>(end - p))
            self._skip -= taken
            self._left -= taken
            if self._skip == 0 and self._field == IN_LENGTH and not self._end_record():
                return NULL
            return p + taken
        if self._field != IN_LENGTH:
            if self._left == 0:
                return NULL
            self._left -= 1
        if self._field == IN_ATTRIBUTES:
            self._field = IN_TIMESTAMP
            return p + 1
        # Five bytes of a number hold 35 bits and an int32 has 32; the tenth byte of an int64 has room for one.
        if self._shift > (63 if self._field == IN_TIMESTAMP else 28) or (self._shift == 63 and p[0] > 1):
            return NULL
        self._bits |= <uint64_t>(p[0] & 0x7F) << self._shift
        self._shift += 7
        if p[0] >= 0x80:
            return p + 1
        if self._field != IN_TIMESTAMP and self._bits >> 32:
            return NULL
        taken = <int64_t>(self._bits >> 1) ^ -<int64_t>(self._bits & 1)
        self._bits, self._shift = 0, 0
        return p + 1 if self._take(taken) else NULL

    cdef bint _take(self, int64_t value) noexcept nogil:
        """Take the number of the present field, and go on to the next; false when it cannot be."""
        if self._field == IN_LENGTH:
            self._left = value
            self._field = IN_ATTRIBUTES
            return value >= 1
        if self._field == IN_TIMESTAMP:
            self._record.timestamp_delta = value
            self._field = IN_OFFSET
        elif self._field == IN_OFFSET:
            self._record.offset_delta = <int32_t>value
            self._field = IN_KEY
        elif self._field == IN_KEY:
            self._record.key_size = <int32_t>value
            self._field = IN_VALUE
            return self._pass_over(value)
        elif self._field == IN_VALUE:
            self._field = IN_HEADER_COUNT
            return self._pass_over(value)
        elif self._field == IN_HEADER_COUNT:
            # Every header takes at least two bytes: a hostile count costs no walk.
            if value < 0 or value > self._left // 2:
                return False
            self._headers_left = <int32_t>value
            self._field = IN_HEADER_KEY
            return value > 0 or self._end_record()
        elif self._field == IN_HEADER_KEY:
            self._field = IN_HEADER_VALUE
            return value >= 0 and self._pass_over(value)
        else:
            self._headers_left -= 1
            self._field = IN_HEADER_KEY if self._headers_left else IN_LENGTH
            if not self._pass_over(value):
                return False
            return self._headers_left > 0 or self._skip > 0 or self._end_record()
        return True

    cdef bint _pass_over(self, int64_t size) noexcept nogil:
        self._skip = size if size > 0 else 0
        return self._skip <= self._left

    cdef bint _end_record(self) noexcept nogil:
        """Count the record; false unless its fields fill its length."""
        if self._left:
            return False
        _add(&self._walk, &self._record)
        self._start_record()
        return True

    def finish(self):
        self._walk.whole = True
        if self._field != IN_LENGTH or self._shift or self._skip:
            raise UnreadableRecords(f"record {self._walk.parsed} of {self._count} is cut off")
        _check_walk(self._walk, self._count, self._last_offset_delta, self._dense)
        return _scan_of(self._walk, self._base_timestamp)

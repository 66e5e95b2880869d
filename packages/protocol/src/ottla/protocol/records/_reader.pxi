# Reading records.

cdef class RecordIterator


@cython.final
@cython.freelist(1024)
@cython.no_gc
cdef class Record:
    cdef readonly int64_t offset, timestamp_ms
    cdef const unsigned char* _key_data
    cdef const unsigned char* _value_data
    cdef const unsigned char* _header_data
    cdef int32_t _key_size, _value_size, _header_count
    cdef RecordIterator _owner   # keeps alive what the pointers point into; None when nothing is lazy
    cdef object _key, _value
    cdef tuple _headers

    def __init__(self, int64_t offset, int64_t timestamp_ms, bytes key=None, bytes value=None, headers=()):
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self._key_size = -1
        self._value_size = -1
        self._key = key
        self._value = value
        self._headers = tuple(headers)

    @property
    def key(self):
        return self._get_key()

    @property
    def value(self):
        return self._get_value()

    @property
    def headers(self):
        return self._get_headers()

    cdef inline object _get_key(self):
        if self._key is None and self._key_size >= 0:
            self._key = PyBytes_FromStringAndSize(<const char*>self._key_data, self._key_size)
        return self._key

    cdef inline object _get_value(self):
        if self._value is None and self._value_size >= 0:
            self._value = PyBytes_FromStringAndSize(<const char*>self._value_data, self._value_size)
        return self._value

    cdef inline tuple _get_headers(self):
        if self._headers is None:
            if self._header_count == 0:
                self._headers = _NO_HEADERS
            else:
                self._headers = _unpack_headers(self._header_data, self._owner._end, self._header_count)
        return self._headers

    cdef inline int _detach(self) except -1:
        """Make key, value and headers now, so that the batch's bytes can be freed."""
        self._get_key()
        self._get_value()
        self._get_headers()
        self._owner = None
        return 0

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self):
        return hash((self.offset, self.timestamp_ms))

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp_ms={self.timestamp_ms}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        return Record, (self.offset, self.timestamp_ms, self.key, self.value, self.headers)


cdef tuple _fields(Record record):
    return record.offset, record.timestamp_ms, record.key, record.value, record.headers


cdef tuple _unpack_headers(const unsigned char* p, const unsigned char* end, int32_t count):
    """The headers of a record that `parse_record` accepted: every length is known to fit."""
    cdef int32_t size = 0, i
    cdef list out = PyList_New(count)
    cdef object key, value
    for i in range(count):
        p = get_varint(p, end, &size)
        key = PyUnicode_DecodeUTF8(<char*>p, size, "surrogateescape")
        p = get_varint(p + size, end, &size)
        value = None
        if size >= 0:
            value = PyBytes_FromStringAndSize(<const char*>p, size)
            p += size
        item = (key, value)
        Py_INCREF(item)
        PyList_SET_ITEM(out, i, item)
    return tuple(out)


@cython.final
@cython.no_gc
cdef class RecordIterator:
    """The records of one v2 batch, in order."""

    cdef Py_buffer _view
    cdef bint _held
    cdef const unsigned char* _next
    cdef const unsigned char* _end
    cdef int64_t _base_offset, _base_timestamp, _log_append_time
    cdef bint _appended
    cdef int32_t _remaining
    cdef readonly BatchHeader header

    def __cinit__(self, batch, *, max_decompressed_bytes=_DEFAULT_MAX):
        cdef const unsigned char* p
        cdef Py_ssize_t size
        PyObject_GetBuffer(batch, &self._view, PyBUF_SIMPLE)
        self._held = True
        p = <const unsigned char*>self._view.buf
        size = _batch_at(p, self._view.len, 0)
        _check_counts(p, size, False)
        self.header = _header_at(p, 0)
        self._base_offset = self.header.base_offset
        self._base_timestamp = self.header.base_timestamp
        self._log_append_time = self.header.max_timestamp
        self._appended = (self.header.attributes & LOG_APPEND_TIME) != 0
        self._remaining = self.header.record_count
        self._next = p + HEADER_SIZE
        self._end = p + size
        if self.header.attributes & CODEC_MASK and self._remaining:
            size -= HEADER_SIZE
            self._open(_plain_body(self._next, size, self.header.attributes, max_decompressed_bytes))

    cdef int _open(self, bytearray plain) except -1:
        """Read from decompressed bytes instead of the batch."""
        PyBuffer_Release(&self._view)
        self._held = False
        PyObject_GetBuffer(plain, &self._view, PyBUF_SIMPLE)
        self._held = True
        self._next = <const unsigned char*>self._view.buf
        self._end = self._next + self._view.len
        if <int64_t>self._remaining * MIN_RECORD_SIZE > self._view.len:
            raise UnreadableRecords(f"{self._view.len} bytes cannot hold {self._remaining} records")
        return 0

    def __dealloc__(self):
        if self._held:
            PyBuffer_Release(&self._view)

    def __iter__(self):
        return self

    def __length_hint__(self):
        return self._remaining

    def __next__(self):
        if self._remaining == 0:
            self._finish()
            raise StopIteration
        return self._read()

    cdef int _finish(self) except -1:
        if self._next is not self._end and self.header.record_count:
            raise UnreadableRecords(f"bytes follow the last of {self.header.record_count} records")
        return 0

    cdef inline Record _read(self):
        cdef RawRecord r
        cdef Record record
        cdef const unsigned char* following = parse_record(self._next, self._end, &r)
        if following is NULL:
            count = self.header.record_count
            raise UnreadableRecords(f"record {count - self._remaining} of {count} is malformed")
        self._next = following
        self._remaining -= 1
        record = Record.__new__(Record)
        record.offset = self._base_offset + r.offset_delta
        record.timestamp_ms = self._log_append_time
        if not self._appended:
            record.timestamp_ms = self._base_timestamp + r.timestamp_delta
        record._key_data = r.key
        record._key_size = r.key_size
        record._value_data = r.value
        record._value_size = r.value_size
        record._header_data = r.headers
        record._header_count = r.header_count
        record._owner = self
        return record

    def read_all(self, *, bint detach=True):
        cdef Py_ssize_t i
        cdef Record record
        cdef list records = []
        while self._remaining:
            record = self._read()
            if detach:
                record._detach()
            records.append(record)
        self._finish()
        return records


def retain_records(batch, keep, *, max_decompressed_bytes=_DEFAULT_MAX):
    cdef RecordIterator records = RecordIterator(batch, max_decompressed_bytes=max_decompressed_bytes)
    cdef const unsigned char* start
    cdef Record record
    cdef int64_t newest = -1
    cdef list kept = []
    while records._remaining:
        start = records._next
        record = records._read()
        if keep(record):
            # deltas stay as they are: base offset and base timestamp do not change
            kept.append(PyBytes_FromStringAndSize(<const char*>start, records._next - start))
            newest = max(newest, record.timestamp_ms)
    records._finish()
    if len(kept) == records.header.record_count:
        return bytes(memoryview(batch)[:records.header.batch_length + ENTRY_OVERHEAD])
    return _retained(batch, records.header, kept, newest)


cdef bytearray _retained(batch, BatchHeader header, list kept, int64_t newest):
    cdef bytearray out = bytearray(memoryview(batch)[:HEADER_SIZE])
    cdef int16_t attributes = header.attributes
    cdef unsigned char* p
    if kept:
        out += _compress(_codec_of(attributes), b"".join(kept))
    else:
        attributes &= ~CODEC_MASK
        newest = header.max_timestamp
    p = <unsigned char*>PyByteArray_AS_STRING(out)
    put32(p + LENGTH_AT, <int32_t>(PyByteArray_GET_SIZE(out) - ENTRY_OVERHEAD))
    put16(p + ATTRIBUTES_AT, attributes)
    put64(p + MAX_TIMESTAMP_AT, newest)
    put32(p + RECORD_COUNT_AT, <int32_t>len(kept))
    seal(p, PyByteArray_GET_SIZE(out))
    return out

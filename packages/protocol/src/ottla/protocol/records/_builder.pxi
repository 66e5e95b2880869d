# Writing batches.

cdef struct Span:
    const unsigned char* data
    int64_t size                 # -1: null


cdef inline Py_ssize_t _span_size(Span* span) noexcept nogil:
    return varint_size(span.size) + (span.size if span.size > 0 else 0)


cdef inline unsigned char* _put_span(unsigned char* p, Span* span) noexcept nogil:
    p = put_varint(p, span.size)
    if span.size > 0:
        memcpy(p, span.data, span.size)
        p += span.size
    return p


cdef bytes _packed_headers(object headers):
    """The headers of one record as they stand in it, the count first."""
    cdef list parts = []
    cdef Py_ssize_t total, size
    cdef unsigned char* p
    cdef bytes out, part
    cdef int64_t signed_size
    for key, value in headers:
        parts.append(_header_key(key))
        parts.append(None if value is None else bytes(value))
    total = varint_size(len(parts) // 2)
    for part in parts:
        size = 0 if part is None else PyBytes_GET_SIZE(part)
        total += varint_size(-1 if part is None else size) + size
    out = PyBytes_FromStringAndSize(NULL, total)
    p = put_varint(<unsigned char*>PyBytes_AS_STRING(out), len(parts) // 2)
    for part in parts:
        if part is None:
            p = put_varint(p, -1)
            continue
        size = PyBytes_GET_SIZE(part)
        p = put_varint(p, size)
        memcpy(p, PyBytes_AS_STRING(part), size)
        p += size
    return out


cdef bytes _header_key(key):
    if not isinstance(key, str):
        raise TypeError(f"a header's key is a str, not {type(key).__name__}")
    return (<str>key).encode("utf-8", "surrogateescape")


@cython.final
@cython.no_gc
cdef class BatchBuilder:
    cdef bytes _owner            # the bytes object being filled, None once built
    cdef unsigned char* _buffer
    cdef Py_ssize_t _position, _capacity
    cdef readonly Py_ssize_t max_bytes
    cdef readonly int32_t record_count
    cdef readonly int64_t base_timestamp, max_timestamp
    cdef int64_t _last_offset_delta
    cdef readonly object codec
    cdef object _level

    def __init__(self, Py_ssize_t max_bytes=16384, *, codec=Codec.NONE, level=None):
        self.max_bytes = max_bytes
        self.codec = Codec(codec)
        self._level = level
        self._capacity = min(max(max_bytes, 256), 1 << 17)
        self._owner = PyBytes_FromStringAndSize(NULL, self._capacity)
        self._buffer = <unsigned char*>PyBytes_AS_STRING(self._owner)
        self._position = HEADER_SIZE
        self._last_offset_delta = -1
        self.base_timestamp = -1
        self.max_timestamp = -1

    @property
    def size_in_bytes(self):
        return self._position

    def __len__(self):
        return self.record_count

    def append(self, key, value, int64_t timestamp_ms, headers=None, *, offset_delta=None):
        cdef Py_buffer key_view, value_view
        cdef bint key_held = False, value_held = False
        cdef Span k, v, h
        cdef bytes packed
        cdef int64_t delta = self._last_offset_delta + 1
        k.size = -1
        v.size = -1
        h.size = 0
        if (
            (key is None or PyBytes_CheckExact(key)) and (value is None or PyBytes_CheckExact(value))
            and headers is None and offset_delta is None
        ):
            if key is not None:
                k.data = <const unsigned char*>PyBytes_AS_STRING(key)
                k.size = PyBytes_GET_SIZE(key)
            if value is not None:
                v.data = <const unsigned char*>PyBytes_AS_STRING(value)
                v.size = PyBytes_GET_SIZE(value)
            return self._put(&k, &v, &h, timestamp_ms, delta)
        if offset_delta is not None:
            if offset_delta < delta:
                raise ValueError(f"offset delta {offset_delta} does not follow {delta - 1}")
            delta = offset_delta
        if headers:
            packed = _packed_headers(headers)
            h.data = <const unsigned char*>PyBytes_AS_STRING(packed)
            h.size = PyBytes_GET_SIZE(packed)
        try:
            if key is not None:
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                key_held = True
                k.data = <const unsigned char*>key_view.buf
                k.size = key_view.len
            if value is not None:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                value_held = True
                v.data = <const unsigned char*>value_view.buf
                v.size = value_view.len
            return self._put(&k, &v, &h, timestamp_ms, delta)
        finally:
            if key_held:
                PyBuffer_Release(&key_view)
            if value_held:
                PyBuffer_Release(&value_view)

    def append_many(self, list values, int64_t timestamp_ms):
        cdef Py_ssize_t i
        cdef object value
        cdef Span k, v, h
        k.size = -1
        h.size = 0
        for i in range(len(values)):
            value = values[i]
            if not PyBytes_CheckExact(value):
                raise TypeError(f"append_many takes bytes, not {type(value).__name__}")
            v.data = <const unsigned char*>PyBytes_AS_STRING(value)
            v.size = PyBytes_GET_SIZE(value)
            if self._put(&k, &v, &h, timestamp_ms, self._last_offset_delta + 1) < 0:
                return i
        return len(values)

    cdef inline int64_t _put(
        self, Span* key, Span* value, Span* headers, int64_t timestamp, int64_t delta
    ) except -2:
        """The record's offset delta, -1 when it does not fit any more."""
        cdef Py_ssize_t body, needed
        cdef int64_t timestamp_delta
        cdef unsigned char* p
        if self._owner is None:
            raise ValueError("the batch is built, it takes no more records")
        # only the record after which the limit is reached may be larger than it: an oversized record still
        # travels
        timestamp_delta = timestamp - self.base_timestamp if self.record_count else 0
        body = (
            1 + varint_size(timestamp_delta) + varint_size(delta) + _span_size(key) + _span_size(value)
            + (headers.size if headers.size else 1)
        )
        needed = self._position + varint_size(body) + body
        if needed > self.max_bytes and self.record_count:
            return -1
        if needed > self._capacity:
            self._grow(needed)
        if delta > MAX_BATCH_SIZE:
            raise ValueError(f"offset delta {delta} does not fit in 32 bits")
        if self.record_count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        p = put_varint(self._buffer + self._position, body)
        p[0] = 0
        p = put_varint(p + 1, timestamp_delta)
        p = put_varint(p, delta)
        p = _put_span(p, key)
        p = _put_span(p, value)
        if headers.size:
            memcpy(p, headers.data, headers.size)
        else:
            p[0] = 0
        self._position = needed
        self.record_count += 1
        self._last_offset_delta = delta
        return delta

    cdef int _grow(self, Py_ssize_t needed) except -1:
        if needed > MAX_BATCH_SIZE:
            raise ValueError(f"a batch of {needed} bytes does not fit Kafka's 32-bit length")
        self._capacity = max(needed, min(2 * self._capacity, max(self.max_bytes, needed)))
        self._owner = self._resized(self._capacity)
        self._buffer = <unsigned char*>PyBytes_AS_STRING(self._owner)
        return 0

    cdef bytes _resized(self, Py_ssize_t size):
        """Take the buffer out and resize it, in place if the allocator can: nothing else refers to it."""
        cdef PyObject* owner
        cdef bytes out
        Py_INCREF(self._owner)
        owner = <PyObject*>self._owner
        self._owner = None
        self._buffer = NULL
        _PyBytes_Resize(&owner, size)
        out = <bytes>owner
        Py_XDECREF(owner)
        return out

    def build(
        self, *, int64_t base_offset=0, int32_t partition_leader_epoch=-1, int64_t producer_id=-1,
        int16_t producer_epoch=-1, int32_t base_sequence=-1, bint transactional=False, bint control=False,
        log_append_time_ms=None, last_offset_delta=None,
    ):
        cdef unsigned char* p
        cdef int attributes = (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
        cdef int64_t last = self._last_offset_delta
        cdef int64_t max_timestamp = self.max_timestamp
        cdef bytes out
        if self._owner is None:
            raise ValueError("the batch is built already")
        if last_offset_delta is not None:
            if last_offset_delta < last:
                raise ValueError(f"the last offset delta {last_offset_delta} is below a record's, {last}")
            last = last_offset_delta
        if last < 0:
            raise ValueError("a batch without records needs a last offset delta")
        if log_append_time_ms is not None:
            attributes |= LOG_APPEND_TIME
            max_timestamp = log_append_time_ms
        if self.codec != 0 and self.record_count:
            attributes |= <int>self.codec
            out = self._compressed()
        else:
            out = self._resized(self._position)
        p = <unsigned char*>PyBytes_AS_STRING(out)
        put64(p, base_offset)
        put32(p + LENGTH_AT, <int32_t>(PyBytes_GET_SIZE(out) - ENTRY_OVERHEAD))
        put32(p + LEADER_EPOCH_AT, partition_leader_epoch)
        p[MAGIC_AT] = 2
        put16(p + ATTRIBUTES_AT, <int16_t>attributes)
        put32(p + LAST_OFFSET_DELTA_AT, <int32_t>last)
        put64(p + BASE_TIMESTAMP_AT, self.base_timestamp)
        put64(p + MAX_TIMESTAMP_AT, max_timestamp)
        put64(p + PRODUCER_ID_AT, producer_id)
        put16(p + PRODUCER_EPOCH_AT, producer_epoch)
        put32(p + BASE_SEQUENCE_AT, base_sequence)
        put32(p + RECORD_COUNT_AT, self.record_count)
        seal(p, PyBytes_GET_SIZE(out))
        return out

    cdef bytes _compressed(self):
        cdef bytes out
        packed = _compress(self.codec, memoryview(self._owner)[HEADER_SIZE:self._position], level=self._level)
        cdef Py_buffer view
        PyObject_GetBuffer(packed, &view, PyBUF_SIMPLE)
        out = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + view.len)
        memcpy(PyBytes_AS_STRING(out) + HEADER_SIZE, view.buf, view.len)
        PyBuffer_Release(&view)
        self._owner = None
        self._buffer = NULL
        return out

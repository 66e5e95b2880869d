# Records: key, value and headers become Python objects on first access.

@cython.final
@cython.no_gc
cdef class PinnedBuffer:
    """A buffer that records point into; it stays alive and unchanged as long as this object."""

    cdef Py_buffer view
    cdef bint is_held

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.is_held = True

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.view)


@cython.final
@cython.no_gc
cdef class BatchFields:
    """The fields that all records of a batch share."""

    cdef object topic, topic_partition, timestamp_type
    cdef int32_t partition, leader_epoch


@cython.final
@cython.freelist(8192)
@cython.no_gc
cdef class ConsumerRecord:
    cdef readonly int64_t offset, timestamp_ms
    cdef const unsigned char* _key_data
    cdef const unsigned char* _value_data
    cdef const unsigned char* _header_data
    cdef readonly int32_t serialized_key_size, serialized_value_size
    cdef int32_t _header_count
    cdef bint _has_key, _has_value           # whether _key and _value are set
    cdef BatchFields _batch_fields
    cdef PinnedBuffer _buffer                # the pointers point into it; None when no pointer is needed
    cdef object _key, _value
    cdef tuple _headers

    def __init__(
        self,
        str topic not None,
        int32_t partition,
        int64_t offset,
        int64_t timestamp_ms=-1,
        key=None,
        value=None,
        headers=(),
        *,
        timestamp_type=TimestampType.CREATE_TIME,
        int32_t leader_epoch=-1,
        serialized_key_size=None,
        serialized_value_size=None,
    ):
        self._batch_fields = _make_batch_fields(
            TopicPartition(topic, partition), leader_epoch, timestamp_type
        )
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self._key = key
        self._value = value
        self._has_key = self._has_value = True
        self._headers = tuple(headers)
        self.serialized_key_size = _size(key, serialized_key_size)
        self.serialized_value_size = _size(value, serialized_value_size)

    @property
    def topic(self):
        return self._batch_fields.topic

    @property
    def partition(self):
        return self._batch_fields.partition

    @property
    def topic_partition(self):
        return self._batch_fields.topic_partition

    @property
    def leader_epoch(self):
        return self._batch_fields.leader_epoch

    @property
    def timestamp_type(self):
        return self._batch_fields.timestamp_type

    @property
    def timestamp(self):
        return self.timestamp_ms

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
        if not self._has_key:
            self._key = _bytes(self._key_data, self.serialized_key_size)
            self._has_key = True
            self._release_buffer()
        return self._key

    cdef inline object _get_value(self):
        if not self._has_value:
            self._value = _bytes(self._value_data, self.serialized_value_size)
            self._has_value = True
            self._release_buffer()
        return self._value

    cdef inline tuple _get_headers(self):
        if self._headers is None:
            self._headers = _unpack_headers(self._header_data, self._header_count)
            self._release_buffer()
        return self._headers

    cdef inline void _release_buffer(self):
        """Release the buffer once everything is decoded: a record must not keep a whole response alive."""
        if self._has_key and self._has_value and self._headers is not None:
            self._buffer = None

    @classmethod
    def __class_getitem__(cls, types):
        return _GenericAlias(cls, types)

    def __eq__(self, other):
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self):
        return hash((self._batch_fields.topic, self._batch_fields.partition, self.offset))

    def __repr__(self):
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={_brief(self.key)}, "
            f"value={_brief(self.value)}, headers={_brief(self.headers)})"
        )

    def _repr_html_(self):
        return _record_table(f"Record of {self.topic}", (self,)).html()

    def __copy__(self):
        return self

    def __reduce__(self):
        return _restored, (
            *_fields(self), int(self.timestamp_type), self.leader_epoch, self.serialized_key_size,
            self.serialized_value_size,
        )


def _restored(
    topic, partition, offset, timestamp_ms, key, value, headers, timestamp_type, leader_epoch, key_size,
    value_size,
):
    return ConsumerRecord(
        topic, partition, offset, timestamp_ms, key, value, headers,
        timestamp_type=_TIMESTAMP_TYPES[timestamp_type], leader_epoch=leader_epoch,
        serialized_key_size=key_size, serialized_value_size=value_size,
    )


cdef inline object _bytes(const unsigned char* data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


cdef int32_t _size(data, given) except -2:
    if given is not None:
        return given
    return len(data) if isinstance(data, (bytes, bytearray, memoryview)) else -1


cdef tuple _fields(ConsumerRecord record):
    return (
        record.topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value,
        record.headers,
    )


cdef BatchFields _make_batch_fields(topic_partition, int32_t leader_epoch, timestamp_type):
    cdef BatchFields fields = BatchFields.__new__(BatchFields)
    fields.topic, partition = topic_partition
    fields.partition = partition
    fields.topic_partition = topic_partition
    fields.leader_epoch = leader_epoch
    fields.timestamp_type = timestamp_type
    return fields


cdef inline ConsumerRecord _record_of(RawRecord* r, BatchFields batch, PinnedBuffer held):
    """Return a record that points into a buffer; its offset and timestamp are not set."""
    cdef ConsumerRecord record = ConsumerRecord.__new__(ConsumerRecord)
    record._key_data = r.key
    record.serialized_key_size = r.key_size if r.key_size >= 0 else -1
    record._value_data = r.value
    record.serialized_value_size = r.value_size if r.value_size >= 0 else -1
    record._has_key = r.key_size < 0
    record._has_value = r.value_size < 0
    record._header_data = r.headers
    record._header_count = r.header_count
    if r.header_count == 0:
        record._headers = _NO_HEADERS
    record._batch_fields = batch
    record._buffer = held
    return record


cdef tuple _unpack_headers(const unsigned char* p, int32_t count):
    """Decode the headers of a record; `parse_record` checked that every length fits."""
    # Beyond any length: `parse_record` checked that the lengths themselves end within the record.
    cdef const unsigned char* end = p + (<Py_ssize_t>1 << 31)
    cdef int32_t size = 0
    cdef list headers = []
    for _ in range(count):
        p = get_varint(p, end, &size)
        key = PyUnicode_DecodeUTF8(<char*>p, size, "surrogateescape")
        p = get_varint(p + size, end, &size)
        headers.append((key, _bytes(p, size)))
        if size > 0:
            p += size
    return tuple(headers)


cdef str _brief(value):
    """Return a `repr` that fits a line; of large bytes and strings only the start is formatted."""
    if isinstance(value, (bytes, str)) and len(value) > REPR_LIMIT:
        return f"{value[:REPR_LIMIT]!r}... ({len(value)} in all)"
    shown = repr(value)
    return shown if len(shown) <= 5 * REPR_LIMIT else shown[:5 * REPR_LIMIT] + "..."

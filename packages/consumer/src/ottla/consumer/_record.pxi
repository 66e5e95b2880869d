# Records: numbers at once, key, value and headers when they are asked for.

@cython.final
@cython.no_gc
cdef class Held:
    """Bytes that records point into, kept alive and unchanged."""

    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, data):
        PyObject_GetBuffer(data, &self.view, PyBUF_SIMPLE)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


@cython.final
@cython.no_gc
cdef class Origin:
    """What all records of a batch share."""

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
    cdef bint _has_key, _has_value           # whether _key and _value are made
    cdef Origin _origin
    cdef Held _held                          # what the pointers point into; None when all is made
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
        self._origin = _origin(TopicPartition(topic, partition), leader_epoch, timestamp_type)
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
        return self._origin.topic

    @property
    def partition(self):
        return self._origin.partition

    @property
    def topic_partition(self):
        return self._origin.topic_partition

    @property
    def leader_epoch(self):
        return self._origin.leader_epoch

    @property
    def timestamp_type(self):
        return self._origin.timestamp_type

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
            self._let_go()
        return self._key

    cdef inline object _get_value(self):
        if not self._has_value:
            self._value = _bytes(self._value_data, self.serialized_value_size)
            self._has_value = True
            self._let_go()
        return self._value

    cdef inline tuple _get_headers(self):
        if self._headers is None:
            self._headers = _unpack_headers(self._header_data, self._header_count)
            self._let_go()
        return self._headers

    cdef inline void _let_go(self):
        """A record that is kept for long must not keep all that was fetched with it."""
        if self._has_key and self._has_value and self._headers is not None:
            self._held = None

    def __eq__(self, other):
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return _fields(self) == _fields(other)

    def __hash__(self):
        return hash((self._origin.topic, self._origin.partition, self.offset))

    def __repr__(self):
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={_brief(self.key)}, "
            f"value={_brief(self.value)}, headers={_brief(self.headers)})"
        )

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


cdef int32_t _size(data, told) except -2:
    if told is not None:
        return told
    return len(data) if isinstance(data, (bytes, bytearray, memoryview)) else -1


cdef tuple _fields(ConsumerRecord record):
    return (
        record.topic, record.partition, record.offset, record.timestamp_ms, record.key, record.value,
        record.headers,
    )


cdef Origin _origin(topic_partition, int32_t leader_epoch, timestamp_type):
    cdef Origin origin = Origin.__new__(Origin)
    origin.topic, partition = topic_partition
    origin.partition = partition
    origin.topic_partition = topic_partition
    origin.leader_epoch = leader_epoch
    origin.timestamp_type = timestamp_type
    return origin


cdef inline ConsumerRecord _made(RawRecord* r, Origin batch, Held held):
    """A record but for its numbers, pointing into the bytes that are held."""
    cdef ConsumerRecord record = ConsumerRecord.__new__(ConsumerRecord)
    record._key_data = r.key
    record.serialized_key_size = r.key_size
    record._value_data = r.value
    record.serialized_value_size = r.value_size
    record._has_key = r.key_size < 0
    record._has_value = r.value_size < 0
    record._header_data = r.headers
    record._header_count = r.header_count
    if r.header_count == 0:
        record._headers = _NO_HEADERS
    record._origin = batch
    record._held = held
    return record


cdef tuple _unpack_headers(const unsigned char* p, int32_t count):
    """The headers of a record that `parse_record` accepted: every length is known to fit."""
    # Far enough for any length; the lengths themselves were seen to end in time.
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
    """What `repr` says, no longer than a line takes; a large value is not even looked at as a whole."""
    if isinstance(value, (bytes, str)) and len(value) > MOST_SHOWN:
        return f"{value[:MOST_SHOWN]!r}... ({len(value)} in all)"
    shown = repr(value)
    return shown if len(shown) <= 5 * MOST_SHOWN else shown[:5 * MOST_SHOWN] + "..."

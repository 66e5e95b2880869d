# The calls that append records, and `send` and `send_nowait` with their fast path.

cdef inline bint _is_plain(value):
    return value is None or PyBytes_CheckExact(value) or PyUnicode_CheckExact(value)


cdef inline object _as_bytes(value):
    if value is None or PyBytes_CheckExact(value):
        return value
    return PyUnicode_AsUTF8String(value)


cpdef int64_t whole_ms(given) except -1:
    """Return a timestamp as an integer. Raises TypeError for other types, ValueError out of range."""
    cdef int64_t stamp
    try:
        stamp = PyNumber_Index(given)
    except TypeError:
        raise TypeError(
            f"a timestamp is a whole number of milliseconds since 1970, not {given!r}; "
            "of a datetime: int(when.timestamp() * 1000)"
        ) from None
    except OverflowError:
        raise ValueError(f"{given!r} is too large for a timestamp in milliseconds") from None
    if stamp < 0:
        raise ValueError(f"a timestamp counts milliseconds since 1970: it cannot be {stamp}; None stands for now")
    return stamp


@cython.final
cdef class RecordColumns:
    """The records of one `send_many`: lists of values, keys and timestamps, all as long, and what they share.

    Serializers return bytes or None. Where `takes_bytes_keys` or `takes_bytes_values` holds, keys or values that
    are exactly bytes pass without a call of the serializer.
    """

    cdef list _values, _keys, _timestamps
    cdef object _partition, _serialize_key, _serialize_value
    cdef bint _takes_bytes_keys, _takes_bytes_values
    cdef bytes _headers
    cdef readonly Py_ssize_t count

    def __init__(
        self, list values not None, list keys, list timestamps, partition, bytes headers, *, serialize_key,
        serialize_value, bint takes_bytes_keys, bint takes_bytes_values,
    ):
        self._values, self._keys, self._timestamps = values, keys, timestamps
        self.count = len(values)
        for column in (keys, timestamps):
            if column is not None and len(column) != self.count:
                raise ValueError(f"a column has {len(column)} entries for {self.count} values")
        self._partition, self._headers = partition, headers
        self._serialize_key, self._serialize_value = serialize_key, serialize_value
        self._takes_bytes_keys, self._takes_bytes_values = takes_bytes_keys, takes_bytes_values


@cython.final
cdef class Appender:
    """Appends records to the accumulator's batches: one, many, or the rows of Arrow columns. Never waits.

    `fast_path` says whether `send` may append a record at once. `RecordAdmission` writes it.
    """

    cdef readonly Accumulator accumulator
    cdef public bint fast_path
    cdef Py_ssize_t _next_pause          # size of the accumulator in bytes that ends the fast path
    cdef str _last_topic                 # most programs send to one topic for a while
    cdef TopicInfo _last_info

    def __init__(self, Accumulator accumulator not None):
        self.accumulator = accumulator

    cdef inline TopicInfo _topic_info(self, str topic):
        """Return the TopicInfo, or None. It is updated in place, never replaced, so the last one may be cached."""
        cdef PyObject* found
        if topic is self._last_topic:
            return self._last_info
        found = PyDict_GetItem(self.accumulator.topics, topic)
        if found is NULL:
            return None
        self._last_topic, self._last_info = topic, <TopicInfo>found
        return self._last_info

    def forget_idle(self, double since_ms):
        """Drop the topics without a record since then; return their names."""
        self._last_topic = self._last_info = None
        return self.accumulator.forget_idle(since_ms)

    def is_pause_due(self):
        """Whether a loop of sends has run for long enough without a pause."""
        return self._is_pause_due()

    cdef inline bint _is_pause_due(self) noexcept:
        return self.accumulator.size_bytes >= self._next_pause or self.accumulator._has_too_many()

    def pause_later(self):
        """Allow the fast path for a number of bytes more: a loop of sends must let other tasks run."""
        cdef Py_ssize_t bytes_until_pause = BYTES_PER_PAUSE if self.fast_path else BYTES_PER_PAUSE // 8
        self._next_pause = min(self.accumulator.size_bytes + bytes_until_pause, self.accumulator.buffer_memory)

    cdef inline object _append_bytes(self, TopicInfo info, value, key):
        cdef Accumulator accumulator = self.accumulator
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value), key_size = -1
        cdef const unsigned char* key_data = NULL
        cdef int64_t now = accumulator._now()
        cdef int32_t index = 0
        cdef Batch batch
        cdef Acknowledgement one
        if key is not None:
            key_data = <const unsigned char*>PyBytes_AS_STRING(key)
            key_size = PyBytes_GET_SIZE(key)
        if size + key_size + RECORD_OVERHEAD > accumulator.max_record_size:
            raise RecordTooLarge(size + key_size + RECORD_OVERHEAD, accumulator.max_record_size)
        if key is None:
            batch = accumulator._append_keyless(
                info, <const unsigned char*>PyBytes_AS_STRING(value), size, NULL, 0, now, &index
            )
        else:
            batch = accumulator._put_by_key(
                info, key_data, key_size, <const unsigned char*>PyBytes_AS_STRING(value), size, NULL, 0, now, &index
            )
        one = Acknowledgement.__new__(Acknowledgement)
        one._batch, one._index, one._timestamp = batch, index, now
        return one

    cdef object _append_plain(self, TopicInfo info, value, key, partition, timestamp_ms, headers):
        """Append a record of bytes, text or None. Returns None for one that the general path must take.

        That is text that it must reject, and a partition that it must wait for.
        """
        cdef Py_ssize_t size
        cdef bytes packed = None if headers is None else packed_headers(headers)
        if partition is not None and not info._has(partition):
            return None
        try:
            key = _as_bytes(key)
            value = _as_bytes(value)
        except UnicodeEncodeError:
            return None
        size = RECORD_OVERHEAD if packed is None else RECORD_OVERHEAD + PyBytes_GET_SIZE(packed)
        size += 0 if key is None else PyBytes_GET_SIZE(key)
        size += 0 if value is None else PyBytes_GET_SIZE(value)
        if size > self.accumulator.max_record_size:
            raise RecordTooLarge(size, self.accumulator.max_record_size)
        return self.append(info, key, value, partition, timestamp_ms, packed)

    def append(
        self, TopicInfo info, bytes key, bytes value, partition, timestamp_ms, bytes headers,
        bint is_placed_by_count=False,
    ):
        """Append one serialized record; `partition` None leaves the choice to key or topic.

        `is_placed_by_count`: a partitioner chose the partition by the number of them.
        """
        cdef Accumulator accumulator = self.accumulator
        cdef int64_t stamp = accumulator._now() if timestamp_ms is None else whole_ms(timestamp_ms)
        cdef int32_t index = 0
        cdef Batch batch
        cdef Acknowledgement one
        cdef Py_ssize_t key_size = -1 if key is None else PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
        cdef Py_ssize_t headers_size = 0 if headers is None else PyBytes_GET_SIZE(headers)
        cdef const unsigned char* k = NULL if key is None else <const unsigned char*>PyBytes_AS_STRING(key)
        cdef const unsigned char* v = NULL if value is None else <const unsigned char*>PyBytes_AS_STRING(value)
        cdef const unsigned char* h = NULL if headers is None else <const unsigned char*>PyBytes_AS_STRING(headers)
        if partition is not None:
            batch = accumulator._put(
                info._queue(partition), k, key_size, v, value_size, h, headers_size, stamp, &index
            )
            batch._is_placed_by_count |= is_placed_by_count
        elif key is None:
            batch = accumulator._append_keyless(info, v, value_size, h, headers_size, stamp, &index)
        else:
            batch = accumulator._put_by_key(info, k, key_size, v, value_size, h, headers_size, stamp, &index)
        one = Acknowledgement.__new__(Acknowledgement)
        one._batch, one._index, one._timestamp = batch, index, stamp
        return one

    def append_many(
        self, TopicInfo info, RecordColumns records not None, Py_ssize_t start, Py_ssize_t max_count,
        Acknowledgements out not None,
    ):
        """Append records from `start` on until the buffer is full; return the index of the first one left."""
        cdef Accumulator accumulator = self.accumulator
        cdef Queue queue = None if records._partition is None else info._queue(records._partition)
        cdef list values = records._values, keys = records._keys
        cdef bytes headers = records._headers
        cdef Py_ssize_t i, count = min(PyList_GET_SIZE(values), start + max_count), value_size, key_size = -1
        cdef Py_ssize_t headers_size = 0 if headers is None else PyBytes_GET_SIZE(headers)
        cdef const unsigned char* h = NULL if headers is None else <const unsigned char*>PyBytes_AS_STRING(headers)
        cdef const unsigned char* k = NULL
        cdef const unsigned char* v
        cdef int64_t stamp = accumulator._now()
        cdef int32_t index = 0
        cdef object value, key = None
        cdef Batch batch
        for i in range(start, count):
            if accumulator._is_full():
                return i
            value = <object>PyList_GET_ITEM(values, i)
            if not (records._takes_bytes_values and PyBytes_CheckExact(value)) and value is not None:
                value = records._serialize_value(value)
            if value is None:
                v, value_size = NULL, -1
            else:
                v, value_size = <const unsigned char*>PyBytes_AS_STRING(<bytes?>value), PyBytes_GET_SIZE(value)
            if keys is not None:
                key = <object>PyList_GET_ITEM(keys, i)
                if not (records._takes_bytes_keys and PyBytes_CheckExact(key)) and key is not None:
                    key = records._serialize_key(key)
                if key is None:
                    k, key_size = NULL, -1
                else:
                    k, key_size = <const unsigned char*>PyBytes_AS_STRING(<bytes?>key), PyBytes_GET_SIZE(key)
            if value_size + key_size + headers_size + RECORD_OVERHEAD > accumulator.max_record_size:
                raise RecordTooLarge(value_size + key_size + headers_size + RECORD_OVERHEAD, accumulator.max_record_size)
            if records._timestamps is not None:
                stamp = whole_ms(<object>PyList_GET_ITEM(records._timestamps, i))
            if queue is not None:
                batch = accumulator._put(queue, k, key_size, v, value_size, h, headers_size, stamp, &index)
            elif key_size < 0:
                batch = accumulator._append_keyless(info, v, value_size, h, headers_size, stamp, &index)
            else:
                batch = accumulator._put_by_key(info, k, key_size, v, value_size, h, headers_size, stamp, &index)
            out._add(batch, index, stamp)
        return count

    def append_batch(self, BatchBuilder builder not None, TopicInfo info, int64_t partition):
        """Append a batch that the application filled; return the acknowledgement of its first record."""
        cdef Acknowledgement one = Acknowledgement.__new__(Acknowledgement)
        cdef Batch batch
        info._queue(partition)  # raises for an unknown partition while the builder still owns its batch
        batch = builder._release_batch()
        self.accumulator.add(batch, info, partition)
        one._batch, one._timestamp = batch, batch.base_timestamp
        return one

    def append_rows(
        self, TopicInfo info, ArrowRows rows, int64_t start, int64_t max_count, Acknowledgements out, choose=None
    ):
        """Append rows from `start` on until the buffer is full; return the number of the first one left.

        `choose(key)` returns the partition of a row that names none. Raises NoSuchPartition if the first row names a
        partition that the topic does not have; before a later one it returns.
        """
        cdef Accumulator accumulator = self.accumulator
        cdef int64_t row, stop = min(rows.count, start + max_count), key_size = -1, value_size = -1, named
        cdef int64_t now = accumulator._now(), stamp = now
        cdef const unsigned char* key = NULL
        cdef const unsigned char* value
        cdef const unsigned char* headers
        cdef Py_ssize_t headers_size, size
        cdef int32_t index = 0
        cdef Queue queue
        cdef Batch batch
        for row in range(start, stop):
            if accumulator._is_full():
                return row
            value = bytes_at(&rows._values, row, &value_size)
            if rows._has_keys:
                key = bytes_at(&rows._keys, row, &key_size)
            headers_size = rows._headers_of(row)
            headers = <const unsigned char*>PyByteArray_AS_STRING(rows._packed)
            if rows._has_times:
                stamp = rows._time_of(row, now)
            size = value_size + key_size + headers_size + RECORD_OVERHEAD
            if size > accumulator.max_record_size:
                raise RecordTooLarge(size, accumulator.max_record_size)
            queue = None
            if rows._has_partitions and is_valid(rows._partitions.validity, row + rows._partitions.offset):
                named = number_at(&rows._partitions, row)
                if row > start and not info._has(named):
                    return row  # the rows before it are in batches: an error would lose their number
                queue = info._queue(named)
            elif choose is not None:
                queue = info._queue(choose(None if key_size < 0 else PyBytes_FromStringAndSize(<char*>key, key_size)))
            if queue is not None:
                batch = accumulator._put(queue, key, key_size, value, value_size, headers, headers_size, stamp, &index)
                batch._is_placed_by_count |= choose is not None
            elif key_size < 0:
                batch = accumulator._append_keyless(info, value, value_size, headers, headers_size, stamp, &index)
            else:
                batch = accumulator._put_by_key(
                    info, key, key_size, value, value_size, headers, headers_size, stamp, &index
                )
            out._add(batch, index, stamp)
        return stop


cdef class SendMethods:
    """`send` and `send_nowait`, compiled: the one base class of `Producer`.

    The producer owns an Appender and a general path, and gives both to this class. A record takes the fast path
    when there is buffer space, its topic is known, its key and value are bytes, text or None, and no setting needs
    to see single records. Every other record takes the general path: an object with `send` and `send_nowait`.

    It is a base class, not a part, because a method that passes the call on costs one Python call per record.
    """

    cdef Appender _appender
    cdef object _general_path

    def __init__(self, Appender appender not None, general_path not None):
        self._appender = appender
        self._general_path = general_path

    @classmethod
    def __class_getitem__(cls, types):
        return _GenericAlias(cls, types)

    async def send(self, str topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None):
        """Append a record; return its Acknowledgement. Waits up to `max_block_ms` while the buffer is full.

        `await` the acknowledgement for the record's RecordMetadata, or for the error that kept it from being
        written. Raises RecordTooLarge, SerializationFailed, BufferFull, ProducerClosed, and the errors of a
        metadata request; then the record is in no batch.
        """
        cdef Appender appender = self._appender
        cdef TopicInfo info
        if appender is not None and appender.fast_path and not appender._is_pause_due():
            info = appender._topic_info(topic)
            if info is not None:
                if (
                    partition is None and headers is None and timestamp_ms is None
                    and PyBytes_CheckExact(value) and (key is None or PyBytes_CheckExact(key))
                ):
                    return appender._append_bytes(info, value, key)
                if _is_plain(value) and _is_plain(key):
                    sent = appender._append_plain(info, value, key, partition, timestamp_ms, headers)
                    if sent is not None:
                        return sent
        return await self._general_path.send(topic, value, key, partition, timestamp_ms, headers)

    def send_nowait(self, str topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None):
        """Append a record without waiting; return its Acknowledgement.

        Records of an unknown topic wait for its metadata. Raises BufferFull and SerializerUnprepared where `send` waits.
        """
        cdef Appender appender = self._appender
        cdef TopicInfo info
        if appender is not None and appender.fast_path and not appender.accumulator._is_full():
            info = appender._topic_info(topic)
            if info is not None:
                if (
                    partition is None and headers is None and timestamp_ms is None
                    and PyBytes_CheckExact(value) and (key is None or PyBytes_CheckExact(key))
                ):
                    return appender._append_bytes(info, value, key)
                if _is_plain(value) and _is_plain(key):
                    sent = appender._append_plain(info, value, key, partition, timestamp_ms, headers)
                    if sent is not None:
                        return sent
        return self._general_path.send_nowait(topic, value, key, partition, timestamp_ms, headers)


def pending_batch(loop):
    """Return a batch for the acknowledgements of records whose topic has no metadata yet."""
    return Batch(None, 0, 0.0, loop)


def pending_acknowledgement(Batch batch):
    """Return the acknowledgement of a record that is not in any batch yet."""
    cdef Acknowledgement one = Acknowledgement.__new__(Acknowledgement)
    one._batch = batch
    batch.record_count += 1
    return one


def resolve(Acknowledgement pending, Acknowledgement appended):
    """Point a pending acknowledgement to the batch its record was appended to."""
    pending._batch, pending._index, pending._timestamp = appended._batch, appended._index, appended._timestamp


def resolve_all(Batch batch):
    """Wake the waiters of a pending batch: its records are in batches now, or failed with it."""
    callbacks, batch._callbacks = batch._callbacks, None
    for function, waiting in callbacks or ():
        waiting.add_done_callback(function)
    batch._error_retrieved = True
    batch._wake()

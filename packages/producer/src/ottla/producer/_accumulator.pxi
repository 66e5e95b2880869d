# The batches of all partitions, and which of them are due. Time is an argument; no method waits.

cdef class Accumulator:
    """Batches by partition. The application appends records; the sender drains due batches.

    `monotonic_ms` and `chance` are called about once per batch; `wake` is called when a batch is created.
    `wall_ms` returns the timestamp of a record; without it the system's clock does. A limit of 0 records, of all batches
    (`max_records`) or of one, stands for none.
    """

    cdef readonly Py_ssize_t batch_size, buffer_memory, max_record_size, size_bytes
    cdef readonly Py_ssize_t record_count, max_records
    cdef int32_t _last_index             # of a record in a batch
    cdef readonly double linger_ms
    cdef object monotonic_ms, chance, wall_ms
    cdef public object wake, loop
    cdef readonly dict topics            # TopicInfo by name
    cdef readonly int64_t batches_begun
    cdef dict _active                    # queues that hold batches, as keys, in order
    cdef object _forgotten               # idle topics by name, while a waiting call holds them
    cdef bint _flushing

    def __init__(
        self, *, Py_ssize_t batch_size, double linger_ms, Py_ssize_t buffer_memory, Py_ssize_t max_record_size,
        monotonic_ms, chance=_system_chance, wall_ms=None, Py_ssize_t max_records=0, int32_t max_batch_records=0,
    ):
        self.batch_size = min(batch_size, max_record_size)
        self.linger_ms, self.buffer_memory, self.max_record_size = linger_ms, buffer_memory, max_record_size
        self.monotonic_ms, self.chance, self.wall_ms = monotonic_ms, chance, wall_ms
        self.max_records = max_records or PY_SSIZE_T_MAX
        self._last_index = (max_batch_records or INT32_MAX) - 1
        self.topics, self._active = {}, {}
        self._forgotten = weakref.WeakValueDictionary()

    @property
    def is_empty(self):
        """Whether every batch was acknowledged or failed."""
        return not self._active

    @property
    def is_full(self):
        """Whether `send` must wait for buffer space."""
        return self._is_full()

    cdef inline bint _is_full(self) noexcept:
        return self.size_bytes >= self.buffer_memory or self._has_too_many()

    cdef inline bint _has_too_many(self) noexcept:
        return self.record_count >= self.max_records

    def update_topic(self, str topic, int32_t count, list available):
        """Set the partitions of a topic; return its TopicInfo."""
        cdef TopicInfo found = self._topic_info(topic)
        found.update(count, available)
        self.topics[topic] = found
        return found

    def recreate_topic(self, str topic, int32_t count, list available):
        """Set the partitions of a topic that was created again; return the batches without a place in it.

        Those are the batches of partitions that it does not have, and, where the number of partitions changed, the
        batches of records whose partitions were chosen by that number.
        """
        cdef TopicInfo found = self._topic_info(topic)
        cdef int32_t count_before = found.count
        cdef Batch batch
        found.update(count, available, True)
        self.topics[topic] = found
        if count == count_before:
            return []
        return [
            batch for batch in self.incomplete_batches()
            if batch.queue.topic == topic and (batch.queue.index >= count or batch._is_placed_by_count)
        ]

    cdef TopicInfo _topic_info(self, str topic):
        """Return the TopicInfo of a topic: the known one, the forgotten one, or a new one."""
        cdef TopicInfo found = self.topics.get(topic)
        if found is None:
            # A call that waits with a forgotten TopicInfo appends to it: a partition must not have two queues.
            found = self._forgotten.pop(topic, None)
            if found is None:
                found = TopicInfo(self, topic)
            else:
                found._in_use_since_ms = self.monotonic_ms()
        return found

    def forget_idle(self, double since_ms):
        """Drop the topics without a record since then; return their names."""
        cdef list topics = [topic for topic, info in self.topics.items() if (<TopicInfo>info)._is_idle(since_ms)]
        for topic in topics:
            self._forgotten[topic] = self.topics.pop(topic)
        return topics

    cdef inline int64_t _now(self) except? -1:
        return ottla_wall_ms() if self.wall_ms is None else <int64_t>self.wall_ms()

    cdef Batch _begin(self, Queue queue, Py_ssize_t first_size):
        """Create a batch with memory for its first record: no batch may stay empty."""
        cdef Batch batch = Batch(queue, self.batch_size, self.monotonic_ms(), self.loop)
        batch._begin(max(queue._initial_capacity, HEADER_SIZE + RECORD_OVERHEAD + first_size))
        queue._last_batch_ms = batch.created_ms
        queue._open = batch
        queue.batches.append(batch)
        self._active[queue] = None
        self.size_bytes += HEADER_SIZE
        self.batches_begun += 1
        if self.wake is not None:
            self.wake()
        return batch

    cdef inline Batch _put(
        self, Queue queue, const unsigned char* key, Py_ssize_t key_size, const unsigned char* value,
        Py_ssize_t value_size, const unsigned char* headers, Py_ssize_t headers_size, int64_t timestamp,
        int32_t* index,
    ):
        """Append a record to the open batch of a queue. The caller checked the sizes."""
        cdef Batch batch = queue._open
        cdef Py_ssize_t before
        if batch is None:
            batch = self._begin(queue, key_size + value_size + headers_size)
        before = batch._position
        index[0] = <int32_t>batch._put(key, key_size, value, value_size, headers, headers_size, timestamp)
        if index[0] < 0:
            self._close(batch)
            batch = self._begin(queue, key_size + value_size + headers_size)
            before = batch._position
            index[0] = <int32_t>batch._put(key, key_size, value, value_size, headers, headers_size, timestamp)
        self.size_bytes += batch._position - before
        self.record_count += 1
        if index[0] >= self._last_index:
            self._close_full(batch)
        return batch

    cdef object _close_full(self, Batch batch):
        self._close(batch)
        if self.wake is not None:
            self.wake()

    cdef inline Batch _put_by_key(
        self, TopicInfo info, const unsigned char* key, Py_ssize_t key_size, const unsigned char* value,
        Py_ssize_t value_size, const unsigned char* headers, Py_ssize_t headers_size, int64_t timestamp, int32_t* index,
    ):
        """Append a record to the partition of its key, which depends on the number of partitions."""
        cdef Batch batch = self._put(
            info._by_key(key, key_size), key, key_size, value, value_size, headers, headers_size, timestamp, index
        )
        batch._is_placed_by_count = True
        return batch

    cdef inline Batch _append_keyless(
        self, TopicInfo info, const unsigned char* value, Py_ssize_t value_size, const unsigned char* headers,
        Py_ssize_t headers_size, int64_t timestamp, int32_t* index,
    ):
        """Append a record without a key to the topic's sticky partition."""
        cdef Py_ssize_t before = self.size_bytes
        cdef Batch batch
        if info._sticky_bytes_left <= 0:
            info._switch_sticky()
        batch = self._put(info._sticky, NULL, -1, value, value_size, headers, headers_size, timestamp, index)
        info._sticky_bytes_left -= self.size_bytes - before
        return batch

    cdef object _close(self, Batch batch):
        batch.closed = True
        if batch.queue._open is batch:
            batch.queue._open = None
            batch.queue._initial_capacity = min(batch._position, self.batch_size)

    def add(self, Batch batch, TopicInfo info, int64_t partition):
        """Add a batch that the application filled."""
        cdef Queue queue = info._queue(partition)
        if queue._open is not None:
            self._close(queue._open)
        batch.queue, batch.closed, batch.created_ms, batch._loop = queue, True, self.monotonic_ms(), self.loop
        queue._last_batch_ms = batch.created_ms
        queue.batches.append(batch)
        self._active[queue] = None
        self.size_bytes += batch._position
        self.record_count += batch.record_count
        if self.wake is not None:
            self.wake()

    # --- for the sender

    def ready(self, double now_ms, int max_in_flight):
        """Return the batches that are due, at most one per partition, and when the next one is (ms).

        The time is None if no batch becomes due before something changes.
        """
        cdef Queue queue
        cdef Batch batch
        cdef double at_ms, next_ms = -1
        cdef list due = []
        for queue in self._active:
            batch = queue._next(max_in_flight)
            if batch is None:
                continue
            at_ms = self._due_ms(queue, batch)
            if at_ms <= now_ms:
                due.append(batch)
            elif next_ms < 0 or at_ms < next_ms:
                next_ms = at_ms
        return due, None if next_ms < 0 else next_ms

    cdef double _due_ms(self, Queue queue, Batch batch):
        cdef bint full = batch.closed or self._flushing or batch._position >= self.batch_size or self._is_full()
        return max(batch.not_before_ms, batch.created_ms if full else batch.created_ms + self.linger_ms)

    def close(self, Batch batch):
        """Close a batch for appends."""
        self._close(batch)

    def drain(self, Batch batch):
        """Close a batch and mark it as in flight."""
        self._close(batch)
        batch.in_flight = True
        batch.queue.in_flight += 1
        # The next `ready` begins with the other partitions: full requests must not starve any of them.
        self._active.pop(batch.queue, None)
        self._active[batch.queue] = None

    def reenqueue(self, Batch batch, double not_before_ms):
        """Make a batch due again at `not_before_ms`; it keeps its position in the queue."""
        batch.attempts += 1
        batch.not_before_ms = not_before_ms
        self._end_flight(batch)

    cdef object _end_flight(self, Batch batch):
        if batch.in_flight:
            batch.in_flight = False
            batch.queue.in_flight -= 1

    def finish(self, Batch batch):
        """Remove a batch that was acknowledged or failed, and release its buffer space."""
        cdef Queue queue = batch.queue
        self._close(batch)
        self._end_flight(batch)
        try:
            queue.batches.remove(batch)
        except ValueError:
            return  # it failed earlier, and this is a late response
        self.size_bytes -= batch._position
        self.record_count -= batch.record_count
        if not queue.batches:
            self._active.pop(queue, None)

    def halves(self, Batch batch, codec, level):
        """Return the records of a batch as two packed batches. Slow, and safe on another thread.

        Returns an empty list for a batch of one record, which cannot be split, and for one that is done.
        """
        cdef bytes data = batch.data
        cdef list parts
        if batch.record_count < 2 or data is None:
            return []
        parts = self._halves(batch, data)
        for part in parts:
            (<Batch>part).pack(codec, level)
        return parts

    def split(self, Batch batch, list parts not None):
        """Replace a batch that a broker rejected as too large by its halves."""
        cdef Queue queue = batch.queue
        cdef Py_ssize_t position
        self._end_flight(batch)
        position = queue.batches.index(batch)
        queue.batches.remove(batch)
        for part in reversed(parts):
            queue.batches.insert(position, part)
            self.size_bytes += (<Batch>part)._position
        self.size_bytes -= batch._position
        batch.split_into(parts)

    cdef list _halves(self, Batch batch, bytes data):
        cdef list parts = [], records = _decode_records(data)
        cdef Batch part
        cdef Py_ssize_t half = (len(records) + 1) // 2
        for half_of_records in (records[:half], records[half:]):
            part = Batch(batch.queue, MAX_BATCH_SIZE, batch.created_ms, self.loop)
            part._begin(0)
            part.closed = True
            part.attempts = batch.attempts
            part._is_placed_by_count = batch._is_placed_by_count
            for record in half_of_records:
                _put_record(part, record.key, record.value, packed_headers(record.headers), record.timestamp_ms)
            parts.append(part)
        return parts

    def expired(self, double now_ms, double timeout_ms, bint in_flight=True):
        """Return the batches older than `timeout_ms`, oldest first; `in_flight` includes those in flight."""
        cdef Batch batch
        cdef list found = []
        for queue in self._active:
            for batch in (<Queue>queue).batches:
                if (in_flight or not batch.in_flight) and now_ms - batch.created_ms >= timeout_ms:
                    found.append(batch)
        return found

    def flush(self, bint flushing):
        """While flushing, a batch is due without linger."""
        self._flushing = flushing
        if flushing and self.wake is not None:
            self.wake()

    def incomplete_batches(self):
        """Return all batches that are neither acknowledged nor failed, those in flight too."""
        return [batch for queue in self._active for batch in (<Queue>queue).batches]

    def close_open_batches(self):
        """Close all batches for appends; later records are appended to new ones."""
        for batch in self.incomplete_batches():
            self._close(<Batch>batch)


cdef int64_t _put_record(Batch batch, key, value, bytes headers, int64_t timestamp) except -2:
    return batch._put(
        NULL if key is None else <const unsigned char*>PyBytes_AS_STRING(key),
        -1 if key is None else PyBytes_GET_SIZE(key),
        NULL if value is None else <const unsigned char*>PyBytes_AS_STRING(value),
        -1 if value is None else PyBytes_GET_SIZE(value),
        NULL if headers is None else <const unsigned char*>PyBytes_AS_STRING(headers),
        0 if headers is None else PyBytes_GET_SIZE(headers), timestamp,
    )


def packed_headers(headers):
    """Return the headers of one record as encoded in it, the count first; None for no headers."""
    cdef list parts = []
    cdef Py_ssize_t total, size
    cdef unsigned char* p
    cdef bytes out, part
    if isinstance(headers, dict):
        headers = headers.items()
    for key, value in headers or ():
        if not isinstance(key, str):
            raise TypeError(f"a header's key is a str, not {type(key).__name__}")
        parts.append((<str>key).encode("utf-8", "surrogateescape"))
        parts.append(None if value is None else _header_value(value))
    if not parts:
        return None
    total = varint_size(len(parts) // 2)
    for part in parts:
        size = 0 if part is None else PyBytes_GET_SIZE(part)
        total += varint_size(-1 if part is None else size) + size
    out = PyBytes_FromStringAndSize(NULL, total)
    p = put_varint(<unsigned char*>PyBytes_AS_STRING(out), len(parts) // 2)
    for part in parts:
        size = -1 if part is None else PyBytes_GET_SIZE(part)
        p = put_varint(p, size)
        if size > 0:
            memcpy(p, PyBytes_AS_STRING(part), size)
            p += size
    return out


cdef bytes _header_value(value):
    if isinstance(value, str):
        return (<str>value).encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a header's value is bytes, str or None, not {type(value).__name__}")


@cython.final
cdef class BatchBuilder:
    """A batch that the application fills: `create_batch` returns it, `send_batch` sends it."""

    cdef Batch _batch
    cdef bint _closed, _is_sent
    cdef int32_t _max_records

    def __cinit__(self, Py_ssize_t limit, int32_t max_records=0):
        self._batch = Batch(None, limit, 0.0, None)
        self._max_records = max_records or INT32_MAX
        self._batch._begin(0)

    def append(self, *, value=None, key=None, timestamp=None, headers=None):
        """Append a record of bytes; return a BatchedRecord, or None when the batch is full."""
        cdef int64_t index
        for data in (key, value):
            if data is not None and not PyBytes_CheckExact(data):
                raise TypeError(f"a batch takes bytes, not {type(data).__name__}: serialize before")
        if self._closed or self._batch.record_count >= self._max_records:
            return None
        stamp = ottla_wall_ms() if timestamp is None else whole_ms(timestamp)
        index = _put_record(self._batch, key, value, packed_headers(headers), stamp)
        return None if index < 0 else BatchedRecord(index, self._batch._position, stamp)

    def record_count(self):
        """Return the number of records."""
        return self._batch.record_count

    def size(self):
        """Return the size in bytes, before compression."""
        return self._batch._position

    def close(self):
        """Close the batch for appends."""
        self._closed = True

    def _release_batch(self):
        """Return the batch, once: the accumulator owns it from now on."""
        if self._is_sent:
            raise ValueError("the batch was sent already")
        self._is_sent = self._closed = True
        return self._batch


class BatchedRecord:
    """The position of a record in its batch."""

    __slots__ = ("offset", "size", "timestamp")

    def __init__(self, offset, size, timestamp):
        self.offset, self.size, self.timestamp = offset, size, timestamp

# Batches of all partitions, and which of them are due. The time is an argument, nothing waits in here.

cdef class Route
cdef class Gathering


@cython.final
cdef class Queue:
    """The batches of one partition, oldest first; the last may still take records."""

    cdef readonly object partition
    cdef readonly str topic
    cdef readonly int32_t index
    cdef readonly object batches
    cdef readonly int in_flight
    cdef Batch _open
    cdef Py_ssize_t _expected            # how large the last batch became: the next one starts there
    cdef double _used_ms                 # when the last batch was begun

    def __cinit__(self, str topic, int32_t index):
        self.topic, self.index = topic, index
        self.partition = TopicPartition(topic, index)
        self.batches = deque()

    cdef Batch _next(self, int most_in_flight):
        """The batch that goes out next, if one may: repetitions go alone, so that they keep their order."""
        cdef Batch batch
        if self.in_flight >= most_in_flight:
            return None
        for batch in self.batches:
            if batch.in_flight:
                if batch.attempts:
                    return None
                continue
            return None if batch.attempts and self.in_flight else batch
        return None


@cython.final
cdef class Route:
    """Where records of one topic go."""

    cdef readonly str topic
    cdef list _queues
    cdef readonly int32_t count
    cdef readonly list available         # partitions that have a leader
    cdef Queue _sticky                   # where records without a key go just now
    cdef Py_ssize_t _sticky_left         # for so many more bytes
    cdef Gathering _gathering
    cdef double _since_ms                # when it was made, or taken in again
    cdef object __weakref__

    def __cinit__(self, Gathering gathering, str topic):
        self._gathering, self.topic = gathering, topic
        self._queues, self.available = [], []
        self._since_ms = gathering.monotonic_ms()

    cdef bint _is_idle(self, double since_ms):
        cdef Queue queue
        if self._since_ms > since_ms:
            return False
        for queue in self._queues:
            if queue.batches or queue._used_ms > since_ms:
                return False
        return True

    def update(self, int32_t count, list available):
        """Take in how many partitions there are and which have leaders. Partitions never go away."""
        cdef int32_t index
        for index in range(self.count, count):
            self._queues.append(Queue(self.topic, index))
        self.count = max(self.count, count)
        self.available = available
        if self._sticky is None or (available and self._sticky.index not in available):
            self._turn()

    @property
    def partitions(self):
        return range(self.count)

    cdef Queue _queue(self, int64_t index):
        if not 0 <= index < self.count:
            raise ValueError(f"{self.topic!r} has the partitions 0 to {self.count - 1}, not {index}")
        return <Queue>self._queues[index]

    cdef inline Queue _by_key(self, const unsigned char* key, Py_ssize_t size):
        return <Queue>PyList_GET_ITEM(self._queues, (murmur2(key, size) & 0x7fffffff) % self.count)

    cdef object _turn(self):
        """Choose where records without a key go next: any, but rather one that has little waiting (KIP-794)."""
        cdef Queue queue
        cdef int32_t index
        cdef list choices = self.available or list(range(self.count)), weights
        cdef Py_ssize_t most = 0
        if len(choices) > 1 and self._sticky is not None:
            choices = [index for index in choices if index != self._sticky.index]
        for index in choices:
            queue = <Queue>self._queues[index]
            most = max(most, len(queue.batches))
        weights = [most + 1 - len((<Queue>self._queues[index]).batches) for index in choices]
        self._sticky = <Queue>self._queues[_drawn(choices, weights, self._gathering.chance())]
        self._sticky_left = self._gathering.batch_size


cdef object _drawn(list choices, list weights, double chance):
    cdef double left = chance * sum(weights)
    for choice, weight in zip(choices, weights):
        left -= weight
        if left < 0:
            return choice
    return choices[len(choices) - 1]


cdef class Gathering:
    """Batches by partition. The application puts records in; the sender takes due batches out.

    `monotonic_ms` and `chance` are asked once per batch or so; `wake` is called when a batch is begun or full.
    `wall_ms` gives records their time; without it the system's clock does.
    """

    cdef readonly Py_ssize_t batch_size, buffer_memory, max_record_size, size_bytes
    cdef readonly double linger_ms
    cdef object monotonic_ms, chance, wall_ms
    cdef public object wake, loop
    cdef readonly dict routes            # by topic
    cdef readonly int64_t batches_begun
    cdef dict _active                    # queues that hold batches, as keys, in order
    cdef object _forgotten               # routes that somebody may hold still, by topic
    cdef bint _flushing

    def __init__(
        self, *, Py_ssize_t batch_size, double linger_ms, Py_ssize_t buffer_memory, Py_ssize_t max_record_size,
        monotonic_ms, chance=random.random, wall_ms=None,
    ):
        self.batch_size = min(batch_size, max_record_size)
        self.linger_ms, self.buffer_memory, self.max_record_size = linger_ms, buffer_memory, max_record_size
        self.monotonic_ms, self.chance, self.wall_ms = monotonic_ms, chance, wall_ms
        self.routes, self._active = {}, {}
        self._forgotten = weakref.WeakValueDictionary()

    @property
    def is_empty(self):
        """Whether everything was sent and answered."""
        return not self._active

    @property
    def is_full(self):
        """Whether `send` has to wait."""
        return self.size_bytes >= self.buffer_memory

    def route(self, str topic, int32_t count, list available):
        """Take in a topic's partitions; return its route."""
        cdef Route found = self.routes.get(topic)
        if found is None:
            # Whoever waits with a route in hand puts records there: one partition must not have two queues.
            found = self._forgotten.pop(topic, None)
            if found is None:
                found = Route(self, topic)
            else:
                found._since_ms = self.monotonic_ms()
        found.update(count, available)
        self.routes[topic] = found
        return found

    def forget_idle(self, double since_ms):
        """Drop the routes of topics that nothing was sent to since then; return the topics."""
        cdef list topics = [topic for topic, route in self.routes.items() if (<Route>route)._is_idle(since_ms)]
        for topic in topics:
            self._forgotten[topic] = self.routes.pop(topic)
        return topics

    cdef inline int64_t _now(self) except? -1:
        return ottla_wall_ms() if self.wall_ms is None else <int64_t>self.wall_ms()

    cdef Batch _begin(self, Queue queue, Py_ssize_t first_size):
        """Begin a batch that has room for its first record: there must be none that stays empty."""
        cdef Batch batch = Batch(queue, self.batch_size, self.monotonic_ms(), self.loop)
        batch._begin(max(queue._expected, HEADER_SIZE + RECORD_OVERHEAD + first_size))
        queue._used_ms = batch.created_ms
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
        """Put a record where it belongs. The sizes were checked before."""
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
        return batch

    cdef inline Batch _put_anywhere(
        self, Route route, const unsigned char* value, Py_ssize_t value_size, const unsigned char* headers,
        Py_ssize_t headers_size, int64_t timestamp, int32_t* index,
    ):
        """Put a record without a key wherever its topic's records go just now."""
        cdef Py_ssize_t before = self.size_bytes
        cdef Batch batch
        if route._sticky_left <= 0:
            route._turn()
        batch = self._put(route._sticky, NULL, -1, value, value_size, headers, headers_size, timestamp, index)
        route._sticky_left -= self.size_bytes - before
        return batch

    cdef object _close(self, Batch batch):
        batch.closed = True
        if batch.queue._open is batch:
            batch.queue._open = None
            batch.queue._expected = min(batch._position, self.batch_size)

    def add(self, Batch batch, Route route, int64_t partition):
        """Take in a batch that somebody else filled."""
        cdef Queue queue = route._queue(partition)
        if queue._open is not None:
            self._close(queue._open)
        batch.queue, batch.closed, batch.created_ms, batch._loop = queue, True, self.monotonic_ms(), self.loop
        queue._used_ms = batch.created_ms
        queue.batches.append(batch)
        self._active[queue] = None
        self.size_bytes += batch._position
        if self.wake is not None:
            self.wake()

    # --- the sender's side

    def ready(self, double now_ms, int most_in_flight):
        """Return batches that may be sent now, at most one per partition, and when (ms) to look again.

        None stands for not before something changes.
        """
        cdef Queue queue
        cdef Batch batch
        cdef double at_ms, next_ms = -1
        cdef list due = []
        for queue in self._active:
            batch = queue._next(most_in_flight)
            if batch is None:
                continue
            at_ms = self._due_ms(queue, batch)
            if at_ms <= now_ms:
                due.append(batch)
            elif next_ms < 0 or at_ms < next_ms:
                next_ms = at_ms
        return due, None if next_ms < 0 else next_ms

    cdef double _due_ms(self, Queue queue, Batch batch):
        cdef bint full = batch.closed or self._flushing or batch._position >= self.batch_size or self.is_full
        return max(batch.not_before_ms, batch.created_ms if full else batch.created_ms + self.linger_ms)

    def close(self, Batch batch):
        """Let a batch take no more records."""
        self._close(batch)

    def take(self, Batch batch):
        """Hand a batch to the sender: it takes no more records."""
        self._close(batch)
        batch.in_flight = True
        batch.queue.in_flight += 1
        # The next look begins with the others: where requests are full, nobody is passed over twice.
        self._active.pop(batch.queue, None)
        self._active[batch.queue] = None

    def put_back(self, Batch batch, double not_before_ms):
        """Send a batch again later; it keeps its place."""
        batch.attempts += 1
        batch.not_before_ms = not_before_ms
        self._landed(batch)

    cdef object _landed(self, Batch batch):
        if batch.in_flight:
            batch.in_flight = False
            batch.queue.in_flight -= 1

    def finish(self, Batch batch):
        """Be done with a batch, whatever became of it."""
        cdef Queue queue = batch.queue
        self._close(batch)
        self._landed(batch)
        try:
            queue.batches.remove(batch)
        except ValueError:
            return  # given up earlier: an answer that comes late finds nothing to do
        self.size_bytes -= batch._position
        if not queue.batches:
            self._active.pop(queue, None)

    def halves(self, Batch batch, codec, level):
        """Return two packed batches of a batch's records: slow, and safe on another thread.

        Returns nothing for one of a single record, which cannot be made smaller, and for one that is done.
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
        """Put its halves in the place of a batch that a broker found too large."""
        cdef Queue queue = batch.queue
        cdef Py_ssize_t place
        self._landed(batch)
        place = queue.batches.index(batch)
        queue.batches.remove(batch)
        for part in reversed(parts):
            queue.batches.insert(place, part)
            self.size_bytes += (<Batch>part)._position
        self.size_bytes -= batch._position
        batch.split_into(parts)

    cdef list _halves(self, Batch batch, bytes data):
        cdef list parts = [], records = _decode_records(data)
        cdef Batch part
        cdef Py_ssize_t half = (len(records) + 1) // 2
        for some in (records[:half], records[half:]):
            part = Batch(batch.queue, MAX_BATCH, batch.created_ms, self.loop)
            part._begin(0)
            part.closed = True
            part.attempts = batch.attempts
            for record in some:
                _put_record(part, record.key, record.value, packed_headers(record.headers), record.timestamp_ms)
            parts.append(part)
        return parts

    def expired(self, double now_ms, double timeout_ms, bint in_flight=True):
        """Return batches that have waited too long, oldest first; without `in_flight` none that is with a broker."""
        cdef Batch batch
        cdef list found = []
        for queue in self._active:
            for batch in (<Queue>queue).batches:
                if (in_flight or not batch.in_flight) and now_ms - batch.created_ms >= timeout_ms:
                    found.append(batch)
        return found

    def flush(self, bint flushing):
        """While flushing no batch waits for company."""
        self._flushing = flushing
        if flushing and self.wake is not None:
            self.wake()

    def everything(self):
        """Return all batches, those with brokers too."""
        return [batch for queue in self._active for batch in (<Queue>queue).batches]

    def close_open_batches(self):
        """Let no batch take further records; what comes later goes into new ones."""
        for batch in self.everything():
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
    """The headers of one record as they stand in it, the count first; None where there are none."""
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
    """A batch that an application fills itself: `create_batch` gives it, `send_batch` sends it."""

    cdef Batch _batch
    cdef bint _closed, _is_sent

    def __cinit__(self, Py_ssize_t limit):
        self._batch = Batch(None, limit, 0.0, None)
        self._batch._begin(0)

    def append(self, *, value=None, key=None, timestamp=None, headers=None):
        """Add a record of bytes; return what is known of it, or None when it does not fit any more."""
        cdef int64_t index
        for what in (key, value):
            if what is not None and not PyBytes_CheckExact(what):
                raise TypeError(f"a batch takes bytes, not {type(what).__name__}: serialize before")
        if self._closed:
            return None
        stamp = ottla_wall_ms() if timestamp is None else whole_ms(timestamp)
        index = _put_record(self._batch, key, value, packed_headers(headers), stamp)
        return None if index < 0 else BatchedRecord(index, self._batch._position, stamp)

    def record_count(self):
        """Return how many records are in it."""
        return self._batch.record_count

    def size(self):
        """Return its size in bytes, before compression."""
        return self._batch._position

    def close(self):
        """Take no more records."""
        self._closed = True

    def _sent(self):
        """Give the batch away, once."""
        if self._is_sent:
            raise ValueError("the batch was sent already")
        self._is_sent = self._closed = True
        return self._batch


class BatchedRecord:
    """Where in its batch a record is."""

    __slots__ = ("offset", "size", "timestamp")

    def __init__(self, offset, size, timestamp):
        self.offset, self.size, self.timestamp = offset, size, timestamp

# One batch of records for one partition.

cdef class Queue
cdef class Batch


@cython.final
cdef class Batch:
    """Records of one partition: a buffer that grows until it is packed, sent, and acknowledged or failed.

    The caller of `send` holds an Acknowledgement: this batch and an index. A future exists only once an
    acknowledgement is awaited.
    """

    cdef bytes _owner                    # the buffer; None once packed
    cdef unsigned char* _buffer
    cdef Py_ssize_t _position, _capacity, _limit
    cdef readonly int32_t record_count
    cdef readonly int64_t base_timestamp, max_timestamp
    cdef readonly Queue queue
    cdef public double created_ms, not_before_ms
    cdef public int attempts
    cdef public bint closed, in_flight
    cdef public object last_error
    cdef public object displaced_by      # the error of its next retry: its topic was created again, with other partitions
    cdef bint _is_placed_by_count        # the partition of a record depended on how many there were
    cdef readonly bytes data             # the bytes to send, once packed
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly bint done
    cdef readonly int64_t base_offset, log_append_time_ms
    cdef readonly object error
    cdef bint _error_retrieved           # the application got the error, or waits for the outcome
    cdef object _loop
    cdef list _waiters                   # one future per waiter, so that cancelling one cancels no other
    cdef list _callbacks
    cdef list _parts                     # [(first index, Batch)]: the batches that hold the records after a split
    cdef object _last_acknowledgements   # the Acknowledgements object that lists this batch, while records are added
    cdef int32_t _index_in_acknowledgements

    def __cinit__(self, Queue queue, Py_ssize_t limit, double created_ms, loop=None):
        self.queue = queue
        self._limit = limit
        self._loop = loop
        self.created_ms = created_ms
        self.producer_id = self.base_sequence = self.producer_epoch = -1
        self.base_offset = self.log_append_time_ms = -1
        self.base_timestamp = self.max_timestamp = -1
        self._position = HEADER_SIZE

    cdef int _begin(self, Py_ssize_t capacity) except -1:
        capacity = max(capacity, <Py_ssize_t>MIN_CAPACITY)
        self._owner = PyBytes_FromStringAndSize(NULL, capacity)
        self._buffer = <unsigned char*>PyBytes_AS_STRING(self._owner)
        self._capacity = capacity
        return 0

    @property
    def partition(self):
        return None if self.queue is None else self.queue.partition

    @property
    def size_in_bytes(self):
        return self._position

    @property
    def was_sent(self):
        """Whether the batch has a sequence number that a broker may know."""
        return self.base_sequence >= 0

    cdef inline int64_t _put(
        self, const unsigned char* key, Py_ssize_t key_size, const unsigned char* value, Py_ssize_t value_size,
        const unsigned char* headers, Py_ssize_t headers_size, int64_t timestamp,
    ) except -2:
        """Append a record; return its index, or -1 when the batch is full. A size of -1 stands for null."""
        cdef int32_t index = self.record_count
        cdef int64_t delta = timestamp - self.base_timestamp if index else 0
        cdef Py_ssize_t body, needed
        cdef unsigned char* p
        body = (
            1 + varint_size(delta) + varint_size(index)
            + varint_size(key_size) + (key_size if key_size > 0 else 0)
            + varint_size(value_size) + (value_size if value_size > 0 else 0)
            + (headers_size if headers_size else 1)
        )
        needed = self._position + varint_size(body) + body
        if needed > self._limit and index:
            return -1
        if needed > self._capacity:
            self._grow(needed)
        if index == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        p = put_varint(self._buffer + self._position, body)
        p[0] = 0
        p = put_varint(p + 1, delta)
        p = put_varint(p, index)
        p = put_varint(p, key_size)
        if key_size > 0:
            memcpy(p, key, key_size)
            p += key_size
        p = put_varint(p, value_size)
        if value_size > 0:
            memcpy(p, value, value_size)
            p += value_size
        if headers_size:
            memcpy(p, headers, headers_size)
        else:
            p[0] = 0
        self._position = needed
        self.record_count = index + 1
        return index

    cdef int _grow(self, Py_ssize_t needed) except -1:
        if needed > MAX_BATCH_SIZE:
            raise ValueError(f"a batch of {needed} bytes does not fit Kafka's 32-bit length")
        if self._owner is None:
            raise MemoryError("there was no memory for the batch")
        # Not in place: a failed realloc would free the records that the buffer holds.
        cdef Py_ssize_t capacity = max(needed, min(2 * self._capacity, self._limit))
        cdef bytes owner = PyBytes_FromStringAndSize(NULL, capacity)
        memcpy(PyBytes_AS_STRING(owner), self._buffer, self._position)
        self._owner = owner
        self._buffer = <unsigned char*>PyBytes_AS_STRING(owner)
        self._capacity = capacity
        return 0

    cdef bytes _shrunk(self, Py_ssize_t size):
        """Return the buffer, shrunk in place where the allocator can: there is no other reference to it."""
        cdef PyObject* owner
        cdef bytes out
        Py_INCREF(self._owner)
        owner = <PyObject*>self._owner
        self._owner = None
        self._buffer = NULL
        self._capacity = 0
        _PyBytes_Resize(&owner, size)
        out = <bytes>owner
        Py_XDECREF(owner)
        return out

    # --- packing

    def pack(self, codec, level):
        """Compress the records with a codec. This is the only slow step; it may run on another thread."""
        cdef bytes packed, owner
        if self.data is not None or self.done:
            return
        if codec == 0:
            self.data = self._shrunk(self._position)
            return
        owner = self._owner  # keeps the buffer alive: the batch may fail while a thread compresses it
        packed = bytes(_compress(codec, memoryview(owner)[HEADER_SIZE:self._position], level=level))
        self.data = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + PyBytes_GET_SIZE(packed))
        memcpy(PyBytes_AS_STRING(self.data) + HEADER_SIZE, PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))
        self._owner = None
        self._buffer = NULL
        self._capacity = 0

    def write_header(
        self, int codec, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
        bint transactional=False,
    ):
        """Write the header of a packed batch. Never call this while a connection may still send the bytes."""
        cdef unsigned char* p = <unsigned char*>PyBytes_AS_STRING(self.data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.data)
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.base_sequence = base_sequence
        put64(p, 0)
        put32(p + LENGTH_AT, <int32_t>(size - ENTRY_OVERHEAD))
        put32(p + LEADER_EPOCH_AT, -1)
        p[MAGIC_AT] = 2
        put16(p + ATTRIBUTES_AT, <int16_t>(codec | (TRANSACTIONAL if transactional else 0)))
        put32(p + LAST_OFFSET_DELTA_AT, self.record_count - 1)
        put64(p + BASE_TIMESTAMP_AT, self.base_timestamp)
        put64(p + MAX_TIMESTAMP_AT, self.max_timestamp)
        put64(p + PRODUCER_ID_AT, producer_id)
        put16(p + PRODUCER_EPOCH_AT, producer_epoch)
        put32(p + BASE_SEQUENCE_AT, base_sequence)
        put32(p + RECORD_COUNT_AT, self.record_count)
        seal(p, size)

    # --- the outcome

    def succeed(self, int64_t base_offset, int64_t log_append_time_ms):
        """Set the outcome: the records are written."""
        self.base_offset, self.log_append_time_ms = base_offset, log_append_time_ms
        self._complete()

    def fail(self, error):
        """Set the outcome: the records are not delivered."""
        self.error = error
        self._complete()

    def split_into(self, list batches):
        """Point to the smaller batches that hold the records now, in order; acknowledgements follow."""
        cdef Batch part
        cdef int32_t first = 0
        self._parts = []
        for part in batches:
            self._parts.append((first, part))
            first += part.record_count
            part._error_retrieved = self._error_retrieved
            if self._waiters is not None or self._callbacks is not None:
                part._when_done(self._part_done)
        self.data = None

    def _part_done(self, part):
        if self._all_done():
            self._wake()

    cdef bint _all_done(self):
        if self._parts is None:
            return self.done
        for _, part in self._parts:
            if not (<Batch>part)._all_done():
                return False
        return True

    cdef object _complete(self):
        self.done = True
        self.data = None
        self._owner = None
        self._buffer = NULL
        self._capacity = 0
        self._wake()

    cdef object _wake(self):
        waiters, callbacks = self._waiters, self._callbacks
        self._waiters = self._callbacks = None
        if waiters is not None:
            for future in waiters:
                if not future.done():
                    future.set_result(None)
        if callbacks is not None:
            for function, argument in callbacks:
                self._call(function, argument)

    cdef object _call(self, function, argument):
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(function, argument)
        else:
            function(argument)

    cdef object _when_done(self, function):
        if self._all_done():
            function(self)
            return
        self._call_back(function, self)

    def settled(self):
        """Return a future that is done once the records are written or failed; an error still counts as unseen."""
        cdef bint error_retrieved = self._error_retrieved
        future = self._wait()
        self._error_retrieved = error_retrieved
        if self._all_done() and not future.done():
            future.set_result(None)
        return future

    cdef object _wait(self):
        """Return a new future that is done when this batch is."""
        future = (self._loop or asyncio.get_running_loop()).create_future()
        self._error_retrieved = True
        self._follow_parts()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(future)
        return future

    cdef object _call_back(self, function, argument):
        self._follow_parts()
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append((function, argument))

    cdef object _follow_parts(self):
        """Register for the outcome of the halves of a split batch, once, for the first waiter."""
        if self._parts is not None and self._waiters is None and self._callbacks is None:
            for _, part in self._parts:
                (<Batch>part)._when_done(self._part_done)

    cdef Batch _part(self, int32_t* index):
        """Return the batch that holds a record now, and set its index there."""
        cdef Batch found = self
        cdef Batch part
        cdef int32_t first, at
        while found._parts is not None:
            at = index[0]
            for first, part in reversed(found._parts):
                if at >= first:
                    index[0] = at - first
                    found = part
                    break
        return found

    def __del__(self):
        if self.error is not None and not self._error_retrieved:
            records = "1 record" if self.record_count == 1 else f"{self.record_count} records"
            were = "was" if self.record_count == 1 else "were"
            # An abort is the application's own decision, which it need not be warned of.
            level = logging.DEBUG if isinstance(self.error, TransactionAborted) else logging.ERROR
            log.log(level, "%s for %s %s not delivered: %s", records, self.partition, were, self.error)

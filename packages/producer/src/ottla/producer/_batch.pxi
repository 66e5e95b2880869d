# One batch of records for one partition, and what its records' senders hold of it.

cdef class Queue
cdef class Batch


@cython.final
cdef class Batch:
    """Records of one partition that travel together: first a buffer that grows, then bytes, then an outcome.

    Whoever sent a record holds an Acknowledgement: this batch and an index. There is no future before one of
    them is awaited.
    """

    cdef bytes _owner                    # what is filled; None once built
    cdef unsigned char* _buffer
    cdef Py_ssize_t _position, _capacity, _limit
    cdef readonly int32_t record_count
    cdef readonly int64_t base_timestamp, max_timestamp
    cdef readonly Queue queue
    cdef public double created_ms, not_before_ms
    cdef public int attempts
    cdef public bint closed, in_flight
    cdef public object last_error
    cdef readonly bytes data             # as it is sent, once built
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence
    cdef readonly bint done
    cdef readonly int64_t base_offset, log_append_time_ms
    cdef readonly object error
    cdef bint _looked_at                 # somebody will hear of an error
    cdef object _loop
    cdef list _waiters                   # futures, one for each who waits: a cancelled one is nobody else's
    cdef list _callbacks
    cdef list _parts                     # [(first index, Batch)]: where the records went when it was split
    cdef object _mark                    # the Acknowledgements that counted it last, and as which
    cdef int32_t _mark_index

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
        capacity = max(capacity, <Py_ssize_t>LEAST_CAPACITY)
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
        """Whether it has a number that a broker may know."""
        return self.base_sequence >= 0

    cdef inline int64_t _put(
        self, const unsigned char* key, Py_ssize_t key_size, const unsigned char* value, Py_ssize_t value_size,
        const unsigned char* headers, Py_ssize_t headers_size, int64_t timestamp,
    ) except -2:
        """The record's index; -1 when it does not fit any more. Sizes of -1 stand for null."""
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
        if needed > MAX_BATCH:
            raise ValueError(f"a batch of {needed} bytes does not fit Kafka's 32-bit length")
        if self._owner is None:
            raise MemoryError("there was no memory for the batch")
        # Not in place: without memory for more, that frees the records that are in it already.
        cdef Py_ssize_t capacity = max(needed, min(2 * self._capacity, self._limit))
        cdef bytes owner = PyBytes_FromStringAndSize(NULL, capacity)
        memcpy(PyBytes_AS_STRING(owner), self._buffer, self._position)
        self._owner = owner
        self._buffer = <unsigned char*>PyBytes_AS_STRING(owner)
        self._capacity = capacity
        return 0

    cdef bytes _shrunk(self, Py_ssize_t size):
        """The buffer, cut to size in place where the allocator can: nobody else has seen it."""
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

    # --- on its way

    def pack(self, codec, level):
        """Compress the records, if they are to be: the only slow part, and safe on another thread."""
        cdef bytes packed, owner
        if self.data is not None or self.done:
            return
        if codec == 0:
            self.data = self._shrunk(self._position)
            return
        owner = self._owner  # on a thread: meanwhile the batch may be given up, which takes the buffer away
        packed = bytes(_compress(codec, memoryview(owner)[HEADER_SIZE:self._position], level=level))
        self.data = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + PyBytes_GET_SIZE(packed))
        memcpy(PyBytes_AS_STRING(self.data) + HEADER_SIZE, PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))
        self._owner = None
        self._buffer = NULL
        self._capacity = 0

    def number(self, int codec, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence, bint transactional=False):
        """Write the header of a packed batch. Not while it may still be on a wire."""
        cdef unsigned char* p = <unsigned char*>PyBytes_AS_STRING(self.data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self.data)
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.base_sequence = base_sequence
        put64(p, 0)
        put32(p + 8, <int32_t>(size - 12))
        put32(p + 12, -1)
        p[16] = 2
        put16(p + 21, <int16_t>(codec | (TRANSACTIONAL if transactional else 0)))
        put32(p + 23, self.record_count - 1)
        put64(p + 27, self.base_timestamp)
        put64(p + 35, self.max_timestamp)
        put64(p + 43, producer_id)
        put16(p + 51, producer_epoch)
        put32(p + 53, base_sequence)
        put32(p + 57, self.record_count)
        put32(p + 17, <int32_t>checksum(0, p + 21, size - 21))

    # --- how it ended

    def succeed(self, int64_t base_offset, int64_t log_append_time_ms):
        """The records are written."""
        self.base_offset, self.log_append_time_ms = base_offset, log_append_time_ms
        self._finished()

    def fail(self, error):
        """The records are given up."""
        self.error = error
        self._finished()

    def split_into(self, list batches):
        """The records live on in smaller batches, in their order; acknowledgements find them there."""
        cdef Batch part
        cdef int32_t first = 0
        self._parts = []
        for part in batches:
            self._parts.append((first, part))
            first += part.record_count
            part._looked_at = self._looked_at
            if self._waiters is not None or self._callbacks is not None:
                part._when_done(self._part_done)
        self.data = None

    def _part_done(self, part):
        if self._all_done():
            self._wake()

    cdef bint _all_done(self):
        if self._parts is None:
            return self.done
        for _, one in self._parts:
            if not (<Batch>one)._all_done():
                return False
        return True

    cdef object _finished(self):
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
        """A future that is done once the records are written or given up; asking counts for nothing else."""
        cdef bint looked_at = self._looked_at
        future = self._wait()
        self._looked_at = looked_at
        if self._all_done() and not future.done():
            future.set_result(None)
        return future

    cdef object _wait(self):
        """A new future that is done when this is."""
        future = (self._loop or asyncio.get_running_loop()).create_future()
        self._looked_at = True
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
        """Have the parts of a batch that was split tell of their end: once, when the first one waits for it."""
        if self._parts is not None and self._waiters is None and self._callbacks is None:
            for _, one in self._parts:
                (<Batch>one)._when_done(self._part_done)

    cdef Batch _part(self, int32_t* index):
        """The batch that holds a record now, and its index there."""
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
        if self.error is not None and not self._looked_at:
            log.error("%d records for %s were not delivered: %s", self.record_count, self.partition, self.error)


@cython.final
@cython.freelist(4096)
cdef class Acknowledgement:
    """What a sender holds of a record: await it for the record's RecordMetadata."""

    cdef Batch _batch
    cdef int32_t _index
    cdef int64_t _timestamp

    def done(self):
        """Say whether the record is written or given up."""
        cdef int32_t index = self._index
        return self._batch._part(&index).done

    def result(self):
        """Return the RecordMetadata; raises what kept the record from being written.

        Raises asyncio.InvalidStateError while that is not known.
        """
        cdef int32_t index = self._index
        cdef Batch batch = self._batch._part(&index)
        if not batch.done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        batch._looked_at = True
        if batch.error is not None:
            raise batch.error.with_traceback(None)
        return _metadata(batch, index, self._timestamp)

    def exception(self):
        """Return the error, or None for a record that is written."""
        cdef int32_t index = self._index
        cdef Batch batch = self._batch._part(&index)
        if not batch.done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        batch._looked_at = True
        return batch.error

    @property
    def offset(self):
        """The record's offset: -1 while it is not known, and with acks=0."""
        cdef int32_t index = self._index
        cdef Batch batch = self._batch._part(&index)
        return batch.base_offset + index if batch.base_offset >= 0 else -1

    @property
    def topic_partition(self):
        """Where the record goes; None while the topic is not known."""
        return self._batch.partition

    def add_done_callback(self, function):
        """Call `function(acknowledgement)` on the event loop, once the record is written or given up."""
        cdef Batch batch = self._batch
        batch._looked_at = True
        if batch._all_done():
            batch._call(function, self)
            return
        batch._call_back(function, self)

    def future(self):
        """Return an asyncio.Future of the RecordMetadata, for what insists on one."""
        future = (self._batch._loop or asyncio.get_running_loop()).create_future()
        self.add_done_callback(_Settle(future))
        return future

    def __await__(self):
        # Split, or placed only now that the topic is known: the record may have moved on meanwhile.
        while not self.done():
            yield from self._batch._wait()
        return self.result()

    def __repr__(self):
        cdef int32_t index = self._index
        # Not by `exception`: who looks at this in a log has not taken note of an error.
        failed = self._batch._part(&index).error is not None
        state = "pending" if not self.done() else "failed" if failed else f"offset {self.offset}"
        return f"<Acknowledgement {self.topic_partition} {state}>"


class _Settle:
    """Hands an acknowledgement's outcome to a future."""

    def __init__(self, future):
        self._future = future

    def __call__(self, acknowledgement):
        if self._future.done():
            return
        error = acknowledgement.exception()
        if error is None:
            self._future.set_result(acknowledgement.result())
        else:
            self._future.set_exception(error)


cdef object _metadata(Batch batch, int32_t index, int64_t timestamp):
    return RecordMetadata(
        batch.queue.topic, batch.queue.index,
        batch.base_offset + index if batch.base_offset >= 0 else -1,
        batch.log_append_time_ms if batch.log_append_time_ms >= 0 else timestamp,
    )


cdef struct Run:
    int64_t start                # of how many records before it
    int64_t timestamp
    int32_t batch, first         # which batch, and the index of the first record there


@cython.final
cdef class Acknowledgements:
    """What a sender holds of many records: await it until all are written.

    `acknowledgements[i]` is the Acknowledgement of record number i. Records that follow each other in one
    batch cost nothing here.
    """

    cdef list _batches
    cdef Run* _runs
    cdef Py_ssize_t _run_count, _run_capacity
    cdef readonly Py_ssize_t _count

    def __cinit__(self):
        self._batches = []

    def __dealloc__(self):
        PyMem_Free(self._runs)

    cdef int _add(self, Batch batch, int32_t index, int64_t timestamp) except -1:
        cdef Run* last
        if batch._mark is not self:
            batch._mark = self
            batch._mark_index = <int32_t>PyList_GET_SIZE(self._batches)
            self._batches.append(batch)
        elif self._run_count:
            last = &self._runs[self._run_count - 1]
            if (
                last.batch == batch._mark_index and last.timestamp == timestamp
                and last.first + self._count - last.start == index
            ):
                self._count += 1
                return 0
        if self._run_count == self._run_capacity:
            self._more()
        last = &self._runs[self._run_count]
        last.start, last.timestamp = self._count, timestamp
        last.batch, last.first = batch._mark_index, index
        self._run_count += 1
        self._count += 1
        return 0

    cdef int _more(self) except -1:
        cdef Py_ssize_t capacity = max(16, 2 * self._run_capacity)
        cdef void* runs = PyMem_Realloc(self._runs, capacity * sizeof(Run))
        if runs is NULL:
            raise MemoryError
        self._runs, self._run_capacity = <Run*>runs, capacity
        return 0

    cdef object _let_go(self):
        """Batches point here only while records are added: a cycle would keep both alive."""
        for batch in self._batches:
            if (<Batch>batch)._mark is self:
                (<Batch>batch)._mark = None

    def __len__(self):
        return self._count

    def __getitem__(self, Py_ssize_t at):
        cdef Acknowledgement one
        cdef Py_ssize_t low = 0, high = self._run_count, middle
        if at < 0:
            at += self._count
        if not 0 <= at < self._count:
            raise IndexError(f"there are {self._count} acknowledgements")
        while high - low > 1:
            middle = (low + high) // 2
            if self._runs[middle].start <= at:
                low = middle
            else:
                high = middle
        one = Acknowledgement.__new__(Acknowledgement)
        one._batch = self._batches[self._runs[low].batch]
        one._index = <int32_t>(self._runs[low].first + at - self._runs[low].start)
        one._timestamp = self._runs[low].timestamp
        return one

    def __iter__(self):
        return (self[at] for at in range(self._count))

    def done(self):
        """Say whether all records are written or given up."""
        for batch in self._batches:
            if not (<Batch>batch)._all_done():
                return False
        return True

    def __await__(self):
        for batch in self._batches:
            while not (<Batch>batch)._all_done():
                yield from (<Batch>batch)._wait()
        for batch in self._batches:
            _raise_error(<Batch>batch)
        return self

    def __repr__(self):
        return f"<Acknowledgements of {self._count} records {'done' if self.done() else 'pending'}>"


cdef object _raise_error(Batch batch):
    batch._looked_at = True
    if batch.error is not None:
        raise batch.error.with_traceback(None)
    if batch._parts is not None:
        for _, part in batch._parts:
            _raise_error(<Batch>part)

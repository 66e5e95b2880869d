# Acknowledgement, which `send` returns, and Acknowledgements, which `send_many` returns.

@cython.final
@cython.freelist(4096)
cdef class Acknowledgement:
    """The acknowledgement of a record: await it for the RecordMetadata."""

    cdef Batch _batch
    cdef int32_t _index
    cdef int64_t _timestamp

    def done(self):
        """Say whether the record is written or failed."""
        cdef int32_t index = self._index
        return self._batch._part(&index).done

    def result(self):
        """Return the RecordMetadata, or raise the error of the record.

        Raises asyncio.InvalidStateError while the record is pending.
        """
        cdef int32_t index = self._index
        cdef Batch batch = self._batch._part(&index)
        if not batch.done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        batch._error_retrieved = True
        if batch.error is not None:
            raise _error_of(batch, index).with_traceback(None)
        return _metadata(batch, index, self._timestamp)

    def exception(self):
        """Return the error, or None for a record that is written."""
        cdef int32_t index = self._index
        cdef Batch batch = self._batch._part(&index)
        if not batch.done:
            raise asyncio.InvalidStateError("the record is not acknowledged yet")
        batch._error_retrieved = True
        return _error_of(batch, index)

    @property
    def offset(self):
        """The record's offset: -1 while it is not known, and with acks=0."""
        cdef int32_t index = self._index
        cdef Batch batch = self._batch._part(&index)
        return batch.base_offset + index if batch.base_offset >= 0 else -1

    @property
    def topic_partition(self):
        """The partition of the record; None while the topic has no metadata."""
        return self._batch.partition

    def add_done_callback(self, function):
        """Call `function(acknowledgement)` on the event loop, once the record is written or failed."""
        cdef Batch batch = self._batch
        batch._error_retrieved = True
        if batch._all_done():
            batch._call(function, self)
            return
        batch._call_back(function, self)

    def future(self):
        """Return an asyncio.Future of the RecordMetadata, for code that needs a future."""
        future = (self._batch._loop or asyncio.get_running_loop()).create_future()
        self.add_done_callback(_Settle(future))
        return future

    def __await__(self):
        # The record may have moved to another batch: by a split, or when metadata of its topic arrived.
        while not self.done():
            yield from self._batch._wait()
        return self.result()

    def __repr__(self):
        cdef int32_t index = self._index
        # Not by `exception`: printing an acknowledgement must not mark its error as seen.
        failed = self._batch._part(&index).error is not None
        state = "pending" if not self.done() else "failed" if failed else f"offset {self.offset}"
        return f"<Acknowledgement {self.topic_partition} {state}>"


class _Settle:
    """Sets a future to the outcome of an acknowledgement."""

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


cdef object _error_of(Batch batch, int32_t index):
    """Return the error of one record: a leader may have refused the batch for some of its records only."""
    error = batch.error
    return error.of_record(index) if isinstance(error, RecordRefused) else error


cdef object _metadata(Batch batch, int32_t index, int64_t timestamp):
    return RecordMetadata(
        batch.queue.topic, batch.queue.index,
        batch.base_offset + index if batch.base_offset >= 0 else -1,
        batch.log_append_time_ms if batch.log_append_time_ms >= 0 else timestamp,
    )


cdef struct Run:
    # consecutive records of one batch with one timestamp
    int64_t start                # the number of records before the run
    int64_t timestamp
    int32_t batch, first         # the index of the batch, and of the run's first record in it


@cython.final
cdef class Acknowledgements:
    """The acknowledgements of many records: await it until all are written.

    `acknowledgements[i]` is the Acknowledgement of record number i. Consecutive records of one batch take the
    memory of one entry.
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
        if batch._last_acknowledgements is not self:
            batch._last_acknowledgements = self
            batch._index_in_acknowledgements = <int32_t>PyList_GET_SIZE(self._batches)
            self._batches.append(batch)
        elif self._run_count:
            last = &self._runs[self._run_count - 1]
            if (
                last.batch == batch._index_in_acknowledgements and last.timestamp == timestamp
                and last.first + self._count - last.start == index
            ):
                self._count += 1
                return 0
        if self._run_count == self._run_capacity:
            self._grow()
        last = &self._runs[self._run_count]
        last.start, last.timestamp = self._count, timestamp
        last.batch, last.first = batch._index_in_acknowledgements, index
        self._run_count += 1
        self._count += 1
        return 0

    cdef int _grow(self) except -1:
        cdef Py_ssize_t capacity = max(16, 2 * self._run_capacity)
        cdef void* runs = PyMem_Realloc(self._runs, capacity * sizeof(Run))
        if runs is NULL:
            raise MemoryError
        self._runs, self._run_capacity = <Run*>runs, capacity
        return 0

    def add(self, Acknowledgement one not None):
        """Add the acknowledgement of the record that was appended last."""
        self._add(one._batch, one._index, one._timestamp)

    def complete(self):
        """End adding, and remove the references of batches to this object: the cycle would keep both alive."""
        for batch in self._batches:
            if (<Batch>batch)._last_acknowledgements is self:
                (<Batch>batch)._last_acknowledgements = None

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
        """Say whether all records are written or failed."""
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
    batch._error_retrieved = True
    if batch.error is not None:
        raise batch.error.with_traceback(None)
    if batch._parts is not None:
        for _, part in batch._parts:
            _raise_error(<Batch>part)

# What an application calls. The quick way is here; whatever takes longer is the Python subclass's.

cdef inline bint _is_plain(value):
    return value is None or PyBytes_CheckExact(value) or PyUnicode_CheckExact(value)


cdef inline object _as_bytes(value):
    if value is None or PyBytes_CheckExact(value):
        return value
    return PyUnicode_AsUTF8String(value)


cpdef int64_t whole_ms(given) except -1:
    """Return a record's time as it stands in it. Raises TypeError for no whole number, ValueError for no time."""
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


cdef class Sending:
    """The calls of a producer, for `Producer` to complete.

    A record takes the quick way when there is room, its topic is known, its value and key are bytes, text or
    None, and nobody wants to see it on its way; the quickest when they are bytes, and there is nothing else.
    """

    cdef readonly Gathering gathering
    cdef public bint quick               # nothing is configured that only the slow way does, and it is open
    cdef Py_ssize_t _next_pause          # with so many bytes waiting the quick way stops
    cdef str _last_topic                 # most programs send to one topic for a while
    cdef Route _last_route

    def __init__(self, Gathering gathering):
        self.gathering = gathering

    async def send(self, str topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None):
        """Take a record; return its Acknowledgement. Waits while the buffer is full, up to `max_block_ms`.

        `await` the acknowledgement for the record's RecordMetadata, or for the error that kept it from being
        written. Raises RecordTooLarge, SerializationFailed, BufferFull, ProducerClosed, and what finding the
        topic meets; then nothing of the record was queued.
        """
        cdef Route route
        if self.quick and self.gathering.size_bytes < self._next_pause:
            route = self._known(topic)
            if route is not None:
                if (
                    partition is None and headers is None and timestamp_ms is None
                    and PyBytes_CheckExact(value) and (key is None or PyBytes_CheckExact(key))
                ):
                    return self._quickly(route, value, key)
                if _is_plain(value) and _is_plain(key):
                    sent = self._rather_quickly(route, value, key, partition, timestamp_ms, headers)
                    if sent is not None:
                        return sent
        return await self._send_slowly(topic, value, key, partition, timestamp_ms, headers)

    def send_nowait(self, str topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None):
        """Take a record without waiting for anything; return its Acknowledgement.

        Records of a topic that is not known yet wait for it. Raises BufferFull where `send` would wait.
        """
        cdef Route route
        if self.quick and self.gathering.size_bytes < self.gathering.buffer_memory:
            route = self._known(topic)
            if route is not None:
                if (
                    partition is None and headers is None and timestamp_ms is None
                    and PyBytes_CheckExact(value) and (key is None or PyBytes_CheckExact(key))
                ):
                    return self._quickly(route, value, key)
                if _is_plain(value) and _is_plain(key):
                    sent = self._rather_quickly(route, value, key, partition, timestamp_ms, headers)
                    if sent is not None:
                        return sent
        return self._send_nowait_slowly(topic, value, key, partition, timestamp_ms, headers)

    cdef inline Route _known(self, str topic):
        """The topic's route, or None. Routes are updated, not replaced, so that one may be kept for a while."""
        cdef PyObject* found
        if topic is self._last_topic:
            return self._last_route
        found = PyDict_GetItem(self.gathering.routes, topic)
        if found is NULL:
            return None
        self._last_topic, self._last_route = topic, <Route>found
        return self._last_route

    def _forget_idle(self, double since_ms):
        """Drop the routes of topics that nothing was sent to since then; return the topics."""
        self._last_topic = self._last_route = None
        return self.gathering.forget_idle(since_ms)

    def _is_pause_due(self):
        """Whether a loop of sends has gone on for long enough."""
        return self.gathering.size_bytes >= self._next_pause

    def _pause_later(self):
        """Let the quick way go on for a while: a loop of sends must leave others their turn."""
        cdef Py_ssize_t stretch = PAUSE_EVERY if self.quick else PAUSE_EVERY // 8
        self._next_pause = min(self.gathering.size_bytes + stretch, self.gathering.buffer_memory)

    cdef inline object _quickly(self, Route route, value, key):
        cdef Gathering gathering = self.gathering
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value), key_size = -1
        cdef const unsigned char* key_data = NULL
        cdef int64_t now = gathering._now()
        cdef int32_t index = 0
        cdef Batch batch
        cdef Acknowledgement one
        if key is not None:
            key_data = <const unsigned char*>PyBytes_AS_STRING(key)
            key_size = PyBytes_GET_SIZE(key)
        if size + key_size + RECORD_OVERHEAD > gathering.max_record_size:
            raise RecordTooLarge(size + key_size + RECORD_OVERHEAD, gathering.max_record_size)
        if key is None:
            batch = gathering._put_anywhere(
                route, <const unsigned char*>PyBytes_AS_STRING(value), size, NULL, 0, now, &index
            )
        else:
            batch = gathering._put(
                route._by_key(key_data, key_size), key_data, key_size,
                <const unsigned char*>PyBytes_AS_STRING(value), size, NULL, 0, now, &index,
            )
        one = Acknowledgement.__new__(Acknowledgement)
        one._batch, one._index, one._timestamp = batch, index, now
        return one

    cdef object _rather_quickly(self, Route route, value, key, partition, timestamp_ms, headers):
        """Queue a record of bytes, text or None; None where the slow way has to say what is wrong with it."""
        cdef Py_ssize_t size
        cdef bytes packed = None if headers is None else packed_headers(headers)
        try:
            key = _as_bytes(key)
            value = _as_bytes(value)
        except UnicodeEncodeError:
            return None
        size = RECORD_OVERHEAD if packed is None else RECORD_OVERHEAD + PyBytes_GET_SIZE(packed)
        size += 0 if key is None else PyBytes_GET_SIZE(key)
        size += 0 if value is None else PyBytes_GET_SIZE(value)
        if size > self.gathering.max_record_size:
            raise RecordTooLarge(size, self.gathering.max_record_size)
        return self._put(route, key, value, partition, timestamp_ms, packed)

    def _put(self, Route route, bytes key, bytes value, partition, timestamp_ms, bytes headers):
        """Queue one record of bytes whose way is decided, except for the partition where that is None."""
        cdef Gathering gathering = self.gathering
        cdef int64_t stamp = gathering._now() if timestamp_ms is None else whole_ms(timestamp_ms)
        cdef int32_t index = 0
        cdef Batch batch
        cdef Queue queue
        cdef Acknowledgement one
        cdef Py_ssize_t key_size = -1 if key is None else PyBytes_GET_SIZE(key)
        cdef Py_ssize_t value_size = -1 if value is None else PyBytes_GET_SIZE(value)
        cdef Py_ssize_t headers_size = 0 if headers is None else PyBytes_GET_SIZE(headers)
        cdef const unsigned char* k = NULL if key is None else <const unsigned char*>PyBytes_AS_STRING(key)
        cdef const unsigned char* v = NULL if value is None else <const unsigned char*>PyBytes_AS_STRING(value)
        cdef const unsigned char* h = NULL if headers is None else <const unsigned char*>PyBytes_AS_STRING(headers)
        if partition is None and key is None:
            batch = gathering._put_anywhere(route, v, value_size, h, headers_size, stamp, &index)
        else:
            queue = route._by_key(k, key_size) if partition is None else route._queue(partition)
            batch = gathering._put(queue, k, key_size, v, value_size, h, headers_size, stamp, &index)
        one = Acknowledgement.__new__(Acknowledgement)
        one._batch, one._index, one._timestamp = batch, index, stamp
        return one

    def _put_some(
        self, Route route, list values, list keys, Py_ssize_t start, Py_ssize_t most, partition, list timestamps,
        bytes headers, serialize, Acknowledgements out,
    ):
        """Queue records from `start` on until the buffer is full; return the index of the first one left.

        Values are bytes, or made bytes or None by `serialize`; keys, where there are any, are bytes or None.
        """
        cdef Gathering gathering = self.gathering
        cdef Queue queue = None if partition is None else route._queue(partition)
        cdef Py_ssize_t i, count = min(len(values), start + most), value_size, key_size
        cdef Py_ssize_t headers_size = 0 if headers is None else PyBytes_GET_SIZE(headers)
        cdef const unsigned char* h = NULL if headers is None else <const unsigned char*>PyBytes_AS_STRING(headers)
        cdef const unsigned char* k
        cdef const unsigned char* v
        cdef int64_t stamp = gathering._now()
        cdef int32_t index = 0
        cdef object value, key
        cdef Batch batch
        for i in range(start, count):
            if gathering.size_bytes >= gathering.buffer_memory:
                return i
            value = <object>PyList_GET_ITEM(values, i)
            if value is not None and not PyBytes_CheckExact(value):
                value = serialize(value)
            if value is None:
                v, value_size = NULL, -1
            else:
                v, value_size = <const unsigned char*>PyBytes_AS_STRING(<bytes?>value), PyBytes_GET_SIZE(value)
            k, key_size = NULL, -1
            if keys is not None:
                key = keys[i]
                if key is not None:
                    k, key_size = <const unsigned char*>PyBytes_AS_STRING(<bytes?>key), PyBytes_GET_SIZE(key)
            if value_size + key_size + headers_size + RECORD_OVERHEAD > gathering.max_record_size:
                raise RecordTooLarge(value_size + key_size + headers_size + RECORD_OVERHEAD, gathering.max_record_size)
            if timestamps is not None:
                stamp = whole_ms(timestamps[i])
            if queue is not None:
                batch = gathering._put(queue, k, key_size, v, value_size, h, headers_size, stamp, &index)
            elif key_size < 0:
                batch = gathering._put_anywhere(route, v, value_size, h, headers_size, stamp, &index)
            else:
                batch = gathering._put(
                    route._by_key(k, key_size), k, key_size, v, value_size, h, headers_size, stamp, &index
                )
            out._add(batch, index, stamp)
        return count

    def _send_batch(self, BatchBuilder builder not None, Route route, int64_t partition):
        """Queue a batch that the application filled; return its first record's acknowledgement."""
        cdef Acknowledgement one = Acknowledgement.__new__(Acknowledgement)
        cdef Batch batch
        route._queue(partition)  # one that is not there is refused while the builder still has its batch
        batch = builder._sent()
        self.gathering.add(batch, route, partition)
        one._batch, one._timestamp = batch, batch.base_timestamp
        return one

    def _gather(self, Acknowledgements out, Acknowledgement one):
        """Put the acknowledgement of a record that was queued just now to others."""
        out._add(one._batch, one._index, one._timestamp)

    def _let_go(self, Acknowledgements out):
        out._let_go()


def placeholder(loop):
    """A batch that stands for the one a record will be in, once its topic is known."""
    return Batch(None, 0, 0.0, loop)


def waiting_acknowledgement(Batch batch):
    """An acknowledgement of a record that is not in any batch yet."""
    cdef Acknowledgement one = Acknowledgement.__new__(Acknowledgement)
    one._batch = batch
    batch.record_count += 1
    return one


def place(Acknowledgement waiting, Acknowledgement placed):
    """The record is in a batch now: whoever waits for it waits for that."""
    waiting._batch, waiting._index, waiting._timestamp = placed._batch, placed._index, placed._timestamp


def all_placed(Batch batch):
    """Nobody waits at a placeholder any more: its records are in batches, or failed with it."""
    callbacks, batch._callbacks = batch._callbacks, None
    for function, waiting in callbacks or ():
        waiting.add_done_callback(function)
    batch._looked_at = True
    batch._wake()

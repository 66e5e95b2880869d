# The partitions of a topic: a queue of batches for each, and the choice among them.

cdef class TopicInfo
cdef class Accumulator


@cython.final
cdef class Queue:
    """The batches of one partition, oldest first; the last may still be open."""

    cdef readonly object partition
    cdef readonly str topic
    cdef readonly int32_t index
    cdef readonly object batches
    cdef readonly int in_flight
    cdef Batch _open
    cdef Py_ssize_t _initial_capacity    # of the next batch: the size of the last one
    cdef double _last_batch_ms           # when the last batch was created

    def __cinit__(self, str topic, int32_t index):
        self.topic, self.index = topic, index
        self.partition = TopicPartition(topic, index)
        self.batches = deque()

    cdef Batch _next(self, int max_in_flight):
        """Return the next batch to send, or None. A retry is sent alone, so that batches keep their order."""
        cdef Batch batch
        if self.in_flight >= max_in_flight:
            return None
        for batch in self.batches:
            if batch.in_flight:
                if batch.attempts:
                    return None
                continue
            return None if batch.attempts and self.in_flight else batch
        return None


@cython.final
cdef class TopicInfo:
    """The partitions of one topic, and the sticky partition of its records without a key."""

    cdef readonly str topic
    cdef list _queues
    cdef readonly int32_t count
    cdef readonly list available         # partitions that have a leader
    cdef Queue _sticky                   # the partition of records without a key
    cdef Py_ssize_t _sticky_bytes_left   # until the sticky partition changes
    cdef Accumulator _accumulator
    cdef double _in_use_since_ms         # when it was created, or found again after `forget_idle`
    cdef object __weakref__

    def __cinit__(self, Accumulator accumulator, str topic):
        self._accumulator, self.topic = accumulator, topic
        self._queues, self.available = [], []
        self._in_use_since_ms = accumulator.monotonic_ms()

    cdef bint _is_idle(self, double since_ms):
        cdef Queue queue
        if self._in_use_since_ms > since_ms:
            return False
        for queue in self._queues:
            if queue.batches or queue._last_batch_ms > since_ms:
                return False
        return True

    def update(self, int32_t count, list available, bint is_other_topic=False):
        """Set how many partitions there are and which have leaders.

        A topic never loses a partition: a broker that names fewer has not heard of the last ones yet. Only another
        topic of the same name, created after this one was deleted, may have fewer. The queues that it does not have
        keep their batches until they are failed.

        A damaged response may name leaders of partitions that are not there: indexes are not checked below.
        """
        cdef int32_t index
        if not is_other_topic:
            count = max(self.count, count)
        if count < 1:
            raise ValueError(f"{self.topic!r} has no partitions")
        for index in range(self.count, count):
            self._queues.append(Queue(self.topic, index))
        del self._queues[count:]
        self.count = count
        self.available = [index for index in available if 0 <= index < count]
        if self._sticky is not None and self._sticky.index >= count:
            self._sticky = None
        if self._sticky is None or (self.available and self._sticky.index not in self.available):
            self._switch_sticky()

    @property
    def partitions(self):
        return range(self.count)

    cdef inline bint _has(self, int64_t index) noexcept:
        return 0 <= index < self.count

    cdef Queue _queue(self, int64_t index):
        if not self._has(index):
            raise NoSuchPartition(self.topic, index, self.count)
        return <Queue>self._queues[index]

    cdef inline Queue _by_key(self, const unsigned char* key, Py_ssize_t size):
        return <Queue>PyList_GET_ITEM(self._queues, (murmur2_of(key, size) & 0x7fffffff) % self.count)

    cdef object _switch_sticky(self):
        """Choose the next sticky partition at random, weighted towards short queues (KIP-794)."""
        cdef Queue queue
        cdef int32_t index
        cdef list choices = self.available or list(range(self.count)), weights
        cdef Py_ssize_t longest = 0
        if len(choices) > 1 and self._sticky is not None:
            choices = [index for index in choices if index != self._sticky.index]
        for index in choices:
            queue = <Queue>self._queues[index]
            longest = max(longest, len(queue.batches))
        weights = [longest + 1 - len((<Queue>self._queues[index]).batches) for index in choices]
        self._sticky = <Queue>self._queues[_weighted_choice(choices, weights, self._accumulator.chance())]
        self._sticky_bytes_left = self._accumulator.batch_size


cdef object _weighted_choice(list choices, list weights, double chance):
    cdef double left = chance * sum(weights)
    for choice, weight in zip(choices, weights):
        left -= weight
        if left < 0:
            return choice
    return choices[len(choices) - 1]

# Work, the queues it waits in, and the state of one assigned partition.

@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class WorkItem:
    cdef readonly Assignment assignment
    cdef readonly object record
    cdef readonly int64_t size
    cdef public int64_t started_ms
    cdef public object context
    cdef public object set_aside_for
    cdef public int attempt
    cdef readonly bint is_active
    cdef object _lane
    cdef int64_t _number
    # Of a batch: all of them; None for a single record.
    cdef list _lanes
    cdef list _numbers
    cdef list _records
    cdef WorkItem following

    def __repr__(self):
        where = "waiting" if self.assignment is None else self.partition
        return f"WorkItem({where}, offset {self.offset}, {self.count()} records)"

    @property
    def partition(self):
        return self.assignment.partition if self.assignment is not None else None

    @property
    def is_stale(self):
        return self.assignment.phase is CLOSED_PHASE

    @property
    def offset(self):
        return self.record.offset

    @property
    def lane(self):
        return self._lane

    @property
    def lanes(self):
        return [self._lane] if self._lanes is None else self._lanes

    @lanes.setter
    def lanes(self, list lanes):
        self._lanes = lanes

    @property
    def numbers(self):
        return [self._number] if self._numbers is None else self._numbers

    @property
    def records(self):
        return [self.record] if self._records is None else self._records

    cdef Py_ssize_t count(self) noexcept:
        return 1 if self._records is None else len(self._records)

    cdef int merge(self, WorkItem other, bint same_lane) except -1:
        """Add the records of other work; of the same lane it adds no lane."""
        if self._records is None:
            self._lanes, self._numbers, self._records = [self._lane], [self._number], [self.record]
        if not same_lane:
            self._lanes += other.lanes
        self._numbers += other.numbers
        self._records += other.records
        self.size += other.size
        return 0

    cdef int sort(self) except -1:
        if self._records is not None:
            self._records.sort(key=_offset)
            self._numbers.sort()
            self.record = self._records[0]
        return 0

    cdef void forget(self) noexcept:
        """Give up what may lead back to this work."""
        self.context = self.set_aside_for = None


def _offset(record):
    return record.offset


@cython.final
@cython.no_gc
@cython.freelist(4096)
cdef class WorkQueue:
    cdef WorkItem head
    cdef WorkItem tail

    def __dealloc__(self):
        self.clear()  # one by one: a long chain must not free itself recursively

    cdef void push(self, WorkItem work) noexcept:
        if self.head is None:
            self.head = work
        else:
            self.tail.following = work
        self.tail = work

    cdef void push_front(self, WorkItem work) noexcept:
        work.following = self.head
        self.head = work
        if self.tail is None:
            self.tail = work

    cdef WorkItem pop(self):
        cdef WorkItem work = self.head
        self.head = work.following
        if self.head is None:
            self.tail = None
        work.following = None
        return work

    cdef void clear(self) noexcept:
        cdef WorkItem work = self.head, following
        self.head = self.tail = None
        while work is not None:
            following = work.following
            work.following = None
            work.forget()  # of an attempt before: no collector of cycles would see it
            work = following

    cdef list items(self):
        cdef WorkItem work = self.head
        cdef list found = []
        while work is not None:
            found.append(work)
            work = work.following
        return found


@cython.final
cdef class Assignment:
    cdef readonly object partition
    cdef readonly StartedOffsets frontier
    cdef public object phase
    cdef dict _lanes             # lane -> what waits behind its active, ready or parked work
    cdef WorkQueue ready
    cdef readonly set parked_lanes
    cdef public list predecessors
    cdef public int64_t active, in_flight, buffered, buffered_bytes, parked, parked_bytes
    cdef public bint is_paused
    cdef public object committed
    cdef bint is_queued
    cdef Assignment next_turn

    def __init__(self, partition, StartedOffsets frontier not None):
        self.partition = partition
        self.frontier = frontier
        self.phase = OPEN_PHASE
        self._lanes = {}
        self.ready = WorkQueue.__new__(WorkQueue)
        self.parked_lanes = set()
        self.predecessors = []

    @property
    def is_stale(self):
        return self.phase is CLOSED_PHASE

    @property
    def lane_count(self):
        return len(self._lanes)

    cdef bint can_run(self) noexcept:
        return self.phase is OPEN_PHASE and self.ready.head is not None and not self.predecessors

    cdef bint put(self, WorkItem work, object lane) except -1:
        """Queue work; return whether it counts as parked, because its lane waits for a retry."""
        cdef object waiting
        if lane is None:
            self.ready.push(work)
            return False
        waiting = self._lanes.get(lane)
        if waiting is None:
            self._lanes[lane] = WorkQueue.__new__(WorkQueue)
            self.ready.push(work)
            return False
        (<WorkQueue>waiting).push(work)
        return len(self.parked_lanes) > 0 and lane in self.parked_lanes

    def requeue(self, WorkItem work not None):
        """Put work in front whose retry is due."""
        work.assignment = None
        self.ready.push_front(work)

    def free(self, WorkItem work not None):
        """Free the lanes of work that is over: the next work of each becomes ready."""
        if work._lanes is None:
            self._free(work._lane)
        else:
            for lane in work._lanes:
                self._free(lane)

    cdef int _free(self, object lane) except -1:
        cdef WorkQueue waiting
        if lane is None:
            return 0
        waiting = <WorkQueue>self._lanes[lane]
        if waiting.head is not None:
            self.ready.push(waiting.pop())
        else:
            del self._lanes[lane]
        return 0

    cdef int batch(self, WorkItem work, Py_ssize_t size, bint of_any) except -1:
        """Add what may be handled together with work that was taken, up to `size` records."""
        cdef WorkItem next_work
        if work.attempt > 1:  # a retry is not mixed with other records
            return 0
        if of_any:
            self._take_along(work, self.ready, size, same_lane=False)
        elif work._lane is None:
            next_work = self.ready.head
            while next_work is not None and next_work._lane is None and next_work.attempt == 1:
                if work.count() == size:
                    return 0
                work.merge(self.ready.pop(), False)
                next_work = self.ready.head
        for lane in tuple(work.lanes):
            if lane is not None and work.count() < size:
                self._take_along(work, <WorkQueue>self._lanes[lane], size, same_lane=True)
        if of_any:
            work.sort()
        return 0

    cdef int _take_along(self, WorkItem work, WorkQueue waiting, Py_ssize_t size, bint same_lane) except -1:
        while waiting.head is not None and work.count() < size and waiting.head.attempt == 1:
            work.merge(waiting.pop(), same_lane)
        return 0

    def waiting_behind(self, WorkItem work not None):
        """Return the number and the bytes of records that wait behind work in its lanes."""
        return _totals([item for lane in work.lanes if lane is not None for item in self._waiting_in(lane)])

    def waiting_buffered(self):
        """Return the number and the bytes of waiting records that count as buffered."""
        behind = [item for lane in self._lanes if lane not in self.parked_lanes for item in self._waiting_in(lane)]
        return _totals(self.ready.items() + behind)

    def _waiting_in(self, lane):
        return (<WorkQueue>self._lanes[lane]).items()

    def clear(self):
        """Forget all work that is not active; lanes stay taken."""
        self.ready.clear()
        for waiting in self._lanes.values():
            (<WorkQueue>waiting).clear()


cdef tuple _totals(list works):
    cdef int64_t count = 0, size = 0
    cdef WorkItem work
    for item in works:
        work = <WorkItem>item
        count += work.count()
        size += work.size
    return count, size

# The steps of work: add, take, release, finish, drop.

@cython.final
cdef class Totals:
    cdef public int64_t buffered, buffered_bytes, parked, parked_bytes

    def __repr__(self):
        return (
            f"Totals(buffered={self.buffered}, buffered_bytes={self.buffered_bytes}, "
            f"parked={self.parked}, parked_bytes={self.parked_bytes})"
        )


cdef class SchedulerCore:
    cdef readonly Totals totals
    cdef public bint resume_due
    cdef readonly list _parked   # a heap: when, a count, the work
    cdef readonly set _paused
    cdef bint _is_by_key
    cdef Py_ssize_t _batch_size
    cdef bint _batch_of_any
    cdef Assignment _first_turn
    cdef Assignment _last_turn

    def __init__(self, bint is_by_key, Py_ssize_t batch_size, bint batch_of_any):
        self.totals = Totals()
        self._parked = []
        self._paused = set()
        self._is_by_key = is_by_key
        self._batch_size = batch_size
        self._batch_of_any = batch_of_any

    # --- records

    def _put_all(self, Assignment one not None, records):
        """Queue records and count them; return how many they are."""
        cdef int64_t count = 0, size = 0, parked = 0, parked_size = 0
        cdef WorkItem work
        cdef int64_t number
        for record in records:
            lane = record.key if self._is_by_key else self._lane(record)
            number = one.frontier.start_one(record.offset)
            if number < 0:
                continue
            work = WorkItem.__new__(WorkItem)
            work.record = record
            work.attempt = 1
            work._lane = lane
            work._number = number
            work.size = OVERHEAD_BYTES
            work.size += <int64_t>record.serialized_key_size + <int64_t>record.serialized_value_size
            if one.put(work, lane):
                parked += 1
                parked_size += work.size
            else:
                count += 1
                size += work.size
        self.count_buffered(one, count, size)
        self.count_parked(one, parked, parked_size)
        return count + parked

    def count_buffered(self, Assignment one not None, int64_t count, int64_t size):
        one.buffered += count
        one.buffered_bytes += size
        self.totals.buffered += count
        self.totals.buffered_bytes += size

    def count_parked(self, Assignment one not None, int64_t count, int64_t size):
        one.parked += count
        one.parked_bytes += size
        self.totals.parked += count
        self.totals.parked_bytes += size

    # --- turns of the partitions

    def _give_turn(self, Assignment one not None):
        self.give_turn(one)

    cdef void give_turn(self, Assignment one) noexcept:
        if one.is_queued or not one.can_run():
            return
        one.is_queued = True
        if self._first_turn is None:
            self._first_turn = one
        else:
            self._last_turn.next_turn = one
        self._last_turn = one

    cdef Assignment next_turn(self):
        cdef Assignment one = self._first_turn
        self._first_turn = one.next_turn
        if self._first_turn is None:
            self._last_turn = None
        one.next_turn = None
        one.is_queued = False
        return one

    @property
    def has_ready(self):
        return self._first_turn is not None

    # --- work

    def take(self, int64_t now_ms):
        cdef Assignment one
        cdef WorkItem work
        if self._parked and self._parked[0][0] <= now_ms:
            self._unpark(now_ms)
        while self._first_turn is not None:
            one = self.next_turn()
            if not one.can_run():
                continue
            work = one.ready.pop()
            if self._batch_size > 1:
                one.batch(work, self._batch_size, self._batch_of_any)
            self.give_turn(one)
            one.active += 1
            one.in_flight += 1
            work.assignment = one
            work.is_active = True
            work.started_ms = now_ms
            return work
        return None

    def release(self, WorkItem work not None):
        work.assignment.free(work)
        self.end_attempt(work)

    cdef int end_attempt(self, WorkItem work) except -1:
        cdef Assignment one = work.assignment
        self.deactivate(work)
        self.count_buffered(one, -work.count(), -work.size)
        self.give_turn(one)
        if self._paused:
            self.resume_due = True
        return 0

    def _deactivate(self, WorkItem work not None):
        self.deactivate(work)

    cdef int deactivate(self, WorkItem work) except -1:
        cdef Assignment one = work.assignment
        if not work.is_active:
            raise AssertionError("work ends once")
        work.is_active = False
        one.active -= 1
        if not one.active and one.phase is CLOSED_PHASE:
            self._handlers_ended(one)
        return 0

    def finish(self, WorkItem work not None):
        cdef Assignment one = work.assignment
        cdef bint moved = False
        one.in_flight -= 1
        work.forget()
        if one.phase is CLOSED_PHASE:
            return False
        if work._numbers is None:
            moved = one.frontier.finish_one(work._number)
        else:
            for number in work._numbers:
                moved = one.frontier.finish_one(number) or moved
        if self._paused:
            self.resume_due = True
        return moved

    def drop(self, WorkItem work not None):
        self.end_attempt(work)
        work.assignment.in_flight -= 1
        work.forget()

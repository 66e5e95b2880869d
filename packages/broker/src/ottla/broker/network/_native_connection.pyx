# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The native half of a connection. `_native_connection.pyi` documents it, `native_connection.py` is the way in."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.math cimport INFINITY
from libc.stdint cimport INT64_MAX, int64_t

from ottla.broker.network._frames cimport FrameReader
from ottla.broker.network._response_sending cimport UnsentParts
from ottla.broker.quotas._rates cimport SessionQuotas
from ottla.broker.requests._fast_path cimport ANSWERED, GENERAL, FastAnswers, KnownTargets, TurnClock

cdef extern from "sys/socket.h" nogil:
    Py_ssize_t send(int descriptor, const void *data, size_t size, int flags)
    enum: MSG_DONTWAIT, MSG_NOSIGNAL

cdef enum:
    LOOK_AT_CLOCK_EVERY = 64    # requests


cdef class Unanswered:
    cdef public object pending      # a deque of requests that were begun, in their order
    cdef public Py_ssize_t unstarted
    cdef public int overlap_key


cdef class NativeIntake:
    cdef public FrameReader reader
    cdef public UnsentParts responses
    cdef public Unanswered requests
    cdef public WriteRound write_round
    cdef public object session
    cdef public object ordering
    cdef public object queue
    cdef public Py_ssize_t queue_limit
    cdef public object now_s
    cdef public bint taking
    cdef public bint pumping
    cdef public bint exhausted

    cdef bint is_free(self) except -1:
        """Whether the next request may be answered at once: no earlier one waits to begin or to be answered."""
        return (
            self.taking and not self.pumping and not self.requests.unstarted and not self.requests.pending
            and not self.responses.is_blocked() and self.ordering.behind is None
            and <Py_ssize_t> self.queue.unstarted < self.queue_limit
        )

    cdef bint serve(self, double received_s) except -1:
        """Serve the requests that fast paths answer at once; false when bytes are left for `pump`."""
        cdef Py_ssize_t count = 0
        if self.session.known is None or not self.is_free():
            return False
        while self._offer(received_s) == ANSWERED and self.taking:
            if self.reader.is_exhausted():
                self.reader.park()
                self.exhausted = True
                return True
            if self.responses.queued_bytes > self.responses.max_queued_bytes:
                return False
            count += self.write_round.answers.count
            if count >= LOOK_AT_CLOCK_EVERY:
                count = 0
                if self.queue.turn_is_over():
                    return False
        return False

    def offer(self, double received_s):
        cdef Unanswered requests = self.requests
        if requests.unstarted or self.ordering.behind is not None:
            return GENERAL  # an earlier request has still to begin
        if requests.pending and self.reader.api_key() != requests.overlap_key:
            return GENERAL
        return self._offer(received_s)

    cdef int _offer(self, double received_s) except -1:
        cdef int outcome
        cdef KnownTargets known
        cdef WriteRound write_round = self.write_round
        cdef FastAnswers answers = write_round.answers
        cdef dict known_by_key = self.session.known
        cdef SessionQuotas quotas = self.session.quotas
        found = None if known_by_key is None else known_by_key.get(self.reader.api_key())
        if found is None:
            return GENERAL
        if quotas.is_stale or quotas.is_limited and not quotas.serves_fast():
            return GENERAL
        known = found
        write_round.clear_answers()
        answers.quotas = quotas
        outcome = known.fast_path.serve(self.reader, known.targets, self.session, write_round, answers)
        if quotas.request is not None:
            quotas.charge_time()
        if answers.throttle_time_ms:
            self.throttle(answers.throttle_time_ms)
        if outcome == ANSWERED:
            known.fast_path.count_served(answers, (<double> self.now_s() - received_s) * 1000)
            self._queue(answers)
        elif outcome != GENERAL:
            write_round.answers = FastAnswers()  # these are the request's from now on
            self.requests.begin_wait(known.fast_path, answers, received_s * 1000)
        return outcome

    def throttle(self, throttle_time_ms):
        raise NotImplementedError

    cdef int _queue(self, FastAnswers answers) except -1:
        """Queue responses behind those of earlier requests."""
        cdef UnsentParts responses = self.responses
        if self.requests.pending:
            self.requests.answer_now(list(answers.parts))
            self.write_round.is_used = True
        elif answers.has_regions:
            responses.put_all(answers.parts, answers.size)
            self.write_round.is_used = True
        else:
            responses.parts.extend(answers.parts)
            responses.queued_bytes += answers.size
            self.write_round.bytes_out += answers.size
        return 0


cdef class NativeConnection:
    cdef public object shared
    cdef public NativeIntake intake
    cdef public object transport
    cdef public int descriptor
    cdef public bint reading
    cdef public bint closing
    cdef public double last_active_s
    cdef bint write_due

    def __cinit__(self, *arguments):
        self.descriptor = -1

    def get_buffer(self, sizehint):
        return self.intake.reader.get_buffer()

    def buffer_updated(self, Py_ssize_t nbytes):
        cdef NativeIntake intake = self.intake
        cdef FrameReader reader = intake.reader
        cdef WriteRound write_round = intake.write_round
        cdef double now_s = intake.now_s()
        self.last_active_s = now_s
        if not reader.received(nbytes):
            write_round.count_in(nbytes)
            if intake.queue.turn_is_over():  # a large frame goes on in the next: the others have their turns
                self.set_reading(False)
                intake.queue.flush_soon(self)
        elif now_s * 1000 > write_round.serve_until_ms:
            write_round.count_in(nbytes)
            write_round.overdue()
            self.stop_taking()  # also a connection that was accepted since then
            intake.exhausted = False
            reader.park()
        elif intake.serve(now_s):
            write_round.bytes_in += nbytes
            write_round.add(self)
        else:
            write_round.count_in(nbytes)
            intake.pump()
        if reader.shared.held > reader.shared.budget:
            self.shared.memory.relieve()

    def write_soon(self):
        self.intake.write_round.add(self)

    cpdef write(self):
        cdef bint reading
        cdef UnsentParts responses = self.intake.responses
        if self.closing:
            return
        parts = responses.parts
        if parts:
            if len(parts) == 1 and type(parts[0]) is bytes and not responses.is_blocked():
                responses.queued_bytes = 0
                self._send(parts.popleft())
            else:
                responses.flush()
        reading = self.intake.taking and self.intake.exhausted and not responses.is_blocked()
        if reading != self.reading:
            self.set_reading(reading)

    cdef int _send(self, bytes data) except -1:
        """Send what the socket takes, and give the rest to the transport, which has nothing else to write."""
        cdef Py_ssize_t sent = 0
        if self.descriptor >= 0 and not self.transport.is_closing():
            sent = send(
                self.descriptor, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL
            )
            if sent == PyBytes_GET_SIZE(data):
                return 0
        self.transport.write(data[sent:] if sent > 0 else data)  # an error of the socket occurs again there
        return 0


def _without_lease():
    """Do nothing: no lease was given to this round."""


cdef class WriteRound(TurnClock):
    cdef list _connections
    cdef bint _is_planned
    cdef object _call_soon
    cdef object _clock
    cdef object _now
    cdef object _meter_in
    cdef object _meter_out
    cdef object _monotonic_ms
    cdef object _fast_path_used
    cdef public FastAnswers answers
    cdef int64_t bytes_in       # not metered yet
    cdef int64_t bytes_out
    cdef bint is_used           # by requests of fast paths
    cdef public double serve_until_ms
    cdef public object overdue

    def __init__(self, call_soon, now_ms, bytes_in, bytes_out, monotonic_ms, fast_path_used):
        self._connections = []
        self._call_soon, self._clock, self._monotonic_ms = call_soon, now_ms, monotonic_ms
        self.serve_until_ms, self.overdue = INFINITY, _without_lease
        self._meter_in, self._meter_out, self._fast_path_used = bytes_in, bytes_out, fast_path_used
        self.answers = FastAnswers()

    cdef int clear_answers(self) except -1:
        cdef FastAnswers answers = self.answers
        if answers.parts:
            answers.parts.clear()
        answers.size = answers.size_in_bytes = answers.count = 0
        answers.has_regions = False
        answers.credit = INT64_MAX
        answers.throttle_time_ms = 0
        return 0

    cpdef add(self, NativeConnection connection):
        if connection.write_due:
            return
        self._plan()
        connection.write_due = True
        self._connections.append(connection)

    cpdef now_ms(self):
        if self._now is None:
            self._plan()  # for the end of the time
            self._now = self._clock()
        return self._now

    cdef int _plan(self) except -1:
        if not self._is_planned:
            self._is_planned = True
            self._call_soon(self.write_all)
        return 0

    cdef int count_in(self, int64_t size) except -1:
        self._meter_in.count += size
        return 0

    def write_all(self):
        cdef NativeConnection connection
        self._now = None
        if self.serve_until_ms != INFINITY and <double> self._monotonic_ms() > self.serve_until_ms:
            self.overdue()  # the answers stay here: `write_all` is called again
            return
        self._is_planned = False
        connections, self._connections = self._connections, []
        if self.bytes_in or self.bytes_out or self.is_used:
            self._meter_in.count += self.bytes_in
            self._meter_out.count += self.bytes_out
            self.bytes_in = self.bytes_out = 0
            self.is_used = False
            self._fast_path_used()
        for connection in connections:
            connection.write_due = False
        for connection in connections:
            try:
                connection.write()
            except Exception as error:  # the answers of the connections behind it are written all the same
                connection.fail(error)

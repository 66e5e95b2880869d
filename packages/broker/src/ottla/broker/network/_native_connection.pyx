# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The native half of a connection. `_native_connection.pyi` documents it, `native_connection.py` is the way in."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.math cimport INFINITY
from libc.stdint cimport int64_t

from ottla.broker.api.produce._fast_path cimport Target
from ottla.broker.network._frames cimport FrameReader
from ottla.protocol.native.produce cimport ProduceRun

from ottla.protocol.errors import KafkaError

cdef extern from "sys/socket.h" nogil:
    Py_ssize_t send(int descriptor, const void *data, size_t size, int flags)
    enum: MSG_DONTWAIT, MSG_NOSIGNAL

cdef enum:
    MAX_BUCKETS = 128


cdef class NativeConnection:
    cdef public object _shared
    cdef public object _queue
    cdef public Py_ssize_t _queue_limit
    cdef public FrameReader _reader
    cdef public object _response_queue
    cdef public object _transport
    cdef public object _ordering
    cdef public object _pending
    cdef public object _now_s
    cdef public object session
    cdef public dict _versions
    cdef public Tally _times
    cdef public Tally _sizes
    cdef public WriteRound _write_round
    cdef public Py_ssize_t _unstarted
    cdef public int _descriptor  # of the socket, -1 where bytes have to go through the transport
    cdef public bint _reading
    cdef public bint _taking
    cdef public bint _closing
    cdef public bint _pumping
    cdef public bint _exhausted
    cdef public double last_active_s
    cdef bint _write_due

    def __cinit__(self):
        self._descriptor = -1

    def get_buffer(self, sizehint):
        return self._reader.get_buffer()

    def buffer_updated(self, Py_ssize_t nbytes):
        cdef double now_s = self._now_s()
        self.last_active_s = now_s
        if not self._reader.received(nbytes):
            self._write_round.count_in(nbytes)
            if self._queue.turn_is_over():  # a large frame goes on in the next: the others have their turns
                self._set_reading(False)
                self._queue.flush_soon(self)
        elif now_s * 1000 > self._write_round.serve_until_ms:
            self._write_round.count_in(nbytes)
            self._write_round.overdue()
            self.stop_taking()  # also a connection that was accepted since then
            self._exhausted = False
            self._reader.park()
        elif self._append_runs(now_s):
            self._write_round.bytes_in += nbytes
        else:
            self._write_round.count_in(nbytes)
            self.pump()
        if self._reader.shared.held > self._reader.shared.budget:
            self._shared.memory.relieve()

    cdef bint _is_free(self, response_queue) except -1:
        """Whether the next request may be answered at once: no earlier one waits to begin or to be answered."""
        return (
            self._taking and not self._closing and not self._pumping and not self._unstarted
            and not self._pending and not response_queue._waiting and not response_queue._transport_paused
            and self._ordering.behind is None
            and <Py_ssize_t> self._queue.unstarted < self._queue_limit
        )

    cdef bint _append_runs(self, double now_s) except -1:
        """Append and answer the produce requests that were received; false when frames are left for `pump`."""
        cdef bytes answers
        cdef int64_t count
        cdef double took_ms
        cdef ProduceRun run
        cdef Target target
        cdef FrameReader reader = self._reader
        response_queue = self._response_queue
        if not self._is_free(response_queue):
            return False
        index = self.session.produce_targets
        if index is None:
            return False
        run = reader.next_produces(index)
        if run is None:
            return False
        self._write_round.add(self)  # also when frames are left: the answers so far have to be written
        parts, now_ms = response_queue._parts, self._write_round.now_ms()
        while True:
            try:
                target = run.target
                answers = target.append_now(run, now_ms)
            except (KafkaError, OSError):
                answers = None  # it fails again on the general path, which answers with the error
            if answers is None:
                reader.give_back(run)
                return False
            parts.append(answers)
            self._write_round.bytes_out += PyBytes_GET_SIZE(answers)
            count = run.count
            took_ms = (<double> self._now_s() - now_s) * 1000
            self._note(run.version, took_ms, run.size_in_bytes / <double> count, count)
            if reader.is_exhausted():
                break
            run = reader.next_produces(index)
            if run is None:
                return False
        reader.park()
        self._exhausted = True
        return True

    cdef int _note(self, version, double took_ms, double size, int64_t count) except -1:
        self._times.put(took_ms, count)
        self._sizes.put(size, count)
        self._versions[version] = <int64_t> self._versions.get(version, 0) + count
        return 0

    cpdef write(self):
        cdef bint reading
        if self._closing:
            return
        response_queue = self._response_queue
        parts = response_queue._parts
        if parts:
            if len(parts) == 1 and type(parts[0]) is bytes and not response_queue._waiting and not response_queue._transport_paused:
                self._send(parts.popleft())
            else:
                response_queue.flush()
        reading = self._taking and self._exhausted and not response_queue._waiting and not response_queue._transport_paused
        if reading != self._reading:
            self._set_reading(reading)

    cdef int _send(self, bytes data) except -1:
        """Send what the socket takes, and give the rest to the transport, which has nothing else to write."""
        cdef Py_ssize_t sent = 0
        if self._descriptor >= 0 and not self._transport.is_closing():
            sent = send(
                self._descriptor, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL
            )
            if sent == PyBytes_GET_SIZE(data):
                return 0
        self._transport.write(data[sent:] if sent > 0 else data)  # an error of the socket occurs again there
        return 0


def _nobody_holds():
    """Do nothing: no lease was given to this round."""


cdef class WriteRound:
    cdef list _connections
    cdef object _call_soon
    cdef object _clock
    cdef object _now
    cdef object _meter_in
    cdef object _meter_out
    cdef int64_t bytes_in       # not metered yet
    cdef int64_t bytes_out
    cdef public double serve_until_ms
    cdef public object overdue
    cdef object _monotonic_ms

    def __init__(self, call_soon, now_ms, bytes_in, bytes_out, monotonic_ms):
        self._connections = []
        self._call_soon, self._clock, self._monotonic_ms = call_soon, now_ms, monotonic_ms
        self.serve_until_ms, self.overdue = INFINITY, _nobody_holds
        self._meter_in, self._meter_out = bytes_in, bytes_out

    cpdef add(self, NativeConnection connection):
        if connection._write_due:
            return
        if not self._connections:
            self._call_soon(self.write_all)
        connection._write_due = True
        self._connections.append(connection)

    cpdef now_ms(self):
        if self._now is None:
            self._now = self._clock()
        return self._now

    cdef int count_in(self, int64_t size) except -1:
        self._meter_in.count += size
        return 0

    def write_all(self):
        cdef NativeConnection connection
        self._now = None
        if self.serve_until_ms != INFINITY and <double> self._monotonic_ms() > self.serve_until_ms:
            self.overdue()  # the answers stay here: `write_all` is called again
            return
        connections, self._connections = self._connections, []
        if connections and (self.bytes_in or self.bytes_out):
            self._meter_in.count += self.bytes_in
            self._meter_out.count += self.bytes_out
            self.bytes_in = self.bytes_out = 0
            (<NativeConnection> connections[0])._shared.times.fast_path_used()
        for connection in connections:
            connection._write_due = False
        for connection in connections:
            connection.write()


cdef class Tally:

    cdef double bounds[MAX_BUCKETS]
    cdef int64_t counts[MAX_BUCKETS]
    cdef int buckets
    cdef readonly int64_t count
    cdef double total
    cdef double largest

    def __cinit__(self, bounds):
        self.buckets = len(bounds)
        if self.buckets >= MAX_BUCKETS:
            raise ValueError("too many buckets")
        for i in range(self.buckets):
            self.bounds[i] = bounds[i]

    def note(self, double value, int64_t times):
        self.put(value, times)

    cdef void put(self, double value, int64_t times) noexcept:
        cdef int low = 0, high = self.buckets, middle
        while low < high:
            middle = (low + high) >> 1
            if self.bounds[middle] < value:
                low = middle + 1
            else:
                high = middle
        self.counts[low] += times
        self.count += times
        self.total += value * times
        if value > self.largest:
            self.largest = value

    def flush(self, *histograms):
        if not self.count:
            return
        counts = [self.counts[i] for i in range(self.buckets + 1)]
        for histogram in histograms:
            histogram.take(counts, self.count, self.total, self.largest)
        for i in range(self.buckets + 1):
            self.counts[i] = 0
        self.count, self.total, self.largest = 0, 0, 0

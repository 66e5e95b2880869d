# cython: language_level=3
"""The part of a connection that every produced batch goes through, natively. `wire` says what is promised."""

from ottla.protocol.errors import KafkaError


cdef class Wire:
    cdef public object _server
    cdef public object _reader
    cdef public object _run_index
    cdef public object _outbox
    cdef public object _transport
    cdef public object _ordering
    cdef public object _pending
    cdef public object _bytes_in
    cdef public object _turn
    cdef public object _now_s
    cdef public object _now_ms
    cdef public Py_ssize_t _queue_limit
    cdef public Py_ssize_t _unstarted
    cdef public bint _reading
    cdef public bint _taking
    cdef public bint _closing
    cdef public bint _pumping
    cdef public bint _exhausted
    cdef public double last_active_s
    cdef bint _write_due

    def get_buffer(self, sizehint):
        return self._reader.get_buffer()

    def buffer_updated(self, Py_ssize_t nbytes):
        cdef double now_s = self._now_s()
        self.last_active_s = now_s
        self._bytes_in.count += nbytes
        if self._reader.received(nbytes) and not self._append_runs(now_s):
            self.pump()

    cdef bint _is_free(self) except -1:
        """Whether nothing is under way that what comes now would have to wait for."""
        outbox = self._outbox
        return (
            self._taking and not self._closing and not self._pumping and not self._unstarted
            and not self._pending and not outbox._waiting and not outbox._transport_paused
            and self._ordering.behind is None
            and <Py_ssize_t> self._server.unstarted < self._queue_limit
        )

    cdef bint _append_runs(self, double now_s) except -1:
        """Append and answer the produce requests that have come; False when something is left to do."""
        cdef bytes answers
        if not self._is_free():
            return False
        reader, index, outbox = self._reader, self._run_index, self._outbox
        run = reader.next_produces(index)
        if run is None:
            return False
        parts, now_ms = outbox._parts, self._now_ms()
        while run is not None:
            try:
                answers = run.target.append_alone(run, now_ms)
            except (KafkaError, OSError):
                answers = None  # it fails again on the general way, which knows what to say
            if answers is None:
                reader.give_back(run)
                return False
            parts.append(answers)
            outbox._bytes_out.count += len(answers)
            self._server.measure_run(run, now_s * 1000)
            run = reader.next_produces(index)
        if reader.rest:
            return False
        reader.park()
        self._exhausted = True
        (<Turn> self._turn).add(self)
        return True

    cpdef write(self):
        cdef bint reading
        if self._closing:
            return
        outbox = self._outbox
        parts = outbox._parts
        if parts:
            if len(parts) == 1 and type(parts[0]) is bytes and not outbox._waiting and not outbox._transport_paused:
                self._transport.write(parts.popleft())
            else:
                outbox.flush()
        reading = (
            self._taking and self._exhausted and not outbox._waiting and not outbox._transport_paused
        )
        if reading != self._reading:
            self._set_reading(reading)


cdef class Turn:
    cdef list _wires
    cdef object _call_soon

    def __init__(self, call_soon):
        self._wires = []
        self._call_soon = call_soon

    cpdef add(self, Wire wire):
        if wire._write_due:
            return
        if not self._wires:
            self._call_soon(self.write_all)
        wire._write_due = True
        self._wires.append(wire)

    def write_all(self):
        cdef Wire wire
        wires, self._wires = self._wires, []
        for wire in wires:
            wire._write_due = False
        for wire in wires:
            wire.write()

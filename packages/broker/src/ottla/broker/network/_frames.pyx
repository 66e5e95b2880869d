# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Frames, natively. `_frames_py` is the same in plain Python, and documents it."""

from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.ref cimport Py_REFCNT
from libc.string cimport memcpy

from ottla.broker.requests._fast_path cimport ReceivedBytes
from ottla.protocol.records._batch cimport get32

from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame, TooLarge

cdef Py_ssize_t SHORTEST = SHORTEST_FRAME

cdef enum:
    SIZE = 4
    HEAD = 6                    # the size and the API key behind it
    # A frame above this is received into memory of its own, without a copy; below it, the copy of its
    # first part costs less than a receive that ends with it.
    DIRECT_ABOVE = 128 << 10
    GROW_FROM = 1 << 20
    # A large frame is received in parts of this size: the first touch of fresh memory costs more than the copy,
    # and whoever receives asks after each part whether the turn of the event loop is over.
    RECEIVED_AT_ONCE = 256 << 10
    SPARE_BYTES = 8 << 20


cdef class ReceiveBuffer:
    """The one buffer that all connections of an event loop receive into."""

    def __cinit__(self, Py_ssize_t size=RECEIVE_BUFFER_BYTES):
        self.memory = bytearray(size)
        self.view = memoryview(self.memory)
        self.spare = []
        self.budget = PY_SSIZE_T_MAX

    cpdef hold(self, Py_ssize_t size):
        self.held += size

    cdef bytearray take(self, Py_ssize_t size):
        """Return memory of at least `size` bytes that has no other user; its content is not cleared."""
        cdef bytearray memory
        cdef Py_ssize_t i
        for i in range(len(self.spare) - 1, -1, -1):
            memory = self.spare[i]
            if PyByteArray_GET_SIZE(memory) >= size and Py_REFCNT(memory) == 2:  # references: the list's and ours
                del self.spare[i]
                self.spare_bytes -= PyByteArray_GET_SIZE(memory)
                self.held += PyByteArray_GET_SIZE(memory)
                return memory
        self.held += size
        return PyByteArray_FromStringAndSize(NULL, size)

    cdef int give_back(self, bytearray memory) except -1:
        """Keep memory for another frame. The event loop may still refer to it, so `take` checks that."""
        cdef Py_ssize_t size = PyByteArray_GET_SIZE(memory)
        self.held -= size
        if size > DIRECT_ABOVE and self.spare_bytes + size <= SPARE_BYTES:
            self.spare.append(memory)
            self.spare_bytes += size
        return 0


cdef class FrameReader(ReceivedBytes):
    """Splits the bytes that one connection receives into frames."""

    def __cinit__(self, ReceiveBuffer shared, Py_ssize_t max_frame_bytes, max_other_bytes=None, record_keys=()):
        self.shared, self.record_keys = shared, record_keys
        self.limit = self.other_limit = max_frame_bytes
        if max_other_bytes is not None and max_other_bytes < max_frame_bytes:
            self.other_limit = max_other_bytes
        self.limit_after_next = self.limit
        self.shortest = SHORTEST

    def set_limits(self, Py_ssize_t max_frame_bytes, Py_ssize_t max_other_bytes, Py_ssize_t shortest):
        self.limit, self.shortest = max_frame_bytes, shortest
        self.other_limit = min(max_frame_bytes, max_other_bytes)
        self.limit_after_next = self.limit

    def lift_limit(self, *, bint once=False):
        self.limit_after_next = self.other_limit if once else self.limit
        self.other_limit = self.limit

    def forget(self):
        self.position = self.end = self.kept_bytes_ = 0
        self.direct = False
        self._keep(None)

    @property
    def kept_bytes(self):
        return self.kept_bytes_

    @property
    def exhausted(self):
        return self.is_exhausted()

    cdef bint is_exhausted(self) noexcept:
        cdef Py_ssize_t rest = self.end - self.position, size
        if rest < SIZE or self.source is None:
            return True
        size = get32(<const unsigned char *> PyByteArray_AS_STRING(self.source) + self.position)
        return self.shortest <= size <= self.limit and rest - SIZE < size

    cpdef object get_buffer(self):
        cdef Py_ssize_t need
        self.direct = False
        if self.kept is None:
            return self.shared.view
        if self.kept_bytes_ >= HEAD:
            need = SIZE + <Py_ssize_t> get32(<const unsigned char *> PyByteArray_AS_STRING(self.kept))
            if need > DIRECT_ABOVE and self.kept_bytes_ < need:
                self.direct = True
                self._grow(need)
                need = min(need, self.kept_bytes_ + RECEIVED_AT_ONCE)
                return self.kept_view[self.kept_bytes_:min(need, PyByteArray_GET_SIZE(self.kept))]
        if self.kept_bytes_ >= PyByteArray_GET_SIZE(self.shared.memory) // 2:
            return self._whole_frames_wait()
        memcpy(PyByteArray_AS_STRING(self.shared.memory), PyByteArray_AS_STRING(self.kept), self.kept_bytes_)
        return self.shared.view[self.kept_bytes_:]

    cdef object _whole_frames_wait(self):
        """Return room behind whole frames that were not taken: too many bytes to copy into the shared memory."""
        self.direct = True
        self._grow(2 * self.kept_bytes_)
        return self.kept_view[self.kept_bytes_:]

    cdef int _grow(self, Py_ssize_t need) except -1:
        """Make room, at most twice the bytes received: an announced size alone takes no memory."""
        cdef Py_ssize_t room = max(<Py_ssize_t> GROW_FROM, 2 * self.kept_bytes_)
        cdef bytearray grown
        if room > need:
            room = need
        if PyByteArray_GET_SIZE(self.kept) > self.kept_bytes_:
            return 0
        if PyByteArray_GET_SIZE(self.kept) < GROW_FROM or not self._stretch(room):
            grown = self.shared.take(room)
            memcpy(PyByteArray_AS_STRING(grown), PyByteArray_AS_STRING(self.kept), self.kept_bytes_)
            self._keep(grown)
        self._is_incomplete()
        return 0

    cdef bint _stretch(self, Py_ssize_t room) except -1:
        """Make room behind large memory: its pages are moved, where a copy of 50 MB takes 40 ms.

        False while somebody else, such as the event loop, refers to it.
        """
        cdef Py_ssize_t before = PyByteArray_GET_SIZE(self.kept)
        self.kept_view = self.source_view = None
        try:
            PyByteArray_Resize(self.kept, room)
        except BufferError:
            return False
        finally:
            self.kept_view = memoryview(self.kept)
        self.shared.held += room - before
        return True

    cdef int _is_incomplete(self) except -1:
        """Show that no whole frame was received: earlier requests are answered meanwhile, and look here."""
        self.source, self.source_view = self.kept, self.kept_view
        self.position, self.end = 0, self.kept_bytes_
        return 0

    cdef int _keep(self, bytearray memory) except -1:
        cdef bytearray before = self.kept
        self.kept, self.kept_view = memory, None if memory is None else memoryview(memory)
        self.source, self.source_view = None, None
        if before is not None:
            self.shared.give_back(before)
        return 0

    cpdef bint received(self, Py_ssize_t count):
        if self.direct:
            if self.kept_bytes_ + count < SIZE + <Py_ssize_t> get32(<const unsigned char *> PyByteArray_AS_STRING(self.kept)):
                self.kept_bytes_ += count
                self.direct = False
                self._is_incomplete()
                return False
            self.source, self.source_view = self.kept, self.kept_view
            self.end = self.kept_bytes_ + count
        else:
            self.source, self.source_view = self.shared.memory, self.shared.view
            self.end = self.kept_bytes_ + count
        self.position = 0
        self.direct = False
        return True

    cpdef object next_frame(self):
        cdef Py_ssize_t start = self.position, have = self.end - self.position, size
        cdef int api_key
        if have < SIZE:
            return None
        size = get32(<const unsigned char *> PyByteArray_AS_STRING(self.source) + start)
        if size < self.shortest or size > self.limit:
            raise BadFrame(size, self.limit)
        if size > self.other_limit:
            if have < HEAD:
                return None
            api_key = self.api_key()
            if api_key not in self.record_keys:
                raise TooLarge(size, self.other_limit, api_key)
        if have - SIZE < size:
            return None
        self.position = start + SIZE + size
        if size > self.limit_after_next:  # a frame that is given back is too large again
            self.other_limit = self.limit_after_next
        return self.source_view[start + SIZE:self.position]

    cpdef give_back_frame(self, frame):
        self.position -= SIZE + len(frame)

    cpdef object park(self):
        cdef Py_ssize_t rest = self.end - self.position, room = self.end - self.position, need
        cdef const char *start
        cdef bytearray kept
        if rest <= 0:
            self.kept_bytes_ = 0
            if self.kept is not None:
                self._keep(None)
        elif self.source is not self.kept or self.position:
            start = PyByteArray_AS_STRING(self.source) + self.position
            if rest >= SIZE:
                need = SIZE + <Py_ssize_t> get32(<const unsigned char *> start)
                if DIRECT_ABOVE < need <= SIZE + self.limit:
                    room = max(rest, min(need, max(<Py_ssize_t> GROW_FROM, 2 * rest)))
            kept = self.shared.take(room)
            memcpy(PyByteArray_AS_STRING(kept), start, rest)
            self._keep(kept)
            self.kept_bytes_ = rest
        else:
            self.kept_bytes_ = self.end
        self.source, self.source_view = self.kept, self.kept_view
        self.position, self.end = 0, self.kept_bytes_

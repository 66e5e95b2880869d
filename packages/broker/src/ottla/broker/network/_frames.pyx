# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Frames, natively. `_frames_py` is the same in plain Python and says what is promised."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from libc.stdint cimport int32_t
from libc.string cimport memcpy, memmove

from ottla.broker.network._frames_py import RECEIVE_BUFFER_BYTES, SHORTEST_FRAME, BadFrame

cdef extern from *:
    """
    #include <stdint.h>
    static inline int32_t ottla_be32(const char *p) {
        uint32_t v; __builtin_memcpy(&v, p, 4); return (int32_t)__builtin_bswap32(v);
    }
    """
    int32_t ottla_be32(const char *p) nogil

cdef Py_ssize_t SHORTEST = SHORTEST_FRAME

cdef enum:
    SIZE = 4
    # A frame above this is received into memory of its own, without a copy; below it, the copy of its
    # first part costs less than a receive that ends with it.
    DIRECT_ABOVE = 128 << 10
    GROW_FROM = 1 << 20


cdef class ReceiveBuffer:
    """The one buffer that all connections of an event loop receive into."""

    cdef readonly bytearray memory
    cdef readonly object view

    def __cinit__(self, Py_ssize_t size=RECEIVE_BUFFER_BYTES):
        self.memory = bytearray(size)
        self.view = memoryview(self.memory)


cdef class FrameReader:
    """Splits what one connection receives into frames."""

    cdef ReceiveBuffer shared
    cdef Py_ssize_t limit
    cdef bytearray kept         # memory of its own: what is not a whole frame yet
    cdef object kept_view
    cdef Py_ssize_t kept_bytes_
    cdef bint direct            # the last get_buffer gave room behind `kept`
    cdef bytearray source       # where the bytes not taken yet are
    cdef object source_view
    cdef Py_ssize_t position
    cdef Py_ssize_t end

    def __cinit__(self, ReceiveBuffer shared, Py_ssize_t max_frame_bytes):
        self.shared = shared
        self.limit = max_frame_bytes

    @property
    def kept_bytes(self):
        return self.kept_bytes_

    cpdef object get_buffer(self):
        cdef Py_ssize_t need
        self.direct = False
        if self.kept is None:
            return self.shared.view
        if self.kept_bytes_ >= SIZE:
            need = SIZE + <Py_ssize_t> ottla_be32(PyByteArray_AS_STRING(self.kept))
            if need > DIRECT_ABOVE and self.kept_bytes_ < need:
                self.direct = True
                self._grow(need)
                return self.kept_view[self.kept_bytes_:]
        if self.kept_bytes_ > PyByteArray_GET_SIZE(self.shared.memory) // 2:
            self.direct = True
            self._grow(2 * self.kept_bytes_)
            return self.kept_view[self.kept_bytes_:]
        memcpy(PyByteArray_AS_STRING(self.shared.memory), PyByteArray_AS_STRING(self.kept), self.kept_bytes_)
        return self.shared.view[self.kept_bytes_:]

    cdef int _grow(self, Py_ssize_t need) except -1:
        """Make room for more, no more than twice what has come: a size alone takes no memory."""
        cdef Py_ssize_t room = max(<Py_ssize_t> GROW_FROM, 2 * self.kept_bytes_)
        cdef bytearray grown
        if room > need:
            room = need
        if PyByteArray_GET_SIZE(self.kept) > self.kept_bytes_:
            return 0
        grown = PyByteArray_FromStringAndSize(NULL, room)
        memcpy(PyByteArray_AS_STRING(grown), PyByteArray_AS_STRING(self.kept), self.kept_bytes_)
        self.kept = grown
        self.kept_view = memoryview(grown)
        return 0

    cpdef object received(self, Py_ssize_t count):
        if self.direct:
            self.source, self.source_view = self.kept, self.kept_view
            self.end = self.kept_bytes_ + count
        else:
            self.source, self.source_view = self.shared.memory, self.shared.view
            self.end = self.kept_bytes_ + count
        self.position = 0
        self.direct = False

    cpdef object next_frame(self):
        cdef Py_ssize_t start = self.position, have = self.end - self.position, size
        if have < SIZE:
            return None
        size = ottla_be32(PyByteArray_AS_STRING(self.source) + start)
        if size < SHORTEST or size > self.limit:
            raise BadFrame(size, self.limit)
        if have - SIZE < size:
            return None
        self.position = start + SIZE + size
        return self.source_view[start + SIZE:self.position]

    cpdef object park(self):
        cdef Py_ssize_t rest = self.end - self.position
        cdef bytearray kept
        if rest <= 0:
            self.kept, self.kept_view, self.kept_bytes_ = None, None, 0
        elif self.source is not self.kept or self.position:
            kept = PyByteArray_FromStringAndSize(NULL, rest)
            memcpy(PyByteArray_AS_STRING(kept), PyByteArray_AS_STRING(self.source) + self.position, rest)
            self.kept, self.kept_view, self.kept_bytes_ = kept, memoryview(kept), rest
        else:
            self.kept_bytes_ = self.end
        self.source, self.source_view = self.kept, self.kept_view
        self.position, self.end = 0, self.kept_bytes_

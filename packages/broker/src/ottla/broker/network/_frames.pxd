# cython: language_level=3
"""The reader of frames, for other compiled modules of the broker."""

from ottla.broker.requests._fast_path cimport ReceivedBytes


cdef class ReceiveBuffer:
    cdef readonly bytearray memory
    cdef readonly object view
    cdef list spare             # memory of large frames, to be used again: fresh pages cost more than the bytes in them
    cdef readonly Py_ssize_t spare_bytes
    cdef readonly Py_ssize_t held       # of frames of all connections, and of requests that were copied from here
    cdef public Py_ssize_t budget       # what may be held

    cpdef hold(self, Py_ssize_t size)
    cdef bytearray take(self, Py_ssize_t size)
    cdef int give_back(self, bytearray memory) except -1


cdef class FrameReader(ReceivedBytes):
    cdef ReceiveBuffer shared
    cdef Py_ssize_t shortest    # frame
    cdef Py_ssize_t other_limit # of requests without records to append
    cdef object record_keys     # API keys of the requests that carry them
    cdef Py_ssize_t limit_after_next    # a larger frame brings the other limit back to this
    cdef bytearray kept         # memory of its own for what is not a whole frame yet
    cdef object kept_view
    cdef Py_ssize_t kept_bytes_
    cdef bint direct            # the last get_buffer gave room behind `kept`

    cdef bint is_exhausted(self) noexcept
    cpdef object get_buffer(self)
    cdef object _whole_frames_wait(self)
    cdef int _grow(self, Py_ssize_t need) except -1
    cdef bint _stretch(self, Py_ssize_t room) except -1
    cdef int _is_incomplete(self) except -1
    cdef int _keep(self, bytearray memory) except -1
    cpdef bint received(self, Py_ssize_t count)
    cpdef object next_frame(self)
    cpdef give_back_frame(self, frame)
    cpdef object park(self)

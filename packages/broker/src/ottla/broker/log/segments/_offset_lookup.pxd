# cython: language_level=3
"""Searches in log files, for other compiled modules of the broker."""

from libc.stdint cimport int64_t

cdef enum:
    HEAD_BYTES = 27             # base offset, length, leader epoch, magic, CRC, attributes, last offset delta
    CHUNK_BYTES = 4096

cdef struct Entry:
    int64_t position
    int64_t size
    int64_t base_offset
    int64_t last_offset

cdef struct Walk:
    int fd
    bint wait
    int64_t position    # of the next entry
    int64_t end
    int64_t read_bytes  # to read at once: one header where entries are large
    int64_t chunk_at
    int64_t have
    unsigned char chunk[CHUNK_BYTES]


cdef class Slice:
    cdef readonly object file
    cdef readonly int64_t position
    cdef readonly int64_t length
    cdef readonly int64_t end_offset    # no batch of the slice has it, nor one above
    cdef int descriptor         # of a file of the operating system, which `file` keeps open; else -1
    cdef int64_t seen_at        # bytes that were just read without a wait, for the next `is_hot`
    cdef int64_t seen_bytes

    cpdef int fileno(self) except -1
    cpdef bint is_hot(self) except -1


cdef Slice new_slice(object file, int descriptor, int64_t position, int64_t length, int64_t end_offset)
cdef void begin(Walk *walk, int fd, bint wait, int64_t end, int64_t read_bytes, int64_t position) noexcept
cdef int following(Walk *walk, Entry *entry) except -1
cdef int64_t indexed(object index, Py_ssize_t count, int column, int64_t value) except -1
cdef int64_t whole(
    Walk *walk, object index, Py_ssize_t count, int64_t start, int64_t limit, bint at_least_one, int64_t *next_offset
) except -1

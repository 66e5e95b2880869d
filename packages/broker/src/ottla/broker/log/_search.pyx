# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Searches in log files and their indexes, natively. `_search_py` is the same in plain Python."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, EINVAL, EOPNOTSUPP, ENOSYS, errno
from libc.stdint cimport int32_t, int64_t

from ottla.broker.log.files import DiskFile
from ottla.protocol.storage import CorruptStorage

cdef extern from *:
    """
    #define _GNU_SOURCE
    #include <errno.h>
    #include <stdint.h>
    #include <sys/types.h>
    #include <sys/uio.h>
    #include <unistd.h>
    static inline int32_t ottla_be32(const char *p) {
        uint32_t v; __builtin_memcpy(&v, p, 4); return (int32_t)__builtin_bswap32(v);
    }
    static inline int64_t ottla_be64(const char *p) {
        uint64_t v; __builtin_memcpy(&v, p, 8); return (int64_t)__builtin_bswap64(v);
    }
    /* Read what is in memory; -1 with EAGAIN where the disk would have to be waited for. */
    static ssize_t ottla_read_now(int fd, char *into, size_t size, off_t at) {
    #if defined(__linux__) && defined(RWF_NOWAIT)
        struct iovec one = {into, size};
        return preadv2(fd, &one, 1, at, RWF_NOWAIT);
    #else
        errno = EOPNOTSUPP;
        return -1;
    #endif
    }
    """
    int32_t ottla_be32(const char *p) nogil
    int64_t ottla_be64(const char *p) nogil
    ssize_t ottla_read_now(int fd, char *into, size_t size, int64_t at) nogil
    ssize_t pread(int fd, char *into, size_t size, int64_t at) nogil

cdef enum:
    HEAD = 27           # base offset, length, leader epoch, magic, CRC, attributes, last offset delta
    OVERHEAD = 12
    LOOK = 4096
    MOST_HINTS = 1024
    STEP = 64 << 10     # the kernel reads ahead in larger pieces than this

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
    int64_t look        # bytes to read at once: one header where entries are large
    int64_t chunk_at
    int64_t have
    char chunk[LOOK]


cdef ssize_t read_some(int fd, char *into, size_t size, int64_t at, bint wait) noexcept nogil:
    cdef ssize_t got
    while True:
        got = -1
        if not wait:
            got = ottla_read_now(fd, into, size, at)
            if got < 0 and errno in (EOPNOTSUPP, ENOSYS, EINVAL):
                wait = True  # this file system cannot say
        if wait:
            got = pread(fd, into, size, at)
        if got >= 0 or errno != EINTR:
            return got


cdef int following(Walk *walk, Entry *entry) except -1:
    """Read the next header; 0 at the end."""
    cdef const char *p
    cdef int32_t length
    cdef int64_t size
    cdef ssize_t got
    if walk.end - walk.position < HEAD:
        return 0
    if walk.position < walk.chunk_at or walk.position + HEAD > walk.chunk_at + walk.have:
        size = min(walk.look, walk.end - walk.position)
        got = read_some(walk.fd, walk.chunk, size, walk.position, walk.wait)
        if 0 <= got < HEAD and not walk.wait:
            errno = EAGAIN
            got = -1
        if got < 0:
            raise OSError(errno, "a segment could not be read")
        if got < HEAD:
            return 0
        walk.chunk_at, walk.have = walk.position, got
    p = walk.chunk + (walk.position - walk.chunk_at)
    length = ottla_be32(p + 8)
    if length < 14 or <unsigned char> p[16] > 2:
        raise CorruptStorage(f"no entry at byte {walk.position}", walk.position)
    entry.position = walk.position
    entry.size = <int64_t> length + OVERHEAD
    entry.base_offset = entry.last_offset = ottla_be64(p)
    if p[16] == 2:
        entry.last_offset += ottla_be32(p + 23)
    walk.position += entry.size
    walk.look = HEAD if entry.size >= LOOK else LOOK
    return 1


cdef int64_t indexed(object index, Py_ssize_t count, int column, int64_t value) except -1:
    """The position in the last entry whose offset (column 0) or position (1) is at or below `value`; else 0."""
    cdef Py_buffer view
    cdef const char *entries
    cdef Py_ssize_t low = 0, high = count, middle
    cdef int64_t found = 0
    if not count:
        return 0
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    if view.len < 8 * count:
        PyBuffer_Release(&view)
        raise ValueError("the index is shorter than its entries")
    entries = <const char *> view.buf
    while low < high:
        middle = (low + high) >> 1
        if <int64_t> ottla_be32(entries + 8 * middle + 4 * column) <= value:
            low = middle + 1
        else:
            high = middle
    if low:
        found = ottla_be32(entries + 8 * (low - 1) + 4)
    PyBuffer_Release(&view)
    return found


def find_entry(int fd, index, Py_ssize_t count, int64_t relative_offset, int64_t end, int64_t offset, bint wait):
    cdef Walk walk
    cdef Entry entry
    walk.fd, walk.wait, walk.end, walk.look, walk.chunk_at, walk.have = fd, wait, end, LOOK, 0, 0
    walk.position = indexed(index, count, 0, relative_offset)
    while following(&walk, &entry):
        if entry.last_offset >= offset:
            return entry.position, entry.size, entry.base_offset, entry.last_offset
    return None


cdef int64_t whole(
    int fd, object index, Py_ssize_t count, int64_t start, int64_t limit, int64_t stop, bint at_least_one, bint wait,
    int64_t *next_offset,
) except -1:
    cdef Walk walk
    cdef Entry entry
    cdef int64_t end = max(start, indexed(index, count, 1, limit))
    next_offset[0] = -1
    walk.fd, walk.wait, walk.end, walk.look, walk.chunk_at, walk.have = fd, wait, stop, HEAD, 0, 0
    walk.position = end
    while following(&walk, &entry):
        if entry.position + entry.size > limit and (end > start or not at_least_one):
            next_offset[0] = entry.base_offset
            break
        end, next_offset[0] = entry.position + entry.size, entry.last_offset + 1
        if end > limit:
            break
    return end


def whole_end(
    int fd, index, Py_ssize_t count, int64_t start, int64_t limit, int64_t stop, bint at_least_one, bint wait
):
    cdef int64_t next_offset, end
    end = whole(fd, index, count, start, limit, stop, at_least_one, wait, &next_offset)
    return end, next_offset


cdef bint is_in_memory(int fd, int64_t position, int64_t length) except -1:
    cdef int64_t at, last = position + length - 1
    cdef char byte
    at = position
    while length > 0:
        if ottla_read_now(fd, &byte, 1, at) < 0:
            if errno == EAGAIN:
                return False
            if errno in (EOPNOTSUPP, ENOSYS, EINVAL):
                return True
            if errno != EINTR:
                raise OSError(errno, "a segment could not be read")
            continue
        if at == last:
            return True
        at = min(at + STEP, last)
    return True


def in_memory(int fd, int64_t position, int64_t length):
    return is_in_memory(fd, position, length)


cdef class Slice:
    """Whole batches in a segment's file, which it keeps open even when the segment goes."""

    cdef readonly object file
    cdef readonly int64_t position
    cdef readonly int64_t length

    def __cinit__(self, file, int64_t position, int64_t length):
        self.file = file
        self.position = position
        self.length = length

    def __repr__(self):
        return f"Slice({self.file.path.name}, {self.position}, {self.length})"

    @property
    def segment_file(self):
        return self.file

    cpdef int fileno(self) except -1:
        return self.file.fileno()

    def read(self):
        return self.file.pread(self.length, self.position)

    cpdef bint is_hot(self) except -1:
        return is_in_memory(self.file.fileno(), self.position, self.length)


def read_active(tail, int64_t offset, int64_t max_bytes, int64_t up_to):
    cdef dict hints = tail.hints
    cdef Walk walk
    cdef Entry entry
    cdef int64_t start, stop, end, next_offset, base_offset
    cdef int fd
    segment = tail.segment
    file = segment.file
    index = segment.offsets
    if type(file) is not DiskFile or offset < segment.base_offset:
        return None
    fd = file.fileno()
    stop = tail.position
    if up_to < tail.next_offset:
        found = hints.get(up_to)
        if found is None:
            return None
        stop = found
    found = hints.get(offset)
    if found is None:
        base_offset = segment.base_offset
        walk.fd, walk.wait, walk.end, walk.look, walk.chunk_at, walk.have = fd, False, tail.position, LOOK, 0, 0
        walk.position = indexed(index.mapping, index.count, 0, offset - base_offset)
        while True:
            if not following(&walk, &entry):
                return None
            if entry.last_offset >= offset:
                break
        start = entry.position
        remember(hints, offset, start)
    else:
        start = found
    end = stop
    if stop - start > max_bytes:
        end = whole(fd, index.mapping, index.count, start, start + max_bytes, stop, True, False, &next_offset)
        if next_offset >= 0:
            remember(hints, next_offset, end)
    return Slice(file, start, end - start if end > start else 0)


cdef int remember(dict hints, int64_t offset, int64_t position) except -1:
    if len(hints) >= MOST_HINTS:
        hints.clear()
    hints[offset] = position
    return 0

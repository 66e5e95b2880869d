# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Searches in log files and their indexes, natively. `offset_lookup` has the same in plain Python."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EAGAIN, EINTR, EINVAL, EOPNOTSUPP, ENOSYS, errno
from libc.stdint cimport int64_t

from ottla.protocol.records._batch cimport (
    LAST_OFFSET_DELTA_AT,
    MAGIC_AT,
    MIN_LEGACY_ENTRY,
    entry_size,
    get32,
    get64,
)

from ottla.broker.log.files.file_system import DiskFile
from ottla.protocol.storage import CorruptStorage

cdef extern from *:
    """
    #define _GNU_SOURCE
    #include <errno.h>
    #include <stdint.h>
    #include <sys/types.h>
    #include <sys/uio.h>
    #include <unistd.h>
    /* Read from the page cache; -1 with EAGAIN where the disk would have to be waited for. */
    static ssize_t ottla_read_now(int fd, void *into, size_t size, off_t at) {
    #if defined(__linux__) && defined(RWF_NOWAIT)
        struct iovec one = {into, size};
        return preadv2(fd, &one, 1, at, RWF_NOWAIT);
    #else
        errno = EOPNOTSUPP;
        return -1;
    #endif
    }
    """
    ssize_t ottla_read_now(int fd, void *into, size_t size, int64_t at) nogil
    ssize_t pread(int fd, void *into, size_t size, int64_t at) nogil

cdef enum:
    STEP_BYTES = 64 << 10       # the kernel reads ahead in larger pieces than this
    SPARED_BYTES = 16 << 10     # a last step may be longer by this


cdef ssize_t read_some(int fd, void *into, size_t size, int64_t at, bint wait) noexcept nogil:
    cdef ssize_t got
    while True:
        got = -1
        if not wait:
            got = ottla_read_now(fd, into, size, at)
            if got < 0 and errno in (EOPNOTSUPP, ENOSYS, EINVAL):
                wait = True  # this file system does not support it
        if wait:
            got = pread(fd, into, size, at)
        if got >= 0 or errno != EINTR:
            return got


cdef void begin(Walk *walk, int fd, bint wait, int64_t end, int64_t read_bytes, int64_t position) noexcept:
    walk.fd, walk.wait, walk.end, walk.read_bytes, walk.position = fd, wait, end, read_bytes, position
    walk.chunk_at = walk.have = 0


cdef int following(Walk *walk, Entry *entry) except -1:
    """Read the next header; 0 at the end."""
    cdef const unsigned char *p
    cdef int64_t size
    cdef ssize_t got
    if walk.end - walk.position < HEAD_BYTES:
        return 0
    if walk.position < walk.chunk_at or walk.position + HEAD_BYTES > walk.chunk_at + walk.have:
        size = min(walk.read_bytes, walk.end - walk.position)
        got = read_some(walk.fd, walk.chunk, size, walk.position, walk.wait)
        if 0 <= got < HEAD_BYTES and not walk.wait:
            errno = EAGAIN
            got = -1
        if got < 0:
            raise OSError(errno, "a segment could not be read")
        if got < HEAD_BYTES:
            return 0
        walk.chunk_at, walk.have = walk.position, got
    p = walk.chunk + (walk.position - walk.chunk_at)
    entry.size = entry_size(p)
    if entry.size < MIN_LEGACY_ENTRY or p[MAGIC_AT] > 2:
        raise CorruptStorage(f"no entry at byte {walk.position}", walk.position)
    entry.position = walk.position
    entry.base_offset = entry.last_offset = get64(p)
    if p[MAGIC_AT] == 2:
        entry.last_offset += get32(p + LAST_OFFSET_DELTA_AT)
    walk.position += entry.size
    walk.read_bytes = HEAD_BYTES if entry.size >= CHUNK_BYTES else CHUNK_BYTES
    return 1


cdef int64_t indexed(object index, Py_ssize_t count, int column, int64_t value) except -1:
    """Return the position in the last index entry whose offset (column 0) or position (1) is at or below `value`."""
    cdef Py_buffer view
    cdef const unsigned char *entries
    cdef Py_ssize_t low = 0, high = count, middle
    cdef int64_t found = 0
    if not count:
        return 0
    PyObject_GetBuffer(index, &view, PyBUF_SIMPLE)
    if view.len < 8 * count:
        PyBuffer_Release(&view)
        raise ValueError("the index is shorter than its entries")
    entries = <const unsigned char *> view.buf
    while low < high:
        middle = (low + high) >> 1
        if <int64_t> get32(entries + 8 * middle + 4 * column) <= value:
            low = middle + 1
        else:
            high = middle
    if low:
        found = get32(entries + 8 * (low - 1) + 4)
    PyBuffer_Release(&view)
    return found


def find_entry(int fd, index, Py_ssize_t count, int64_t relative_offset, int64_t end, int64_t offset, bint wait):
    cdef Walk walk
    cdef Entry entry
    begin(&walk, fd, wait, end, CHUNK_BYTES, indexed(index, count, 0, relative_offset))
    while following(&walk, &entry):
        if entry.last_offset >= offset:
            return entry.position, entry.size, entry.base_offset, entry.last_offset
    return None


cdef int64_t whole(
    Walk *walk, object index, Py_ssize_t count, int64_t start, int64_t limit, bint at_least_one, int64_t *next_offset
) except -1:
    """Find the end of the last entry below `limit`, with a walk that ends where the entries do."""
    cdef Entry entry
    cdef int64_t end = max(start, indexed(index, count, 1, limit))
    next_offset[0] = -1
    walk.position = end
    while following(walk, &entry):
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
    cdef Walk walk
    begin(&walk, fd, wait, stop, HEAD_BYTES, start)
    end = whole(&walk, index, count, start, limit, at_least_one, &next_offset)
    return end, next_offset


cdef bint is_in_memory(int fd, int64_t position, int64_t length, int64_t seen_at, int64_t seen_bytes) except -1:
    """Look at a byte in every step but in those that were just read without a wait."""
    cdef int64_t at = position, last = position + length - 1
    cdef char byte
    while length > 0:
        if not seen_at <= at < seen_at + seen_bytes and ottla_read_now(fd, &byte, 1, at) < 0:
            if errno == EAGAIN:
                return False
            if errno in (EOPNOTSUPP, ENOSYS, EINVAL):
                return True
            if errno != EINTR:
                raise OSError(errno, "a segment could not be read")
            continue
        if at == last:
            return True
        at += STEP_BYTES
        if at + SPARED_BYTES > last:
            at = last
    return True


def in_memory(int fd, int64_t position, int64_t length):
    return is_in_memory(fd, position, length, 0, 0)


cdef class Slice:
    """Whole batches in a segment's file; it keeps the file open even when the segment is deleted."""

    def __init__(self, file, int64_t position, int64_t length, int64_t end_offset=0):
        self.file = file
        self.position = position
        self.length = length
        self.end_offset = end_offset
        self.descriptor = file.fileno() if type(file) is DiskFile else -1

    def __repr__(self):
        return f"Slice({self.file.path.name}, {self.position}, {self.length})"

    cpdef int fileno(self) except -1:
        return self.descriptor if self.descriptor >= 0 else self.file.fileno()

    def read(self):
        return self.file.pread(self.length, self.position)

    cpdef bint is_hot(self) except -1:
        cdef int64_t seen_bytes = self.seen_bytes
        self.seen_bytes = 0  # later, pages may have gone
        return is_in_memory(self.fileno(), self.position, self.length, self.seen_at, seen_bytes)


cdef Slice new_slice(object file, int descriptor, int64_t position, int64_t length, int64_t end_offset):
    cdef Slice one = Slice.__new__(Slice)
    one.file, one.descriptor, one.position, one.length = file, descriptor, position, length
    one.end_offset = end_offset
    return one

# The offsets of a partition that were started, and which of them are finished.

cdef class StartedOffsets:
    cdef int64_t* _offsets
    cdef uint8_t* _done
    cdef Py_ssize_t _head        # the first that is not finished
    cdef Py_ssize_t _size
    cdef Py_ssize_t _capacity
    cdef int64_t _base           # the number of the first that is kept
    cdef int64_t _next           # negative: nothing is known yet
    cdef readonly int64_t unfinished
    cdef public bint has_known

    def __init__(self, position):
        self._next = -1 if position is None else position

    def __dealloc__(self):
        PyMem_Free(self._offsets)
        PyMem_Free(self._done)

    @property
    def next_offset(self):
        return None if self._next < 0 else self._next

    @property
    def lowest_unfinished(self):
        return self._offsets[self._head] if self._head < self._size else self.next_offset

    @property
    def ahead(self):
        return self._size - self._head

    @property
    def held(self):
        return self._capacity

    def start(self, int64_t offset):
        return self.start_one(offset)

    cdef int64_t start_one(self, int64_t offset) except -2:
        cdef bint is_known
        if offset < self._next or offset < 0:
            raise ValueError(f"offset {offset} is too low; the next is {self._next} or above")
        is_known = self.has_known and self._is_known(offset)
        if self._size == self._capacity:
            self._resize(max(LEAST_CAPACITY, 2 * self._size))
        self._offsets[self._size] = offset
        self._done[self._size] = is_known
        self._size += 1
        self._next = offset + 1
        if not is_known:
            self.unfinished += 1
            return self._base + self._size - 1
        self._move()
        return -1

    def pass_to(self, int64_t next_offset):
        """Raise the next offset; return whether it was lower."""
        if next_offset <= self._next:
            return False
        self._next = next_offset
        return True

    def finish(self, int64_t number):
        return self.finish_one(number)

    cdef bint finish_one(self, int64_t number) except -1:
        cdef Py_ssize_t index = number - self._base, following = index + 1
        if not 0 <= index < self._size:
            raise IndexError(f"record number {number} is not started, or all before it are finished")
        self._done[index] = 1
        self.unfinished -= 1
        if index != self._head:
            return False
        if following < self._size and following < COMPACT_FROM and not self._done[following]:
            self._head = following  # the common case: the next one is not finished
        else:
            self._move()
        return True

    def finished_started(self):
        """Return the finished offsets after the position that were started, as ascending ranges."""
        cdef Py_ssize_t first = self._find(1, self._head), end
        cdef list found = []
        while first < self._size:
            end = self._find(0, first)
            found.append((self._offsets[first], self._offsets[end] if end < self._size else self._next))
            first = self._find(1, end)
        return found

    cdef Py_ssize_t _find(self, int value, Py_ssize_t start) noexcept:
        """Return where a value stands from an index on, or the size."""
        cdef uint8_t* found
        if start >= self._size:
            return self._size
        found = <uint8_t*>memchr(self._done + start, value, self._size - start)
        return self._size if found is NULL else found - self._done

    cdef int _move(self) except -1:
        """Move to the next unfinished offset, and forget the offsets before it now and then."""
        cdef Py_ssize_t head = self._find(0, self._head)
        self._head = head
        if head >= COMPACT_FROM and head * 2 >= self._size:
            self._size -= head
            memmove(self._offsets, self._offsets + head, self._size * sizeof(int64_t))
            memmove(self._done, self._done + head, self._size)
            self._base += head
            self._head = 0
            if self._size * 4 < self._capacity:
                self._resize(max(LEAST_CAPACITY, self._size * 2))
        return 0

    cdef int _resize(self, Py_ssize_t capacity) except -1:
        cdef void* offsets = PyMem_Realloc(self._offsets, capacity * sizeof(int64_t))
        cdef void* done
        if offsets is NULL:
            raise MemoryError
        self._offsets = <int64_t*>offsets
        done = PyMem_Realloc(self._done, capacity)
        if done is NULL:
            raise MemoryError
        self._done = <uint8_t*>done
        self._capacity = capacity
        return 0

# The finished offsets of a partition as bytes; all ranges of a commit are visited, which may be 50,000.

def encode_runs(int64_t offset, finished):
    cdef Py_ssize_t capacity = 2 * len(finished) + 2 * LONGEST_VARINT, size = 0
    cdef uint8_t* found = <uint8_t*>PyMem_Realloc(NULL, capacity)
    cdef void* grown
    cdef int64_t first, end, at = offset
    if found is NULL:
        raise MemoryError
    try:
        for first, end in finished:
            if capacity - size < 2 * LONGEST_VARINT:
                capacity *= 2
                grown = PyMem_Realloc(found, capacity)
                if grown is NULL:
                    raise MemoryError
                found = <uint8_t*>grown
            size += _put_varint(found + size, first - at)
            size += _put_varint(found + size, end - first)
            at = end
        return PyBytes_FromStringAndSize(<char*>found, size)
    finally:
        PyMem_Free(found)


cdef inline Py_ssize_t _put_varint(uint8_t* to, uint64_t value) noexcept:
    cdef Py_ssize_t size = 0
    while value > 0x7F:
        to[size] = (value & 0x7F) | 0x80
        value >>= 7
        size += 1
    to[size] = <uint8_t>value
    return size + 1


def encode_bitmap(int64_t offset, finished):
    cdef int64_t first, end, span = finished[len(finished) - 1][1] - offset
    cdef bytearray found = bytearray((span + 7) // 8)
    cdef uint8_t* bits = found
    for first, end in finished:
        if first < offset or end - offset > span:
            raise ValueError("ranges must ascend, from the offset on")
        _set_bits(bits, first - offset, end - offset)
    return bytes(found)


cdef inline void _set_bits(uint8_t* bits, int64_t first, int64_t end) noexcept:
    while first < end and first & 7:
        bits[first >> 3] |= 1 << (first & 7)
        first += 1
    if end - first >= 8:
        memset(bits + (first >> 3), 0xFF, (end - first) >> 3)
        first = end & ~7
    while first < end:
        bits[first >> 3] |= 1 << (first & 7)
        first += 1

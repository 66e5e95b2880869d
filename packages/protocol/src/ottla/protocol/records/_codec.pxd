# cython: language_level=3
"""The checksum of `_codec`, for other compiled modules."""

from libc.stdint cimport int32_t, uint32_t

from ottla.protocol.records._batch cimport CRC_AT, CRC_FROM, get32, put32


cdef uint32_t checksum(uint32_t value, const unsigned char *p, Py_ssize_t size) noexcept
cdef uint32_t checksum_without_gil(uint32_t value, const unsigned char *p, Py_ssize_t size) noexcept nogil


cdef inline bint is_sound(const unsigned char *batch, Py_ssize_t size) noexcept:
    """Whether the checksum of a whole v2 batch matches its bytes."""
    return <uint32_t> get32(batch + CRC_AT) == checksum(0, batch + CRC_FROM, size - CRC_FROM)


cdef inline void seal(unsigned char *batch, Py_ssize_t size) noexcept:
    """Write the checksum of a whole v2 batch into its header."""
    put32(batch + CRC_AT, <int32_t> checksum(0, batch + CRC_FROM, size - CRC_FROM))

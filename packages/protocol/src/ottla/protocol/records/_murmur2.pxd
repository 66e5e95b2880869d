# cython: language_level=3
"""The hash of keys that picks a partition."""

from libc.stdint cimport int32_t

cdef extern from "ottla/protocol/records/murmur2.h" nogil:
    int32_t murmur2_of "ottla_murmur2"(const unsigned char *data, size_t size)

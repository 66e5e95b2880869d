# cython: language_level=3, boundscheck=False, wraparound=False
"""Mapped index files. `_index_mapping.pyi` documents them."""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint64_t

cdef extern from "mapped_files.h":
    ctypedef struct ottla_mapping:
        unsigned char *address
        size_t size
        int is_lost
    uint64_t ottla_losses
    ottla_mapping *ottla_map(int descriptor, size_t size, int is_writable)
    void ottla_unmap(ottla_mapping *one)


def losses():
    return ottla_losses


cdef class IndexMapping:

    cdef ottla_mapping *_mapping
    cdef Py_ssize_t _exports
    cdef readonly bint is_writable

    def __init__(self, int descriptor, size_t size, *, bint is_writable):
        if self._mapping is not NULL or not size:
            raise ValueError("a mapping is made once, of at least one byte")
        self.is_writable = is_writable
        self._mapping = ottla_map(descriptor, size, is_writable)
        if self._mapping is NULL:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self._mapping is not NULL:
            ottla_unmap(self._mapping)

    def __len__(self):
        return 0 if self._mapping is NULL else self._mapping.size

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._mapping is NULL:
            raise ValueError("the mapping is closed")
        PyBuffer_FillInfo(view, self, self._mapping.address, self._mapping.size, not self.is_writable, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    @property
    def is_lost(self):
        return self._mapping is not NULL and self._mapping.is_lost != 0

    def close(self):
        if self._exports:
            raise BufferError("the mapping is in use")
        if self._mapping is not NULL:
            ottla_unmap(self._mapping)
            self._mapping = NULL

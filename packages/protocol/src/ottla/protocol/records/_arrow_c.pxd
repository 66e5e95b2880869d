# cython: language_level=3
"""Arrow's C data interface, for every compiled module that exports or imports columns."""

from libc.stdint cimport int64_t

cdef extern from "ottla/protocol/records/arrow_c.h":
    cdef struct ArrowSchema:
        const char* format
        const char* name
        const char* metadata
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary
        void (*release)(ArrowSchema*) noexcept
        void* private_data
    cdef struct ArrowArray:
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept
        void* private_data
    cdef struct ArrowArrayStream:
        int (*get_schema)(ArrowArrayStream*, ArrowSchema*)
        int (*get_next)(ArrowArrayStream*, ArrowArray*)
        const char* (*get_last_error)(ArrowArrayStream*)
        void (*release)(ArrowArrayStream*)
    cdef enum:
        ARROW_FLAG_NULLABLE

# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, nonecheck=False
"""The native part of scheduling: what runs once per record, from `add` to `finish`, and per range of a commit.

`frontier.py`, `assignment.py`, `intake.py` and `scheduler.py` export it and add what runs less often;
`_core.pyi` has the types and the contracts.

The collector of cycles does not look at work. Therefore work that waits refers to nothing that leads back to
it: it gets its assignment when it is taken, and gives up what handlers and policies attached to it when it
ends.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memchr, memmove, memset

from enum import Enum

class Phase(Enum):
    """The life of an assignment. DRAINING gives out no work, CLOSED counts no completion."""

    OPEN = "open"
    DRAINING = "draining"
    CLOSED = "closed"


cdef object OPEN_PHASE = Phase.OPEN
cdef object CLOSED_PHASE = Phase.CLOSED

cdef enum:
    COMPACT_FROM = 4096
    LEAST_CAPACITY = 256
    OVERHEAD_BYTES = 100
    LONGEST_VARINT = 10

RECORD_OVERHEAD_BYTES = OVERHEAD_BYTES

include "_encoding.pxi"
include "_offsets.pxi"
include "_work.pxi"
include "_scheduler.pxi"

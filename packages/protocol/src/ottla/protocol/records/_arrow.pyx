# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Records into Arrow columns, natively. `arrow.py` is the façade, `_arrow.pyi` documents it.

`_arrow_columns.pxi` holds the buffers columns grow in, `_arrow_export.pxi` hands them over, this file reads
batches. Nothing here links Arrow, or imports a library of it.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport (
    PyCapsule_GetPointer,
    PyCapsule_New,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from ottla.protocol.records._arrow_c cimport ARROW_FLAG_NULLABLE, ArrowArray, ArrowSchema
from ottla.protocol.records._batch cimport (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LOG_APPEND_TIME,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    MIN_LEGACY_ENTRY,
    MIN_RECORD_SIZE,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    TRANSACTIONAL,
    entry_size,
    get16,
    get32,
    get64,
    get_varint,
    put_varint,
    varint_size,
)
from ottla.protocol.records._codec cimport is_sound
from ottla.protocol.records._record cimport RawRecord, read_record

from ottla.protocol.errors import KafkaError
from ottla.protocol.records import legacy as _legacy
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES as _DEFAULT_MAX
from ottla.protocol.records.compression import decompress_as_readers_do as _decompress
from ottla.protocol.records.errors import CorruptRecords

cdef enum:
    MOST_BYTES = 2147483647      # of a column whose offsets are 32 bits wide
    KEEPS_GOING = 0
    MALFORMED = 1
    NO_MEMORY = 2
    FULL = 3

include "_arrow_columns.pxi"
include "_arrow_export.pxi"


@cython.final
cdef class ColumnBuilder:
    """Gathers records of any partitions as columns: `add` fetched bytes, then `finish` for an ArrowColumns."""

    cdef Columns _columns
    cdef readonly frozenset names
    cdef dict _topics
    cdef list _topic_names
    cdef bint _check_crcs
    cdef Py_ssize_t _most_bytes

    def __cinit__(self, names, *, bint check_crcs=True, max_decompressed_bytes=_DEFAULT_MAX):
        self.names = frozenset(names)
        self._columns = Columns(self.names)
        self._topics, self._topic_names = {}, []
        self._check_crcs = check_crcs
        self._most_bytes = max_decompressed_bytes

    def __len__(self):
        return self._columns.count

    def add(self, str topic, int32_t partition, data, int64_t since_offset, aborted=None, *, limit=None):
        """Add the records at or above `since_offset`; return the offset to go on from.

        `aborted` are pairs of first offset and producer id (KIP-98): their records are left out, as control
        records always are. An entry that is cut off at the end is left for later; so is what `limit` records
        in this builder, or 2 GiB in a column, leave no room for, and all from a batch that cannot be read if
        there are records before it. Raises CorruptRecords, DecompressedTooLarge, UnsupportedCompressionType
        for such a batch if there are none.
        """
        cdef Py_buffer view
        cdef int64_t following = since_offset
        cdef Transactions transactions = Transactions(aborted)
        self._columns.topic_index = self._topic(topic)
        self._columns.partition = partition
        self._columns.limit = MOST_BYTES if limit is None else limit
        if self._columns.count >= self._columns.limit:
            return following
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            following = self._walk(<const unsigned char*>view.buf, view.len, since_offset, transactions)
        finally:
            PyBuffer_Release(&view)
        return following

    cdef int32_t _topic(self, str topic) except -1:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = len(self._topic_names)
            self._topic_names.append(topic.encode())
        return found

    cdef int64_t _walk(
        self, const unsigned char* p, Py_ssize_t size, int64_t since, Transactions transactions
    ) except? -1:
        cdef Py_ssize_t at = 0, length
        cdef int64_t following = since, end, count_before = self._columns.count
        while size - at >= MIN_LEGACY_ENTRY:
            length = entry_size(p + at)
            if length > size - at:
                break
            try:
                end = self._entry(p + at, length, since, transactions)
            except KafkaError:
                if self._columns.count == count_before:
                    raise
                break  # the next call raises it: what was read before is returned first
            if end < 0:  # full, or malformed, in the middle of it
                return max(following, -end - 1)
            following = max(following, end)
            at += length
            if self._columns.count >= self._columns.limit:
                break
        return following

    cdef int64_t _entry(
        self, const unsigned char* p, Py_ssize_t size, int64_t since, Transactions transactions
    ) except? -1:
        if size < MIN_LEGACY_ENTRY:
            raise CorruptRecords(f"an entry of {size} bytes at offset {get64(p)}")
        if p[MAGIC_AT] > 2:
            raise CorruptRecords(f"an entry of magic {p[MAGIC_AT]} at offset {get64(p)}")
        if p[MAGIC_AT] == 2:
            return self._batch(p, size, since, transactions)
        return self._legacy_entry(p, size, since)

    cdef int64_t _batch(
        self, const unsigned char* p, Py_ssize_t size, int64_t since, Transactions transactions
    ) except? -1:
        """Where the batch ends; -1 - the next offset where there was no room for all of it."""
        cdef int64_t base = get64(p), last
        cdef int32_t count, last_delta = get32(p + LAST_OFFSET_DELTA_AT)
        cdef int attributes
        cdef bytes plain
        if size < HEADER_SIZE:
            raise CorruptRecords(f"a batch of {size} bytes at offset {base}")
        if self._check_crcs and not is_sound(p, size):
            raise CorruptRecords(f"the batch at offset {base} does not match its checksum")
        attributes, count = get16(p + ATTRIBUTES_AT), get32(p + RECORD_COUNT_AT)
        last = base + last_delta
        if attributes & CONTROL:
            transactions.ended(get64(p + PRODUCER_ID_AT), base)
            return last + 1
        if attributes & TRANSACTIONAL and transactions.covers(get64(p + PRODUCER_ID_AT), base):
            return last + 1
        if last < since and not (last_delta < 0 and base >= since):
            return last + 1
        if count < 0 or <int64_t>count > <int64_t>last_delta + 1:
            raise CorruptRecords(f"the batch at offset {base} has {count} records up to delta {last_delta}")
        if count == 0 and size == HEADER_SIZE:  # compaction removed its records
            return last + 1
        if attributes & CODEC_MASK:
            plain = bytes(_decompress(
                attributes & CODEC_MASK, (<const char*>p)[HEADER_SIZE:size], max_bytes=self._most_bytes
            ))
            return self._records(
                <const unsigned char*>PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain), p, count, last, since
            )
        return self._records(p + HEADER_SIZE, size - HEADER_SIZE, p, count, last, since)

    cdef int64_t _records(
        self, const unsigned char* body, Py_ssize_t size, const unsigned char* header, int32_t count,
        int64_t last, int64_t since,
    ) except? -1:
        cdef Columns columns = self._columns
        cdef bint appended = (get16(header + ATTRIBUTES_AT) & LOG_APPEND_TIME) != 0
        cdef int64_t base = get64(header), base_time = get64(header + BASE_TIMESTAMP_AT), append_time = get64(header + MAX_TIMESTAMP_AT)
        cdef int64_t stopped_at = 0, count_before = columns.count
        cdef int outcome
        # A count that the bytes cannot hold is no reason to reserve memory, or to put the batch off.
        cdef int64_t most = min(<int64_t>count, <int64_t>(size // MIN_RECORD_SIZE))
        columns.timestamp_type = 1 if appended else 0
        if not columns.has_room(most, size):
            return -since - 1 if since > base else -base - 1
        columns.reserve(most, size)
        with nogil:
            outcome = parse(
                columns, body, body + size, count, last, base, base_time, append_time if appended else -1, since,
                &stopped_at,
            )
        if outcome == MALFORMED:
            if columns.count > count_before:
                return -stopped_at - 1
            raise CorruptRecords(f"the batch at offset {base} has a malformed record")
        if outcome == NO_MEMORY:
            raise MemoryError
        if outcome == FULL:
            return -stopped_at - 1
        return last + 1

    cdef int64_t _legacy_entry(self, const unsigned char* p, Py_ssize_t size, int64_t since) except? -1:
        """Read an entry of magic 0 or 1 in Python: no broker has written these since 2017."""
        cdef Columns columns = self._columns
        cdef int64_t end = get64(p) + 1
        columns.timestamp_type = -1 if p[MAGIC_AT] == 0 else (p[17] & LOG_APPEND_TIME) >> 3
        # All of them before the first is put: a malformed one leaves the columns as they were.
        for record in list(_legacy.iter_records(
            (<const char*>p)[:size], max_decompressed_bytes=self._most_bytes, check_crc=self._check_crcs
        )):
            if record.offset < since:
                continue
            if columns.count >= columns.limit or not columns.has_room(1, size):
                return -<int64_t>record.offset - 1
            columns.add(record.offset, record.timestamp_ms, record.key, record.value)
        return end

    def finish(self):
        """The columns; the builder begins anew."""
        cdef ArrowColumns out = ArrowColumns.__new__(ArrowColumns)
        self._columns.seal()
        out._columns, out._topic_names, out.names = self._columns, self._topic_names, self.names
        self._columns = Columns(self.names)
        self._topics, self._topic_names = {}, []
        return out


cdef int parse(
    Columns columns, const unsigned char* p, const unsigned char* end, int32_t count, int64_t last, int64_t base,
    int64_t base_time, int64_t append_time, int64_t since, int64_t* stopped_at,
) noexcept nogil:
    """Read `count` records into columns that have room for them.

    `stopped_at` becomes the offset to go on from if not all of them could be read.
    """
    cdef int32_t i, delta_before = -1
    cdef int outcome
    cdef int64_t offset, time
    cdef RawRecord r
    if count == 0 and p != end:
        return MALFORMED
    for i in range(count):
        p = read_record(p, end, &r, count - i, delta_before, <int32_t>(last - base))
        if p == NULL:
            return MALFORMED
        delta_before = r.offset_delta
        offset = base + r.offset_delta
        if offset < since:
            continue
        if columns.count >= columns.limit:
            stopped_at[0] = offset
            return FULL
        time = append_time if append_time >= 0 else base_time + r.timestamp_delta
        columns.put(offset, time, r.key, r.key_size, r.value, r.value_size)
        stopped_at[0] = offset + 1
        if columns.wants_headers:
            if not put_headers(columns, &r, p):
                return NO_MEMORY
    return KEEPS_GOING


cdef inline int put_headers(Columns columns, const RawRecord* r, const unsigned char* end) noexcept nogil:
    """Put the headers of one record, which `read_record` checked, into columns; 0 without memory."""
    cdef const unsigned char* p = r.headers
    cdef const unsigned char* key
    cdef int32_t i, key_size = 0, value_size = 0
    for i in range(r.header_count):
        p = get_varint(p, end, &key_size)
        key = p
        p = get_varint(p + key_size, end, &value_size)
        if not columns.put_header(key, key_size, p, value_size):
            return 0
        if value_size > 0:
            p += value_size
    columns.end_headers()
    return 1


@cython.final
cdef class Transactions:
    """The producers with an aborted transaction at the position of the reader."""

    cdef list _coming
    cdef set _open

    def __cinit__(self, aborted=None):
        self._coming = sorted(aborted, reverse=True) if aborted else []
        self._open = set()

    cdef bint covers(self, int64_t producer_id, int64_t base_offset) except -1:
        while self._coming and self._coming[len(self._coming) - 1][0] <= base_offset:
            self._open.add(self._coming.pop()[1])
        return producer_id in self._open

    cdef int ended(self, int64_t producer_id, int64_t base_offset) except -1:
        # All records of the transaction may be below the wanted offsets: it must not stay in `_coming`.
        self.covers(producer_id, base_offset)
        self._open.discard(producer_id)
        return 0

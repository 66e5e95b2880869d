# Batch headers, and where entries begin and end.

@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class BatchHeader:
    cdef readonly Py_ssize_t position
    cdef readonly int64_t base_offset, base_timestamp, max_timestamp, producer_id
    cdef readonly uint32_t crc
    cdef readonly int32_t batch_length, partition_leader_epoch, last_offset_delta, base_sequence, record_count
    cdef readonly int16_t attributes, producer_epoch
    cdef readonly signed char magic

    @property
    def size_in_bytes(self):
        return <Py_ssize_t>self.batch_length + ENTRY_OVERHEAD

    @property
    def last_offset(self):
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self):
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self):
        return _codec_of(self.attributes)

    @property
    def timestamp_type(self):
        return _TIMESTAMP_TYPES[(self.attributes & LOG_APPEND_TIME) >> 3]

    @property
    def is_transactional(self):
        return (self.attributes & TRANSACTIONAL) != 0

    @property
    def is_control(self):
        return (self.attributes & CONTROL) != 0

    @property
    def has_delete_horizon(self):
        return (self.attributes & DELETE_HORIZON) != 0

    @property
    def has_producer_id(self):
        return self.producer_id > -1

    @property
    def last_sequence(self):
        if self.base_sequence < 0:
            return -1
        # sequences wrap from Int.MAX to 0, as Kafka's
        return <int64_t>(<uint32_t>self.base_sequence + <uint32_t>self.last_offset_delta) & 0x7fffffff

    def __repr__(self):
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"size_in_bytes={self.size_in_bytes}, record_count={self.record_count}, "
            f"partition_leader_epoch={self.partition_leader_epoch}, attributes={self.attributes:#x}, "
            f"base_timestamp={self.base_timestamp}, max_timestamp={self.max_timestamp}, "
            f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, "
            f"base_sequence={self.base_sequence})"
        )


cdef object _codec_of(int attributes):
    cdef int codec = attributes & CODEC_MASK
    if codec > MAX_CODEC:
        raise UnsupportedCompressionType(f"compression type {codec} does not exist")
    return _CODECS[codec]


cdef BatchHeader _header_at(const unsigned char* p, Py_ssize_t position):
    cdef BatchHeader h = BatchHeader.__new__(BatchHeader)
    h.position = position
    h.base_offset = get64(p)
    h.batch_length = get32(p + LENGTH_AT)
    h.partition_leader_epoch = get32(p + LEADER_EPOCH_AT)
    h.magic = <signed char>p[MAGIC_AT]
    h.crc = <uint32_t>get32(p + CRC_AT)
    h.attributes = get16(p + ATTRIBUTES_AT)
    h.last_offset_delta = get32(p + LAST_OFFSET_DELTA_AT)
    h.base_timestamp = get64(p + BASE_TIMESTAMP_AT)
    h.max_timestamp = get64(p + MAX_TIMESTAMP_AT)
    h.producer_id = get64(p + PRODUCER_ID_AT)
    h.producer_epoch = get16(p + PRODUCER_EPOCH_AT)
    h.base_sequence = get32(p + BASE_SEQUENCE_AT)
    h.record_count = get32(p + RECORD_COUNT_AT)
    return h


cdef enum:
    WHOLE = 0
    TORN = 1                     # more bytes are needed to tell, or the entry goes on behind the buffer's end
    TOO_SHORT = 2                # a length no entry can have
    UNKNOWN_MAGIC = 3


cdef inline int _entry_at(const unsigned char* p, Py_ssize_t available, Py_ssize_t* size) noexcept nogil:
    """Look at one entry of any magic; `size` is set unless the length itself is missing."""
    cdef int32_t length
    size[0] = 0
    if available < ENTRY_OVERHEAD:
        return TORN
    length = get32(p + LENGTH_AT)
    size[0] = <Py_ssize_t>length + ENTRY_OVERHEAD
    if length < MIN_LEGACY_ENTRY - ENTRY_OVERHEAD:
        return TOO_SHORT
    if available <= MAGIC_AT:
        return TORN
    if p[MAGIC_AT] > 2:
        return UNKNOWN_MAGIC
    if p[MAGIC_AT] == 2 and size[0] < HEADER_SIZE:
        return TOO_SHORT
    if size[0] > available:
        return TORN
    return WHOLE


cdef _refuse(int state, const unsigned char* p, Py_ssize_t available, Py_ssize_t size, Py_ssize_t position):
    if state == TOO_SHORT:
        raise CorruptRecords(f"the entry at byte {position} says it takes {size} bytes, too few for one")
    if state == UNKNOWN_MAGIC:
        raise CorruptRecords(f"the entry at byte {position} has magic {p[MAGIC_AT]}, which does not exist")
    if size:
        raise CorruptRecords(f"the entry at byte {position} takes {size} bytes, {available} are there")
    raise CorruptRecords(f"{available} bytes at byte {position} are too few for an entry")


cdef _refuse_legacy(const unsigned char* p, Py_ssize_t position):
    raise CorruptRecords(f"the entry at byte {position} has magic {p[MAGIC_AT]}, 2 is needed here")


cdef Py_ssize_t _batch_at(const unsigned char* p, Py_ssize_t available, Py_ssize_t position) except -1:
    """The size of the whole v2 batch at `p`, or CorruptRecords."""
    cdef Py_ssize_t size
    cdef int state = _entry_at(p, available, &size)
    if state != WHOLE:
        _refuse(state, p, available, size, position)
    if p[MAGIC_AT] != 2:
        _refuse_legacy(p, position)
    return size


def read_header(buffer, Py_ssize_t position=0):
    cdef Py_buffer view
    cdef const unsigned char* p
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len or view.len - position < HEADER_SIZE:
            raise CorruptRecords(f"{view.len} bytes are too few for a batch header at byte {position}")
        p = <const unsigned char*>view.buf + position
        if p[MAGIC_AT] != 2:
            if p[MAGIC_AT] > 2:
                _refuse(UNKNOWN_MAGIC, p, 0, 0, position)
            _refuse_legacy(p, position)
        if get32(p + LENGTH_AT) < HEADER_SIZE - ENTRY_OVERHEAD:
            _refuse(TOO_SHORT, p, 0, entry_size(p), position)
        return _header_at(p, position)
    finally:
        PyBuffer_Release(&view)


def read_headers(buffer, *, bint torn_tail=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef int state
    cdef list headers = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            state = _entry_at(p, view.len - position, &size)
            if state != WHOLE:
                if state == TORN and torn_tail:
                    break
                _refuse(state, p, view.len - position, size, position)
            if p[MAGIC_AT] != 2:
                _refuse_legacy(p, position)
            headers.append(_header_at(p, position))
            position += size
        return headers
    finally:
        PyBuffer_Release(&view)


def magic_at(buffer, Py_ssize_t position=0):
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or view.len - position <= MAGIC_AT:
            raise CorruptRecords(f"{view.len} bytes are too few for an entry at byte {position}")
        return (<const unsigned char*>view.buf)[position + MAGIC_AT]
    finally:
        PyBuffer_Release(&view)


def all_magic_2(buffer):
    """Whether every entry is a v2 batch, so that nothing needs conversion."""
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef int state
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            state = _entry_at(p, view.len - position, &size)
            if state != WHOLE:
                _refuse(state, p, view.len - position, size, position)
            if p[MAGIC_AT] != 2:
                return False
            position += size
        return True
    finally:
        PyBuffer_Release(&view)


def split_batches(buffer, *, bint torn_tail=False):
    cdef Py_buffer view
    cdef const unsigned char* p
    cdef Py_ssize_t position = 0, size
    cdef int state
    whole = memoryview(buffer)
    PyObject_GetBuffer(whole, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <const unsigned char*>view.buf + position
            state = _entry_at(p, view.len - position, &size)
            if state != WHOLE:
                if state == TORN and torn_tail:
                    return
                _refuse(state, p, view.len - position, size, position)
            yield whole[position:position + size]
            position += size
    finally:
        PyBuffer_Release(&view)

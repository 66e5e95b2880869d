# cython: language_level=3
"""A record batch of format 2 in memory: its layout, byte order, and the rule for a plain batch. Compile-time only.

The broker, the producer and the consumer `cimport` this file; `ottla.protocol` ships it with `wire.h`. The
rule for a sound batch, its checksum, is in `_codec.pxd`.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

cdef extern from "ottla/protocol/records/wire.h" nogil:
    int64_t get64(const unsigned char *p)
    int32_t get32(const unsigned char *p)
    int16_t get16(const unsigned char *p)
    void put64(unsigned char *p, int64_t value)
    void put32(unsigned char *p, int32_t value)
    void put16(unsigned char *p, int16_t value)
    int varint_size(int64_t value)
    unsigned char *put_varint(unsigned char *p, int64_t value)
    const unsigned char *get_varint(const unsigned char *p, const unsigned char *end, int32_t *value)
    const unsigned char *get_varlong(const unsigned char *p, const unsigned char *end, int64_t *value)

cdef enum:
    # Where the fields of a batch's header are.
    LENGTH_AT = 8
    LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    CRC_FROM = 21                # the checksum covers the batch from here to its end
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORD_COUNT_AT = 57
    HEADER_SIZE = 61
    # Sizes, in bytes.
    ENTRY_OVERHEAD = 12          # base offset and length, in front of every entry of any magic
    MIN_RECORD_SIZE = 7
    MIN_LEGACY_ENTRY = 26        # magic 0 with a null key and a null value
    MAX_BATCH_SIZE = 2147483647
    # Attributes.
    CODEC_MASK = 0x07
    LZ4 = 3
    MAX_CODEC = 4
    ZSTD = 4
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    DELETE_HORIZON = 0x40
    NOT_PLAIN = 0x38             # LOG_APPEND_TIME, TRANSACTIONAL or CONTROL


cdef inline Py_ssize_t entry_size(const unsigned char *p) noexcept nogil:
    """Return what the entry at `p` says it takes; 12 bytes must be there."""
    return <Py_ssize_t> get32(p + LENGTH_AT) + ENTRY_OVERHEAD


cdef inline int codec_at(const unsigned char *p) noexcept nogil:
    """Return the codec of the batch at `p`."""
    return get16(p + ATTRIBUTES_AT) & CODEC_MASK


cdef inline bint is_plain(const unsigned char *p, Py_ssize_t available) noexcept nogil:
    """Whether a whole v2 batch begins here that a producer may send and that asks for nothing special.

    It is neither transactional nor a control batch, keeps its producer's timestamps, has a known codec, and
    at least one record, with offset deltas that end where the count does. The checksum is not looked at.
    """
    cdef Py_ssize_t size
    cdef int attributes
    cdef int32_t count
    if available < HEADER_SIZE or p[MAGIC_AT] != 2:
        return False
    size = entry_size(p)
    attributes = get16(p + ATTRIBUTES_AT)
    count = get32(p + RECORD_COUNT_AT)
    if size < HEADER_SIZE or size > available or attributes & NOT_PLAIN or attributes & CODEC_MASK > MAX_CODEC:
        return False
    if count <= 0 or get32(p + LAST_OFFSET_DELTA_AT) != count - 1:
        return False
    return attributes & CODEC_MASK != 0 or <int64_t> count * MIN_RECORD_SIZE <= size - HEADER_SIZE

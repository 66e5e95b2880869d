# The buffers of columns. They grow before records are read, so that reading needs no check of capacity.

cdef struct Buffer:
    uint8_t* data
    size_t size, capacity


cdef inline int grow(Buffer* buffer, size_t more) noexcept nogil:
    """Make room for so many more bytes; 0 when there is no memory."""
    cdef size_t needed = buffer.size + more, capacity
    cdef void* data
    if needed <= buffer.capacity:
        return 1
    capacity = max(needed, 2 * buffer.capacity, <size_t>4096)
    data = realloc(buffer.data, capacity)
    if data == NULL:
        return 0
    buffer.data, buffer.capacity = <uint8_t*>data, capacity
    return 1


cdef struct Text:
    # bytes of variable length: ends, contents, and which of them are there
    Buffer ends, contents, present
    int64_t count, nulls


cdef inline void put_text(Text* text, const unsigned char* data, int32_t size) noexcept nogil:
    """Add one; there is room. -1 stands for null."""
    cdef int64_t i = text.count
    if size >= 0:
        if size:
            memcpy(text.contents.data + text.contents.size, data, size)
            text.contents.size += size
        text.present.data[i >> 3] |= <uint8_t>(1 << (i & 7))
    else:
        text.nulls += 1
    (<int32_t*>text.ends.data)[i + 1] = <int32_t>text.contents.size
    text.count = i + 1
    text.ends.size += 4


cdef inline bint is_ascii(const unsigned char* data, int32_t size) noexcept nogil:
    cdef int32_t i
    for i in range(size):
        if data[i] >= 0x80:
            return False
    return True


cdef int text_room(Text* text, int64_t more, size_t bytes) noexcept nogil:
    cdef size_t before = text.present.capacity
    if not grow(&text.ends, 4 * more + 8):
        return 0
    if text.count == 0 and text.ends.size == 0:
        (<int32_t*>text.ends.data)[0] = 0
        text.ends.size = 4
    text.present.size = (text.count + 7) >> 3
    if not grow(&text.present, (more >> 3) + 2):
        return 0
    if text.present.capacity > before:
        memset(text.present.data + before, 0, text.present.capacity - before)
    return grow(&text.contents, bytes)


cdef void free_text(Text* text) noexcept:
    free(text.ends.data)
    free(text.contents.data)
    free(text.present.data)


@cython.final
@cython.no_gc
cdef class Columns:
    """Growing columns. Their importer refers to this object, which keeps their memory alive."""

    cdef Buffer topics, partitions, offsets, timestamps, timestamp_types
    cdef Text keys, values
    cdef Buffer header_ends
    cdef Text header_keys, header_values
    cdef int64_t count, limit
    cdef int32_t topic_index, partition
    cdef int32_t timestamp_type
    cdef bint wants_topic, wants_partition, wants_timestamp, wants_type, wants_offset
    cdef bint wants_key, wants_value, wants_headers

    def __cinit__(self, frozenset names):
        self.wants_topic, self.wants_partition = "topic" in names, "partition" in names
        self.wants_offset, self.wants_timestamp = "offset" in names, "timestamp" in names
        self.wants_type, self.wants_key = "timestamp_type" in names, "key" in names
        self.wants_value, self.wants_headers = "value" in names, "headers" in names
        self.limit = MOST_BYTES

    def __dealloc__(self):
        free(self.topics.data)
        free(self.partitions.data)
        free(self.offsets.data)
        free(self.timestamps.data)
        free(self.timestamp_types.data)
        free(self.header_ends.data)
        free_text(&self.keys)
        free_text(&self.values)
        free_text(&self.header_keys)
        free_text(&self.header_values)

    cdef bint has_room(self, int64_t more, size_t bytes):
        """Whether the offsets of no column would pass 32 bits."""
        return (
            self.count + more < MOST_BYTES and self.keys.contents.size + bytes < MOST_BYTES
            and self.values.contents.size + bytes < MOST_BYTES
            and self.header_keys.contents.size + bytes < MOST_BYTES
            and self.header_values.contents.size + bytes < MOST_BYTES
        )

    cdef int reserve(self, int64_t more, size_t bytes) except -1:
        """Make room for records that take so many bytes together."""
        cdef bint enough = True
        if self.wants_topic:
            enough = grow(&self.topics, 4 * more)
        if enough and self.wants_partition:
            enough = grow(&self.partitions, 4 * more)
        if enough and self.wants_offset:
            enough = grow(&self.offsets, 8 * more)
        if enough and self.wants_timestamp:
            enough = grow(&self.timestamps, 8 * more)
        if enough and self.wants_type:
            enough = grow(&self.timestamp_types, 4 * more)
        if enough and self.wants_key:
            enough = text_room(&self.keys, more, bytes)
        if enough and self.wants_value:
            enough = text_room(&self.values, more, bytes)
        if enough and self.wants_headers:
            enough = grow(&self.header_ends, 4 * more + 8)
            if enough and self.header_ends.size == 0:
                (<int32_t*>self.header_ends.data)[0] = 0
                self.header_ends.size = 4
        if not enough:
            raise MemoryError
        return 0

    cdef inline void put(
        self, int64_t offset, int64_t timestamp, const unsigned char* key, int32_t key_size,
        const unsigned char* value, int32_t value_size,
    ) noexcept nogil:
        cdef int64_t i = self.count
        if self.wants_topic:
            (<int32_t*>self.topics.data)[i] = self.topic_index
            self.topics.size += 4
        if self.wants_partition:
            (<int32_t*>self.partitions.data)[i] = self.partition
            self.partitions.size += 4
        if self.wants_offset:
            (<int64_t*>self.offsets.data)[i] = offset
            self.offsets.size += 8
        if self.wants_timestamp:
            (<int64_t*>self.timestamps.data)[i] = timestamp
            self.timestamps.size += 8
        if self.wants_type:
            (<int32_t*>self.timestamp_types.data)[i] = self.timestamp_type
            self.timestamp_types.size += 4
        if self.wants_key:
            put_text(&self.keys, key, key_size if key_size >= 0 else -1)
        if self.wants_value:
            put_text(&self.values, value, value_size if value_size >= 0 else -1)
        self.count = i + 1

    cdef inline int put_header(
        self, const unsigned char* key, int32_t key_size, const unsigned char* value, int32_t value_size
    ) noexcept nogil:
        cdef size_t bytes = value_size if value_size > 0 else 0
        if not is_ascii(key, key_size):
            return self.put_odd_header(key, key_size, value, value_size)
        if not text_room(&self.header_keys, 1, key_size) or not text_room(&self.header_values, 1, bytes):
            return 0
        put_text(&self.header_keys, key, key_size)
        put_text(&self.header_values, value, value_size if value_size >= 0 else -1)
        return 1

    cdef int put_odd_header(
        self, const unsigned char* key, int32_t key_size, const unsigned char* value, int32_t value_size
    ) noexcept with gil:
        """Put a header key that is not ASCII. Importers rely on UTF-8, so malformed bytes are replaced."""
        cdef size_t room = value_size if value_size > 0 else 0
        cdef bytes text = (<const char*>key)[:key_size].decode("utf-8", "replace").encode()
        if not text_room(&self.header_keys, 1, len(text)) or not text_room(&self.header_values, 1, room):
            return 0
        put_text(&self.header_keys, <const unsigned char*>PyBytes_AS_STRING(text), <int32_t>len(text))
        put_text(&self.header_values, value, value_size if value_size >= 0 else -1)
        return 1

    cdef inline void end_headers(self) noexcept nogil:
        """The record's headers are all in."""
        (<int32_t*>self.header_ends.data)[self.count] = <int32_t>self.header_keys.count
        self.header_ends.size += 4

    cdef int add(self, int64_t offset, int64_t timestamp, key, value) except -1:
        """Put one record of objects; those have no headers."""
        cdef Py_ssize_t key_size = -1 if key is None else len(key)
        cdef Py_ssize_t value_size = -1 if value is None else len(value)
        self.reserve(1, (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0))
        self.put(
            offset, timestamp,
            NULL if key is None else <const unsigned char*>PyBytes_AS_STRING(<bytes?>key), <int32_t>key_size,
            NULL if value is None else <const unsigned char*>PyBytes_AS_STRING(<bytes?>value), <int32_t>value_size,
        )
        if self.wants_headers:
            self.end_headers()
        return 0

    cdef int seal(self) except -1:
        """Have every buffer there, even without records: importers expect offsets that begin with 0."""
        self.reserve(0, 0)
        if self.wants_headers:
            if not text_room(&self.header_keys, 0, 0) or not text_room(&self.header_values, 0, 0):
                raise MemoryError
        return 0

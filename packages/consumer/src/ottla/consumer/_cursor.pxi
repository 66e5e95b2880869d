# Reading records out of the bytes that were fetched of a partition.

@cython.final
cdef class Cursor:
    cdef readonly object topic_partition
    cdef readonly int64_t position           # the offset of the record to be given next
    cdef readonly int64_t last_offset        # of the record given last; -1 before the first
    cdef readonly int64_t given              # how many records
    cdef readonly int32_t leader_epoch       # of the batch that is being read
    cdef readonly Py_ssize_t size_in_bytes
    cdef readonly bint at_end
    cdef object _data, _key_deserializer, _value_deserializer, _opened
    cdef bint _check_crcs, _deserializes
    cdef Py_ssize_t _max_decompressed
    cdef Held _piece
    cdef const unsigned char* _at            # the next entry
    cdef const unsigned char* _end
    cdef list _aborted                       # transactions to come: (first offset, producer id), last first
    cdef set _aborting                       # producers in an aborted transaction at this place
    # the batch that is open
    cdef Origin _batch
    cdef Held _held
    cdef const unsigned char* _next
    cdef const unsigned char* _stop
    cdef int64_t _base_offset, _base_timestamp, _following
    cdef int32_t _remaining
    cdef bint _appended
    cdef bint _is_busy                       # in Python code, on whatever thread: pointers are in use
    cdef list _legacy                        # records of magic 0 or 1, last first

    def __init__(
        self,
        topic_partition,
        data,
        int64_t position,
        aborted=None,
        *,
        bint check_crcs=True,
        key_deserializer=None,
        value_deserializer=None,
        Py_ssize_t max_decompressed_bytes=268435456,
    ):
        self.topic_partition = topic_partition
        self.position = position
        self.last_offset = -1
        self.leader_epoch = -1
        self._data = data
        self._piece = Held(data)
        self._at = <const unsigned char*>self._piece.view.buf
        self._end = self._at + self._piece.view.len
        self.size_in_bytes = self._piece.view.len
        self._check_crcs = check_crcs
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._deserializes = key_deserializer is not None or value_deserializer is not None
        self._max_decompressed = max_decompressed_bytes
        self._aborted = sorted(aborted, reverse=True) if aborted else []
        self._aborting = set()

    def read(self):
        """The next record; None at the end."""
        return self._read()

    def take(self, Py_ssize_t limit):
        """Up to `limit` records in a list; fewer at the end, and in front of one that cannot be given."""
        cdef list records = []
        try:
            self._take_into(records, limit)
        except _UNREADABLE:
            if not records:
                raise
        return records

    cdef int _take_into(self, list records, Py_ssize_t limit) except -1:
        cdef ConsumerRecord record
        cdef Py_ssize_t left = limit
        while left > 0:
            if self._remaining and self._legacy is None and not self._deserializes:
                left -= self._take_batch(records, left)
                continue
            record = self._read()
            if record is None:
                return 0
            records.append(record)
            left -= 1
        return 0

    cdef Py_ssize_t _take_batch(self, list records, Py_ssize_t limit) except -1:
        """Take records of the batch that is open; the loop that all depends on."""
        cdef RawRecord r
        cdef const unsigned char* p = self._next
        cdef const unsigned char* stop = self._stop
        cdef const unsigned char* following
        cdef int64_t base_offset = self._base_offset, base_timestamp = self._base_timestamp
        cdef int64_t offset = -1, position = self.position
        cdef bint appended = self._appended
        cdef Origin batch = self._batch
        cdef Held held = self._held
        cdef Py_ssize_t count = 0
        cdef int32_t remaining = self._remaining
        cdef ConsumerRecord record
        while remaining > 0 and count < limit:
            following = parse_record(p, stop, &r)
            if following is NULL or (remaining == 1 and following is not stop):
                break
            if base_offset + r.offset_delta >= position:
                offset = base_offset + r.offset_delta
                record = _made(&r, batch, held)
                record.offset = offset
                record.timestamp_ms = base_timestamp if appended else base_timestamp + r.timestamp_delta
                records.append(record)
                count += 1
                position = offset + 1
            p = following
            remaining -= 1
        self._next = p
        self._remaining = remaining
        if count:
            self._gave(offset, count)
        elif remaining:
            self._fail("a record is malformed")
        return count

    cdef inline ConsumerRecord _read(self):
        cdef RawRecord r
        cdef const unsigned char* following
        cdef int64_t offset
        cdef ConsumerRecord record
        while True:
            if self._remaining == 0:
                if not self._open_next():
                    return None
                continue
            if self._legacy is not None:
                record = self._read_legacy()
                if record is None:
                    continue
                return record
            following = parse_record(self._next, self._stop, &r)
            if following is NULL or (self._remaining == 1 and following is not self._stop):
                self._fail("a record is malformed")
            offset = self._base_offset + r.offset_delta
            if offset < self.position:
                self._next = following
                self._remaining -= 1
                continue
            record = _made(&r, self._batch, self._held)
            record.offset = offset
            record.timestamp_ms = self._base_timestamp
            if not self._appended:
                record.timestamp_ms += r.timestamp_delta
            if self._deserializes:
                self._deserialize(record)
                if self.at_end:  # closed meanwhile: it goes on elsewhere
                    return None
            self._next = following
            self._remaining -= 1
            self._gave(offset, 1)
            return record

    cdef inline void _gave(self, int64_t offset, Py_ssize_t count) noexcept:
        self.last_offset = offset
        self.position = offset + 1
        self.given += count

    cdef int _deserialize(self, ConsumerRecord record) except -1:
        what = "key"
        self._is_busy = True
        try:
            if self._key_deserializer is not None and record.serialized_key_size >= 0:
                record._key = self._key_deserializer(record._get_key())
                record._has_key = True
            what = "value"
            if self._value_deserializer is not None and record.serialized_value_size >= 0:
                record._value = self._value_deserializer(record._get_value())
                record._has_value = True
        except Exception as error:
            raise RecordDeserializationFailed(what, self.topic_partition, record.offset, error) from error
        finally:
            self._is_busy = False
        record._let_go()
        return 0

    cdef bint _open_next(self) except -1:
        """Open the next batch that has records for us; false at the end."""
        cdef Py_ssize_t size
        cdef const unsigned char* p
        self._close_batch()
        while True:
            p = self._at
            size = self._entry_size()
            if size == 0:
                self.at_end = True
                return False
            self._is_busy = True             # decompressing lets other threads run
            try:
                if p[MAGIC_AT] < 2:
                    self._open_legacy(size)
                else:
                    self._open_batch(p, size)
            finally:
                self._is_busy = False
            self._at = p + size
            if self._remaining:
                return True
            self._close_batch()

    cdef void _close_batch(self):
        if self._following > self.position:
            self.position = self._following
        self._remaining = 0
        self._legacy = None
        self._held = None

    cdef Py_ssize_t _entry_size(self) except -1:
        """How many bytes the entry takes; 0 where none is whole: brokers cut answers off anywhere."""
        cdef Py_ssize_t available = self._end - self._at, size
        if available <= MAGIC_AT:
            return 0
        size = entry_size(self._at)
        if self._at[MAGIC_AT] > 2:
            self._fail(f"magic {self._at[MAGIC_AT]} does not exist")
        if size < (HEADER_SIZE if self._at[MAGIC_AT] == 2 else MIN_LEGACY_ENTRY):
            self._fail(f"an entry cannot be {size} bytes long")
        return size if size <= available else 0

    cdef int _open_batch(self, const unsigned char* p, Py_ssize_t size) except -1:
        cdef int16_t attributes = get16(p + ATTRIBUTES_AT)
        cdef int64_t base_offset = get64(p)
        cdef int64_t producer_id = get64(p + PRODUCER_ID_AT)
        cdef int32_t count = get32(p + RECORD_COUNT_AT)
        cdef int32_t last_delta = get32(p + LAST_OFFSET_DELTA_AT)
        cdef int64_t following = base_offset + last_delta + 1
        if attributes & CONTROL:
            # The records of the transaction it ends may all be behind us: it must not stay one to come.
            self._is_aborted(base_offset, producer_id)
            self._aborting.discard(producer_id)
            self._following = following
            return 0
        if attributes & TRANSACTIONAL and self._is_aborted(base_offset, producer_id):
            self._following = following
            return 0
        if following <= self.position or count == 0:
            self._following = following
            return 0
        if self._check_crcs and not is_sound(p, size):
            self._fail(f"the batch from offset {base_offset} fails its checksum")
        if count < 0 or <int64_t>count > <int64_t>last_delta + 1:
            self._fail(f"a batch of {count} records cannot have the last offset delta {last_delta}")
        self._held = self._piece
        self._next = p + HEADER_SIZE
        self._stop = p + size
        if attributes & CODEC_MASK:
            self._unfold(attributes & CODEC_MASK, p - <const unsigned char*>self._piece.view.buf, size)
        self._base_offset = base_offset
        self._appended = (attributes & LOG_APPEND_TIME) != 0
        self._base_timestamp = get64(p + MAX_TIMESTAMP_AT) if self._appended else get64(p + BASE_TIMESTAMP_AT)
        self.leader_epoch = get32(p + LEADER_EPOCH_AT)
        self._batch = _origin(self.topic_partition, self.leader_epoch, _TIMESTAMP_TYPES[self._appended])
        self._remaining = count
        self._following = following
        return 0

    cdef bint _is_aborted(self, int64_t base_offset, int64_t producer_id) except -1:
        cdef Py_ssize_t last = len(self._aborted) - 1
        while last >= 0 and self._aborted[last][0] <= base_offset:
            self._aborting.add(self._aborted.pop()[1])
            last -= 1
        return producer_id in self._aborting

    cdef int _unfold(self, int codec, Py_ssize_t start, Py_ssize_t size) except -1:
        plain = self._opened.pop(start, None) if self._opened is not None else None
        if plain is None:
            plain = self._decompressed(codec, start, size)
        self._held = Held(plain)
        self._next = <const unsigned char*>self._held.view.buf
        self._stop = self._next + self._held.view.len
        return 0

    cdef object _decompressed(self, int codec, Py_ssize_t start, Py_ssize_t size):
        try:
            return _decompress(
                codec, memoryview(self._data)[start + HEADER_SIZE:start + size],
                max_bytes=self._max_decompressed,
            )
        except _UNREADABLE as error:
            raise type(error)(f"{self.topic_partition} at offset {self.position}: {error}") from error

    def close(self):
        """Give nothing more, whoever still has this."""
        self._at = self._end
        self._following = 0
        self._close_batch()
        self.at_end = True

    def move(self, data):
        """Go on reading in a copy of the bytes; false while they are being read, and cannot be left."""
        cdef Held held, old = self._piece
        cdef Py_ssize_t there
        if self._is_busy:
            return False
        held = Held(data)
        there = <const unsigned char*>held.view.buf - <const unsigned char*>old.view.buf
        if self._held is old:
            self._held = held
            self._next += there
            self._stop += there
        self._at += there
        self._end += there
        self._piece = held
        self._data = data
        return True

    def compressed_sizes(self):
        """Bytes of the compressed batches that lie ahead, by codec."""
        cdef const unsigned char* p = self._at
        cdef Py_ssize_t size
        cdef dict sizes = {}
        while self._end - p > HEADER_SIZE:
            size = entry_size(p)
            if size < MIN_LEGACY_ENTRY or size > self._end - p:
                break
            codec = (get16(p + ATTRIBUTES_AT) if p[MAGIC_AT] == 2 else p[MAGIC_AT + 1]) & CODEC_MASK
            if codec:
                sizes[codec] = sizes.get(codec, 0) + size
            p += size
        return sizes

    def decompress_ahead(self):
        """Decompress all that lies ahead, on whatever thread; nothing may be read meanwhile.

        What cannot be decompressed stays as it is, and fails where it is read.
        """
        cdef const unsigned char* start = <const unsigned char*>self._piece.view.buf
        cdef const unsigned char* p = self._at
        cdef Py_ssize_t size
        cdef dict opened = {}
        while self._end - p > HEADER_SIZE and p[MAGIC_AT] == 2:
            size = entry_size(p)
            if size < HEADER_SIZE or size > self._end - p:
                break
            if codec_at(p) and not get16(p + ATTRIBUTES_AT) & CONTROL:
                try:
                    plain = self._decompressed(codec_at(p), p - start, size)
                except Exception:
                    break
                opened[p - start] = plain
                self.size_in_bytes += len(plain)
            p += size
        self._opened = opened

    cdef int _open_legacy(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t start = self._at - <const unsigned char*>self._piece.view.buf
        # The offset in front of a wrapper is that of the last message inside.
        cdef int64_t following = get64(self._at) + 1
        if following <= self.position:
            return 0
        try:
            entry = _read_legacy_entry(self._data, start, check_crc=self._check_crcs)
            records = list(_legacy_records_of(
                entry, max_decompressed_bytes=self._max_decompressed, check_crc=self._check_crcs
            ))
        except _UNREADABLE as error:
            raise type(error)(f"{self.topic_partition} at offset {self.position}: {error}") from error
        self._batch = _origin(self.topic_partition, -1, entry.timestamp_type)
        self.leader_epoch = -1
        records.reverse()
        self._legacy = records
        self._remaining = len(records)
        self._following = following
        return 0

    cdef ConsumerRecord _read_legacy(self):
        """The next record of magic 0 or 1, None where it is below the position."""
        cdef ConsumerRecord record
        found = self._legacy[len(self._legacy) - 1]
        if found.offset < self.position:
            self._legacy.pop()
            self._remaining -= 1
            return None
        record = ConsumerRecord.__new__(ConsumerRecord)
        record._origin = self._batch
        record.offset = found.offset
        record.timestamp_ms = found.timestamp_ms
        record._key = found.key
        record._value = found.value
        record._has_key = record._has_value = True
        record._headers = _NO_HEADERS
        record.serialized_key_size = _size(found.key, None)
        record.serialized_value_size = _size(found.value, None)
        if self._deserializes:
            self._deserialize(record)
            if self.at_end:
                return None
        self._legacy.pop()
        self._remaining -= 1
        self._gave(record.offset, 1)
        return record

    cdef int _fail(self, why) except -1:
        raise CorruptRecords(f"{self.topic_partition} at offset {self.position}: {why}")


def end_of(data, int64_t position):
    """The offset behind the last whole batch in `data`, or `position`; its epoch; how many records there are.

    Entries are looked at no further than their headers.
    """
    cdef Held held = Held(data)
    cdef const unsigned char* p = <const unsigned char*>held.view.buf
    cdef Py_ssize_t left = held.view.len, size
    cdef int64_t following, count = 0
    cdef int32_t epoch = -1
    while left > MAGIC_AT:
        size = entry_size(p)
        if size < MIN_LEGACY_ENTRY or size > left or p[MAGIC_AT] > 2:
            break
        following = get64(p) + 1
        if p[MAGIC_AT] == 2:
            if size < HEADER_SIZE:
                break
            following += get32(p + LAST_OFFSET_DELTA_AT)
            epoch = get32(p + LEADER_EPOCH_AT)
            count += get32(p + RECORD_COUNT_AT) - 1
        count += 1
        if following > position:
            position = following
        p += size
        left -= size
    return position, epoch, count

# Decoding the records of a partition from fetched bytes.

@cython.final
cdef class RecordCursor:
    cdef readonly object topic_partition
    cdef readonly int64_t position           # the offset of the next record
    cdef readonly int64_t last_offset        # of the last record returned; -1 before the first
    cdef readonly int64_t returned_count     # of records
    cdef readonly int32_t leader_epoch       # of the current batch
    cdef readonly Py_ssize_t size_in_bytes
    cdef readonly bint at_end
    cdef readonly bint is_unreadable         # a batch could not be read; reading again raises again
    cdef object _data, _key_deserializer, _value_deserializer
    cdef object _unprepared                  # the RecordUnprepared of the next record; None: there is none
    cdef dict _decompressed_ahead            # by start of the batch in the data; None: nothing is
    cdef bint _check_crcs, _deserializes, _key_sees_record, _value_sees_record
    cdef bint _key_takes_none, _value_takes_none
    cdef Py_ssize_t _max_decompressed
    cdef PinnedBuffer _fetched               # the whole data
    cdef const unsigned char* _next_entry    # a batch, or a message of magic 0 or 1
    cdef const unsigned char* _end           # of the data
    cdef list _aborted                       # transactions ahead: (first offset, producer id), last first
    cdef set _aborting                       # producers with an aborted transaction at the next entry
    # the current batch
    cdef BatchFields _batch
    cdef PinnedBuffer _batch_buffer          # the data, or the decompressed records
    cdef const unsigned char* _next_record
    cdef const unsigned char* _batch_end
    cdef int64_t _base_offset, _base_timestamp
    cdef int64_t _offset_after_batch
    cdef int32_t _remaining                  # records that were not read
    cdef int32_t _delta_before               # the offset delta of the record before; -1 for the first
    cdef int32_t _last_offset_delta
    cdef bint _is_log_append_time
    cdef bint _is_busy                       # Python code runs, on any thread: the pointers are in use
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
        bint key_sees_record=False,
        bint value_sees_record=False,
        bint key_takes_none=False,
        bint value_takes_none=False,
        Py_ssize_t max_decompressed_bytes=268435456,
    ):
        self.topic_partition = topic_partition
        self.position = position
        self.last_offset = -1
        self.leader_epoch = -1
        self._data = data
        self._fetched = PinnedBuffer(data)
        self._next_entry = <const unsigned char*>self._fetched.view.buf
        self._end = self._next_entry + self._fetched.view.len
        self.size_in_bytes = self._fetched.view.len
        self._check_crcs = check_crcs
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._key_sees_record = key_sees_record
        self._value_sees_record = value_sees_record
        self._key_takes_none = key_takes_none
        self._value_takes_none = value_takes_none
        self._deserializes = key_deserializer is not None or value_deserializer is not None
        self._max_decompressed = max_decompressed_bytes
        self._aborted = sorted(aborted, reverse=True) if aborted else []
        self._aborting = set()

    def read(self):
        """Return the next record; None at the end."""
        record = self._read()
        if self._unprepared is not None:
            raise self.take_unprepared()
        return record

    def take_unprepared(self):
        """Return the RecordUnprepared that ended the last read; None if there was none."""
        unprepared, self._unprepared = self._unprepared, None
        return unprepared

    def take(self, Py_ssize_t limit):
        """Return up to `limit` records; fewer at the end, and before a record that fails."""
        cdef list records = []
        try:
            self._read_into(records, limit)
        except _DECODING_ERRORS:
            if not records:
                raise
        if self._unprepared is not None:
            unprepared = self.take_unprepared()
            if not records:
                raise unprepared
        return records

    cdef int _read_into(self, list records, Py_ssize_t limit) except -1:
        cdef ConsumerRecord record
        cdef Py_ssize_t left = limit
        while left > 0:
            if self._remaining and self._legacy is None and not self._deserializes:
                left -= self._read_batch_into(records, left)
                continue
            record = self._read()
            if record is None:
                return 0
            records.append(record)
            left -= 1
        return 0

    cdef Py_ssize_t _read_batch_into(self, list records, Py_ssize_t limit) except -1:
        """Append records of the current batch and return their number: the innermost loop of consumers."""
        cdef RawRecord r
        cdef const unsigned char* p = self._next_record
        cdef const unsigned char* end = self._batch_end
        cdef const unsigned char* following
        cdef int64_t base_offset = self._base_offset, base_timestamp = self._base_timestamp
        cdef int64_t offset = -1, position = self.position
        cdef bint is_log_append_time = self._is_log_append_time
        cdef BatchFields batch = self._batch
        cdef PinnedBuffer buffer = self._batch_buffer
        cdef Py_ssize_t count = 0
        cdef int32_t remaining = self._remaining
        cdef int32_t delta_before = self._delta_before, last_offset_delta = self._last_offset_delta
        cdef ConsumerRecord record
        while remaining > 0 and count < limit:
            following = read_record(p, end, &r, remaining, delta_before, last_offset_delta)
            if following is NULL:
                break
            delta_before = r.offset_delta
            if base_offset + r.offset_delta >= position:
                offset = base_offset + r.offset_delta
                record = _record_of(&r, batch, buffer)
                record.offset = offset
                record.timestamp_ms = base_timestamp
                if not is_log_append_time:
                    record.timestamp_ms += r.timestamp_delta
                records.append(record)
                count += 1
                position = offset + 1
            p = following
            remaining -= 1
        self._next_record = p
        self._remaining = remaining
        self._delta_before = delta_before
        if count:
            self._returned(offset, count)
        elif remaining:
            self._fail_record()
        return count

    cdef inline ConsumerRecord _read(self):
        cdef RawRecord r
        cdef const unsigned char* following
        cdef int64_t offset
        cdef ConsumerRecord record
        while True:
            if self._remaining == 0:
                if not self._open_next_batch():
                    return None
                continue
            if self._legacy is not None:
                record = self._read_legacy()
                if record is None and self._unprepared is None:
                    continue
                return record
            following = read_record(
                self._next_record, self._batch_end, &r, self._remaining, self._delta_before,
                self._last_offset_delta,
            )
            if following is NULL:
                self._fail_record()
            offset = self._base_offset + r.offset_delta
            if offset < self.position:
                self._next_record = following
                self._remaining -= 1
                self._delta_before = r.offset_delta
                continue
            record = _record_of(&r, self._batch, self._batch_buffer)
            record.offset = offset
            record.timestamp_ms = self._base_timestamp
            if not self._is_log_append_time:
                record.timestamp_ms += r.timestamp_delta
            if self._deserializes:
                self._deserialize(record)
                if self.at_end or self._unprepared is not None:
                    return None              # closed by a seek meanwhile: another cursor continues
            self._next_record = following
            self._remaining -= 1
            self._delta_before = r.offset_delta
            self._returned(offset, 1)
            return record

    cdef inline void _returned(self, int64_t offset, Py_ssize_t count) noexcept:
        self.last_offset = offset
        self.position = offset + 1
        self.returned_count += count

    cdef int _deserialize(self, ConsumerRecord record) except -1:
        what = "key"
        self._unprepared = None
        self._is_busy = True
        try:
            if self._key_deserializer is not None and (record.serialized_key_size >= 0 or self._key_takes_none):
                if self._key_sees_record:
                    record._key = self._key_deserializer(record._get_key(), record)
                else:
                    record._key = self._key_deserializer(record._get_key())
                record._has_key = True
            what = "value"
            if self._value_deserializer is not None and (record.serialized_value_size >= 0 or self._value_takes_none):
                if self._value_sees_record:
                    record._value = self._value_deserializer(record._get_value(), record)
                else:
                    record._value = self._value_deserializer(record._get_value())
                record._has_value = True
        except PreparationNeeded as needed:
            # Not raised: an exception that `__anext__` must catch would cost each record of each consumer.
            self._unprepared = RecordUnprepared(what, self.topic_partition, record.offset, needed)
        except Exception as error:
            raise RecordDeserializationFailed(what, self.topic_partition, record.offset, error) from error
        finally:
            self._is_busy = False
        record._release_buffer()
        return 0

    cdef bint _open_next_batch(self) except -1:
        """Open the next batch with records at or above the position; return false at the end."""
        cdef Py_ssize_t size
        cdef const unsigned char* p
        self._close_batch()
        while True:
            p = self._next_entry
            size = self._entry_size()
            if size == 0:
                self.at_end = True
                return False
            self._is_busy = True             # other threads run during decompression
            try:
                if p[MAGIC_AT] < 2:
                    self._open_legacy(size)
                else:
                    self._open_batch(p, size)
            finally:
                self._is_busy = False
            self._next_entry = p + size
            if self._remaining:
                return True
            self._close_batch()

    cdef void _close_batch(self):
        if self._offset_after_batch > self.position:
            self.position = self._offset_after_batch
        self._remaining = 0
        self._legacy = None
        self._batch_buffer = None

    cdef Py_ssize_t _entry_size(self) except -1:
        """Return the size of the next entry; 0 if it is incomplete: brokers cut responses off anywhere."""
        cdef Py_ssize_t available = self._end - self._next_entry, size
        if available <= MAGIC_AT:
            return 0
        size = entry_size(self._next_entry)
        # What else these bytes say is not to be relied on, the offset included.
        if self._next_entry[MAGIC_AT] > 2:
            self._fail(f"magic {self._next_entry[MAGIC_AT]} does not exist", self.position, -1)
        if size < (HEADER_SIZE if self._next_entry[MAGIC_AT] == 2 else MIN_LEGACY_ENTRY):
            self._fail(f"an entry cannot be {size} bytes long", self.position, -1)
        return size if size <= available else 0

    cdef int _open_batch(self, const unsigned char* p, Py_ssize_t size) except -1:
        cdef int16_t attributes = get16(p + ATTRIBUTES_AT)
        cdef int64_t base_offset = get64(p)
        cdef int64_t producer_id = get64(p + PRODUCER_ID_AT)
        cdef int32_t count = get32(p + RECORD_COUNT_AT)
        cdef int32_t last_delta = get32(p + LAST_OFFSET_DELTA_AT)
        cdef int64_t offset_after_batch = base_offset + last_delta + 1
        if attributes & CONTROL:
            # All records of its transaction may be below the position: remove it from those ahead as well.
            self._is_aborted(base_offset, producer_id)
            self._aborting.discard(producer_id)
            self._offset_after_batch = offset_after_batch
            return 0
        if attributes & TRANSACTIONAL and self._is_aborted(base_offset, producer_id):
            self._offset_after_batch = offset_after_batch
            return 0
        # A negative last delta puts the end of a batch before its beginning: such a batch is not read already.
        if offset_after_batch <= self.position and not (last_delta < 0 and base_offset >= self.position):
            self._offset_after_batch = offset_after_batch
            return 0
        self._check_header(p, size)
        if count == 0 and size == HEADER_SIZE:  # compaction removed its records
            self._offset_after_batch = offset_after_batch
            return 0
        self._batch_buffer = self._fetched
        self._next_record = p + HEADER_SIZE
        self._batch_end = p + size
        if attributes & CODEC_MASK:
            self._decompress_batch(p, size, base_offset, offset_after_batch)
        if count == 0 and self._next_record is not self._batch_end:
            self._fail("a batch of 0 records has bytes of records", base_offset, offset_after_batch)
        self._base_offset = base_offset
        self._is_log_append_time = (attributes & LOG_APPEND_TIME) != 0
        if self._is_log_append_time:
            self._base_timestamp = get64(p + MAX_TIMESTAMP_AT)
        else:
            self._base_timestamp = get64(p + BASE_TIMESTAMP_AT)
        self.leader_epoch = get32(p + LEADER_EPOCH_AT)
        self._batch = _make_batch_fields(
            self.topic_partition, self.leader_epoch, _TIMESTAMP_TYPES[self._is_log_append_time]
        )
        self._remaining = count
        self._delta_before = -1
        self._last_offset_delta = last_delta
        self._offset_after_batch = offset_after_batch
        return 0

    cdef int _check_header(self, const unsigned char* p, Py_ssize_t size) except -1:
        cdef int64_t base_offset = get64(p)
        cdef int32_t count = get32(p + RECORD_COUNT_AT)
        cdef int32_t last_delta = get32(p + LAST_OFFSET_DELTA_AT)
        if self._check_crcs and not is_sound(p, size):
            why = f"the batch from offset {base_offset} fails its checksum"
        elif count < 0 or <int64_t>count > <int64_t>last_delta + 1:
            why = f"a batch of {count} records cannot have the last offset delta {last_delta}"
        else:
            return 0
        self._fail(why, base_offset, self._offset_behind(p + size, base_offset + last_delta + 1))

    cdef int64_t _offset_behind(self, const unsigned char* following, int64_t offset_after_batch) noexcept:
        """Return the offset to go on from behind a batch whose header cannot be relied on."""
        cdef int64_t base_offset
        if self._end - following > MAGIC_AT:
            base_offset = get64(following)
            if base_offset > self.position:
                return base_offset
        return offset_after_batch

    cdef bint _is_aborted(self, int64_t base_offset, int64_t producer_id) except -1:
        cdef Py_ssize_t last = len(self._aborted) - 1
        while last >= 0 and self._aborted[last][0] <= base_offset:
            self._aborting.add(self._aborted.pop()[1])
            last -= 1
        return producer_id in self._aborting

    cdef int _decompress_batch(
        self, const unsigned char* p, Py_ssize_t size, int64_t base_offset, int64_t offset_after_batch
    ) except -1:
        cdef Py_ssize_t start = p - <const unsigned char*>self._fetched.view.buf
        plain = self._decompressed_ahead.pop(start, None) if self._decompressed_ahead is not None else None
        if plain is None:
            try:
                plain = self._decompress_at(codec_at(p), start, size)
            except KafkaError as error:
                self._fail(error, base_offset, offset_after_batch)
        self._batch_buffer = PinnedBuffer(plain)
        self._next_record = <const unsigned char*>self._batch_buffer.view.buf
        self._batch_end = self._next_record + self._batch_buffer.view.len
        return 0

    cdef object _decompress_at(self, int codec, Py_ssize_t start, Py_ssize_t size):
        return _decompress(
            codec, memoryview(self._data)[start + HEADER_SIZE:start + size], max_bytes=self._max_decompressed
        )

    def close(self):
        """End the cursor: it returns no record any more."""
        self._next_entry = self._end
        self._offset_after_batch = 0
        self._close_batch()
        self.at_end = True

    def move(self, data):
        """Continue in a copy of the bytes; return false if they are being read right now."""
        cdef PinnedBuffer buffer, old = self._fetched
        cdef Py_ssize_t shift
        if self._is_busy:
            return False
        buffer = PinnedBuffer(data)
        shift = <const unsigned char*>buffer.view.buf - <const unsigned char*>old.view.buf
        if self._batch_buffer is old:
            self._batch_buffer = buffer
            self._next_record += shift
            self._batch_end += shift
        self._next_entry += shift
        self._end += shift
        self._fetched = buffer
        self._data = data
        return True

    def compressed_sizes(self):
        """Return the bytes of the compressed batches ahead, by codec."""
        cdef const unsigned char* p = self._next_entry
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
        """Decompress all batches ahead, on any thread; the cursor must not be read meanwhile.

        A batch that cannot be decompressed stays compressed: reading it raises the error.
        """
        cdef const unsigned char* start = <const unsigned char*>self._fetched.view.buf
        cdef const unsigned char* p = self._next_entry
        cdef Py_ssize_t size
        cdef dict decompressed = {}
        while self._end - p > HEADER_SIZE and p[MAGIC_AT] == 2:
            size = entry_size(p)
            if size < HEADER_SIZE or size > self._end - p:
                break
            if codec_at(p) and not get16(p + ATTRIBUTES_AT) & CONTROL:
                try:
                    plain = self._decompress_at(codec_at(p), p - start, size)
                except Exception:
                    break
                decompressed[p - start] = plain
                self.size_in_bytes += len(plain)
            p += size
        self._decompressed_ahead = decompressed

    cdef int _open_legacy(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t start = self._next_entry - <const unsigned char*>self._fetched.view.buf
        # The offset of a wrapper message is that of the last message inside.
        cdef int64_t offset_after_batch = get64(self._next_entry) + 1
        if offset_after_batch <= self.position:
            return 0
        try:
            entry = _read_legacy_entry(self._data, start, check_crc=self._check_crcs)
            records = list(_legacy_records_of(
                entry, max_decompressed_bytes=self._max_decompressed, check_crc=self._check_crcs
            ))
        except KafkaError as error:
            self._fail(error, self.position, offset_after_batch)
        self._batch = _make_batch_fields(self.topic_partition, -1, entry.timestamp_type)
        self.leader_epoch = -1
        records.reverse()
        self._legacy = records
        self._remaining = len(records)
        self._offset_after_batch = offset_after_batch
        return 0

    cdef ConsumerRecord _read_legacy(self):
        """Return the next record of magic 0 or 1; None if it is below the position."""
        cdef ConsumerRecord record
        found = self._legacy[len(self._legacy) - 1]
        if found.offset < self.position:
            self._legacy.pop()
            self._remaining -= 1
            return None
        record = ConsumerRecord.__new__(ConsumerRecord)
        record._batch_fields = self._batch
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
            if self.at_end or self._unprepared is not None:
                return None
        self._legacy.pop()
        self._remaining -= 1
        self._returned(record.offset, 1)
        return record

    cdef int _fail_record(self) except -1:
        """Raise for the next record, which `read_record` refused."""
        cdef RawRecord r
        why = "a record is malformed"
        if parse_record(self._next_record, self._batch_end, &r) is not NULL:
            why = "bytes follow the last record"
            if r.offset_delta <= self._delta_before or r.offset_delta > self._last_offset_delta:
                why = (
                    f"the offset delta {r.offset_delta} does not rise from {self._delta_before} to "
                    f"{self._last_offset_delta}"
                )
        self._fail(why, self._base_offset, self._offset_after_batch)

    cdef int _fail(self, why, int64_t base_offset, int64_t offset_behind) except -1:
        """Raise the error of a batch that begins at an offset, and of the records behind the position."""
        cdef int64_t offset = max(self.position, base_offset)
        self.is_unreadable = True
        cause = why if isinstance(why, KafkaError) else CorruptRecords(why)
        raise unreadable_batch(cause, self.topic_partition, offset, max(offset_behind, offset + 1)) from cause

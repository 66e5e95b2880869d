# Iterating over the records of one cursor.

cdef class RecordIterator:
    """The native half of delivery: returns the records of one cursor until it ends or is removed."""

    cdef public RecordCursor _current_cursor # returns the next record; None: `_wait_for_next_cursor` sets it
    cdef public RecordCursor _last_cursor    # returned the record that the application is handling
    cdef public bint _polled                 # whether a record was asked for since this was cleared
    cdef public bint _intercepts             # whether records pass through `_intercept`
    cdef int64_t _yielded_ms                 # when the event loop ran last

    def __aiter__(self):
        return self

    async def __anext__(self):
        cdef ConsumerRecord record
        cdef RecordCursor current            # keeps it alive: deserializers may seek, also on another thread
        cdef int64_t now_ms
        while True:
            now_ms = coarse_ms()
            if now_ms - self._yielded_ms >= YIELD_INTERVAL_MS:
                # Buffered records are returned without waiting, and the application may handle them without
                # waiting: no other task would ever run, heartbeats included.
                self._yielded_ms = now_ms
                await _sleep(0)
            current = self._current_cursor
            if current is not None and not current.is_unreadable:
                record = current._read()
                if record is not None:
                    self._polled = True
                    self._last_cursor = self._current_cursor
                    if not self._intercepts:
                        return record
                    intercepted = self._intercept(record)
                    if intercepted is not None:
                        return intercepted
                    continue
            await self._wait_for_next_cursor()
            self._yielded_ms = coarse_ms()

    async def _yield_if_due(self):
        """Yield to the event loop if it last ran `YIELD_INTERVAL_MS` ago or more."""
        cdef int64_t now_ms = coarse_ms()
        if now_ms - self._yielded_ms >= YIELD_INTERVAL_MS:
            self._yielded_ms = now_ms
            await _sleep(0)

    def _next_buffered(self):
        """Return the next record of the current cursor, or None where `__anext__` may wait.

        On any thread, one at a time.
        """
        cdef ConsumerRecord record
        cdef RecordCursor current            # keeps it alive, as in `__anext__`
        while self._current_cursor is not None:
            current = self._current_cursor
            record = None if current.is_unreadable else current._read()
            if record is None:
                break
            self._polled = True
            self._last_cursor = self._current_cursor
            if not self._intercepts:
                return record
            intercepted = self._intercept(record)
            if intercepted is not None:
                return intercepted
        return None

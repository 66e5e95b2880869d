# Giving records out one by one.

cdef class RecordSource:
    """The fast part of a consumer: records of one cursor, until it is empty or must not be used any more."""

    cdef public Cursor _current              # gives the next record; None: `_turn_to_next` must find one
    cdef public Cursor _in_hand              # gave the record that the application is handling
    cdef public bint _asked                  # whether the application asked since this was cleared
    cdef public bint _intercepts             # whether records go through `_show` first
    cdef int64_t _breathed_ms

    def __aiter__(self):
        return self

    async def __anext__(self):
        cdef ConsumerRecord record
        cdef Cursor current                  # kept alive: deserializers may seek, on another thread too
        cdef int64_t now_ms
        while True:
            now_ms = coarse_ms()
            if now_ms - self._breathed_ms >= BREATH_MS:
                # Records that are at hand need no waiting, and handling them may not wait either: without
                # this nothing else would ever run, heartbeats included.
                self._breathed_ms = now_ms
                await _sleep(0)
            current = self._current
            if current is not None:
                record = current._read()
                if record is not None:
                    self._asked = True
                    self._in_hand = self._current
                    if not self._intercepts:
                        return record
                    shown = self._show(record)
                    if shown is not None:
                        return shown
                    continue
            await self._turn_to_next()
            self._breathed_ms = coarse_ms()

    async def _breathe(self):
        """Let the loop have a turn if the last was long ago."""
        cdef int64_t now_ms = coarse_ms()
        if now_ms - self._breathed_ms >= BREATH_MS:
            self._breathed_ms = now_ms
            await _sleep(0)

    def _at_hand(self):
        """The next record if it needs no waiting, else None; on whatever thread, but on one at a time."""
        cdef ConsumerRecord record
        cdef Cursor current                  # kept alive, as above
        while self._current is not None:
            current = self._current
            record = current._read()
            if record is None:
                break
            self._asked = True
            self._in_hand = self._current
            if not self._intercepts:
                return record
            shown = self._show(record)
            if shown is not None:
                return shown
        return None

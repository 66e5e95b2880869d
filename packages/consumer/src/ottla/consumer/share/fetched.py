"""The records that one response brought for a partition, of which some or all were acquired."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ottla.consumer.errors import RecordDeserializationFailed, UnreadableBatch
from ottla.consumer.fetch.decoding import RecordCursor, RecordDecoder
from ottla.consumer.share.record import Acknowledger, Lock, ShareRecord
from ottla.consumer.share.session import Acknowledgement, AcknowledgeType, AcquiredRanges
from ottla.protocol.records import Buffer
from ottla.protocol.topics import TopicPartition

Acknowledge = Callable[[Lock, Iterable[Acknowledgement]], None]


class FetchedRecords:
    """Decodes acquired records in order; acknowledges the gaps between them, and records that cannot be read.

    As in Java's client, a record that cannot be deserialized is released, as another member may be able to,
    and a damaged batch is rejected. Both errors are raised once.
    """

    def __init__(
        self,
        partition: TopicPartition,
        data: Buffer,
        ranges: AcquiredRanges,
        lock: Lock,
        lock_ends_s: float,
        decoder: RecordDecoder,
        acknowledger: Acknowledger,
        acknowledge: Acknowledge,
    ) -> None:
        self.partition = partition
        self.lock = lock
        self._data = data
        self._ranges = ranges
        self._lock_ends_s = lock_ends_s
        self._decoder = decoder
        self._acknowledger = acknowledger
        self._acknowledge = acknowledge
        self._cursor = decoder.cursor(partition, data, 0, None)

    @property
    def at_end(self) -> bool:
        """Whether all records were taken."""
        return self._ranges.are_passed

    @property
    def cursor(self) -> RecordCursor:
        """The cursor, to decompress ahead."""
        return self._cursor

    def take(self, limit: int) -> list[ShareRecord[Any, Any]]:
        """Return up to `limit` records; fewer at the end, and before a record that fails.

        Raises RecordDeserializationFailed, UnreadableBatch, and RecordUnprepared for a record whose
        deserializer must wait first.
        """
        taken: list[ShareRecord[Any, Any]] = []
        while len(taken) < limit and not self.at_end:
            try:
                found = self._cursor.take(limit - len(taken))
            except (RecordDeserializationFailed, UnreadableBatch) as error:
                if taken:
                    break  # the next call fails here again
                self._pass(error)
                raise
            if not found:
                self._acknowledge(self.lock, self._ranges.skip_to(None))
            taken += [shared for record in found if (shared := self._share(record)) is not None]
        return taken

    def _share(self, record: Any) -> ShareRecord[Any, Any] | None:
        delivery_count, gaps = self._ranges.find(record.offset)
        self._acknowledge(self.lock, gaps)
        if delivery_count is None:
            return None
        return ShareRecord(record, delivery_count, self.lock, self._lock_ends_s, self._acknowledger)

    def _pass(self, error: RecordDeserializationFailed | UnreadableBatch) -> None:
        """Go on behind what cannot be read."""
        is_damaged = isinstance(error, UnreadableBatch)
        following = error.next_offset if isinstance(error, UnreadableBatch) else error.offset + 1
        self._acknowledge(self.lock, self._ranges.skip_to(error.offset))
        kind = AcknowledgeType.REJECT if is_damaged else AcknowledgeType.RELEASE
        self._acknowledge(self.lock, self._ranges.skip_to(following, kind))
        self._cursor.close()
        self._cursor = self._decoder.cursor(self.partition, self._data, following, None)

    def release(self) -> None:
        """Release the records that were not taken."""
        self._acknowledge(self.lock, self._ranges.skip_to(None, AcknowledgeType.RELEASE))
        self._cursor.close()

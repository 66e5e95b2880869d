from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Self, final

from ottla.client.field_types import K_co, V_co
from ottla.consumer.errors import RecordUnprepared
from ottla.protocol.records import Buffer, TimestampType
from ottla.protocol.topics import TopicPartition

@final
class ConsumerRecord(Generic[K_co, V_co]):
    """One record of a partition. Key, value and headers are decoded on first access.

    `key` and `value` are bytes or None, unless deserializers convert them.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int = -1,
        key: K_co | None = None,
        value: V_co | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        *,
        timestamp_type: TimestampType = ...,
        leader_epoch: int = -1,
        serialized_key_size: int | None = None,
        serialized_value_size: int | None = None,
    ) -> None: ...
    def _repr_html_(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int:
        """The time of creation or of append, as `timestamp_type` says; -1 before Kafka 0.10."""
    @property
    def timestamp(self) -> int:
        """The name of `timestamp_ms` in other clients."""
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def key(self) -> K_co: ...
    @property
    def value(self) -> V_co: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers in order; keys may repeat."""
    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that wrote the record; -1 before Kafka 0.11."""
    @property
    def serialized_key_size(self) -> int:
        """The size of the serialized key in bytes; -1 for None."""
    @property
    def serialized_value_size(self) -> int:
        """The size of the serialized value in bytes; -1 for None."""

@final
class RecordCursor:
    """Decodes the records at or above a position from fetched bytes, which it keeps alive.

    Skips control records, an entry that is cut off at the end, and, with `aborted` (pairs of first offset and
    producer id), records of aborted transactions. After an error the cursor stays at its position, and raises
    the error again. Raises UnreadableBatch and RecordDeserializationFailed, and RecordUnprepared for a record
    whose deserializer must wait first.

    Deserializers are given the bytes; with `key_sees_record` or `value_sees_record` the record too. They are
    called for a record without key or value only with `key_takes_none` or `value_takes_none`.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        data: Buffer,
        position: int,
        aborted: Sequence[tuple[int, int]] | None = None,
        *,
        check_crcs: bool = True,
        key_deserializer: Callable[..., Any] | None = None,
        value_deserializer: Callable[..., Any] | None = None,
        key_sees_record: bool = False,
        value_sees_record: bool = False,
        key_takes_none: bool = False,
        value_takes_none: bool = False,
        max_decompressed_bytes: int = ...,
    ) -> None: ...
    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def position(self) -> int:
        """The offset of the next record, after skipped ones."""
    @property
    def last_offset(self) -> int:
        """The offset of the last record returned; -1 before the first."""
    @property
    def returned_count(self) -> int:
        """The number of records returned."""
    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the current batch; -1 if there is none."""
    @property
    def size_in_bytes(self) -> int: ...
    @property
    def at_end(self) -> bool:
        """Whether the end was reached."""
    @property
    def is_unreadable(self) -> bool:
        """Whether the next batch, or the rest of this one, could not be read."""
    def read(self) -> ConsumerRecord[Any, Any] | None:
        """Return the next record; None at the end."""
    def take(self, limit: int) -> list[ConsumerRecord[Any, Any]]:
        """Return up to `limit` records; fewer at the end, and before a record that fails."""
    def take_unprepared(self) -> RecordUnprepared | None:
        """Return the RecordUnprepared that ended the last read of an iteration; None if there was none."""
    def close(self) -> None:
        """End the cursor: no record is returned any more."""
    def move(self, data: Buffer) -> bool:
        """Continue in a copy of the bytes; return false if they are being read right now."""
    def compressed_sizes(self) -> dict[int, int]:
        """Return the bytes of the compressed batches ahead, by codec."""
    def decompress_ahead(self) -> None:
        """Decompress all batches ahead, on any thread; the cursor must not be read meanwhile."""

def end_of(data: Buffer, position: int) -> tuple[int, int, int]:
    """Return the offset after the last whole batch in `data`, or `position`; its epoch; the record count.

    Only the headers of batches are read.
    """

class RecordIterator:
    """The native half of delivery: returns the records of one cursor until it ends or is removed."""

    _current_cursor: RecordCursor | None
    _last_cursor: RecordCursor | None
    _polled: bool
    _intercepts: bool

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> ConsumerRecord[Any, Any]: ...
    def _next_buffered(self) -> ConsumerRecord[Any, Any] | None:
        """Return the next record of the current cursor, or None where `__anext__` may wait.

        On any thread, one at a time.
        """
    async def _yield_if_due(self) -> None:
        """Yield to the event loop if it last ran too long ago."""
    async def _wait_for_next_cursor(self) -> None:
        """Wait for records and set `_current_cursor`, or for a deserializer; subclasses implement it."""
    def _intercept(self, record: ConsumerRecord[Any, Any]) -> ConsumerRecord[Any, Any] | None:
        """Pass a record through interceptors; subclasses implement it."""

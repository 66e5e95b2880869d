from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, final

from ottla.protocol.records import Buffer, TimestampType
from ottla.protocol.topics import TopicPartition

@final
class ConsumerRecord:
    """One record of a partition. Key, value and headers are made when they are first asked for.

    `key` and `value` are bytes or None, unless deserializers made something else of them.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int = -1,
        key: Any = None,
        value: Any = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        *,
        timestamp_type: TimestampType = ...,
        leader_epoch: int = -1,
        serialized_key_size: int | None = None,
        serialized_value_size: int | None = None,
    ) -> None: ...
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
        """When it was written, or appended, as `timestamp_type` says; -1 before Kafka 0.10."""
    @property
    def timestamp(self) -> int:
        """`timestamp_ms`, as other clients call it."""
    @property
    def timestamp_type(self) -> TimestampType: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """In order; keys may repeat."""
    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that wrote it; -1 before Kafka 0.11."""
    @property
    def serialized_key_size(self) -> int:
        """Bytes of the key as it was sent; -1 for None."""
    @property
    def serialized_value_size(self) -> int:
        """Bytes of the value as it was sent; -1 for None."""

@final
class Cursor:
    """Reads the records at or above a position out of fetched bytes, which it keeps alive.

    Control records and, with `aborted` (pairs of first offset and producer id), records of aborted
    transactions are left out; an entry that is cut off at the end too. Nothing is given after an error: the
    cursor stays where it is, and raises it again. Raises CorruptMessage, DecompressedTooLarge and
    RecordDeserializationFailed.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        data: Buffer,
        position: int,
        aborted: Sequence[tuple[int, int]] | None = None,
        *,
        check_crcs: bool = True,
        key_deserializer: Callable[[bytes], Any] | None = None,
        value_deserializer: Callable[[bytes], Any] | None = None,
        max_decompressed_bytes: int = ...,
    ) -> None: ...
    @property
    def topic_partition(self) -> TopicPartition: ...
    @property
    def position(self) -> int:
        """The offset of the record to be given next; behind what was left out, too."""
    @property
    def last_offset(self) -> int:
        """The offset of the record given last; -1 before the first."""
    @property
    def given(self) -> int:
        """How many records were given."""
    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the batch that is being read; -1 where there is none."""
    @property
    def size_in_bytes(self) -> int: ...
    @property
    def at_end(self) -> bool:
        """Whether it is known that nothing is left."""
    def read(self) -> ConsumerRecord | None:
        """The next record; None at the end."""
    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to `limit` records; fewer at the end, and in front of one that cannot be given."""
    def close(self) -> None:
        """Give nothing more, whoever still has this."""
    def move(self, data: Buffer) -> bool:
        """Go on reading in a copy of the bytes; false while they are being read, and cannot be left."""
    def compressed_sizes(self) -> dict[int, int]:
        """Bytes of the compressed batches that lie ahead, by codec."""
    def decompress_ahead(self) -> None:
        """Decompress all that lies ahead, on whatever thread; nothing may be read meanwhile."""

def end_of(data: Buffer, position: int) -> tuple[int, int, int]:
    """The offset behind the last whole batch in `data`, or `position`; its epoch; how many records there are.

    Entries are looked at no further than their headers.
    """

class RecordSource:
    """The fast part of a consumer: gives records of one cursor until it is empty or taken away."""

    _current: Cursor | None
    _in_hand: Cursor | None
    _asked: bool
    _intercepts: bool

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> ConsumerRecord: ...
    def _at_hand(self) -> ConsumerRecord | None:
        """The next record if it needs no waiting, else None; on whatever thread, but on one at a time."""
    async def _breathe(self) -> None:
        """Let the event loop have a turn if the last one was long ago."""
    async def _turn_to_next(self) -> None:
        """Wait for records and set `_current`; subclasses say how."""
    def _show(self, record: ConsumerRecord) -> ConsumerRecord | None:
        """Let interceptors see a record; subclasses say how."""

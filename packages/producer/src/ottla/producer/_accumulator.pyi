import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Generic, Protocol, final

from ottla.client.field_types import K_contra, V_contra
from ottla.producer.record import Headers, RecordMetadata
from ottla.protocol.topics import TopicPartition

@final
class Batch:
    """Records of one partition: a buffer that grows until it is packed, sent, and acknowledged or failed."""

    created_ms: float
    not_before_ms: float
    attempts: int
    closed: bool
    in_flight: bool
    last_error: BaseException | None
    displaced_by: BaseException | None
    @property
    def record_count(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def queue(self) -> Queue: ...
    @property
    def partition(self) -> TopicPartition: ...
    @property
    def size_in_bytes(self) -> int:
        """Before compression, header included."""
    @property
    def was_sent(self) -> bool:
        """Whether the batch has a sequence number that a broker may know."""
    @property
    def data(self) -> bytes | None:
        """The bytes to send, once `pack` and `write_header` made them."""
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def done(self) -> bool: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def log_append_time_ms(self) -> int: ...
    @property
    def error(self) -> BaseException | None: ...
    def pack(self, codec: int, level: int | None) -> None:
        """Compress the records with a codec. This is the only slow step; it may run on another thread."""
    def write_header(
        self,
        codec: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        transactional: bool = False,
    ) -> None:
        """Write the header of a packed batch. Never call this while a connection may still send the bytes."""
    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """Set the outcome: the records are written."""
    def fail(self, error: BaseException) -> None:
        """Set the outcome: the records are not delivered."""
    def settled(self) -> asyncio.Future[None]:
        """Return a future that is done once the records are written or failed."""

@final
class Acknowledgement:
    """The acknowledgement of a record: await it for the RecordMetadata."""

    def done(self) -> bool:
        """Say whether the record is written or failed."""
    def result(self) -> RecordMetadata:
        """Return the RecordMetadata, or raise the error of the record.

        Raises asyncio.InvalidStateError while the record is pending.
        """
    def exception(self) -> BaseException | None:
        """Return the error, or None for a record that is written."""
    @property
    def offset(self) -> int:
        """The record's offset: -1 while it is not known, and with acks=0."""
    @property
    def topic_partition(self) -> TopicPartition | None:
        """The partition of the record; None while the topic has no metadata."""
    def add_done_callback(self, function: Callable[[Acknowledgement], object]) -> None:
        """Call `function(acknowledgement)` on the event loop, once the record is written or failed."""
    def future(self) -> asyncio.Future[RecordMetadata]:
        """Return an asyncio.Future of the RecordMetadata, for code that needs a future."""
    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...

@final
class Acknowledgements:
    """The acknowledgements of many records: await it until all are written.

    `acknowledgements[i]` is the Acknowledgement of record number i. Consecutive records of one batch take the
    memory of one entry. Awaiting raises the first error, once every record is written or failed.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, at: int) -> Acknowledgement: ...
    def __iter__(self) -> Iterator[Acknowledgement]: ...
    def done(self) -> bool:
        """Say whether all records are written or failed."""
    def add(self, one: Acknowledgement) -> None:
        """Add the acknowledgement of the record that was appended last."""
    def complete(self) -> None:
        """End adding: batches do not refer to this object any more."""
    def __await__(self) -> Generator[Any, None, Acknowledgements]: ...

@final
class Queue:
    """The batches of one partition, oldest first; the last may still be open."""

    def __new__(cls, topic: str, index: int) -> Queue: ...
    @property
    def partition(self) -> TopicPartition: ...
    @property
    def topic(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def batches(self) -> Sequence[Batch]: ...
    @property
    def in_flight(self) -> int: ...

@final
class TopicInfo:
    """The partitions of one topic, and the sticky partition of its records without a key."""

    @property
    def topic(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def available(self) -> list[int]:
        """The partitions that have a leader."""
    @property
    def partitions(self) -> range: ...

class Accumulator:
    """Batches by partition. The application appends records; the sender drains due batches.

    `monotonic_ms` and `chance` are called about once per batch; `wake` is called when a batch is created.
    `wall_ms` returns the timestamp of a record; without it the system's clock does. A limit of 0 records, of
    all batches (`max_records`) or of one, stands for none.
    """

    wake: Callable[[], object] | None
    loop: asyncio.AbstractEventLoop | None
    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: float,
        buffer_memory: int,
        max_record_size: int,
        monotonic_ms: Callable[[], float],
        chance: Callable[[], float] = ...,
        wall_ms: Callable[[], int] | None = None,
        max_records: int = 0,
        max_batch_records: int = 0,
    ) -> None: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def buffer_memory(self) -> int: ...
    @property
    def max_record_size(self) -> int: ...
    @property
    def linger_ms(self) -> float: ...
    @property
    def size_bytes(self) -> int:
        """Bytes of all batches that are neither acknowledged nor failed."""
    @property
    def record_count(self) -> int:
        """Records of all batches that are neither acknowledged nor failed."""
    @property
    def max_records(self) -> int: ...
    @property
    def batches_begun(self) -> int: ...
    @property
    def topics(self) -> dict[str, TopicInfo]: ...
    @property
    def is_empty(self) -> bool:
        """Whether every batch was acknowledged or failed."""
    @property
    def is_full(self) -> bool:
        """Whether `send` must wait for buffer space."""
    def update_topic(self, topic: str, count: int, available: list[int]) -> TopicInfo:
        """Set the partitions of a topic; return its TopicInfo."""
    def recreate_topic(self, topic: str, count: int, available: list[int]) -> list[Batch]:
        """Set the partitions of a topic that was created again; return the batches without a place in it.

        Those are the batches of partitions that it does not have, and, where the number of partitions
        changed, the batches of records whose partitions were chosen by that number.
        """
    def forget_idle(self, since_ms: float) -> list[str]:
        """Drop the topics without a record since then; return their names."""
    def add(self, batch: Batch, info: TopicInfo, partition: int) -> None:
        """Add a batch that the application filled."""
    def ready(self, now_ms: float, max_in_flight: int) -> tuple[list[Batch], float | None]:
        """Return the batches that are due, at most one per partition, and when the next one is (ms).

        A time of None means: not before something changes.
        """
    def close(self, batch: Batch) -> None:
        """Close a batch for appends."""
    def drain(self, batch: Batch) -> None:
        """Close a batch and mark it as in flight."""
    def reenqueue(self, batch: Batch, not_before_ms: float) -> None:
        """Make a batch due again at `not_before_ms`; it keeps its position in the queue."""
    def finish(self, batch: Batch) -> None:
        """Remove a batch that was acknowledged or failed, and release its buffer space."""
    def halves(self, batch: Batch, codec: int, level: int | None) -> list[Batch]:
        """Return the records of a batch as two packed batches. Slow, and safe on another thread.

        Returns an empty list for a batch of one record, which cannot be split, and for one that is done.
        """
    def split(self, batch: Batch, parts: list[Batch]) -> None:
        """Replace a batch that a broker rejected as too large by its halves."""
    def expired(self, now_ms: float, timeout_ms: float, in_flight: bool = True) -> list[Batch]:
        """Return the batches older than `timeout_ms`, oldest first; `in_flight` includes those in flight."""
    def flush(self, flushing: bool) -> None:
        """While flushing, a batch is due without linger."""
    def incomplete_batches(self) -> list[Batch]:
        """Return all batches that are neither acknowledged nor failed, those in flight too."""
    def close_open_batches(self) -> None:
        """Close all batches for appends; later records are appended to new ones."""

@final
class BatchedRecord:
    """The position of a record in its batch."""

    offset: int
    size: int
    timestamp: int

@final
class BatchBuilder:
    """A batch that the application fills: `create_batch` returns it, `send_batch` sends it."""

    def __new__(cls, limit: int, max_records: int = 0) -> BatchBuilder: ...
    def append(
        self,
        *,
        value: bytes | None = None,
        key: bytes | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> BatchedRecord | None:
        """Append a record of bytes; return a BatchedRecord, or None when the batch is full."""
    def record_count(self) -> int:
        """Return the number of records."""
    def size(self) -> int:
        """Return the size in bytes, before compression."""
    def close(self) -> None:
        """Close the batch for appends."""

def whole_ms(given: object) -> int:
    """Return a timestamp as an integer. Raises TypeError for other types, ValueError out of range."""

def packed_headers(headers: Headers | None) -> bytes | None:
    """Return the headers of one record as encoded in it, the count first; None for no headers."""

def pending_batch(loop: asyncio.AbstractEventLoop) -> Batch:
    """Return a batch for the acknowledgements of records whose topic has no metadata yet."""

def pending_acknowledgement(batch: Batch) -> Acknowledgement:
    """Return the acknowledgement of a record that is not in any batch yet."""

def resolve(pending: Acknowledgement, appended: Acknowledgement) -> None:
    """Point a pending acknowledgement to the batch its record was appended to."""

def resolve_all(batch: Batch) -> None:
    """Wake the waiters of a pending batch: its records are in batches now, or failed with it."""

@final
class ArrowRows:
    """One batch of Arrow columns."""

    @property
    def count(self) -> int: ...

def arrow_rows(data: object, names: dict[str, str]) -> Iterator[ArrowRows]:
    """Import columns: yields ArrowRows for each batch of a table, a record batch, or a reader of batches.

    `names` gives the names that value, key, timestamp, partition and headers have; all but value may be
    missing. Raises TypeError for data that is not Arrow's, ValueError for a missing column.
    """

@final
class RecordColumns:
    """The records of one `send_many`: lists of values, keys and timestamps, all as long, and what they share.

    Serializers return bytes or None. Where `takes_bytes_keys` or `takes_bytes_values` holds, keys or values
    that are exactly bytes pass without a call of the serializer.
    """

    count: int
    def __init__(
        self,
        values: list[Any],
        keys: list[Any] | None,
        timestamps: list[int] | None,
        partition: int | None,
        headers: bytes | None,
        *,
        serialize_key: Callable[[Any], bytes | None],
        serialize_value: Callable[[Any], bytes | None],
        takes_bytes_keys: bool,
        takes_bytes_values: bool,
    ) -> None: ...

class Appender:
    """Appends records to the accumulator's batches: one, many, or the rows of Arrow columns. Never waits."""

    fast_path: bool
    """Whether `send` may append a record at once; `RecordAdmission` writes it."""
    def __init__(self, accumulator: Accumulator) -> None: ...
    @property
    def accumulator(self) -> Accumulator: ...
    def is_pause_due(self) -> bool:
        """Whether a loop of sends has run for long enough without a pause."""
    def pause_later(self) -> None:
        """Allow the fast path for a number of bytes more: a loop of sends must let other tasks run."""
    def forget_idle(self, since_ms: float) -> list[str]:
        """Drop the topics without a record since then; return their names."""
    def append(
        self,
        info: TopicInfo,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: bytes | None,
        is_placed_by_count: bool = False,
    ) -> Acknowledgement:
        """Append one serialized record; `partition` None leaves the choice to key or topic.

        `is_placed_by_count`: a partitioner chose the partition by the number of them. Raises NoSuchPartition.
        """
    def append_many(
        self,
        info: TopicInfo,
        records: RecordColumns,
        start: int,
        max_count: int,
        out: Acknowledgements,
    ) -> int:
        """Append records from `start` on until the buffer is full; return the index of the first one left."""
    def append_rows(
        self,
        info: TopicInfo,
        rows: ArrowRows,
        start: int,
        max_count: int,
        out: Acknowledgements,
        choose: Callable[[bytes | None], int] | None = None,
    ) -> int:
        """Append rows from `start` on until the buffer is full; return the number of the first one left.

        `choose(key)` returns the partition of a row that names none. Raises NoSuchPartition if the first row
        names a partition that the topic does not have; before a later one it returns.
        """
    def append_batch(self, builder: BatchBuilder, info: TopicInfo, partition: int) -> Acknowledgement:
        """Append a batch that the application filled; return the acknowledgement of its first record."""

class GeneralPath(Protocol):
    """Appends the records that the fast path does not."""

    async def send(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement: ...
    def send_nowait(
        self,
        topic: str,
        value: object,
        key: object,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers | None,
    ) -> Acknowledgement: ...

class SendMethods(Generic[K_contra, V_contra]):
    """`send` and `send_nowait`, compiled: the one base class of `Producer`."""

    def __init__(self, appender: Appender, general_path: GeneralPath) -> None: ...
    async def send(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Acknowledgement:
        """Append a record; return its Acknowledgement. Waits up to `max_block_ms` while the buffer is full.

        `await` the acknowledgement for the record's RecordMetadata, or for the error that kept it from being
        written. Raises RecordTooLarge, SerializationFailed, BufferFull, ProducerClosed, and the errors of a
        metadata request; then the record is in no batch.
        """
    def send_nowait(
        self,
        topic: str,
        value: V_contra | None = None,
        key: K_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Acknowledgement:
        """Append a record without waiting; return its Acknowledgement.

        Records of an unknown topic wait for its metadata. Where `send` waits, this raises BufferFull and
        SerializerUnprepared.
        """

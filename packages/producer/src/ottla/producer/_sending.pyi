import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, final

from ottla.producer.record import RecordMetadata
from ottla.producer.sending import Headers
from ottla.protocol.topics import TopicPartition

@final
class Batch:
    """Records of one partition that travel together: a buffer that grows, then bytes, then an outcome."""

    created_ms: float
    not_before_ms: float
    attempts: int
    closed: bool
    in_flight: bool
    last_error: BaseException | None
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
        """Whether it has a number that a broker may know."""
    @property
    def data(self) -> bytes | None:
        """As it is sent, once `pack` and `number` made it."""
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
        """Compress the records, if they are to be: the only slow part, and safe on another thread."""
    def number(
        self,
        codec: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        transactional: bool = False,
    ) -> None:
        """Write the header of a packed batch. Not while it may still be on a wire."""
    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """The records are written."""
    def fail(self, error: BaseException) -> None:
        """The records are given up."""
    def settled(self) -> asyncio.Future[None]:
        """A future that is done once the records are written or given up."""

@final
class Acknowledgement:
    """What a sender holds of a record: await it for the record's RecordMetadata."""

    def done(self) -> bool:
        """Say whether the record is written or given up."""
    def result(self) -> RecordMetadata:
        """Return the RecordMetadata; raises what kept the record from being written.

        Raises asyncio.InvalidStateError while that is not known.
        """
    def exception(self) -> BaseException | None:
        """Return the error, or None for a record that is written."""
    @property
    def offset(self) -> int:
        """The record's offset: -1 while it is not known, and with acks=0."""
    @property
    def topic_partition(self) -> TopicPartition | None:
        """Where the record goes; None while the topic is not known."""
    def add_done_callback(self, function: Callable[[Acknowledgement], object]) -> None:
        """Call `function(acknowledgement)` on the event loop, once the record is written or given up."""
    def future(self) -> asyncio.Future[RecordMetadata]:
        """Return an asyncio.Future of the RecordMetadata, for what insists on one."""
    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...

@final
class Acknowledgements:
    """What a sender holds of many records: await it until all are written.

    `acknowledgements[i]` is the Acknowledgement of record number i. Records that follow each other in one
    batch cost nothing here. Awaiting raises the first error there is, once all records are settled.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, at: int) -> Acknowledgement: ...
    def __iter__(self) -> Iterator[Acknowledgement]: ...
    def done(self) -> bool:
        """Say whether all records are written or given up."""
    def __await__(self) -> Generator[Any, None, Acknowledgements]: ...

@final
class Queue:
    """The batches of one partition, oldest first; the last may still take records."""

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
class Route:
    """Where records of one topic go."""

    @property
    def topic(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def available(self) -> list[int]:
        """Partitions that have a leader."""
    @property
    def partitions(self) -> range: ...

class Gathering:
    """Batches by partition. The application puts records in; the sender takes due batches out.

    `monotonic_ms` and `chance` are asked once per batch or so; `wake` is called when a batch is begun or
    full. `wall_ms` gives records their time; without it the system's clock does.
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
        """Bytes of all batches that are not finished."""
    @property
    def batches_begun(self) -> int: ...
    @property
    def routes(self) -> dict[str, Route]: ...
    @property
    def is_empty(self) -> bool:
        """Whether everything was sent and answered."""
    @property
    def is_full(self) -> bool:
        """Whether `send` has to wait."""
    def route(self, topic: str, count: int, available: list[int]) -> Route:
        """Take in a topic's partitions; return its route."""
    def forget_idle(self, since_ms: float) -> list[str]:
        """Drop the routes of topics that nothing was sent to since then; return the topics."""
    def add(self, batch: Batch, route: Route, partition: int) -> None:
        """Take in a batch that somebody else filled."""
    def ready(self, now_ms: float, most_in_flight: int) -> tuple[list[Batch], float | None]:
        """Return batches that may be sent now, at most one per partition, and when (ms) to look again.

        None stands for not before something changes.
        """
    def close(self, batch: Batch) -> None:
        """Let a batch take no more records."""
    def take(self, batch: Batch) -> None:
        """Hand a batch to the sender: it takes no more records."""
    def put_back(self, batch: Batch, not_before_ms: float) -> None:
        """Send a batch again later; it keeps its place."""
    def finish(self, batch: Batch) -> None:
        """Be done with a batch, whatever became of it."""
    def halves(self, batch: Batch, codec: int, level: int | None) -> list[Batch]:
        """Return two packed batches of a batch's records: slow, and safe on another thread.

        Returns nothing for one of a single record, which cannot be made smaller, and for one that is done.
        """
    def split(self, batch: Batch, parts: list[Batch]) -> None:
        """Put its halves in the place of a batch that a broker found too large."""
    def expired(self, now_ms: float, timeout_ms: float, in_flight: bool = True) -> list[Batch]:
        """Return batches that have waited too long, oldest first; without `in_flight` none with a broker."""
    def flush(self, flushing: bool) -> None:
        """While flushing no batch waits for company."""
    def everything(self) -> list[Batch]:
        """Return all batches, those with brokers too."""
    def close_open_batches(self) -> None:
        """Let no batch take further records; what comes later goes into new ones."""

@final
class BatchedRecord:
    """Where in its batch a record is."""

    offset: int
    size: int
    timestamp: int

@final
class BatchBuilder:
    """A batch that an application fills itself: `create_batch` gives it, `send_batch` sends it."""

    def __new__(cls, limit: int) -> BatchBuilder: ...
    def append(
        self,
        *,
        value: bytes | None = None,
        key: bytes | None = None,
        timestamp: int | None = None,
        headers: Headers | None = None,
    ) -> BatchedRecord | None:
        """Add a record of bytes; return what is known of it, or None when it does not fit any more."""
    def record_count(self) -> int:
        """Return how many records are in it."""
    def size(self) -> int:
        """Return its size in bytes, before compression."""
    def close(self) -> None:
        """Take no more records."""

def whole_ms(given: object) -> int:
    """Return a record's time as it stands in it. Raises TypeError for no number, ValueError for no time."""

class Sending:
    """The calls of a producer, for `Producer` to complete."""

    quick: bool
    def __init__(self, gathering: Gathering) -> None: ...
    @property
    def gathering(self) -> Gathering: ...
    async def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Acknowledgement:
        """Take a record; return its Acknowledgement. Waits while the buffer is full, up to `max_block_ms`.

        `await` the acknowledgement for the record's RecordMetadata, or for the error that kept it from being
        written. Raises RecordTooLarge, SerializationFailed, BufferFull, ProducerClosed, and what finding the
        topic meets; then nothing of the record was queued.
        """
    def send_nowait(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Acknowledgement:
        """Take a record without waiting for anything; return its Acknowledgement.

        Records of a topic that is not known yet wait for it. Raises BufferFull where `send` would wait.
        """
    def _pause_later(self) -> None:
        """Let the quick way go on for a while: a loop of sends must leave others their turn."""
    def _is_pause_due(self) -> bool: ...
    def _forget_idle(self, since_ms: float) -> list[str]: ...
    def _put(
        self,
        route: Route,
        key: bytes | None,
        value: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: bytes | None,
    ) -> Acknowledgement: ...
    def _put_some(
        self,
        route: Route,
        values: list[Any],
        keys: list[bytes | None] | None,
        start: int,
        most: int,
        partition: int | None,
        timestamps: list[int] | None,
        headers: bytes | None,
        serialize: Callable[[Any], bytes | None],
        out: Acknowledgements,
    ) -> int: ...
    def _send_batch(self, builder: BatchBuilder, route: Route, partition: int) -> Acknowledgement: ...
    def _gather(self, out: Acknowledgements, one: Acknowledgement) -> None: ...
    def _let_go(self, out: Acknowledgements) -> None: ...

def packed_headers(headers: Headers | None) -> bytes | None:
    """The headers of one record as they stand in it, the count first; None where there are none."""

def placeholder(loop: asyncio.AbstractEventLoop) -> Batch:
    """A batch that stands for the one a record will be in, once its topic is known."""

def waiting_acknowledgement(batch: Batch) -> Acknowledgement:
    """An acknowledgement of a record that is not in any batch yet."""

def place(waiting: Acknowledgement, placed: Acknowledgement) -> None:
    """The record is in a batch now: whoever waits for it waits for that."""

def all_placed(batch: Batch) -> None:
    """Nobody waits at a placeholder any more: its records are in batches, or failed with it."""

@final
class Rows:
    """One batch of Arrow columns."""

    @property
    def count(self) -> int: ...

def arrow_rows(data: object, names: dict[str, str]) -> Iterator[Rows]:
    """Import columns: yields Rows for each batch of a table, a record batch, or a reader of batches.

    `names` gives the names that value, key, timestamp, partition and headers have; all but value may be
    missing. Raises TypeError for what is not Arrow's, ValueError for columns that are not there.
    """

class RowSending(Sending):
    """The calls of a producer, with that for columns."""

    def _put_rows(
        self,
        route: Route,
        rows: Rows,
        start: int,
        most: int,
        out: Acknowledgements,
        choose: Callable[[bytes | None], int] | None = None,
    ) -> int: ...

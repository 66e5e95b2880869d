"""One partition on disk."""

from __future__ import annotations

import errno
import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from ottla.broker.config import LogConfig
from ottla.broker.log.checkpoints import write_leader_epochs
from ottla.broker.log.entries import check_entries, locate
from ottla.broker.log.files import RUN_OUT, Files
from ottla.broker.log.flushing import FlushPlan, GroupCommit
from ottla.broker.log.leader_epochs import LeaderEpochs
from ottla.broker.log.producer_state import ProducerStates
from ottla.broker.log.retention import Bounds, deletable
from ottla.broker.log.search import whole_end
from ottla.broker.log.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.broker.log.slices import Slice
from ottla.broker.log.snapshots import drop_snapshots, rebuilt_producers, take_snapshot
from ottla.broker.log.tail import Tail
from ottla.broker.log.validation import (
    TimestampLimits,
    check_keys,
    check_size,
    check_timestamps,
    needs_preparation,
    prepare,
    target_codec,
)
from ottla.broker.log.watermark import HighWatermark
from ottla.protocol.errors import (
    InvalidRecord,
    KafkaStorageError,
    OffsetOutOfRange,
    RecordListTooLarge,
)
from ottla.protocol.records import (
    BatchHeader,
    ControlType,
    all_magic_2,
    assign_offsets,
    iter_records,
    read_end_transaction_marker,
    read_headers,
    set_log_append_time,
    validate_batches,
)
from ottla.protocol.storage.checkpoints import EpochStart
from ottla.protocol.storage.indexes import AbortedTransaction
from ottla.protocol.topics import TopicPartition

__all__ = ["AppendOrigin", "Appended", "Log", "OffsetsOutOfOrder", "Slice", "TimestampOffset"]

log = logging.getLogger(__name__)

Buffer = bytes | bytearray | memoryview
_CONTROL: Final = 0x20
_MAX_HINTS: Final = 128
_OPEN_SEALED_SEGMENTS: Final = 8
_NEVER: Final = 2**63 - 1


class AppendOrigin(Enum):
    """Who appends: of clients most is checked, of other brokers' logs only that they are whole."""

    CLIENT = auto()
    COORDINATOR = auto()
    REPLICATION = auto()


class Appended(NamedTuple):
    """What became of an append. A `duplicate` was there before: the offsets are those of then."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    """-1 unless the topic stamps records itself."""
    log_start_offset: int
    duplicate: bool
    size: int


class TimestampOffset(NamedTuple):
    """A record's time and offset."""

    timestamp: int
    offset: int


class OffsetsOutOfOrder(ValueError):
    """A follower was given records that do not go on where its log ends."""


def _ignore(error: OSError) -> None:
    pass


def _nothing() -> None:
    pass


class Log:
    """One partition: segments in a directory, read and appended on the event loop.

    Made by `recovery.open_log`. Everything here is quick, but for `flush`, `close`, `truncate_to` and
    `truncate_fully_and_start_at`, which wait for the disk.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        leader_epochs: Iterable[EpochStart],
        topic_id: UUID | None = None,
        is_new: bool = False,
        producers: ProducerStates | None = None,
        chance: random.Random | None = None,
        failed: Callable[[OSError], None] = _ignore,
        lowered: Callable[[], None] = _nothing,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.watermark = HighWatermark(log_start_offset)
        """The cell that replication writes (`replication.partition.Partition`)."""
        self.recovery_point = min(recovery_point, log_end_offset)
        """Everything below it is on the disk."""
        self.flushed_ms = 0
        """When a flush last ended, by the clock of whoever flushes."""
        self.leader_epochs = LeaderEpochs(leader_epochs, self._epochs_changed)
        self.producers = producers or ProducerStates(end_offset=log_end_offset)
        self.offline: OSError | None = None
        """Why nothing can be written any more."""
        self._chance = chance or random.Random(0)
        self._report_failure = failed
        self._recovery_point_lowered = lowered
        self._segments = segments
        self._bases = [one.base_offset for one in segments]
        self._opened: list[Segment] = []
        self._resume: dict[int, tuple[Segment, int]] = {}
        self._sealed: list[Segment] = []
        """Segments that were sealed and not forced to the disk since."""
        self._truncations = 0
        self._epochs_written = True
        self._names_changed = is_new
        self._is_new = is_new
        self._snapshots_to_sync: list[Path] = []
        self.commit = GroupCommit(self)
        self._config = config
        self._read_config(config)
        self.tail = self._tail_of(segments[-1], log_end_offset)
        if producers is None:
            self._load_producers()

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    # ---- what it is

    @property
    def config(self) -> LogConfig:
        """What governs it; may be replaced at any time."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._read_config(config)
        self._limit(self.tail)

    def _read_config(self, config: LogConfig) -> None:
        self._config = config
        self._limits = TimestampLimits(config)
        self._stamps = config.message_timestamp_type == "LogAppendTime"
        self._codec = target_codec(config)
        self._plain = not (self._stamps or self._limits or config.compact or self._codec is not None)
        """Whether nothing but what every topic needs is checked."""
        self._max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._flush_messages = config.flush_messages

    def _limit(self, tail: Tail) -> None:
        tail.limit(self._config, self._jitter_ms())
        durable = self._config.flush_before_acknowledge or self._flush_messages < _NEVER
        tail.max_common_bytes = self._max_bytes if self._plain and self.offline is None and not durable else 0

    def _jitter_ms(self) -> int:
        most = min(self._config.segment_jitter_ms, self._config.segment_ms)
        return self._chance.randrange(most) if most > 0 else 0

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self.tail.next_offset

    @property
    def high_watermark(self) -> int:
        """Records below it are committed."""
        return self.watermark.offset

    @property
    def last_stable_offset(self) -> int:
        """Records below it belong to no open transaction, and are committed."""
        high_watermark = self.watermark.offset
        if not self.producers.has_transactions:
            return high_watermark
        first = self.producers.first_unstable_offset(high_watermark)
        return high_watermark if first is None else min(first, high_watermark)

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, the oldest first; the last one is active."""
        return self._segments

    @property
    def size_bytes(self) -> int:
        """Bytes in all log files."""
        return sum(segment.size for segment in self._segments)

    @property
    def unflushed(self) -> int:
        """Records that may not be on the disk."""
        return self.log_end_offset - self.recovery_point

    @property
    def has_sealed(self) -> bool:
        """Whether segments were sealed that may not be on the disk."""
        return bool(self._sealed)

    def fail(self, error: OSError) -> None:
        """Stop writing for good: the disk cannot be relied on."""
        if self.offline is None:
            self.offline = error
            self.tail.max_common_bytes = 0
            log.error("%s goes offline: %s", self.topic_partition, error)
            self._report_failure(error)

    # ---- appending

    def append(
        self,
        batches: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        opened: bool = False,
    ) -> Appended:
        """Append v2 batches, giving them offsets; a writable buffer is changed on the way.

        Records that need a look are looked at here, unless they were `opened` (`validation.opened`) before.
        Raises `CorruptMessage`, `MessageTooLarge`, `RecordListTooLarge`, `InvalidRecord`, `InvalidTimestamp`,
        the errors of idempotent producers, and `KafkaStorageError`; nothing was appended then.
        """
        if origin is AppendOrigin.CLIENT:
            base_offset = self.append_common(batches, leader_epoch, now_ms)
            if base_offset >= 0:
                last_offset, size = self.tail.next_offset - 1, len(batches)
                return Appended(base_offset, last_offset, -1, self.log_start_offset, False, size)
        headers = validate_batches(batches, dense=True)
        if not self._plain or len(headers) != 1:
            return self._append_several(batches, headers, leader_epoch, now_ms, origin, opened)
        header, size = headers[0], len(batches)
        idempotent = header.producer_id >= 0
        if size > self._max_bytes or header.attributes & _CONTROL:
            self._check(batches, headers, origin)
        if idempotent and origin is AppendOrigin.CLIENT:
            kept = self.producers.check_one(header)
            if kept is not None:
                return Appended(kept.base_offset, kept.last_offset, -1, self.log_start_offset, True, 0)
        kind = type(batches)
        if kind is bytes or (kind is memoryview and batches.readonly):  # type: ignore[union-attr]
            batches = bytearray(batches)
        tail = self.tail
        base_offset = tail.next_offset
        next_offset = assign_offsets(batches, base_offset, leader_epoch)  # type: ignore[arg-type]
        if leader_epoch != tail.leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        self._place(batches, next_offset, header.max_timestamp, next_offset - 1, now_ms)
        if idempotent:
            self._note_producer(batches, header, base_offset)
        return Appended(base_offset, next_offset - 1, -1, self.log_start_offset, False, size)

    def append_common(self, batches: Buffer, leader_epoch: int, now_ms: int) -> int:
        """Append what a client sent if nothing about it is unusual; gives its first offset.

        -1, and nothing was changed, when it has to go through `append`. Raises `KafkaStorageError`.
        """
        try:
            return self.tail.append_common(batches, leader_epoch, now_ms, self.producers)
        except OSError as error:
            raise self.append_failed(error) from error

    def append_failed(self, error: OSError) -> KafkaStorageError:
        """Undo what an append that failed on the way to the disk has left; gives what to raise."""
        self._undo(error)
        return self._storage_error(error)

    def _append_several(
        self,
        batches: Buffer,
        headers: list[BatchHeader],
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        opened: bool,
    ) -> Appended:
        """The same for any number of batches, and for topics that ask for more."""
        idempotent = self._check(batches, headers, origin)
        if not self._plain:
            batches, headers = self._adapted(batches, headers, now_ms, origin, opened)
        if idempotent and origin is AppendOrigin.CLIENT:
            kept = self.producers.check(headers)
            if kept is not None:
                return Appended(kept.base_offset, kept.last_offset, -1, self.log_start_offset, True, 0)
        if isinstance(batches, bytes) or (isinstance(batches, memoryview) and batches.readonly):
            batches = bytearray(batches)
        base_offset = self.tail.next_offset
        next_offset = assign_offsets(batches, base_offset, leader_epoch)
        if leader_epoch != self.tail.leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        largest, at, offset = -1, base_offset, base_offset
        for header in headers:
            offset += header.last_offset_delta + 1
            if header.max_timestamp > largest:
                largest, at = header.max_timestamp, offset - 1
        self._place(batches, next_offset, largest, at, now_ms)
        if idempotent:
            self._note_producers(batches, headers, base_offset)
        stamped = now_ms if self._stamps else -1
        return Appended(base_offset, next_offset - 1, stamped, self.log_start_offset, False, len(batches))

    def _check(self, batches: Buffer, headers: list[BatchHeader], origin: AppendOrigin) -> bool:
        """Check what needs headers only; says whether an idempotent producer wrote any of them."""
        limit, idempotent = self._config.max_message_bytes, False
        for header in headers:
            if header.batch_length > limit - 12:
                check_size(headers, limit)
            if header.attributes & _CONTROL and origin is AppendOrigin.CLIENT:
                raise InvalidRecord("control batches are written by brokers only")
            if header.producer_id >= 0:
                idempotent = True
        if not headers:
            raise InvalidRecord("there are no records")
        if len(batches) > self._config.segment_bytes:
            raise RecordListTooLarge(
                f"{len(batches)} bytes in one append, segment.bytes is {self._config.segment_bytes}"
            )
        return idempotent

    def _adapted(
        self, batches: Buffer, headers: list[BatchHeader], now_ms: int, origin: AppendOrigin, opened: bool
    ) -> tuple[Buffer, list[BatchHeader]]:
        """Do what some topics ask for: times checked or stamped, keys, another codec."""
        if self._limits and not self._stamps and origin is AppendOrigin.CLIENT:
            check_timestamps(memoryview(batches), headers, self._limits, now_ms)
        if self._config.compact and origin is AppendOrigin.CLIENT and not opened:
            check_keys(memoryview(batches), headers)
        if self._codec is not None and needs_preparation(batches, self._config):
            batches = prepare(batches, self._config)
            headers = read_headers(batches)
        if self._stamps:
            batches = bytearray(batches)
            set_log_append_time(batches, now_ms)
            headers = read_headers(batches)
        return batches, headers

    def append_as_follower(self, batches: Buffer, now_ms: int) -> Appended:
        """Append what the leader has, with its offsets and epochs.

        Raises `CorruptMessage`, `OffsetsOutOfOrder` unless it goes on where this log ends,
        `KafkaStorageError`.
        """
        if not all_magic_2(batches):
            return self._append_old_formats(batches, now_ms)
        headers = validate_batches(batches)
        base_offset = self._check_order([(one.base_offset, one.last_offset) for one in headers])
        for header in headers:
            if header.partition_leader_epoch != self.tail.leader_epoch:
                self._begin_epoch(header.partition_leader_epoch, header.base_offset)
        largest = max(headers, key=lambda one: one.max_timestamp)
        next_offset = headers[-1].next_offset
        self._place(batches, next_offset, largest.max_timestamp, largest.last_offset, now_ms)
        for header in headers:
            if header.producer_id >= 0:
                self._note_producer(batches, header, header.base_offset)
        return Appended(base_offset, next_offset - 1, -1, self.log_start_offset, False, len(batches))

    def _append_old_formats(self, batches: Buffer, now_ms: int) -> Appended:
        from ottla.broker.log.old_formats import spans_of

        spans = spans_of(batches)
        base_offset = self._check_order([(one.last_offset, one.last_offset) for one in spans])
        largest = max(spans, key=lambda one: one.max_timestamp)
        last_offset = spans[-1].last_offset
        self._place(batches, last_offset + 1, largest.max_timestamp, largest.last_offset, now_ms)
        return Appended(base_offset, last_offset, -1, self.log_start_offset, False, len(batches))

    def _check_order(self, offsets: list[tuple[int, int]]) -> int:
        """Offsets have to rise; only the first batch of an empty log may begin below where it starts."""
        if not offsets:
            raise InvalidRecord("there are no records")
        first, end = offsets[0], self.log_end_offset
        empty = self.log_start_offset == end
        if first[0] < end and not (empty and first[1] >= end):
            raise OffsetsOutOfOrder(f"records from offset {first[0]} on for a log that ends at {end}")
        for (_, before), (base, last) in pairwise(offsets):
            if base <= before or last < base:
                raise OffsetsOutOfOrder(f"offset {base} follows {before}")
        return first[0]

    def _begin_epoch(self, leader_epoch: int, start_offset: int) -> None:
        try:
            self.leader_epochs.assign(leader_epoch, start_offset)
        except OSError as error:
            raise self._storage_error(error) from error
        self.tail.leader_epoch = leader_epoch

    def _place(self, data: Buffer, next_offset: int, largest: int, largest_at: int, now_ms: int) -> None:
        """Write, with whatever goes into the indexes; all of it or nothing."""
        tail = self.tail
        if self.offline is not None:
            raise KafkaStorageError(f"{self.topic_partition} is offline: {self.offline}")
        if (
            tail.position + len(data) > tail.max_bytes
            or largest > tail.roll_above_timestamp
            or now_ms > tail.roll_after_ms
            or next_offset > tail.max_next_offset
            or tail.index_full
        ):
            self._roll(max(tail.next_offset, next_offset - 1 - MAX_RELATIVE_OFFSET), now_ms)
            tail = self.tail
        try:
            tail.append(data, next_offset, largest, largest_at, now_ms)
        except OSError as error:
            self._undo(error)
            raise self._storage_error(error) from error
        if next_offset - self.recovery_point >= self._flush_messages:
            self.commit.start_or_run()

    def _undo(self, error: OSError) -> None:
        """Cut off what a failed write may have left: the next append would be torn by it."""
        try:
            self.tail.undo()
        except OSError as worse:
            self.fail(worse)
        if error.errno == errno.EIO:
            self.fail(error)

    def _storage_error(self, error: OSError) -> KafkaStorageError:
        if error.errno not in RUN_OUT:
            self.fail(error)
        return KafkaStorageError(f"{self.topic_partition} cannot be written: {error.strerror or error}")

    def _note_producers(self, batches: Buffer, headers: list[BatchHeader], base_offset: int) -> None:
        offset = base_offset
        for header in headers:
            if header.producer_id >= 0:
                self._note_producer(batches, header, offset)
            offset += header.last_offset_delta + 1

    def _note_producer(self, batches: Buffer, header: BatchHeader, base_offset: int) -> None:
        if not header.attributes & _CONTROL:
            self.producers.apply(header, base_offset)
            return
        start = header.position
        marker = read_end_transaction_marker(memoryview(batches)[start : start + header.size_in_bytes])
        if marker is None:
            return
        committed = marker.type is ControlType.COMMIT
        done = self.producers.complete(header, base_offset, marker, committed=committed)
        if done is not None and done.aborted:
            stable = self.producers.stable_offset_after(done)
            entry = AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, stable)
            try:
                self.tail.segment.transactions.append(entry)
                self._names_changed = True
            except OSError as error:
                self.fail(error)
                raise KafkaStorageError(f"{self.topic_partition}: {error}") from error

    # ---- segments

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment, unless the active one is empty; gives the active one."""
        if self.tail.position:
            self._roll(self.tail.next_offset, now_ms)
        return self.tail.segment

    def _roll(self, base_offset: int, now_ms: int) -> None:
        """Begin a new segment at `base_offset`; when the disk is full, everything stays as it was."""
        old = self.tail
        if not old.position and old.segment.base_offset == base_offset:
            return  # an append always fits an empty segment
        segment = Segment(self.files, self.directory, base_offset)
        try:
            self._make(segment)
        except OSError as error:
            self._unmake(segment)
            raise self._storage_error(error) from error
        self._names_changed = True
        old.seal()
        self._sealed.append(old.segment)
        self._segments.append(segment)
        self._bases.append(base_offset)
        self.tail = Tail(segment, base_offset, now_ms)
        self._limit(self.tail)
        self._snapshot(base_offset)

    def _make(self, segment: Segment) -> None:
        segment.create(preallocate_bytes=self._config.segment_bytes if self._config.preallocate else 0)
        segment.activate(self._config.segment_index_bytes, keep=False)

    def _unmake(self, segment: Segment) -> None:
        try:
            for path in segment.mark_deleted():
                self.files.unlink(path)
        except OSError as error:
            self.fail(error)

    def _tail_of(self, segment: Segment, log_end_offset: int) -> Tail:
        segment.activate(self._config.segment_index_bytes, keep=True)
        tail = Tail(segment, log_end_offset, 0)
        self._limit(tail)
        return tail

    def segment_for(self, offset: int) -> Segment:
        """The segment an offset is in, if it is there."""
        return self._segments[max(0, bisect_right(self._bases, offset) - 1)]

    def _opening(self, segment: Segment) -> None:
        """Keep only some sealed segments open."""
        if segment.is_open or segment.active:
            return
        self._opened.append(segment)
        if len(self._opened) > _OPEN_SEALED_SEGMENTS:
            old = self._opened.pop(0)
            if not old.active:
                old.close()

    # ---- reading

    def read(
        self, offset: int, max_bytes: int, *, up_to: int, at_least_one: bool = True, wait: bool = True
    ) -> Slice:
        """Whole batches from the one that holds `offset` on, below `up_to`, of one segment.

        At most `max_bytes`, but the first batch whatever its size if `at_least_one`. Empty where there is
        nothing to read. Raises `OffsetOutOfRange` outside of the log, `KafkaStorageError` for a damaged one,
        and, unless `wait`, BlockingIOError where finding it would have to wait for the disk.
        """
        tail = self.tail
        if not self.log_start_offset <= offset <= tail.next_offset:
            raise OffsetOutOfRange(f"offset {offset} is not in {self}")
        if up_to > tail.next_offset:
            up_to = tail.next_offset
        if offset >= up_to:
            return Slice(tail.segment.file, 0, 0)
        segment = tail.segment
        if offset >= segment.base_offset:
            start = tail.hints.get(offset, -1)
        else:
            segment, start = self._resume.get(offset) or (self.segment_for(offset), -1)
            self._opening(segment)
        if start < 0:
            segment, start = self._find(segment, offset, wait)
            if start < 0:
                return Slice(tail.segment.file, 0, 0)
        stop = self._position_of(segment, up_to, wait)
        end = stop if stop - start <= max_bytes else -1
        if end < 0:
            limit = start + max_bytes
            end, next_offset = whole_end(
                segment.file, segment.offsets, start, limit, stop, at_least_one=at_least_one, wait=wait
            )
            if next_offset >= 0:
                self._remember(segment, next_offset, end)
        return Slice(segment.file, start, end - start if end > start else 0)

    def _find(self, segment: Segment, offset: int, wait: bool) -> tuple[Segment, int]:
        """The entry that holds `offset`, or the first one behind where compaction dropped it."""
        for number in range(bisect_right(self._bases, segment.base_offset) - 1, len(self._segments)):
            candidate = self._segments[number]
            self._opening(candidate)
            found = candidate.locate(offset, wait=wait)
            if found is not None:
                self._remember(candidate, offset, found.position)
                return candidate, found.position
        return segment, -1

    def _position_of(self, segment: Segment, up_to: int, wait: bool) -> int:
        """Where the entries below `up_to` end in a segment."""
        if segment.active:
            if up_to == self.tail.next_offset:
                return segment.size
            if (hint := self.tail.hints.get(up_to)) is not None:
                return hint
        else:
            number = bisect_right(self._bases, segment.base_offset)
            if number < len(self._bases) and up_to >= self._bases[number]:
                return segment.size
        found = segment.locate(up_to, wait=wait)
        return segment.size if found is None else found.position

    def _remember(self, segment: Segment, offset: int, position: int) -> None:
        """A reader will most likely go on there."""
        if segment.active:
            hints = self.tail.hints
            if len(hints) >= _MAX_HINTS:
                hints.clear()
            hints[offset] = position
        elif position < segment.size:
            if len(self._resume) >= _MAX_HINTS:
                self._resume.clear()
            self._resume[offset] = segment, position

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after a time; None if there is none."""
        for segment in self._segments:
            newest = self.tail if segment is self.tail.segment else segment
            if newest.max_timestamp >= timestamp_ms:
                self._opening(segment)
                found = self._record_at(segment, timestamp_ms)
                if found is not None:
                    return found
        return None

    def _record_at(self, segment: Segment, timestamp_ms: int) -> TimestampOffset | None:
        near = segment.times.lookup(timestamp_ms)
        start = segment.offsets.lookup(max(near.offset, segment.base_offset)).position
        for entry in check_entries(segment.file, start, segment.size):
            if entry.max_timestamp < timestamp_ms or entry.last_offset < self.log_start_offset:
                continue
            for record in iter_records(entry.data):
                if record.timestamp_ms >= timestamp_ms and record.offset >= self.log_start_offset:
                    return TimestampOffset(record.timestamp_ms, record.offset)
        return None

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that have records between two offsets, by their first offsets."""
        first = max(0, bisect_right(self._bases, start_offset) - 1)
        found = []
        for segment in self._segments[first:]:
            for one in segment.transactions.entries:
                if one.last_offset >= start_offset and one.first_offset < end_offset:
                    found.append(one)
                if one.last_stable_offset >= end_offset:
                    return sorted(found, key=_first_offset)
        return sorted(found, key=_first_offset)

    # ---- cutting

    def truncate_to(self, offset: int) -> int:
        """Drop every record at or above `offset`, and whole batches only; return the new log end.

        Raises `OffsetOutOfRange` below the log start, `KafkaStorageError`. Waits for the disk: what was cut
        off must not come back behind what is appended next. A follower does this before its first fetch in a
        new epoch, or replicas diverge (KIP-101); epochs that begin there go even when no record does.
        The caller tells the replication core: the high watermark may be above the new end until then.
        """
        if offset < self.log_start_offset:
            raise OffsetOutOfRange(f"cannot cut {self} to {offset}")
        try:
            if offset < self.log_end_offset:
                self._cut(offset)
            if self.log_end_offset < self.log_start_offset:
                # The batch that held the log's start went, and everything else is below: no gap may remain.
                self.truncate_fully_and_start_at(self.log_start_offset)
            self.leader_epochs.truncate_from_end(min(offset, self.log_end_offset))
        except OSError as error:
            self.fail(error)
            raise KafkaStorageError(f"{self.topic_partition} cannot be cut: {error}") from error
        self.tail.leader_epoch = self.leader_epochs.latest
        return self.log_end_offset

    def _cut(self, offset: int) -> None:
        self._truncations += 1
        self._resume.clear()
        self._lower_recovery_point(offset)
        found = self.segment_for(offset)
        number = self._segments.index(found)
        gone = self._segments[number + 1 :]
        self.tail.segment.close_indexes()
        self._keep_segments(self._segments[: number + 1])
        self._unlink(gone)
        end = self._cut_segment(found, offset)
        self._lower_recovery_point(end)
        self.tail = self._tail_of(found, end)
        drop_snapshots(self.files, self.directory, lambda at: at > end)
        self.files.sync_dir(self.directory)
        self._load_producers()

    def _lower_recovery_point(self, offset: int) -> None:
        """Nothing at or above `offset` may be taken for flushed after a crash: what comes there
        will be new.
        """
        if offset < self.recovery_point:
            self.recovery_point = offset
            self._recovery_point_lowered()

    def _cut_segment(self, segment: Segment, offset: int) -> int:
        """Cut one segment; gives the offset where it ends now."""
        entry = locate(
            segment.file,
            0 if segment.size < 4096 else segment.offsets.lookup(offset).position,
            segment.size,
            offset,
        )
        position = segment.size if entry is None else entry.position
        end = offset if entry is None else max(segment.base_offset, min(offset, entry.base_offset))
        segment.activate(self._config.segment_index_bytes, keep=True)
        segment.offsets.truncate_to(end)
        segment.times.truncate_to(end)
        segment.transactions.truncate_to(end)
        segment.file.truncate(position)
        segment.size = position
        largest = self._largest_timestamp(segment)
        segment.set_max_timestamp(*largest)
        segment.times.maybe_append(*largest, last_one=True)
        segment.offsets.trim()
        segment.times.trim()
        for file in segment.to_sync(indexes=True):
            file.sync()
        return end

    def _largest_timestamp(self, segment: Segment) -> tuple[int, int]:
        """The largest timestamp of a segment whose newest index entry may be behind its end."""
        best = segment.times.last.timestamp_ms, segment.times.last.offset
        start = segment.offsets.lookup(max(best[1], segment.base_offset)).position
        for entry in check_entries(segment.file, start, segment.size):
            if entry.max_timestamp > best[0]:
                best = entry.max_timestamp, entry.last_offset
        return best

    def _keep_segments(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._bases = [one.base_offset for one in segments]
        self._opened = [one for one in self._opened if one in segments]
        self._sealed = [one for one in self._sealed if one in segments]
        self._resume.clear()

    def _unlink(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            for path in segment.mark_deleted():
                self.files.unlink(path)
        self._names_changed = True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`. Waits for the disk; the caller tells the core."""
        try:
            self._truncations += 1
            self._lower_recovery_point(0)
            old = self._segments
            segment = Segment(self.files, self.directory, offset)
            self.tail.segment.close_indexes()
            self._unlink(old)
            drop_snapshots(self.files, self.directory, lambda _: True)
            self._make(segment)
            self._keep_segments([segment])
            self.tail = Tail(segment, offset, 0)
            self._limit(self.tail)
            self.files.sync_dir(self.directory)
            self.leader_epochs.clear()
        except OSError as error:
            self.fail(error)
            raise KafkaStorageError(f"{self.topic_partition} cannot be begun anew: {error}") from error
        self.log_start_offset = self.recovery_point = offset
        self.producers = ProducerStates(end_offset=offset)

    def advance_log_start(self, offset: int) -> None:
        """Hide every record below `offset`; whole segments go with the next retention.

        Raises `OffsetOutOfRange` above the high watermark.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"{self} is committed up to {self.high_watermark}, not to {offset}")
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)

    # ---- retention

    def expire(self, now_ms: int) -> list[Segment]:
        """Take out the segments that retention lets go, rolling the active one if it is among them.

        They are to be given to `discard` once the new log start is on the disk.
        """
        bounds = Bounds(self.log_start_offset, self.high_watermark, self.log_end_offset)
        count = deletable(self._segments, bounds, self._config, now_ms)
        if not count:
            return []
        if count == len(self._segments) and not self._rolled(now_ms):
            count -= 1
        gone, kept = self._segments[:count], self._segments[count:]
        self._keep_segments(list(kept))
        if self._bases[0] > self.log_start_offset:
            self.log_start_offset = self._bases[0]
            self.leader_epochs.truncate_from_start(self.log_start_offset)
        return list(gone)

    def _rolled(self, now_ms: int) -> bool:
        """Begin a new segment where there is room for one."""
        try:
            self._roll(self.log_end_offset, now_ms)
        except KafkaStorageError:
            if self.offline is not None:
                raise
            return False
        return True

    def discard(self, segments: Iterable[Segment]) -> list[Path]:
        """Rename segments to `.deleted`; gives the paths to unlink after `file.delete.delay.ms`."""
        self._names_changed = True
        return [path for segment in segments for path in segment.mark_deleted()]

    # ---- the disk

    def _epochs_changed(self) -> None:
        self._epochs_written, self._names_changed = False, True
        try:
            write_leader_epochs(self.files, self.directory, self.leader_epochs.entries, sync=False)
        except OSError as error:
            # The next flush writes them, and until then a start looks for them in the log itself.
            if error.errno not in RUN_OUT:
                raise
            log.warning("the leader epochs of %s are not written: %s", self.topic_partition, error)

    def begin_flush(self) -> FlushPlan:
        """Say what has to be synced, to be run on a thread and given to `end_flush`."""
        plan = FlushPlan(self.files, self.directory, self.log_end_offset, self._truncations)
        for segment in self._sealed:
            plan.to_sync += segment.to_sync()
        plan.sealed, self._sealed = self._sealed, []
        if self.unflushed or self._names_changed:
            plan.to_sync += self.tail.segment.to_sync()
        if not self._epochs_written:
            plan.leader_epochs, self._epochs_written = self.leader_epochs.entries, True
        plan.names_changed, self._names_changed = self._names_changed, False
        plan.is_new, self._is_new = self._is_new, False
        plan.paths_to_sync, self._snapshots_to_sync = self._snapshots_to_sync, []
        return plan

    def end_flush(self, plan: FlushPlan) -> None:
        """Take in that a plan was run: what is below its offset is safe."""
        if plan.truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, plan.offset)

    def flush_failed(self, plan: FlushPlan, error: OSError) -> None:
        """Take in that a plan was not run to its end: the log goes offline, or the next plan does it all."""
        if not plan.may_be_repeated(error):
            self.fail(error)
            return
        log.warning("%s is not all on the disk: %s", self.topic_partition, error)
        self._sealed = [one for one in plan.sealed if one in self._segments] + self._sealed
        self._epochs_written = self._epochs_written and plan.leader_epochs is None
        self._names_changed = self._names_changed or plan.names_changed
        self._is_new = self._is_new or plan.is_new
        self._snapshots_to_sync = plan.paths_to_sync + self._snapshots_to_sync

    def flush(self) -> None:
        """Force everything to the disk. Blocks. Raises `KafkaStorageError`; if records could not be forced,
        the log is offline then.
        """
        plan = self.begin_flush()
        try:
            plan.run()
        except OSError as error:
            self.flush_failed(plan, error)
            raise KafkaStorageError(f"{self.topic_partition} cannot be forced to disk: {error}") from error
        self.end_flush(plan)

    async def durable(self, offset: int | None = None) -> None:
        """Wait until everything below `offset` (default: all there is) is on the disk.

        Appends that wait at the same time share one sync. Raises `KafkaStorageError`.
        """
        if self.offline is not None:
            raise KafkaStorageError(f"{self.topic_partition} is offline: {self.offline}")
        await self.commit.wait(self.log_end_offset if offset is None else offset)

    def close(self) -> None:
        """Leave everything so that the next start needs no recovery. Blocks. Raises `KafkaStorageError`."""
        if self.offline is None:
            try:
                self.tail.seal()
                self._sealed.append(self.tail.segment)
                self._snapshot(self.log_end_offset)
            except OSError as error:
                self.fail(error)
                raise KafkaStorageError(f"{self.topic_partition} cannot be closed: {error}") from error
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Let go of all files, without writing anything."""
        self.tail.max_common_bytes = 0
        self.tail.write = _no_write  # it would keep the file open, and a deleted one its room on the disk
        for segment in self._segments:
            segment.close()
        self.offline = self.offline or OSError(errno.EBADF, "the log was closed")

    def moved_to(self, directory: Path) -> None:
        """Take in that the directory was renamed: the log is being deleted and takes nothing more."""
        self.offline = OSError(errno.ENOENT, "the log was deleted")
        self.tail.max_common_bytes = 0
        self.directory = directory
        for segment in self._segments:
            segment.directory = directory
        self.abandon()

    def recovered(self, *, epochs_changed: bool) -> None:
        """Take in that files were made again when the log was opened: they have to reach the disk too."""
        if epochs_changed:
            self._epochs_changed()
        first = max(0, bisect_right(self._bases, self.recovery_point) - 1)
        if self.unflushed:
            self._sealed = list(self._segments[first:-1])
            self._names_changed = True

    # ---- producers

    def _snapshot(self, offset: int) -> None:
        """Keep the producers' state at `offset`; without it, a start has to read more of the log."""
        try:
            path = take_snapshot(self.files, self.directory, offset, self.producers.entries())
        except OSError as error:
            log.warning("%s has no snapshot of its producers at %d: %s", self.topic_partition, offset, error)
            return
        self._snapshots_to_sync.append(path)
        self._names_changed = True

    def _load_producers(self) -> None:
        self.producers = rebuilt_producers(
            self.files, self.directory, self._segments, self.log_start_offset, self.log_end_offset
        )

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for long; says how many."""
        return self.producers.expire(now_ms, expiration_ms)


def _no_write(data: Buffer, position: int) -> None:
    raise OSError(errno.EBADF, "the log was closed")


def _first_offset(one: AbortedTransaction) -> int:
    return one.first_offset

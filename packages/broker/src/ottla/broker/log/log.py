"""One partition on disk: the append, and the facts at the log's end."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from uuid import UUID

from ottla.broker.config import LogConfig
from ottla.broker.log import log_closing
from ottla.broker.log.append.log_end import LogEnd
from ottla.broker.log.append.rules import (
    CONTROL,
    Appended,
    AppendOrigin,
    AppendRules,
    Buffer,
    OffsetsOutOfOrder,
    largest_timestamp,
    replicated_batches,
)
from ottla.broker.log.files.file_slices import Slice
from ottla.broker.log.files.file_system import RUN_OUT, Files
from ottla.broker.log.files.open_files import OpenSegments
from ottla.broker.log.flushing import Flushing
from ottla.broker.log.high_watermark import HighWatermark
from ottla.broker.log.leader_epochs import LeaderEpochs
from ottla.broker.log.producer_state import NOT_REQUIRED, KeptBatch, ProducerStates, VerificationGuard
from ottla.broker.log.reading import Reading
from ottla.broker.log.segments.rolling import Rolling
from ottla.broker.log.segments.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.broker.log.segments.segments import Segments
from ottla.broker.log.segments.timestamp_search import TimestampOffset
from ottla.broker.log.truncation import Truncation
from ottla.protocol.errors import KafkaStorageError, OffsetOutOfRange
from ottla.protocol.records import BatchHeader, assign_offsets, validate_batches
from ottla.protocol.storage.checkpoints import EpochStart
from ottla.protocol.topics import TopicPartition

__all__ = ["AppendOrigin", "Appended", "Log", "OffsetsOutOfOrder", "Slice", "TimestampOffset"]

log = logging.getLogger(__name__)


class Log:
    """One partition, on the event loop. `recovery.open_log` opens it.

    Its parts are `segments`, `flushing`, `rolling` and `truncation`; `read`, `offset_for_timestamp` and
    `aborted_transactions` are those of `reading.Reading`.
    """

    log_end: LogEnd
    """The end of the active segment; `rolling` replaces it."""

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
        topic_id: UUID | None,
        is_new: bool,
        producers: ProducerStates,
        chance: random.Random,
        failed: Callable[[OSError], None],
        lowered: Callable[[], None],
        open_segments: OpenSegments | None = None,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log_start_offset = log_start_offset
        self.watermark = HighWatermark(log_start_offset)
        """The cell that replication writes (`replication.partition.Partition`)."""
        self.offline: OSError | None = None
        """Why nothing can be written any more."""
        self.is_truncating = False
        """Whether a truncation is under way, which no append may meet."""
        self.cleaned_offset: int | None = None
        """Where the last cleaning of a compacted log ended; None before the first."""
        self.segments = Segments(files, directory, segments, open_segments)
        self.flushing = Flushing(self, recovery_point=recovery_point, is_new=is_new, lowered=lowered)
        self.commit = self.flushing.commit
        self.leader_epochs = LeaderEpochs(leader_epochs, self.flushing.epochs_changed)
        self._report_failure = failed
        self._config, self.rules = config, AppendRules(config)
        segments[-1].activate(config.segment_index_bytes, keep=True)
        self.rolling = Rolling(self, chance)
        self.rolling.append_to(segments[-1], log_end_offset)
        self.producers = producers
        self.truncation = Truncation(self)
        reading = Reading(self)
        self.read = reading.read
        self.search_timestamp = reading.search_timestamp
        self.max_timestamp = reading.max_timestamp
        self.offset_for_timestamp = reading.offset_for_timestamp
        self.aborted_transactions = reading.aborted_transactions

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    # ---- facts

    @property
    def config(self) -> LogConfig:
        """The topic's configuration; may be replaced at any time."""
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config, self.rules = config, AppendRules(config)
        self.rolling.limit_log_end()

    @property
    def takes_appends(self) -> bool:
        """Whether records can be appended and segments can be dropped now."""
        return self.offline is None and not self.is_truncating

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self.log_end.next_offset

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
    def recovery_point(self) -> int:
        """All records below it are on the disk."""
        return self.flushing.recovery_point

    # ---- appending

    def append(
        self,
        batches: Buffer,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        opened: bool = False,
        guard: VerificationGuard | None = NOT_REQUIRED,
    ) -> Appended:
        """Append v2 batches with new offsets; offsets and epochs are written into a writable buffer.

        Records are checked as the topic asks, unless `batch_preparation.opened` did it before. The first
        batch of a transaction needs the `guard` of its verification, unless none is required. Raises
        `CorruptMessage`, `MessageTooLarge`, `RecordListTooLarge`, `InvalidRecord`, `InvalidTimestamp`, the
        errors of idempotent producers, and `KafkaStorageError`; nothing was appended then.
        """
        if origin is AppendOrigin.CLIENT:
            base_offset = self.append_plain(batches, leader_epoch, now_ms)
            if base_offset >= 0:
                last_offset, size = self.log_end.next_offset - 1, len(batches)
                return Appended(base_offset, last_offset, -1, self.log_start_offset, False, size)
        headers = validate_batches(batches, dense=True)
        rules = self.rules
        if not rules.is_plain or len(headers) != 1:
            return self._append_several(batches, headers, leader_epoch, now_ms, origin, opened, guard)
        header, size = headers[0], len(batches)
        idempotent = header.producer_id >= 0
        if size > rules.max_bytes or header.attributes & CONTROL or (idempotent and header.base_sequence < 0):
            rules.check(batches, headers, origin)
        if idempotent:
            kept = self._check_producers(batches, headers, origin, guard)
            if kept is not None:
                return Appended(kept.base_offset, kept.last_offset, -1, self.log_start_offset, True, 0)
        kind = type(batches)
        if kind is bytes or (kind is memoryview and batches.readonly):  # type: ignore[union-attr]
            batches = bytearray(batches)
        log_end = self.log_end
        base_offset = log_end.next_offset
        next_offset = assign_offsets(batches, base_offset, leader_epoch)  # type: ignore[arg-type]
        if leader_epoch != log_end.leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        self._place(batches, next_offset, header.max_timestamp, next_offset - 1, now_ms)
        if idempotent:
            self._note_producer(batches, header, base_offset)
        return Appended(base_offset, next_offset - 1, -1, self.log_start_offset, False, size)

    def append_plain(self, batches: Buffer, leader_epoch: int, now_ms: int) -> int:
        """Append a client's v2 batches if they are plain and sound; returns their first offset.

        -1, and nothing was changed, when they need `append`. Raises `KafkaStorageError`.
        """
        return self.log_end.append_plain(batches, leader_epoch, now_ms, self)

    def append_failed(self, error: OSError) -> KafkaStorageError:
        """Undo an append that failed on the way to the disk; returns the error to raise."""
        try:
            self.log_end.undo()  # the next append would be torn by what is left
        except OSError as worse:
            self.fail(worse)
        if error.errno == errno.EIO:
            self.fail(error)
        return self.storage_error(error)

    def _append_several(
        self,
        batches: Buffer,
        headers: list[BatchHeader],
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        opened: bool,
        guard: VerificationGuard | None,
    ) -> Appended:
        """Append any number of batches, and those of topics with more checks."""
        rules = self.rules
        idempotent = rules.check(batches, headers, origin)
        if not rules.is_plain:
            batches, headers = rules.adapt(batches, headers, now_ms, origin, opened)
        if idempotent:
            kept = self._check_producers(batches, headers, origin, guard)
            if kept is not None:
                return Appended(kept.base_offset, kept.last_offset, -1, self.log_start_offset, True, 0)
        if isinstance(batches, bytes) or (isinstance(batches, memoryview) and batches.readonly):
            batches = bytearray(batches)
        base_offset = self.log_end.next_offset
        next_offset = assign_offsets(batches, base_offset, leader_epoch)
        if leader_epoch != self.log_end.leader_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        self._place(batches, next_offset, *largest_timestamp(headers, base_offset), now_ms)
        if idempotent:
            offset = base_offset
            for header in headers:
                if header.producer_id >= 0:
                    self._note_producer(batches, header, offset)
                offset += header.last_offset_delta + 1
        stamped = now_ms if rules.stamps else -1
        return Appended(base_offset, next_offset - 1, stamped, self.log_start_offset, False, len(batches))

    def _check_producers(
        self,
        batches: Buffer,
        headers: list[BatchHeader],
        origin: AppendOrigin,
        guard: VerificationGuard | None,
    ) -> KeptBatch | None:
        """Check the batches of producers; returns the batch that a client's retry repeats."""
        if origin is AppendOrigin.CLIENT:
            if len(headers) == 1:
                return self.producers.check_one(headers[0], guard)
            return self.producers.check(headers, guard)
        for header in headers:
            if header.producer_id >= 0:
                batch = memoryview(batches)[header.position : header.position + header.size_in_bytes]
                self.producers.check_of_coordinator(header, batch, guard)
        return None

    def append_as_follower(self, batches: Buffer, now_ms: int) -> Appended:
        """Append batches from the leader's log, with its offsets and epochs.

        Raises `CorruptMessage`, `OffsetsOutOfOrder` unless they continue this log, `KafkaStorageError`.
        """
        new = replicated_batches(batches, self.log_start_offset, self.log_end_offset)
        for header in new.headers:
            if header.partition_leader_epoch != self.log_end.leader_epoch:
                self._begin_epoch(header.partition_leader_epoch, header.base_offset)
        self._place(batches, new.next_offset, *new.largest, now_ms)
        for header in new.headers:
            if header.producer_id >= 0:
                self._note_producer(batches, header, header.base_offset)
        return Appended(new.base_offset, new.next_offset - 1, -1, self.log_start_offset, False, len(batches))

    def _begin_epoch(self, leader_epoch: int, start_offset: int) -> None:
        try:
            self.leader_epochs.assign(leader_epoch, start_offset)
        except OSError as error:
            raise self.storage_error(error) from error
        self.log_end.leader_epoch = leader_epoch

    def _place(self, data: Buffer, next_offset: int, largest: int, largest_at: int, now_ms: int) -> None:
        """Write batches and their index entries: all of them or nothing."""
        log_end = self.log_end
        if self.offline is not None or self.is_truncating:
            raise KafkaStorageError(f"{self} takes no appends: {self.offline or 'it is being truncated'}")
        if (
            log_end.position + len(data) > log_end.max_bytes
            or largest > log_end.roll_above_timestamp
            or now_ms > log_end.roll_after_ms
            or next_offset > log_end.max_next_offset
            or log_end.index_full
        ):
            self.rolling.roll(now_ms, max(log_end.next_offset, next_offset - 1 - MAX_RELATIVE_OFFSET))
            log_end = self.log_end
        try:
            log_end.append(data, next_offset, largest, largest_at, now_ms)
        except OSError as error:
            raise self.append_failed(error) from error
        if next_offset - self.flushing.recovery_point >= self.rules.flush_messages:
            self.commit.start_or_run()

    def storage_error(self, error: OSError) -> KafkaStorageError:
        """The error to raise for a failed write; the log goes offline unless only room has run out."""
        if error.errno not in RUN_OUT:
            self.fail(error)
        return KafkaStorageError(f"{self.topic_partition} cannot be written: {error.strerror or error}")

    def _note_producer(self, batches: Buffer, header: BatchHeader, base_offset: int) -> None:
        if not header.attributes & CONTROL:
            self.producers.apply(header, base_offset)
            return
        batch = memoryview(batches)[header.position : header.position + header.size_in_bytes]
        self.producers.forget_replicated(self.watermark.offset)
        aborted = self.producers.apply_marker(header, base_offset, batch)
        if aborted is not None:
            try:
                self.log_end.segment.transactions.append(aborted)
            except OSError as error:
                self.fail(error)
                raise KafkaStorageError(f"{self.topic_partition}: {error}") from error
            self.flushing.names_changed()

    # ---- the log's start

    def advance_log_start(self, offset: int) -> None:
        """Hide every record below `offset`. Raises `OffsetOutOfRange` above the high watermark."""
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"{self} is committed up to {self.high_watermark}, not to {offset}")
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)

    # ---- the disk

    def flush(self) -> None:
        """Flush now. Blocks. Raises `KafkaStorageError`; the log is offline then if records were lost."""
        self.flushing.flush()

    async def durable(self, offset: int | None = None) -> None:
        """Wait until all records below `offset` (default: the log end) are on the disk."""
        await self.flushing.durable(self.log_end_offset if offset is None else offset)

    def fail(self, error: OSError) -> None:
        """Stop writing for good: the disk cannot be relied on."""
        if self.offline is None:
            self.offline = error
            self.log_end.max_plain_bytes = 0
            log.error("%s goes offline: %s", self.topic_partition, error)
            self._report_failure(error)

    def close(self) -> None:
        """Close the log so that the next start needs no recovery. Blocks. Raises `KafkaStorageError`."""
        log_closing.close(self)

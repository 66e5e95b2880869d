"""One partition on disk: the operations on its state."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

from ottla.broker.config import LogConfig
from ottla.broker.log.append.general import append_as_follower, append_as_leader, undo_append
from ottla.broker.log.append.rules import Appended, AppendOrigin, Buffer, OffsetsOutOfOrder
from ottla.broker.log.files.file_slices import Slice
from ottla.broker.log.files.file_system import Files
from ottla.broker.log.files.open_files import OpenSegments
from ottla.broker.log.flushing import Flushing
from ottla.broker.log.reading import Reading
from ottla.broker.log.recovery.producer_snapshots import snapshot_producers
from ottla.broker.log.segments import rolling
from ottla.broker.log.segments.timestamp_search import TimestampOffset
from ottla.broker.log.state.log_state import LogState, Recovered
from ottla.broker.log.state.outcomes import Closed, Configured, LogStartMoved, Renamed
from ottla.broker.log.state.producer_state import NOT_REQUIRED, VerificationGuard
from ottla.broker.log.truncation import Truncation
from ottla.protocol.errors import KafkaStorageError, OffsetOutOfRange
from ottla.protocol.topics import TopicPartition

__all__ = ["AppendOrigin", "Appended", "Log", "OffsetsOutOfOrder", "Slice", "TimestampOffset"]


class Log(LogState):
    """One partition, on the event loop. `recovery.open_log` opens it.

    Its facts are those of `LogState`. Operations that wait have objects of their own: `flushing`, `commit`
    and `truncation`. `read`, `offset_for_timestamp` and `aborted_transactions` are those of
    `reading.Reading`.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        topic_partition: TopicPartition,
        config: LogConfig,
        recovered: Recovered,
        *,
        chance: random.Random,
        failed: Callable[[OSError], None],
        full: Callable[[OSError], None],
        write_lowered: Callable[[], None],
        open_segments: OpenSegments,
    ) -> None:
        super().__init__(
            files,
            directory,
            topic_partition,
            config,
            recovered,
            chance=chance,
            failed=failed,
            full=full,
            write_lowered=write_lowered,
            open_segments=open_segments,
        )
        self.flushing = Flushing(self)
        self.commit = self.flushing.commit
        self.truncation = Truncation(self, self.commit.resume)
        reading = Reading(self)
        self.read = reading.read
        self.search_timestamp = reading.search_timestamp
        self.max_timestamp = reading.max_timestamp
        self.offset_for_timestamp = reading.offset_for_timestamp
        self.aborted_transactions = reading.aborted_transactions

    def configure(self, config: LogConfig) -> None:
        """Use another configuration of the topic from here on."""
        self.apply(Configured(config))

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
        if origin is AppendOrigin.CLIENT and not opened:
            base_offset = self.append_plain(batches, leader_epoch, now_ms)
            if base_offset >= 0:
                end, size = self.log_end.next_offset, len(batches)
                return Appended.now(base_offset, end, -1, self.log_start_offset, size)
        appended = append_as_leader(self, batches, leader_epoch, now_ms, origin, opened, guard)
        if self.log_end.next_offset - self.recovery_point >= self.rules.flush_messages:
            self.commit.start_or_run()
        return appended

    def append_plain(self, batches: Buffer, leader_epoch: int, now_ms: int) -> int:
        """Append a client's v2 batches if they are plain and sound; returns their first offset.

        -1, and nothing was changed, when they need `append`. Raises `KafkaStorageError`.
        """
        return self.log_end.append_plain(batches, leader_epoch, now_ms, self)

    def append_failed(self, error: OSError) -> KafkaStorageError:
        """Undo an append that failed on the way to the disk; returns the error to raise."""
        return undo_append(self, error)

    def append_as_follower(self, batches: Buffer, now_ms: int) -> Appended:
        """Append batches from the leader's log, with its offsets and epochs.

        Raises `CorruptMessage`, `OffsetsOutOfOrder` unless they continue this log, `KafkaStorageError`.
        """
        appended = append_as_follower(self, batches, now_ms)
        if self.log_end.next_offset - self.recovery_point >= self.rules.flush_messages:
            self.commit.start_or_run()
        return appended

    def roll(self, now_ms: int) -> None:
        """Begin a new segment, unless the active one is empty. Raises `KafkaStorageError`."""
        rolling.roll(self, now_ms)

    def advance_log_start(self, offset: int) -> None:
        """Hide every record below `offset`. Raises `OffsetOutOfRange` above the high watermark."""
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"{self} is committed up to {self.high_watermark}, not to {offset}")
        if offset > self.log_start_offset:
            self.apply(LogStartMoved(offset))

    # ---- the disk

    def flush(self) -> None:
        """Flush now. Blocks. Raises `KafkaStorageError`; the log is offline then if records were lost."""
        self.flushing.flush()

    async def durable(self, offset: int | None = None) -> None:
        """Wait until all records below `offset` (default: the log end) are on the disk."""
        await self.flushing.durable(self.log_end_offset if offset is None else offset)

    def close(self) -> None:
        """Seal and flush the log so that the next start needs no recovery. Blocks.

        Raises `KafkaStorageError`.
        """
        if self.is_changing_segments:
            raise KafkaStorageError(f"{self.topic_partition}: its segments are being changed")
        if self.offline is None:
            try:
                self.log_end.seal()
                self.segments.rebuild_lost()
                self.unsynced.segment_sealed(self.log_end.segment)
                snapshot_producers(self, self.log_end_offset)
            except OSError as error:
                self.fail(error)
                raise KafkaStorageError(f"{self.topic_partition} cannot be closed: {error}") from error
            self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Close all files without a write."""
        self.apply(Closed(self.offline or OSError(errno.EBADF, "the log was closed")))

    def renamed(self, directory: Path) -> None:
        """Follow the rename of the log's directory: the log goes on there."""
        self.apply(Renamed(directory))

    def deleted(self, directory: Path) -> None:
        """Follow the rename of the log's directory: the log is being deleted and takes no more appends."""
        self.apply(Renamed(directory))
        self.apply(Closed(OSError(errno.ENOENT, "the log was deleted")))

"""The state of one log, and the one way to change it: `apply`."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import assert_never
from uuid import UUID

from ottla.broker.config import LogConfig
from ottla.broker.log.append.log_end import LogEnd
from ottla.broker.log.append.rules import AppendRules
from ottla.broker.log.compaction.replacement import ReplacementPlan
from ottla.broker.log.files.file_system import NO_SPACE, RUN_OUT, Files
from ottla.broker.log.files.open_files import OpenSegments
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.segments.segments import Segments
from ottla.broker.log.state.leader_epochs import LeaderEpochs
from ottla.broker.log.state.outcomes import (
    ActiveReopened,
    Closed,
    Compacted,
    Configured,
    EpochBegun,
    EpochsTruncated,
    Expired,
    Failed,
    Flushed,
    LogStartMoved,
    Outcome,
    Renamed,
    ReplacementBegun,
    ReplacementSettled,
    Rolled,
    TookPlace,
    Truncated,
    TruncationBegun,
)
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.broker.log.state.unsynced import FlushPlan, Unsynced
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.storage.checkpoints import EpochStart
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen

log = logging.getLogger(__name__)


class HighWatermark:
    """One cell: records below `offset` are committed.

    The log creates it and reads it; `replication.partition.Partition` is handed it and is the only code
    that writes it. A log without a partition keeps the offset it was opened with.
    """

    __slots__ = ("offset",)

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def __repr__(self) -> str:
        return f"HighWatermark({self.offset})"


@frozen
class Recovered:
    """The facts that a log is opened with."""

    segments: list[Segment]
    """At least one, the oldest first; the last one is appended to."""
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    leader_epochs: tuple[EpochStart, ...]
    producers: ProducerStates
    cleaned_offset: int | None
    topic_id: UUID | None
    is_new: bool
    """Whether the directory's own name may not be on the disk."""


class LogState:
    """The facts of one log. The modules of this package read them; `apply` alone changes them.

    An append changes only what has an owner of its own: `log_end` moves natively, `producers` takes in the
    batch. Lives on the event loop; threads read single facts, for checkpoints.
    """

    config: LogConfig
    """The topic's configuration."""
    rules: AppendRules
    """The checks and changes that the configuration asks for."""
    log_end: LogEnd
    """The end of the active segment; each segment gets a new one."""

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
        self.files = files
        self.topic_partition = topic_partition
        self.topic_id = recovered.topic_id
        self.write_lowered = write_lowered
        """Writes a lowered recovery point into the checkpoint. Blocks."""
        self._chance = chance
        self._report_failure = failed
        self._report_full = full
        self.watermark = HighWatermark(recovered.log_start_offset)
        """The cell that replication writes (`replication.partition.Partition`)."""
        self.start_moved: Callable[[], object] = _do_nothing
        """Called when the log's start has moved; the partition that hosts the log sets it."""
        self.flush_may_be_due: Callable[[], object] = _do_nothing
        """Called when a segment was sealed or the configuration has changed; the registry sets it."""
        self.directory = directory
        self.segments = Segments(files, directory, recovered.segments, open_segments)
        self.log_start_offset = recovered.log_start_offset
        self.recovery_point = recovered.recovery_point
        """All records below it are on the disk."""
        self.producers = recovered.producers
        self.cleaned_offset = recovered.cleaned_offset
        """Where the last cleaning of a compacted log ended; None before the first."""
        self.offline: OSError | None = None
        """Why nothing can be written any more."""
        self.is_truncating = False
        """Whether a truncation is under way, which no append may meet."""
        self.truncations = 0
        """How often the log was truncated; read on any thread."""
        self.unsynced = Unsynced(files, is_new=recovered.is_new)
        self.leader_epochs = LeaderEpochs(recovered.leader_epochs, self.write_leader_epochs)
        self.config, self.rules = config, AppendRules(config)
        recovered.segments[-1].activate(config.segment_index_bytes, keep=True)
        self._append_to(recovered.segments[-1], recovered.log_end_offset)

    def __repr__(self) -> str:
        return f"Log({self.topic_partition}, {self.log_start_offset}..{self.log_end_offset})"

    # ---- facts that follow from others

    @property
    def takes_appends(self) -> bool:
        """Whether records can be appended and segments can be dropped now."""
        return self.offline is None and not self.is_truncating

    @property
    def is_changing_segments(self) -> bool:
        """Whether a thread changes the files of segments: of a truncation, or of a replacement."""
        return self.is_truncating or self.segments.replacing is not None

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

    # ---- the way to change them

    def apply(self, outcome: Outcome) -> None:
        """Make the outcome of an operation the log's state, in one step on the loop.

        Files of the log are not changed here, except for the leader epochs: raises OSError where they cannot
        be written.
        """
        # One case for each outcome: a fact of the log is written in this class and nowhere else.
        match outcome:
            case EpochBegun():
                self.leader_epochs.assign(outcome.leader_epoch, outcome.start_offset)
                self.log_end.leader_epoch = outcome.leader_epoch
            case EpochsTruncated():
                self.leader_epochs.truncate_from_end(outcome.end_offset)
                self.log_end.leader_epoch = self.leader_epochs.latest
            case LogStartMoved():
                self._start_at(outcome.offset)
            case Rolled():
                self._rolled(outcome)
            case ActiveReopened():
                self._append_to(self.segments[-1], self.log_end_offset, outcome.now_ms)
            case Expired():
                self._expired(outcome)
            case ReplacementBegun():
                self.segments.begin_replace(outcome.plan)
            case ReplacementSettled():
                self._replacement_settled(outcome.plan)
            case Compacted():
                self.cleaned_offset = outcome.end_offset
            case TruncationBegun():
                self._truncation_begun(outcome)
            case Truncated():
                self._truncated(outcome)
            case Flushed():
                self._flushed(outcome.plan)
            case Configured():
                self._configure(outcome.config)
            case TookPlace():
                self._take_over(outcome)
            case Renamed():
                self.directory = outcome.directory
                self.segments.moved_to(outcome.directory)
            case Failed():
                self._fail(outcome.error)
            case Closed():
                self._close(outcome.reason)
            case _:
                assert_never(outcome)

    def fail(self, error: OSError) -> None:
        """Stop writing for good: the disk cannot be relied on."""
        if self.offline is None:
            self.apply(Failed(error))
            log.error(
                "partition offline", extra={"partition": str(self.topic_partition), "reason": str(error)}
            )
            self._report_failure(error)

    def note_no_room(self, error: OSError) -> None:
        """Report the log's directory as full, if that is why a write failed."""
        if error.errno in NO_SPACE:
            self._report_full(error)

    def storage_error(self, error: OSError) -> KafkaStorageError:
        """The error to raise for a failed write; the log goes offline unless only room has run out."""
        if error.errno not in RUN_OUT:
            self.fail(error)
        self.note_no_room(error)
        return KafkaStorageError(f"{self.topic_partition} cannot be written: {error.strerror or error}")

    # ---- the changes

    def _append_to(self, segment: Segment, log_end_offset: int, now_ms: int = 0) -> None:
        """Append to a segment, which is open for writing, from here on."""
        self.log_end = LogEnd(segment, log_end_offset, now_ms)
        self.log_end.leader_epoch = self.leader_epochs.latest
        self._limit_log_end()

    def _limit_log_end(self) -> None:
        """Give the log end the limits of the topic's configuration."""
        self.log_end.limit(self.config, early_roll_ms(self.config, self._chance))
        self.log_end.max_plain_bytes = self.rules.max_plain_bytes if self.takes_appends else 0

    def _start_at(self, offset: int) -> None:
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.start_moved()

    def _rolled(self, outcome: Rolled) -> None:
        self.unsynced.segment_sealed(outcome.sealed)
        self.segments.add(outcome.segment)
        self._append_to(outcome.segment, outcome.segment.base_offset, outcome.now_ms)
        self.flush_may_be_due()

    def _expired(self, outcome: Expired) -> None:
        self.segments.drop_first(len(outcome.segments))
        self.unsynced.segments_dropped(outcome.segments)
        if outcome.log_start_offset > self.log_start_offset:
            self._start_at(outcome.log_start_offset)

    def _replacement_settled(self, plan: ReplacementPlan) -> None:
        self.segments.settle_replace(plan)
        if plan.is_done:
            self.unsynced.segments_dropped(plan.old)

    def _truncation_begun(self, outcome: TruncationBegun) -> None:
        end = self.log_end_offset
        self.is_truncating = True
        self.cleaned_offset = outcome.cleaned_offset
        self._lower_recovery_point(outcome.recovery_point)
        self.segments.drop_since(outcome.placeholder.base_offset)
        self.unsynced.segments_dropped(outcome.changed)
        self.segments.add(outcome.placeholder)
        self._append_to(outcome.placeholder, end)

    def _lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point: a flush that was planned before does not raise it again."""
        self.truncations += 1
        self.unsynced.names_changed()
        self.recovery_point = offset

    def _truncated(self, outcome: Truncated) -> None:
        if outcome.restarted:
            for segment in self.segments.drop_first(len(self.segments) - 1):
                segment.close()
            self.log_start_offset = outcome.log_end_offset
        self.segments.replace_active(outcome.last)
        self._lower_recovery_point(outcome.recovery_point)
        self.is_truncating = False
        self._append_to(outcome.last, outcome.log_end_offset)
        self.producers = outcome.producers
        self.leader_epochs.truncate_from_end(outcome.epochs_end_offset)
        self.log_end.leader_epoch = self.leader_epochs.latest

    def _flushed(self, plan: FlushPlan) -> None:
        self.unsynced.synced(plan)
        # A sync that succeeds after a failed one proves nothing: the kernel has dropped the pages.
        if plan.truncations == self.truncations and self.offline is None:
            self.recovery_point = max(self.recovery_point, plan.offset)

    def _configure(self, config: LogConfig) -> None:
        self.config, self.rules = config, AppendRules(config)
        self._limit_log_end()
        self.flush_may_be_due()

    def _take_over(self, outcome: TookPlace) -> None:
        for epoch, start_offset in outcome.leader_epochs:
            if epoch > self.leader_epochs.latest:  # it has written nothing yet
                self.leader_epochs.assign(epoch, start_offset)
        self.log_end.leader_epoch = self.leader_epochs.latest
        self._start_at(outcome.log_start_offset)
        self.producers = outcome.producers
        self._configure(outcome.config)

    def _fail(self, error: OSError) -> None:
        self.offline = self.offline or error
        self.log_end.max_plain_bytes = 0

    def _close(self, reason: OSError) -> None:
        self.offline = reason
        self.log_end.max_plain_bytes = 0
        self.log_end.write = _no_write  # the old one would keep a deleted file open, and its room in use
        self.segments.close()

    # ---- the file of the leader epochs

    def write_leader_epochs(self) -> None:
        """Write the leader epochs; where there is no room for them, a flush does it later."""
        self.unsynced.names_changed()
        try:
            self.unsynced.epochs.changed(self.directory, self.leader_epochs.entries)
        except OSError as error:
            # Until the next flush has written them, a start looks for them in the log itself.
            if error.errno not in RUN_OUT:
                raise
            self.note_no_room(error)
            log.warning(
                "leader epochs not written",
                extra={"partition": str(self.topic_partition), "reason": str(error)},
            )


def early_roll_ms(config: LogConfig, chance: random.Random) -> int:
    """The part of `segment.ms` that a segment is rolled early: by chance, and more for a compacted log."""
    most_ms = min(config.segment_jitter_ms, config.segment_ms)
    early_ms = chance.randrange(most_ms) if most_ms > 0 else 0
    if config.compact:  # records of the active segment are not compacted
        early_ms += max(0, config.segment_ms - config.max_compaction_lag_ms)
    return early_ms


def _do_nothing() -> None:
    pass


def _no_write(data: bytes | bytearray | memoryview, position: int) -> None:
    raise OSError(errno.EBADF, "the log was closed")

"""The part of a log that may not be on the disk yet, and the plan of a flush that brings it there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

from ottla.broker.log.files.checkpoints import write_leader_epochs
from ottla.broker.log.files.file_system import RUN_OUT, File, Files
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.state.leader_epochs import LeaderEpochs
from ottla.protocol.storage.checkpoints import EpochStart
from ottla.protocol.storage.segments import SegmentFile

SYNCED_KINDS: Final = (
    SegmentFile.LOG,
    SegmentFile.TRANSACTION_INDEX,
    SegmentFile.OFFSET_INDEX,
    SegmentFile.TIME_INDEX,
)


class EpochsFile:
    """The leader epochs of one log on the disk. The loop and threads write it, one at a time."""

    __slots__ = ("_files", "_lock", "_written", "version")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = Lock()
        self.version = 0
        """Rises with every change of the epochs."""
        self._written = 0

    def changed(self, directory: Path, entries: tuple[EpochStart, ...]) -> None:
        """Write changed epochs without a sync, unless a thread writes: a flush brings them to the disk."""
        self.version += 1
        if self._lock.acquire(blocking=False):
            try:
                write_leader_epochs(self._files, directory, entries, sync=False)
                self._written = self.version
            finally:
                self._lock.release()

    def sync(self, directory: Path, entries: tuple[EpochStart, ...], version: int) -> None:
        """Write the epochs of a version with a sync, unless newer ones were written. Blocks."""
        with self._lock:
            if version >= self._written:
                write_leader_epochs(self._files, directory, entries, sync=True)
                self._written = version


@dataclass(slots=True, eq=False, repr=False)
class FlushPlan:
    """Everything that has to reach the disk before offsets below `offset` are safe.

    Plans may overlap: each one syncs also what an unfinished one before it syncs.
    """

    files: Files
    directory: Path
    offset: int
    truncations: int
    """How often the log had been truncated: after another time, `offset` is not what it was."""
    sealed: list[Segment] = field(default_factory=list)
    """The sealed segments. Thousands may wait for a flush: their files are opened by its thread."""
    missing: list[Segment] = field(default_factory=list)
    """Of these, what the thread has not found any more."""
    active: list[File] = field(default_factory=list)
    """The files of the active segment."""
    snapshots: list[Path] = field(default_factory=list)
    leader_epochs: tuple[EpochStart, ...] | None = None
    epochs_file: EpochsFile | None = None
    epochs_version: int = 0
    names_version: int = 0
    names_changed: bool = False
    is_new: bool = False
    is_opening: bool = False
    records_synced: bool = False

    def run(self) -> None:
        """Sync everything. Blocks: for a thread.

        After an OSError nothing may be retried: the kernel forgets the pages that it could not write, and the
        next fsync would succeed.
        """
        for segment in self.sealed:
            self._sync_sealed(segment)
        for file in self.active:
            file.sync()
        self.records_synced = True
        for path in self.snapshots:
            with suppress(FileNotFoundError):  # retention and truncation remove snapshots meanwhile
                self.files.open(path).sync()
        if self.leader_epochs is not None and self.epochs_file is not None:
            self.epochs_file.sync(self.directory, self.leader_epochs, self.epochs_version)
        if self.names_changed:
            self.files.sync_dir(self.directory)
        if self.is_new:
            self.files.sync_dir(self.directory.parent)

    def _sync_sealed(self, segment: Segment) -> None:
        """Sync the files of a segment: the records first, one file open at a time."""
        for kind in SYNCED_KINDS:
            self.is_opening = True
            file = segment.opened(kind)
            self.is_opening = False
            if file is not None:
                file.sync()
            elif kind is SegmentFile.LOG:
                # Retention, compaction or a truncation has taken it out of the log: `lost` asks at the end.
                self.missing.append(segment)
                return

    def may_be_repeated(self, error: OSError) -> bool:
        """Whether, after this error, another plan can do what this one did not.

        Records that could not be synced are lost to the kernel. The small files are written from the start
        each time, and a file that was not opened has lost nothing.
        """
        return (self.records_synced or self.is_opening) and error.errno in RUN_OUT


class Unsynced:
    """The sealed segments, snapshots and names of one log that no flush has brought to the disk yet."""

    __slots__ = (
        "_epochs_synced",
        "_is_new",
        "_names_synced",
        "_names_version",
        "_sealed",
        "_snapshots",
        "epochs",
    )

    def __init__(self, files: Files, *, is_new: bool) -> None:
        self.epochs = EpochsFile(files)
        self._epochs_synced = 0
        self._names_version = int(is_new)
        self._names_synced = 0
        self._is_new = is_new
        # Dictionaries: a load of many small segments seals thousands between two flushes.
        self._sealed: dict[Segment, None] = {}
        self._snapshots: dict[Path, None] = {}

    @property
    def has_sealed(self) -> bool:
        """Whether sealed segments may not be on the disk."""
        return bool(self._sealed)

    def lost(self, plan: FlushPlan) -> Segment | None:
        """A segment that is still in the log, but whose records a plan that was run has not found."""
        return next((segment for segment in plan.missing if segment in self._sealed), None)

    # ---- changes that a flush brings to the disk

    def segment_sealed(self, segment: Segment) -> None:
        """Note a segment that was sealed, or sealed and not flushed before a restart."""
        self._sealed[segment] = None
        self._names_version += 1

    def segments_dropped(self, segments: list[Segment]) -> None:
        """Forget segments that are no longer in the log."""
        for segment in segments:
            self._sealed.pop(segment, None)

    def snapshot_written(self, path: Path) -> None:
        """Note a snapshot of the producers."""
        self._snapshots[path] = None
        self._names_version += 1

    def names_changed(self) -> None:
        """Note that files were created, renamed or removed."""
        self._names_version += 1

    # ---- one flush

    def add_to(self, plan: FlushPlan, recovery_point: int, active: Segment, epochs: LeaderEpochs) -> None:
        """Add all of it to a plan, and the active segment where records or names in it are new."""
        plan.sealed, plan.snapshots = list(self._sealed), list(self._snapshots)
        plan.names_version = self._names_version
        plan.names_changed = self._names_version != self._names_synced
        if plan.offset != recovery_point or plan.names_changed:
            plan.active = active.to_sync()
        if self.epochs.version != self._epochs_synced:
            plan.leader_epochs, plan.epochs_file = epochs.entries, self.epochs
        plan.epochs_version = self.epochs.version
        plan.is_new = self._is_new

    def synced(self, plan: FlushPlan) -> None:
        """Forget what a plan that was run has brought to the disk."""
        self.segments_dropped(plan.sealed)
        for path in plan.snapshots:
            self._snapshots.pop(path, None)
        self._names_synced = max(self._names_synced, plan.names_version)
        self._epochs_synced = max(self._epochs_synced, plan.epochs_version)
        self._is_new = self._is_new and not plan.is_new

"""Open or recover a log: delete leftovers, truncate torn tails, rebuild missing files."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from ottla.broker.config import LogConfig
from ottla.broker.log.compaction.replacement import finish_replacement
from ottla.broker.log.files.checkpoints import read_leader_epochs, read_topic_id, write_topic_id
from ottla.broker.log.files.file_system import Files
from ottla.broker.log.files.open_files import OpenSegments
from ottla.broker.log.log import Log
from ottla.broker.log.recovery import cut_bytes
from ottla.broker.log.recovery.producer_snapshots import Replay, drop_snapshots, rebuilt_producers
from ottla.broker.log.segments.index_building import IndexBuilder, rebuild_indexes
from ottla.broker.log.segments.scan import Checked, check_entries, headers_from
from ottla.broker.log.segments.segment import MAX_RELATIVE_OFFSET, Segment
from ottla.broker.log.state.leader_epochs import LeaderEpochs
from ottla.broker.log.state.log_state import Recovered
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.checkpoints import EpochStart
from ottla.protocol.storage.segments import (
    SegmentFile,
    file_name,
    parse_file_name,
)
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

_OFFSET_BYTES: Final = 8
"""An entry begins with its offset."""


def _ignore(error: OSError) -> None:
    pass


def _nothing() -> None:
    pass


class Found(NamedTuple):
    """The segments after the check, and the end of the last one."""

    segments: list[Segment]
    end_offset: int
    producers: ProducerStates | None
    """The producer state at the end, if the check has read all batches since a snapshot."""


def open_log(
    files: Files,
    directory: Path,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    clean: bool,
    log_start_offset: int = 0,
    recovery_point: int = 0,
    cleaned_offset: int | None = None,
    topic_id: UUID | None = None,
    is_new: bool = False,
    chance: random.Random | None = None,
    failed: Callable[[OSError], None] = _ignore,
    full: Callable[[OSError], None] = _ignore,
    write_lowered: Callable[[], None] = _nothing,
    open_segments: OpenSegments | None = None,
) -> Log:
    """Open or recover a log, creating it where there is none. Blocks: for a thread, unless it is new.

    Unless the broker was stopped cleanly (`clean`), all entries from the segment of the recovery point on are
    checked, their indexes are built again, and the log is cut at the first entry that is not intact; segments
    behind that are deleted, and so are those behind offsets that a crash may have lost. Raises OSError.
    """
    is_empty = files.make_dirs(directory)
    if topic_id is not None and is_new:
        write_topic_id(files, directory, topic_id)
    loaded = _load(files, directory, config, log_start_offset, recovery_point, clean, is_empty=is_empty)
    end_offset = loaded.log_end_offset
    opened = Log(
        files,
        directory,
        topic_partition,
        config,
        loaded.recovered(
            end_offset if clean else max(0, min(recovery_point, end_offset)),
            cleaned_offset,
            topic_id or read_topic_id(files, directory),
            is_new=is_new,
        ),
        chance=chance or random.Random(0),
        failed=failed,
        full=full,
        write_lowered=write_lowered,
        open_segments=open_segments or OpenSegments(),
    )
    if loaded.epochs_changed or not clean:
        opened.write_leader_epochs()
    _note_unflushed(opened)
    return opened


def _note_unflushed(opened: Log) -> None:
    if opened.flushing.unflushed:
        for segment in opened.segments.since(opened.recovery_point)[:-1]:
            opened.unsynced.segment_sealed(segment)
        opened.unsynced.names_changed()


class _Loaded(NamedTuple):
    """The content of a log's directory once it is recovered."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    epochs: LeaderEpochs
    epochs_changed: bool
    producers: ProducerStates
    is_new: bool
    """Whether there was no segment that could be used."""

    def recovered(
        self, recovery_point: int, cleaned_offset: int | None, topic_id: UUID | None, *, is_new: bool
    ) -> Recovered:
        """The same, with the facts that stand elsewhere than in the segments."""
        return Recovered(
            self.segments,
            self.log_start_offset,
            self.log_end_offset,
            recovery_point,
            self.epochs.entries,
            self.producers,
            cleaned_offset,
            topic_id,
            is_new or self.is_new,
        )


def _begun(files: Files, directory: Path, config: LogConfig, log_start_offset: int) -> _Loaded:
    """The recovered state of an empty directory, once its first segment is made, without a look at it."""
    segment = Segment(files, directory, log_start_offset)
    segment.create(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
    producers = ProducerStates(end_offset=log_start_offset)
    return _Loaded([segment], log_start_offset, log_start_offset, LeaderEpochs(), False, producers, True)


def _load(
    files: Files,
    directory: Path,
    config: LogConfig,
    log_start_offset: int,
    recovery_point: int,
    clean: bool,
    *,
    is_empty: bool,
) -> _Loaded:
    if is_empty:
        return _begun(files, directory, config, log_start_offset)
    segments = _without_dropped(_load_segments(files, directory), log_start_offset)
    epochs = _load_epochs(files, directory, segments, None if clean else recovery_point)
    known_epochs = epochs.entries
    found = _check_all(segments, log_start_offset, recovery_point, clean, config, epochs)
    segments, end_offset = found.segments, found.end_offset
    if segments and end_offset < log_start_offset:
        log.warning(
            "all records dropped: the log ends below its start",
            extra={
                "directory": str(directory),
                "end_offset": end_offset,
                "log_start_offset": log_start_offset,
            },
        )
        _unlink(segments)
        segments = []
        epochs.clear()
    is_new = not segments
    if is_new:
        segments, end_offset = [_created(files, directory, log_start_offset, config)], log_start_offset
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    drop_snapshots(files, directory, lambda offset: offset > end_offset)
    epochs.truncate_from_end(end_offset)
    if not clean:
        epochs = _with_first_epochs(epochs, segments, log_start_offset)
    epochs.truncate_from_start(log_start_offset)
    if end_offset <= segments[0].base_offset:
        epochs.clear()  # no record is left: the next start would find none either
    producers = None if is_new else found.producers
    if producers is None:
        producers = rebuilt_producers(files, directory, segments, log_start_offset, end_offset)
    changed = epochs.entries != known_epochs
    return _Loaded(segments, log_start_offset, end_offset, epochs, changed, producers, is_new)


def _created(files: Files, directory: Path, base_offset: int, config: LogConfig) -> Segment:
    segment = Segment(files, directory, base_offset)
    segment.create(preallocate_bytes=config.segment_bytes if config.preallocate else 0)
    for kind in (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX):
        files.open(segment.path(kind), create=True).truncate(0)
    return segment


# ---- files


def _load_segments(files: Files, directory: Path) -> list[Segment]:
    """The segments in a directory, once leftovers are deleted and a replacement of segments is finished."""
    finish_replacement(files, directory)
    names = [name for name in map(parse_file_name, files.list(directory)) if name is not None]
    bases = sorted(name.base_offset for name in names if name.kind is SegmentFile.LOG and not name.suffix)
    for name in names:
        orphan = (
            name.kind not in (SegmentFile.LOG, SegmentFile.PRODUCER_SNAPSHOT)
            and name.base_offset not in bases
        )
        if name.suffix or orphan:
            files.unlink(directory / file_name(*name))
    return [
        Segment(files, directory, base, files.size(directory / file_name(base, SegmentFile.LOG)))
        for base in bases
    ]


def _without_dropped(segments: list[Segment], log_start_offset: int) -> list[Segment]:
    """Delete segments below the log start: a crash may have interrupted their deletion."""
    count = sum(1 for segment in segments[1:] if segment.base_offset <= log_start_offset)
    _unlink(segments[:count])
    return segments[count:]


def _unlink(segments: list[Segment]) -> None:
    for segment in reversed(segments):
        for path in segment.mark_deleted():
            segment.files.unlink(path)


# ---- segments


def _check_all(
    segments: list[Segment],
    log_start_offset: int,
    recovery_point: int,
    clean: bool,
    config: LogConfig,
    epochs: LeaderEpochs,
) -> Found:
    end_offset = segments[0].base_offset if segments else 0
    replay: Replay | None = None
    kept: list[Segment] = []
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else None
        # A segment that ends at the recovery point may have been flushed before it was sealed: no indexes.
        flushed = clean or (following is not None and following < recovery_point)
        if kept and not flushed and not _is_next(segment, end_offset, recovery_point, config):
            cut_bytes.drop(segments[number:], end_offset)
            break
        kept.append(segment)
        if flushed:
            _check_transactions(segment, kept, log_start_offset)
        if flushed and following is not None:
            _check_sealed(segment)
            end_offset = following
            continue
        end = _end_of(segment) if flushed else None
        lost = False
        if end is None:
            if replay is None:
                replay = _replay_up_to(segment, kept, log_start_offset)
                epochs.truncate_from_end(segment.base_offset)
            end, lost = recover_segment(segment, config, epochs, replay)
        end_offset = end
        if lost:
            cut_bytes.drop(segments[number + 1 :], end_offset)
            break
    return Found(kept, end_offset, replay.states if replay else None)


def _is_next(segment: Segment, end_offset: int, recovery_point: int, config: LogConfig) -> bool:
    """Whether nothing is lost between `end_offset`, where the segments before it end, and a segment.

    A crash may lose a segment in between, or the end of the one before, where that was not on the disk. What
    compaction has dropped leaves no such gap: a segment begins at the log's end, and a cleaned one keeps its
    last batch. Only logs of Apache Kafka have them: accepted below the recovery point, and in a topic that is
    compacted now.
    """
    if segment.base_offset == end_offset or config.compact:
        return True
    return end_offset < segment.base_offset <= recovery_point


def _replay_up_to(segment: Segment, segments: list[Segment], log_start_offset: int) -> Replay:
    states = rebuilt_producers(
        segment.files, segment.directory, segments, log_start_offset, segment.base_offset
    )
    return Replay(states, index=True)


def _check_transactions(segment: Segment, segments: list[Segment], log_start_offset: int) -> None:
    """Rebuild a damaged transaction index: without it aborted records would be taken for committed ones."""
    if not segment.files.exists(segment.transactions.path):
        return
    try:
        _ = segment.transactions.entries
        return
    except CorruptStorage as error:
        log.warning(
            "transaction index rebuilt", extra={"path": str(segment.transactions.path), "reason": str(error)}
        )
    replay = _replay_up_to(segment, segments, log_start_offset)
    replay.begin(segment)
    for entry in check_entries(segment.file, 0, segment.size):
        if entry.header is not None:
            replay.take(segment, entry.header, entry.position, entry.size)
    if segment.transactions.file is not None:
        segment.transactions.file.sync()
    segment.close()


def _check_sealed(segment: Segment) -> None:
    """Rebuild the indexes of a segment if one is missing or has an impossible size."""
    for kind, size in ((SegmentFile.OFFSET_INDEX, 8), (SegmentFile.TIME_INDEX, 12)):
        path = segment.path(kind)
        if not segment.files.exists(path) or segment.files.size(path) % size:
            rebuild_indexes(segment)
            return


def _end_of(segment: Segment) -> int | None:
    """The offset behind a segment's last entry; None when all entries have to be checked to find it."""
    if not all(
        segment.files.exists(segment.path(k)) for k in (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX)
    ):
        return None
    try:
        return segment.read_end()
    except CorruptStorage:
        return None
    finally:
        segment.times.check()
        segment.close_indexes()


def recover_segment(
    segment: Segment, config: LogConfig, epochs: LeaderEpochs, replay: Replay
) -> tuple[int, bool]:
    """Check every entry, rebuild the indexes, cut the file behind the last intact entry (`cut_bytes`).

    Returns the offset behind that entry and whether bytes were cut off.
    """
    segment.close()
    replay.begin(segment)
    end, position = segment.base_offset, 0
    reason = "it ends within an entry"
    building = IndexBuilder(segment, config.index_interval_bytes, config.segment_index_bytes)
    try:
        for entry in check_entries(segment.file, 0, segment.size):
            if not _goes_on(segment, entry, end):
                reason = f"offsets {entry.base_offset} to {entry.last_offset} do not belong there"
                break
            building.add(entry)
            if entry.header is not None:
                _assign(epochs, entry)
                replay.take(segment, entry.header, entry.position, entry.size)
            end, position = entry.last_offset + 1, entry.position + entry.size
    except CorruptStorage as error:
        reason = str(error)
    building.finish()
    return end, cut_bytes.cut_off(segment, position, end, reason) > 0


def _goes_on(segment: Segment, entry: Checked, end: int) -> bool:
    """Whether an intact entry may stand where `end` is the next offset of its segment.

    There may be a gap in front of it under any policy that the topic has now: the log, or the leader that it
    was copied from, was compacted once. A crash leaves no such gap: of what was not on the disk it leaves a
    part from the front, or bytes that are no intact entry where one should begin.
    """
    if not segment.base_offset <= entry.last_offset <= segment.base_offset + MAX_RELATIVE_OFFSET:
        return False
    if entry.position and entry.base_offset < end:
        return False
    return entry.base_offset <= end or not _is_displaced(segment, entry, end)


def _is_displaced(segment: Segment, entry: Checked, end: int) -> bool:
    """Whether the entry behind one with a gap in front continues as if there were no gap.

    No checksum covers the base offset: that of the entry is damaged then.
    """
    following = segment.file.pread(_OFFSET_BYTES, entry.position + entry.size)
    return int.from_bytes(following, "big") == end + entry.last_offset - entry.base_offset + 1


def _assign(epochs: LeaderEpochs, entry: Checked) -> None:
    header = entry.header
    if header is not None and header.partition_leader_epoch > epochs.latest:
        epochs.assign(header.partition_leader_epoch, entry.base_offset)


# ---- epochs


def _load_epochs(
    files: Files, directory: Path, segments: list[Segment], flushed_to: int | None
) -> LeaderEpochs:
    """The epochs in the checkpoint, or when it is missing or damaged those of the batches below an offset.

    Behind what was flushed there may be anything; the check of these segments finds their epochs.
    """
    entries = read_leader_epochs(files, directory)
    if entries is not None:
        return LeaderEpochs(entries)
    return LeaderEpochs(_epochs_in(segments, flushed_to))


def _epochs_in(segments: list[Segment], end_offset: int | None) -> list[EpochStart]:
    """The epochs of the batches below an offset."""
    epochs, next_offset = LeaderEpochs(), 0
    for segment in segments:
        if end_offset is not None and segment.base_offset >= end_offset:
            break
        with suppress(CorruptStorage):
            for header, _, _ in headers_from(segment.file, 0, segment.size):
                if end_offset is not None and not next_offset <= header.base_offset < end_offset:
                    break
                next_offset = header.next_offset
                if header.partition_leader_epoch > epochs.latest:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
        segment.close()
    return list(epochs.entries)


def _with_first_epochs(epochs: LeaderEpochs, segments: list[Segment], log_start_offset: int) -> LeaderEpochs:
    """Add the epochs below the first known one.

    They were dropped when the log start moved behind them, and the crash has undone that move.
    """
    entries = epochs.entries
    if not entries or entries[0].start_offset <= log_start_offset:
        return epochs
    return LeaderEpochs([*_epochs_in(segments, entries[0].start_offset), *entries])

"""For tests: batches, and logs on a disk in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from ottla.broker.config import LogConfig
from ottla.broker.log.compaction.replacement import ReplacementPlan
from ottla.broker.log.files.fake_files import MemoryFiles, PowerLoss
from ottla.broker.log.files.file_system import Files
from ottla.broker.log.log import Log
from ottla.broker.log.recovery.recovery import open_log
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.state.outcomes import ReplacementBegun, ReplacementSettled
from ottla.broker.log.truncation import TruncationPlan
from ottla.broker.replication.partition import Partition
from ottla.protocol.records import (
    BatchBuilder,
    Codec,
    Record,
    iter_records,
    magic_at,
    read_header,
    split_batches,
)
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("topic", 0)


async def interrupted_recoveries(
    disk: MemoryFiles, recover: Callable[[MemoryFiles], Awaitable[object]], chance: Random
) -> MemoryFiles:
    """The disk after none to two recoveries, during or after each of which power was lost."""
    for _ in range(chance.choice((0, 0, 1, 2))):
        disk.fail_after(chance.randrange(60), chance)
        try:
            await recover(disk)
        except PowerLoss:
            disk = disk.crash(chance)
            continue
        disk.fail_after(1 << 60, chance)
        disk = disk.crash(chance)
    return disk


SMALL_INDEX_BYTES: Final = 64 * 1024
"""Room for 5,461 entries of a time index."""


def batch(
    *values: bytes,
    keys: Sequence[bytes | None] | None = None,
    timestamp_ms: int = 1_000,
    codec: Codec = Codec.NONE,
    **how: Any,
) -> bytes:
    """One v2 batch; `how` goes to `BatchBuilder.build`."""
    builder = BatchBuilder(1 << 24, codec=codec)
    for number, value in enumerate(values):
        builder.append(keys[number] if keys else None, value, timestamp_ms)
    return builder.build(**how)


def idempotent(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, **how: Any) -> bytes:
    """A batch of an idempotent producer."""
    values = [b"value"] * count
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **how)


def log_in(
    directory: Path,
    files: Files | None = None,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    **settings: Any,
) -> Log:
    """Open a log in a directory, in memory unless `files` says otherwise.

    Its indexes are small unless `settings` say otherwise: those of the default take a disk in memory ten
    milliseconds for each segment.
    """
    at = directory / "topic-0"
    files = files or MemoryFiles()
    settings = {"segment_index_bytes": SMALL_INDEX_BYTES} | settings
    config, is_new = LogConfig(**settings), not files.exists(at)
    return open_log(files, at, PARTITION, config, clean=clean, recovery_point=recovery_point, is_new=is_new)


def append(log: Log, *values: bytes, now_ms: int = 1_000, leader_epoch: int = 0, **how: Any) -> int:
    """Append one batch and commit it; returns its base offset."""
    appended = log.append(batch(*values, **how), leader_epoch=leader_epoch, now_ms=now_ms)
    commit(log)
    return appended.base_offset


def truncate_to(log: Log, offset: int) -> int:
    """Truncate a log that no partition hosts, on this thread; returns the new log end."""
    return _truncated(log, log.truncation.begin(offset))


def truncate_fully_and_start_at(log: Log, offset: int) -> None:
    """Drop all records of a log that no partition hosts, on this thread, and start again at `offset`."""
    _truncated(log, log.truncation.begin_restart(offset))


def _truncated(log: Log, plan: TruncationPlan | None) -> int:
    if plan is not None:
        plan.run()
        log.truncation.settle(plan)
    return log.log_end_offset


def replace_segments(log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> list[Path]:
    """Put cleaned segments in the place of old ones, on this thread; returns the paths to unlink later.

    The caller takes the log offline after an OSError.
    """
    plan = begin_replace(log, old, new)
    try:
        plan.run()
    finally:
        log.apply(ReplacementSettled(plan))
    return plan.deleted


def begin_replace(log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> ReplacementPlan:
    """Begin to put cleaned segments in the place of old ones: run the plan, then apply its settlement."""
    plan = log.segments.plan_replace(old, new)
    log.apply(ReplacementBegun(plan))
    return plan


def commit(log: Log, offset: int | None = None) -> None:
    """Put the high watermark of a log that no partition hosts at `offset`, or at the log's end."""
    end = log.log_end_offset
    core = Partition(0, watermark=log.watermark)
    core.restored(end if offset is None else offset, log.log_start_offset, end)


def records_of(log: Log, offset: int | None = None) -> list[Record]:
    """All records from an offset on, read as a consumer reads them."""
    found: list[Record] = []
    at = log.log_start_offset if offset is None else offset
    while at < log.log_end_offset:
        data = log.read(at, 1_000, up_to=log.log_end_offset).read()
        if not data:
            break
        found += [record for record in iter_records(data) if record.offset >= at]
        newest = list(split_batches(data))[-1]
        at = 1 + (read_header(newest).last_offset if magic_at(newest) == 2 else found[-1].offset)
    return found

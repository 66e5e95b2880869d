"""The general path of appends: what `LogEnd.append_plain`, the fast path, leaves to it, and a follower's."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from ottla.broker.log.append.record_checks import validated
from ottla.broker.log.append.rules import (
    CONTROL,
    Appended,
    AppendOrigin,
    Buffer,
    largest_timestamp,
    replicated_batches,
)
from ottla.broker.log.segments.rolling import roll
from ottla.broker.log.segments.segment import MAX_RELATIVE_OFFSET
from ottla.broker.log.state.outcomes import EpochBegun, EpochsTruncated
from ottla.protocol.errors import KafkaStorageError
from ottla.protocol.records import BatchHeader, assign_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.log.state.log_state import LogState
    from ottla.broker.log.state.producer_state import KeptBatch, VerificationGuard


def append_as_leader(
    log: LogState,
    batches: Buffer,
    leader_epoch: int,
    now_ms: int,
    origin: AppendOrigin,
    opened: bool,
    guard: VerificationGuard | None,
) -> Appended:
    """Append v2 batches with new offsets; see `Log.append`."""
    headers = validated(batches)
    rules = log.rules
    idempotent = rules.check(batches, headers, origin)
    batches, headers = rules.adapt(batches, headers, now_ms, origin, opened)
    if idempotent:
        kept = _check_producers(log, batches, headers, origin, guard)
        if kept is not None:
            return Appended(kept.base_offset, kept.last_offset, -1, log.log_start_offset, True, 0)
    kind = type(batches)
    if kind is bytes or (kind is memoryview and batches.readonly):  # type: ignore[union-attr]
        batches = bytearray(batches)
    base_offset = log.log_end.next_offset
    next_offset = assign_offsets(batches, base_offset, leader_epoch)  # type: ignore[arg-type]
    if leader_epoch != log.log_end.leader_epoch:
        _begin_epoch(log, leader_epoch, base_offset)
    if len(headers) == 1:  # as in most appends
        largest, largest_at = headers[0].max_timestamp, next_offset - 1
    else:
        largest, largest_at = largest_timestamp(headers, base_offset)
    _place(log, batches, next_offset, largest, largest_at, now_ms)
    if idempotent:
        offset = base_offset
        for header in headers:
            if header.producer_id >= 0:
                _note_producer(log, batches, header, offset)
            offset += header.last_offset_delta + 1
    stamped = now_ms if rules.stamps else -1
    return Appended.now(base_offset, next_offset, stamped, log.log_start_offset, len(batches))


def append_as_follower(log: LogState, batches: Buffer, now_ms: int) -> Appended:
    """Append batches from the leader's log, with its offsets and epochs; see `Log.append_as_follower`."""
    new = replicated_batches(batches, log.log_start_offset, log.log_end_offset)
    latest = log.leader_epochs.latest
    for header in new.headers:
        if header.partition_leader_epoch != log.log_end.leader_epoch:
            _begin_epoch(log, header.partition_leader_epoch, header.base_offset)
    try:
        _place(log, batches, new.next_offset, *new.largest, now_ms)
    except KafkaStorageError:
        if log.leader_epochs.latest != latest:
            _end_epochs(log)
        raise
    for header in new.headers:
        if header.producer_id >= 0:
            _note_producer(log, batches, header, header.base_offset)
    return Appended.now(new.base_offset, new.next_offset, -1, log.log_start_offset, len(batches))


def undo_append(log: LogState, error: OSError) -> KafkaStorageError:
    """Undo an append that failed on the way to the disk; returns the error to raise."""
    try:
        log.log_end.undo()  # the next append would be torn by what is left
    except OSError as worse:
        log.fail(worse)
    if error.errno == errno.EIO:
        log.fail(error)
    return log.storage_error(error)


def _check_producers(
    log: LogState,
    batches: Buffer,
    headers: Sequence[BatchHeader],
    origin: AppendOrigin,
    guard: VerificationGuard | None,
) -> KeptBatch | None:
    """Check the batches of producers; returns the batch that a client's retry repeats."""
    if origin is AppendOrigin.CLIENT:
        if len(headers) == 1:
            return log.producers.check_one(headers[0], guard)
        return log.producers.check(headers, guard)
    for header in headers:
        if header.producer_id >= 0:
            log.producers.check_of_coordinator(header, _bytes_of(batches, header), guard)
    return None


def _bytes_of(batches: Buffer, header: BatchHeader) -> memoryview:
    return memoryview(batches)[header.position : header.position + header.size_in_bytes]


def _begin_epoch(log: LogState, leader_epoch: int, start_offset: int) -> None:
    try:
        log.apply(EpochBegun(leader_epoch, start_offset))
    except OSError as error:
        raise log.storage_error(error) from error


def _end_epochs(log: LogState) -> None:
    """Drop the epochs that begin at the log end: no batch of theirs is in the log."""
    try:
        log.apply(EpochsTruncated(log.log_end_offset))
    except OSError as error:
        raise log.storage_error(error) from error


def _place(log: LogState, data: Buffer, next_offset: int, largest: int, largest_at: int, now_ms: int) -> None:
    """Write batches and their index entries: all of them or nothing."""
    log_end = log.log_end
    if log.offline is not None or log.is_truncating:
        raise KafkaStorageError(f"{log} takes no appends: {log.offline or 'it is being truncated'}")
    if not log_end.fits(len(data), next_offset, largest, now_ms):
        roll(log, now_ms, max(log_end.next_offset, next_offset - 1 - MAX_RELATIVE_OFFSET))
        log_end = log.log_end
    try:
        log_end.append(data, next_offset, largest, largest_at, now_ms)
    except OSError as error:
        raise undo_append(log, error) from error


def _note_producer(log: LogState, batches: Buffer, header: BatchHeader, base_offset: int) -> None:
    if not header.attributes & CONTROL:
        log.producers.apply(header, base_offset)
        return
    log.producers.forget_replicated(log.watermark.offset)
    aborted = log.producers.apply_marker(header, base_offset, _bytes_of(batches, header))
    if aborted is not None:
        try:
            log.log_end.segment.transactions.append(aborted)
        except OSError as error:
            log.fail(error)
            raise KafkaStorageError(f"{log.topic_partition}: {error}") from error
        log.unsynced.names_changed()

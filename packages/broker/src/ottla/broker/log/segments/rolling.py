"""Rolling one log: when the next segment begins, and its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.log.recovery.producer_snapshots import snapshot_producers
from ottla.broker.log.segments.segments import SegmentLeftBehind, create_segment
from ottla.broker.log.state.outcomes import Rolled

if TYPE_CHECKING:
    from ottla.broker.log.state.log_state import LogState


def roll(log: LogState, now_ms: int, base_offset: int | None = None) -> None:
    """Begin a new segment, at the log's end by default, unless the active one is empty.

    Raises `KafkaStorageError`; when the disk is full, everything stays as it was. The log goes offline when
    files of the new segment are left: a start would drop the records at and above its base offset.
    """
    old = log.log_end
    at = old.next_offset if base_offset is None else base_offset
    if not old.position and old.base_offset == at:
        return  # an append always fits an empty segment
    try:
        segment = create_segment(log.files, log.directory, at, log.config)
    except OSError as error:
        if isinstance(error, SegmentLeftBehind):
            log.fail(error)
        raise log.storage_error(error) from error
    old.seal()
    log.apply(Rolled(old.segment, segment, now_ms))
    snapshot_producers(log, at)

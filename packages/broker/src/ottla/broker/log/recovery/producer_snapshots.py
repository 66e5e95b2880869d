"""Producer state on disk: write `.snapshot` files, rebuild the state from the newest intact one.

Kafka's format keeps the last batch of a producer only. The batches before it are read from the log: a client
repeats all that were not answered, and a broker that has forgotten the first of them answers
OUT_OF_ORDER_SEQUENCE_NUMBER, which is fatal for some.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.broker.log.files.file_system import Files
from ottla.broker.log.segments.scan import headers_from, locate
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.protocol.records import BatchHeader
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.indexes import (
    ProducerEntry,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from ottla.protocol.storage.segments import SegmentFile, file_name, parse_file_name

if TYPE_CHECKING:
    from ottla.broker.log.state.log_state import LogState

_log = logging.getLogger(__name__)

EARLIER_BATCHES: Final = 128
"""Batches before a snapshot in which those are looked for that it lacks; an index entry's more at most."""


def take_snapshot(files: Files, directory: Path, offset: int, entries: list[ProducerEntry]) -> Path:
    """Write the snapshot of an offset, without a sync: its checksum shows a torn one."""
    path = directory / file_name(offset, SegmentFile.PRODUCER_SNAPSHOT)
    file = files.open(path, create=True)
    file.truncate(0)
    file.pwrite(encode_producer_snapshot(entries), 0)
    return path


def snapshot_producers(log: LogState, offset: int) -> None:
    """Write the producers' state at `offset`; without it, a start has to read more of the log."""
    try:
        path = take_snapshot(log.files, log.directory, offset, log.producers.entries())
    except OSError as error:
        _log.warning(
            "producer snapshot not written",
            extra={"partition": str(log.topic_partition), "offset": offset, "reason": str(error)},
        )
        return
    log.unsynced.snapshot_written(path)


def snapshot_offsets(files: Files, directory: Path) -> list[int]:
    """The offsets of all snapshots, the lowest first."""
    parsed = (parse_file_name(name) for name in files.list(directory))
    return [
        name.base_offset
        for name in parsed
        if name is not None and name.kind is SegmentFile.PRODUCER_SNAPSHOT and not name.suffix
    ]


def drop_snapshots(files: Files, directory: Path, unwanted: Callable[[int], bool]) -> None:
    """Delete the snapshots of the offsets that `unwanted` selects."""
    for offset in snapshot_offsets(files, directory):
        if unwanted(offset):
            files.unlink(directory / file_name(offset, SegmentFile.PRODUCER_SNAPSHOT))


class Replay:
    """Applies the entries of a log to producer state and, with `index`, to the transaction indexes."""

    __slots__ = ("_index", "states")

    def __init__(self, states: ProducerStates, *, index: bool = False) -> None:
        self.states = states
        self._index = index

    def begin(self, segment: Segment) -> None:
        """Continue with a segment."""
        if self._index:
            segment.transactions.reset()

    def take(self, segment: Segment, header: BatchHeader, position: int, size: int) -> None:
        """Apply one batch."""
        if header.producer_id < 0:
            return
        if not header.is_control:
            self.states.apply(header, header.base_offset)
            return
        aborted = self.states.apply_marker(header, header.base_offset, segment.file.pread(size, position))
        if aborted is not None and self._index:
            segment.transactions.append(aborted)


def rebuilt_producers(
    files: Files, directory: Path, segments: Sequence[Segment], log_start_offset: int, end_offset: int
) -> ProducerStates:
    """The producer state at `end_offset`: the newest intact snapshot, and the batches around it."""
    first = segments[0].base_offset if segments else end_offset
    states = _newest_snapshot(files, directory, first, end_offset)
    if states is None:
        states = ProducerStates(end_offset=log_start_offset)
    _put_before(states, segments)
    replay = Replay(states)
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if segment.base_offset < end_offset and (
            following is None or following.base_offset > states.end_offset
        ):
            _take_in(replay, segment, end_offset)
    states.end_offset = end_offset
    return states


def _newest_snapshot(files: Files, directory: Path, first: int, end: int) -> ProducerStates | None:
    """The newest intact snapshot within the log.

    One below the first segment would miss batches, and a wrong producer state is worse than none.
    """
    for offset in reversed(snapshot_offsets(files, directory)):
        path = directory / file_name(offset, SegmentFile.PRODUCER_SNAPSHOT)
        if not first <= offset <= end:
            continue
        try:
            return ProducerStates(decode_producer_snapshot(files.read(path)), offset)
        except CorruptStorage as error:
            _log.warning("damaged file ignored", extra={"path": str(path), "reason": str(error)})
            files.unlink(path)
    return None


def _put_before(states: ProducerStates, segments: Sequence[Segment]) -> None:
    """Add to a snapshot's producers their batches before it, as far as they are near."""
    earlier, left = _headers_before(segments, states.end_offset), EARLIER_BATCHES
    with suppress(CorruptStorage):  # then it is as without them
        while left > 0 and states.lacks_batches and (headers := next(earlier, None)):
            for header in reversed(headers):
                states.put_before(header)
            left -= len(headers)


def _headers_before(segments: Sequence[Segment], offset: int) -> Iterator[list[BatchHeader]]:
    """The headers before an offset, from one index entry to the next, the last ones first."""
    for segment in reversed(segments):
        if segment.base_offset >= offset:
            continue
        was_open = segment.is_open
        try:
            start = _start_in(segment, offset)
            end = segment.size if start is None else start
            while end > 0:
                start = segment.offsets.lookup_position(end - 1).position
                yield [header for header, _, _ in headers_from(segment.file, start, end)]
                end = start
        finally:
            if not was_open:
                segment.close()


def _take_in(replay: Replay, segment: Segment, end_offset: int) -> None:
    """Apply a segment's batches behind the end of the state."""
    was_open = segment.is_open
    start = _start_in(segment, replay.states.end_offset)
    if start is not None:
        for header, position, size in headers_from(segment.file, start, segment.size):
            if header.base_offset < end_offset:
                replay.take(segment, header, position, size)
    if not was_open:
        segment.close()


def _start_in(segment: Segment, offset: int) -> int | None:
    if offset <= segment.base_offset:
        return 0
    found = locate(segment.file, segment.offsets.lookup(offset).position, segment.size, offset)
    return None if found is None else found.position

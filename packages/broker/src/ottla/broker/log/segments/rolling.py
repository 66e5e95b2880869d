"""Rolling one log: which segment is appended to, and the limits after which the next one begins."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

from ottla.broker.log.append.log_end import LogEnd
from ottla.broker.log.segments.segment import Segment
from ottla.broker.log.segments.segments import SegmentLeftBehind
from ottla.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from ottla.broker.config import LogConfig
    from ottla.broker.log.append.rules import AppendRules
    from ottla.broker.log.flushing import Flushing
    from ottla.broker.log.segments.segments import Segments


class Rollable(Protocol):
    """The parts of a log that rolling reads and changes."""

    log_end: LogEnd
    rules: AppendRules

    @property
    def takes_appends(self) -> bool: ...

    @property
    def config(self) -> LogConfig: ...

    @property
    def segments(self) -> Segments: ...

    @property
    def flushing(self) -> Flushing: ...

    def storage_error(self, error: OSError) -> KafkaStorageError: ...

    def fail(self, error: OSError) -> None: ...


class Rolling:
    """Gives a log the active segment that it appends to."""

    __slots__ = ("_chance", "_log")

    def __init__(self, log: Rollable, chance: random.Random) -> None:
        self._log = log
        self._chance = chance

    def append_to(self, segment: Segment, log_end_offset: int, now_ms: int = 0) -> None:
        """Append to a segment, which is open for writing, from here on."""
        self._log.log_end = LogEnd(segment, log_end_offset, now_ms)
        self.limit_log_end()

    def limit_log_end(self) -> None:
        """Give the log end the limits of the topic's configuration."""
        log, config = self._log, self._log.config
        most_ms = min(config.segment_jitter_ms, config.segment_ms)
        earlier_ms = self._chance.randrange(most_ms) if most_ms > 0 else 0
        if config.compact:  # records of the active segment are not compacted
            earlier_ms += max(0, config.segment_ms - config.max_compaction_lag_ms)
        log.log_end.limit(config, earlier_ms)
        log.log_end.max_plain_bytes = log.rules.max_plain_bytes if log.takes_appends else 0

    def roll(self, now_ms: int, base_offset: int | None = None) -> None:
        """Begin a new segment, at the log's end by default, unless the active one is empty.

        Raises `KafkaStorageError`; when the disk is full, everything stays as it was. The log goes offline
        when files of the new segment are left: a start would drop the records at and above its base offset.
        """
        log, old = self._log, self._log.log_end
        at = old.next_offset if base_offset is None else base_offset
        if not old.position and old.segment.base_offset == at:
            return  # an append always fits an empty segment
        try:
            segment = log.segments.create(at, log.config)
        except OSError as error:
            if isinstance(error, SegmentLeftBehind):
                log.fail(error)
            raise log.storage_error(error) from error
        old.seal()
        log.flushing.segment_sealed(old.segment)
        log.segments.add(segment)
        self.append_to(segment, at, now_ms)
        log.flushing.take_snapshot(at)

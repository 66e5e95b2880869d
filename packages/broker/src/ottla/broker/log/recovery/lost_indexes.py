"""Indexes that another program has cut: find them, log a warning, rebuild them.

The mapping of an index survives the cut (`_index_mapping`), reads of lost entries are slow but not wrong, and
entries that are added after the cut may be lost too. So the active segment is sealed, and the indexes of
sealed segments are rebuilt from their batches.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ottla.broker.log.segments._index_mapping import losses
from ottla.broker.log.state.outcomes import ActiveReopened
from ottla.protocol.errors import KafkaStorageError

if TYPE_CHECKING:
    from ottla.broker.log.hosting.registry import LogRegistry
    from ottla.broker.log.log import Log
    from ottla.broker.log.segments.segment import Segment

_log = logging.getLogger(__name__)


class LostIndexes:
    """Mends the lost indexes of one broker's logs; a look that finds no loss costs nothing."""

    def __init__(self, logs: LogRegistry) -> None:
        self._logs = logs
        self._seen = losses()

    async def mend(self, now_ms: int) -> int:
        """Rebuild the lost indexes; returns how many. After a failure the next loss tries again."""
        if losses() == self._seen:
            return 0
        self._seen = losses()
        return sum([await self._mend(log, now_ms) for log in self._logs])

    async def _mend(self, log: Log, now_ms: int) -> int:
        lost = [segment for segment in log.segments if segment.has_lost_index]
        for segment in lost:
            _log.warning(
                "another program has cut an index",
                extra={"segment": str(segment), "directory": str(log.directory)},
            )
        if lost and lost[-1].active and not self._seal(log, now_ms):
            lost.pop()
        return sum([await self._build(log, segment) for segment in lost])

    def _seal(self, log: Log, now_ms: int) -> bool:
        """Begin a new segment, so that no more is added to the lost entries of this one."""
        segment = log.log_end.segment
        try:
            if not log.log_end.position:
                segment.activate(log.config.segment_index_bytes, keep=False)
                log.apply(ActiveReopened(now_ms))
                return False
            log.roll(now_ms)
        except (OSError, KafkaStorageError) as error:
            _log.warning(
                "damaged index kept", extra={"partition": str(log.topic_partition), "reason": str(error)}
            )
            return False
        return True

    async def _build(self, log: Log, segment: Segment) -> bool:
        if log.segments.replacing is not None or segment not in log.segments.all:
            return False
        segment.pin()  # so that no reader opens a half-built index
        try:
            await asyncio.to_thread(segment.rebuild_lost)
        except OSError as error:
            _log.warning(
                "indexes not rebuilt",
                extra={"segment": str(segment), "directory": str(log.directory), "reason": str(error)},
            )
            return False
        finally:
            segment.unpin()
            segment.close()
        segment.indexes_lost = False
        _log.info("indexes rebuilt", extra={"segment": str(segment), "directory": str(log.directory)})
        return True

"""Indexes that another program has cut: found, said in the log, and built anew.

The mapping of an index survives the cut (`_index_mapping`), reads of lost entries are slow but not wrong, and
entries that are added after the cut may be lost too. So the active segment is sealed, and the indexes of what
is sealed are built anew from its batches.
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

log = logging.getLogger(__name__)


class LostIndexes:
    """Mends the lost indexes of one broker's logs; a look that finds no loss costs nothing."""

    def __init__(self, logs: LogRegistry) -> None:
        self._logs = logs
        self._seen = losses()

    async def mend(self, now_ms: int) -> int:
        """Build the lost indexes anew; returns how many. What fails is tried again at the next loss."""
        if losses() == self._seen:
            return 0
        self._seen = losses()
        return sum([await self._mend(one, now_ms) for one in self._logs])

    async def _mend(self, one: Log, now_ms: int) -> int:
        lost = [segment for segment in one.segments if segment.has_lost_index]
        for segment in lost:
            log.warning("another program has cut an index of %s in %s", segment, one.directory)
        if lost and lost[-1].active and not self._seal(one, now_ms):
            lost.pop()
        return sum([await self._build(one, segment) for segment in lost])

    def _seal(self, one: Log, now_ms: int) -> bool:
        """Begin a new segment, so that no more is added to the lost entries of this one."""
        segment = one.log_end.segment
        try:
            if not one.log_end.position:
                segment.activate(one.config.segment_index_bytes, keep=False)
                one.apply(ActiveReopened(now_ms))
                return False
            one.roll(now_ms)
        except (OSError, KafkaStorageError) as error:
            log.warning("%s keeps a damaged index: %s", one.topic_partition, error)
            return False
        return True

    async def _build(self, one: Log, segment: Segment) -> bool:
        if one.segments.replacing is not None or segment not in one.segments.all:
            return False
        segment.pin()  # nobody opens what is only half built
        try:
            await asyncio.to_thread(segment.rebuild_lost)
        except OSError as error:
            log.warning("the indexes of %s in %s are not built: %s", segment, one.directory, error)
            return False
        finally:
            segment.unpin()
            segment.close()
        segment.indexes_lost = False
        log.info("the indexes of %s in %s are built anew", segment, one.directory)
        return True

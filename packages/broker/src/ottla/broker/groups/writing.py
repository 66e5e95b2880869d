"""Writing group and offset records, and learning whether they are there to stay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.groups.records import KeyValue
from ottla.protocol.errors import KafkaError, RequestTimedOut

if TYPE_CHECKING:
    from ottla.broker.environment import Clock
    from ottla.broker.groups.store import OffsetsStore, Written

log = logging.getLogger(__name__)

_TOMBSTONES_IN_A_BATCH: Final = 1_000


class RecordWriter:
    """Appends to partitions of `__consumer_offsets`; a wait for replicas ends after `timeout_ms`."""

    def __init__(self, store: OffsetsStore, clock: Clock, timeout_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms

    def append(self, partition: int, records: Sequence[KeyValue], *, required_acks: int = -1) -> Written:
        """Append records. Raises what the store raises."""
        return self._store.append(partition, records, self._clock.now_ms(), required_acks=required_acks)

    async def outcome_of(self, written: Written) -> KafkaError | None:
        """Wait until all replicas have it, or return why they do not."""
        assert written.committed is not None
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await written.committed()
        except TimeoutError:
            return RequestTimedOut()
        except KafkaError as error:
            return error
        return None

    def bury(self, partition: int, tombstones: Sequence[KeyValue]) -> None:
        """Write tombstones without waiting: one that is lost is written again when it expires again."""
        for start in range(0, len(tombstones), _TOMBSTONES_IN_A_BATCH):
            try:
                self.append(partition, tombstones[start : start + _TOMBSTONES_IN_A_BATCH], required_acks=1)
            except KafkaError as error:
                log.warning("tombstones not written", extra={"partition": partition, "error": repr(error)})
                return

"""Commit the positions of `ottla consume`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from ottla.consumer.consumer import Consumer
from ottla.consumer.errors import CommitFailed, NoSuchPartitions
from ottla.consumer.record import ConsumerRecord
from ottla.consumer.subscription import RebalanceListener
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

COMMIT_EVERY_S = 5.0
LAST_COMMIT_TIMEOUT_S = 5.0


class PrintedPositions(RebalanceListener):
    """Commits positions at an interval: a command that is killed repeats few records.

    Positions, as they also pass transaction markers and aborted records, and exist for partitions without
    records: the next run continues there. Records that were polled and not printed stay in front of them. As
    a listener it commits before partitions are revoked.
    """

    def __init__(self, consumer: Consumer, *, commits: bool) -> None:
        self._consumer = consumer
        self.any = False
        """Whether a record was printed at all."""
        self._commits = commits
        self._unprinted: dict[TopicPartition, int] = {}
        self._committed_s = asyncio.get_running_loop().time()

    def polled(self, found: Mapping[TopicPartition, Sequence[ConsumerRecord]]) -> None:
        """Note records that are about to be printed. A closed pipe may show only some of them."""
        self._unprinted = {partition: records[0].offset for partition, records in found.items()}

    def printed(self, record: ConsumerRecord) -> None:
        """Count a record as printed."""
        self._unprinted[record.topic_partition] = record.offset + 1

    async def commit_when_due(self) -> None:
        """Commit if the interval has passed; all that was polled is printed."""
        self._unprinted.clear()
        if asyncio.get_running_loop().time() - self._committed_s >= COMMIT_EVERY_S:
            self._committed_s = asyncio.get_running_loop().time()
            await self._commit()

    async def end(self) -> None:
        """Commit for the last time, within a timeout: Ctrl-C should not wait for a cluster that is down."""
        for partition in self._unprinted.keys() & self._consumer.assignment():
            self._consumer.seek(partition, self._unprinted[partition])
        try:
            async with asyncio.timeout(LAST_COMMIT_TIMEOUT_S):
                await self._commit()
        except TimeoutError:
            log.warning("the last offsets were not committed: the cluster does not answer")

    async def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        """Commit while partitions are still assigned; between two polls, all records are printed."""
        await self._commit()

    async def _commit(self) -> None:
        if not self._commits:
            return
        try:
            await self._consumer.commit()
        except (CommitFailed, NoSuchPartitions) as error:
            log.warning("offsets were not committed", extra={"reason": str(error)})

"""Commit the offsets of the records that `ottla consume` printed."""

from __future__ import annotations

import asyncio
import logging

from ottla.consumer.consumer import Consumer
from ottla.consumer.errors import CommitFailed
from ottla.consumer.listener import RebalanceListener
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

COMMIT_EVERY_S = 5.0
LAST_COMMIT_TIMEOUT_S = 5.0


class PrintedOffsets(RebalanceListener):
    """Tracks printed records and commits them at an interval: a command that is killed repeats few records.

    As a listener it commits the printed records of partitions before they are revoked.
    """

    def __init__(self, consumer: Consumer, *, commits: bool) -> None:
        self._consumer = consumer
        self._commits = commits
        self._printed: dict[TopicPartition, int] = {}
        self._committed_s = asyncio.get_running_loop().time()

    def add(self, record: ConsumerRecord) -> None:
        """Count a record as printed. Not when it is polled: a closed pipe has not shown it."""
        self._printed[TopicPartition(record.topic, record.partition)] = record.offset + 1

    async def commit_when_due(self) -> None:
        """Commit if the interval has passed."""
        if asyncio.get_running_loop().time() - self._committed_s >= COMMIT_EVERY_S:
            await self._commit()

    async def end(self) -> None:
        """Commit for the last time, within a timeout: Ctrl-C should not wait for a cluster that is down."""
        try:
            async with asyncio.timeout(LAST_COMMIT_TIMEOUT_S):
                await self._commit()
        except TimeoutError:
            log.warning("the last offsets were not committed: the cluster does not answer")

    async def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        """Commit the printed records of partitions while they are still assigned."""
        await self._commit(revoked)

    def on_partitions_lost(self, lost: frozenset[TopicPartition]) -> None:
        """Forget partitions: other members read from the last commit on."""
        for partition in lost:
            self._printed.pop(partition, None)

    async def _commit(self, only: frozenset[TopicPartition] | None = None) -> None:
        due = {each: offset for each, offset in self._printed.items() if only is None or each in only}
        for partition in due:
            del self._printed[partition]
        if only is None:
            self._committed_s = asyncio.get_running_loop().time()
        if not (self._commits and due):
            return
        try:
            await self._consumer.commit(due)
        except CommitFailed as error:
            log.warning("offsets were not committed: %s", error)

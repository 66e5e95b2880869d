"""How far a reader of records has got, kept under its group's name."""

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


class Progress(RebalanceListener):
    """What was printed, and commits of it now and then: a reader that is killed repeats little.

    As a listener it commits what was printed of partitions before they go to others of the group.
    """

    def __init__(self, consumer: Consumer, *, commits: bool) -> None:
        self._consumer = consumer
        self._commits = commits
        self._printed: dict[TopicPartition, int] = {}
        self._committed_s = asyncio.get_running_loop().time()

    def printed(self, record: ConsumerRecord) -> None:
        """Count a record as read. Not when it is polled: who closes our pipe has not seen it."""
        self._printed[TopicPartition(record.topic, record.partition)] = record.offset + 1

    async def commit_when_due(self) -> None:
        """Commit if the last time is some seconds ago."""
        if asyncio.get_running_loop().time() - self._committed_s >= COMMIT_EVERY_S:
            await self._commit()

    async def end(self) -> None:
        """Commit for the last time, within a bound: whoever presses Ctrl-C does not want to wait."""
        try:
            async with asyncio.timeout(LAST_COMMIT_TIMEOUT_S):
                await self._commit()
        except TimeoutError:
            log.warning("the last offsets were not committed: the cluster does not answer")

    async def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        """Commit what was printed of them, while that is still ours to do."""
        await self._commit(revoked)

    def on_partitions_lost(self, lost: frozenset[TopicPartition]) -> None:
        """Forget them: others read from the last commit on."""
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

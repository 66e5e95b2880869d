"""How far a reader of records has got, kept under its group's name."""

from __future__ import annotations

import asyncio
import logging

from ottla.consumer.consumer import Consumer
from ottla.consumer.record import ConsumerRecord
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

COMMIT_EVERY_S = 5.0
LAST_COMMIT_TIMEOUT_S = 5.0


class Progress:
    """What was printed, and commits of it now and then: a reader that is killed repeats little."""

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

    async def _commit(self) -> None:
        printed, self._printed = self._printed, {}
        self._committed_s = asyncio.get_running_loop().time()
        if self._commits and printed:
            await self._consumer.commit(printed)

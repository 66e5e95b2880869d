"""Commits of a processor: changed partitions at an interval, and before a partition is given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from ottla.client.errors import ClientError
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer import Consumer
from ottla.protocol.errors import KafkaError, OffsetMetadataTooLarge
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import StreamsError
from ottla.streams.scheduling.frontier import CommitPlan
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Commits, Observer, PartitionStates, Plan

LEAST_PAUSE = 0.1
"""The least time between two commits, as a part of the interval."""

log = logging.getLogger(__name__)


class Committer:
    """Commits what the scheduler plans. A refused commit counts as none: the next one repeats it."""

    def __init__(
        self,
        scheduler: Scheduler,
        commits: Commits,
        observer: Observer | None,
        states: PartitionStates | None,
        *,
        timeout_ms: int,
        on_tick: Callable[[], None],
        before_commit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._commits = commits
        self._observer = observer
        self._states = states
        self._timeout_s = timeout_ms / 1_000
        self._on_tick = on_tick
        self._before_commit = before_commit
        self._one_at_a_time = asyncio.Lock()
        self._last_reason: str | None = None

    async def run(self) -> None:
        """Commit at the interval, until cancelled.

        The interval counts from the begin of a commit: one that waited for a rebalance is old when it is
        accepted, and the next follows soon.
        """
        time, interval_s = asyncio.get_running_loop().time, self._commits.interval_ms / 1_000
        due_s = time() + interval_s
        while True:
            await asyncio.sleep(max(due_s - time(), interval_s * LEAST_PAUSE))
            due_s = time() + interval_s
            if self._before_commit is not None:
                await self._before_commit()
            await self.commit()
            self._on_tick()

    async def commit(self, partitions: Iterable[TopicPartition] | None = None) -> bool:
        """Commit finished offsets of partitions, by default all; return whether all are committed.

        A transaction that an earlier call left open is ended even if nothing is due: the next owner of
        revoked partitions waits for its end. Refusals are logged. Raises StreamsError if there can be no
        further commits.
        """
        async with self._one_at_a_time:
            while True:
                plans = self._scheduler.due_commits(partitions)
                if not plans and not self._commits.is_pending:
                    return True
                committed, error = await self._try(plans)
                if not isinstance(error, OffsetMetadataTooLarge) or not self._shrink():
                    break
        self._report(plans if error is not None else committed, error)
        return error is None and len(committed) == len(plans)

    async def _try(self, plans: list[CommitPlan]) -> tuple[Sequence[CommitPlan], Exception | None]:
        """Return which plans are committed; those that are not stay due."""
        try:
            async with asyncio.timeout(self._timeout_s):
                durable = await self._commits.commit(plans)
        except StreamsError:
            raise
        except (ClientError, KafkaError, TimeoutError) as error:
            return (), error
        partitions = {plan.partition for plan in durable}
        committed = [plan for plan in plans if plan.partition in partitions]
        for plan in committed:
            self._scheduler.committed(plan)
            if self._states is not None:
                self._states.committed(plan.partition, plan.offset)
        return committed, None

    def _shrink(self) -> bool:
        """Halve the metadata: this broker's offset.metadata.max.bytes is lower than our limit."""
        limits = self._scheduler.limits
        if not limits.commit_metadata_max_bytes:
            return False
        smaller = limits.commit_metadata_max_bytes // 2
        self._scheduler.limits = replace(limits, commit_metadata_max_bytes=smaller)
        log.warning("the broker refused the size of commit metadata", extra={"now_at_most_bytes": smaller})
        return True

    def _report(self, plans: Sequence[CommitPlan], error: Exception | None) -> None:
        if self._observer is not None and (plans or error is not None):
            self._observer.on_commit(plans, error)
        if error is None:
            self._last_reason = None
            return
        reason = f"{type(error).__name__}: {error}"
        if reason != self._last_reason:
            self._last_reason = reason
            if plans:
                where = ", ".join(f"{plan.partition}@{plan.offset}" for plan in plans)
                log.warning("offsets are not committed", extra={"offsets": where, "reason": reason})
            else:
                log.warning("the last transaction has not ended yet", extra={"reason": reason})


class ConsumerCommits:
    """Commits through the consumer (implements `seams.Commits`)."""

    is_pending = False

    def __init__(self, consumer: Consumer, interval_ms: int) -> None:
        self._consumer = consumer
        self.interval_ms = interval_ms

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        """Commit the offsets with their metadata; return all of the plans."""
        await self._consumer.commit(
            {plan.partition: OffsetAndMetadata(plan.offset, plan.metadata) for plan in plans}
        )
        return plans

"""Follow the assignment: begin, drain and give up partitions, and drain all at the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer import Consumer, RebalanceListener
from ottla.protocol.topics import TopicPartition
from ottla.streams.processing.committing import Committer
from ottla.streams.processing.workers import Workers
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Observer, Outputs, PartitionStates

Partitions = frozenset[TopicPartition]

CANCEL_GRACE_MS = 5_000
"""How long cancelled handlers may take to end; after that their partition is given up all the same."""


class Rebalancing(RebalanceListener):
    """Starts partitions at their commit, and drains those that the processor gives up.

    The consumer awaits these methods apart from its heartbeats and from the delivery of other partitions, so
    a drain holds up nothing but the partitions that it is about.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        consumer: Consumer,
        workers: Workers,
        committer: Committer,
        outputs: Outputs,
        observer: Observer | None,
        states: PartitionStates | None,
        *,
        drain_timeout_ms: int,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._consumer = consumer
        self._workers = workers
        self._committer = committer
        self._outputs = outputs
        self._observer = observer
        self._states = states
        self._drain_timeout_s = drain_timeout_ms / 1_000
        self._fail = fail
        self._restoring: dict[TopicPartition, asyncio.Future[None]] = {}
        """Partitions that are paused until their state is there."""
        self._is_stopping = False

    async def on_partitions_assigned(self, assigned: Partitions) -> None:
        """Read the commits of partitions, and start there."""
        if not assigned or self._is_stopping:
            return
        committed = await self._consumer.committed_offsets(assigned)
        found = {partition: committed.get(partition) for partition in sorted(assigned)}
        restoring = {} if self._states is None else await self._restore(self._states, found)
        for partition, commit in found.items():
            if commit is not None:
                self._consumer.seek(partition, commit)
            if self._observer is not None:
                self._observer.on_assigned(partition, None if commit is None else commit.offset)
            waiting = restoring.get(partition)
            if waiting is None:
                self._begin(partition, commit)
            else:
                self._consumer.pause(partition)
                self._restoring[partition] = waiting
                waiting.add_done_callback(partial(self._restored, partition, commit))

    async def _restore(
        self, states: PartitionStates, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> dict[TopicPartition, asyncio.Future[None] | None]:
        """Restore state; return the partitions for which that takes longer than a rebalance may."""
        try:
            async with asyncio.TaskGroup() as tasks:
                restored = {
                    partition: tasks.create_task(
                        states.assigned(partition, None if found is None else found.offset),
                        name=f"restore {partition}",
                    )
                    for partition, found in committed.items()
                }
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others failed alike, or were cancelled
        return {partition: task.result() for partition, task in restored.items()}

    def _restored(
        self, partition: TopicPartition, commit: OffsetAndMetadata | None, waiting: asyncio.Future[None]
    ) -> None:
        """The state of a paused partition is there: its records are taken in from now on."""
        if self._restoring.get(partition) is not waiting:
            return  # revoked meanwhile
        del self._restoring[partition]
        error = None if waiting.cancelled() else waiting.exception()
        if error is not None:
            self._fail(error)
        elif not waiting.cancelled() and partition in self._consumer.assignment():
            self._begin(partition, commit)
            self._consumer.resume(partition)

    def _begin(self, partition: TopicPartition, commit: OffsetAndMetadata | None) -> None:
        if commit is None:
            self._scheduler.assign(partition, None)
        else:
            # The position and the metadata must be those of the same commit.
            self._scheduler.assign(partition, commit.offset, commit.metadata)

    async def on_partitions_revoked(self, revoked: Partitions) -> None:
        """Wait for running handlers within the drain's bound, and commit."""
        await self._drain(self._held & revoked)

    async def on_partitions_lost(self, lost: Partitions) -> None:
        """Cancel handlers: other members may handle these records already. Nothing is committed."""
        self._give_up(self._held & lost, lost=True)
        self._workers.cancel(lost)

    async def stop(self) -> None:
        """Drain all partitions; later ones are not started."""
        self._is_stopping = True
        await self._drain(self._held)

    async def abandon(self) -> None:
        """Give up all partitions at once, without a commit; later ones are not started."""
        self._is_stopping = True
        await self.on_partitions_lost(self._held)

    @property
    def _held(self) -> Partitions:
        """The partitions whose records are handled, or whose state is restored."""
        return self._scheduler.partitions | frozenset(self._restoring)

    async def _drain(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._scheduler.revoke(partition)
        if not await self._drained(partitions, self._drain_timeout_s):
            self._workers.cancel(partitions)
            await self._drained(partitions, CANCEL_GRACE_MS / 1_000)
        try:
            await self._committer.commit(self._scheduler.partitions & partitions)
        finally:
            self._give_up(partitions, lost=False)

    async def _drained(self, partitions: Partitions, timeout_s: float) -> bool:
        """Wait until no work of partitions runs; return false after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(self._scheduler.is_drained(partition) for partition in partitions):
                    await self._workers.progress()
        except TimeoutError:
            return False
        return True

    def _give_up(self, partitions: Iterable[TopicPartition], *, lost: bool) -> None:
        for partition in partitions:
            self._restoring.pop(partition, None)
            self._scheduler.unassign(partition)
            self._outputs.revoked(partition)
            if self._states is not None:
                self._states.revoked(partition)
            if self._observer is not None:
                self._observer.on_revoked(partition, lost=lost)

"""Resolve the position of each partition that lacks one, and validate positions after a leader change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ottla.client.cluster import Cluster
from ottla.client.environment import chance
from ottla.client.errors import ClientError
from ottla.consumer.fetch.positions import PartitionState, Positions, snapshot, unchanged
from ottla.consumer.fetch.resolution_steps import ResolutionStep, fail, is_transient
from ottla.consumer.fetch.state_change_notifier import StateChangeNotifier
from ottla.protocol.errors import KafkaError


@dataclass(frozen=True, slots=True)
class _Worker:
    step: ResolutionStep
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class PositionResolver:
    """Runs each resolution step for the partitions that need it, with backoff, in a task of its own.

    Steps do not wait for each other: while a coordinator is unreachable, requests to leaders continue.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        notifier: StateChangeNotifier,
        steps: Sequence[ResolutionStep],
        *,
        on_resolved: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._notifier = notifier
        self._workers = [_Worker(step) for step in steps]
        self._on_resolved = on_resolved

    def wake(self) -> None:
        """Check which partitions need a step."""
        for worker in self._workers:
            worker.wake.set()

    async def run(self) -> None:
        """Resolve positions as needed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(self._run_step(worker))

    async def _run_step(self, worker: _Worker) -> None:
        attempt = 0
        while True:
            worker.wake.clear()
            states = [state for state in self._positions if worker.step.is_needed(state)]
            if await self._try(worker.step, states):
                attempt = 0
                await worker.wake.wait()
            else:
                delay_ms = self._cluster.backoff.delay_ms(attempt, chance())
                attempt += 1
                await asyncio.sleep(delay_ms / 1_000)

    async def _try(self, step: ResolutionStep, states: list[PartitionState]) -> bool:
        if not states:
            return True
        before = snapshot(states)
        try:
            is_done = await step.resolve(states)
        except (ClientError, KafkaError) as error:
            is_done = not is_transient(error)
            fail(unchanged(states, before), error)
        self._on_resolved()
        self._notifier.notify()
        return is_done

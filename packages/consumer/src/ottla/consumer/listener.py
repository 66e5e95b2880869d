"""The listener of rebalances, and how its methods are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from ottla.consumer.errors import ListenerFailed
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]


class RebalanceListener:
    """Is called when partitions are assigned, revoked or lost. Methods may be plain or `async`.

    No record of these partitions is delivered while a method runs. An exception of a method is raised to the
    application by its next call to the consumer; the rebalance continues.
    """

    def on_partitions_revoked(self, revoked: Partitions) -> Awaitable[None] | None:
        """Commit for partitions before they are assigned to others. Never called without partitions."""
        return None

    def on_partitions_assigned(self, assigned: Partitions) -> Awaitable[None] | None:
        """Seek in new partitions before they are read. Called after every rebalance, even with none."""
        return None

    def on_partitions_lost(self, lost: Partitions) -> Awaitable[None] | None:
        """Partitions were lost, and others may read them already: commits for them fail."""
        return self.on_partitions_revoked(lost)


async def tell(listener: Any, what: str, partitions: Partitions, timeout_s: float) -> None:
    """Call a method of a listener, and await it if it is async. Raises ListenerFailed after the timeout.

    Any object with the methods is a listener. `on_partitions_revoked` stands in for a missing
    `on_partitions_lost`.
    """
    method = getattr(listener, f"on_partitions_{what}", None)
    if method is None and what == "lost":
        method = listener.on_partitions_revoked
    answer = method(partitions) if method is not None else None
    if not inspect.isawaitable(answer):
        return
    scope = asyncio.timeout(timeout_s)
    try:
        async with scope:
            await _uncancelled(answer, what)
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise ListenerFailed(
            f"on_partitions_{what} did not end within {timeout_s:g} s (max_poll_interval_ms)"
        ) from error


async def _uncancelled(answer: Awaitable[object], what: str) -> None:
    """Await a listener. If it was cancelled, and this task was not, it failed: nothing else reports that."""
    try:
        await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ListenerFailed(f"on_partitions_{what} was cancelled") from error

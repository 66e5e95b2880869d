"""Listening to a consumer's partitions as they come and go."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import Any

from ottla.consumer.errors import ListenerFailed
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]


class RebalanceListener:
    """Hears which partitions a consumer is given and which are taken. Methods may be plain or `async`.

    No record of the partitions in question is given out while a method runs. What a method raises reaches the
    application with its next call to the consumer; the rebalance goes on all the same.
    """

    def on_partitions_revoked(self, revoked: Partitions) -> Awaitable[None] | None:
        """Partitions go to others after this: the last time to commit for them. Never called with none."""
        return None

    def on_partitions_assigned(self, assigned: Partitions) -> Awaitable[None] | None:
        """New partitions are there: the time to seek. Called after every rebalance, even with none."""
        return None

    def on_partitions_lost(self, lost: Partitions) -> Awaitable[None] | None:
        """Partitions were taken without warning, and others may read them already: no commit will work."""
        return self.on_partitions_revoked(lost)


async def tell(listener: Any, what: str, partitions: Partitions, timeout_s: float) -> None:
    """Call one method of a listener, and wait for it if it is async. Raises ListenerFailed after the timeout.

    Any object will do that has the methods, but `on_partitions_lost`, for which revoked is called then.
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
    """Await a listener. One that was cancelled, and not we with it, has failed: nobody else would hear."""
    try:
        await answer
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ListenerFailed(f"on_partitions_{what} was cancelled") from error

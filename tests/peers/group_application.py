"""A consumer without fetching, to observe the effects of a group membership."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.config import ClientConfig
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer.group.commits import AutoCommit, Commits
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.consumer_group import membership_class
from ottla.consumer.subscription import Subscription
from ottla.protocol.topics import TopicPartition

Partitions = frozenset[TopicPartition]
PATIENCE_S = 60.0
LOOK_EVERY_S = 0.005


class GroupApplication:
    """Owns partitions and records how they were assigned; a test sets its answers."""

    def __init__(self) -> None:
        self.partitions: Partitions = frozenset()
        self.held: Partitions = frozenset()
        self.finished: dict[TopicPartition, OffsetAndMetadata] = {}
        self.events: list[tuple[str, Partitions]] = []
        self.asks = True
        self.handles = False
        self.membership: Any = None
        self.commits: Commits = None  # type: ignore[assignment]

    # --- called by a membership

    def owned(self) -> Partitions:
        return self.partitions

    def hold(self, partitions: Partitions) -> None:
        self.held |= partitions

    def release(self, partitions: Partitions) -> None:
        self.held -= partitions
        self._note("released", partitions)

    async def revoke(self, partitions: Partitions) -> None:
        assert partitions <= self.held, "nothing is revoked that is still given out"
        self.partitions -= partitions
        self._note("revoked", partitions)

    async def lost(self, partitions: Partitions) -> None:
        self.partitions -= partitions
        self._note("lost", partitions)

    async def assign(self, partitions: Partitions, added: Partitions) -> None:
        assert added == partitions - self.partitions
        self.partitions = partitions
        self.held |= added

    def was_polled(self) -> bool:
        return self.asks

    def is_handling(self, partitions: Partitions) -> bool:
        return self.handles

    def has_lost_records(self) -> bool:
        return False

    def keeps(self, partitions: Iterable[TopicPartition]) -> bool:
        return self.membership.keeps_partitions and self.partitions.issuperset(partitions)

    # --- called by tests

    def numbers(self) -> list[int]:
        """Return the partitions that are owned and released for reading, by number."""
        return sorted(each.partition for each in self.partitions - self.held)

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        """Wait until a condition holds."""
        for _ in range(int(PATIENCE_S / LOOK_EVERY_S)):
            if holds():
                return
            await asyncio.sleep(LOOK_EVERY_S)
        raise AssertionError(f"{what} did not come about: {self.numbers()}, {self.events}")

    async def until_owning(self, *numbers: int) -> None:
        """Wait until exactly these partitions are owned and released for reading."""
        await self.until(lambda: self.numbers() == list(numbers), f"owning {numbers}")

    def _note(self, what: str, partitions: Partitions) -> None:
        self.events.append((what, partitions))


@asynccontextmanager
async def group_application(
    servers: str, subscription: Subscription, *, listener: Any = None, **settings: Any
) -> AsyncIterator[GroupApplication]:
    """Yield a member of a group; it leaves at the end, unless `close` was replaced."""
    config = GroupConfig(**{"heartbeat_interval_ms": 200, "session_timeout_ms": 6_000} | settings)
    application = GroupApplication()
    async with Cluster(servers, ClientConfig(retry_backoff_ms=20)) as cluster:
        application.commits = Commits(
            cluster,
            config.group_id,
            lambda: application.membership.committer(),
            keeps=lambda partitions: application.keeps(partitions),
        )
        auto = AutoCommit(application.commits, lambda: application.finished, config.auto_commit_interval_ms)
        application.membership = membership_class(config)(cluster, config, application, auto)
        application.membership.subscribe(subscription, listener)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(application.membership.run())
            regular = tasks.create_task(auto.run())
            try:
                yield application
                await application.membership.close()
            finally:
                running.cancel()
                regular.cancel()
        await application.commits.close()


def outside(group_id: str) -> GroupMetadata:
    """Return a client for a group without members."""
    return GroupMetadata(group_id)

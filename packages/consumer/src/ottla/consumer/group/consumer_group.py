"""A consumer's group: its membership, its commits, and automatic commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ottla.client.cluster import Cluster
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer.group.commits import AutoCommit, Commits, Offsets
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.membership import Membership
from ottla.consumer.group.participation import Application, Participation
from ottla.consumer.metrics import ConsumerMetrics
from ottla.consumer.subscription import Subscription
from ottla.protocol.topics import TopicPartition

POLL_EVERY_S = 0.05


class ConsumerGroup:
    """Owns what a consumer does with its group, and says in whose name offsets are committed.

    A consumer that is not subscribed, because partitions were assigned by hand, commits for the group without
    being a member of it.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: GroupConfig,
        application: Application,
        *,
        finished_offsets: Callable[[], dict[TopicPartition, OffsetAndMetadata]],
        is_subscribed: Callable[[], bool],
        on_commit: Callable[[Offsets], None],
        wake: Callable[[], None],
        metrics: ConsumerMetrics,
    ) -> None:
        self._config = config
        self._application = application
        self._is_subscribed = is_subscribed
        self.commits = Commits(
            cluster,
            config.group_id,
            self._committer,
            keeps=self._keeps,
            on_commit=on_commit,
            metrics=metrics,
        )
        self._auto_commit: AutoCommit | None = None
        if config.enable_auto_commit:
            self._auto_commit = AutoCommit(self.commits, finished_offsets, config.auto_commit_interval_ms)
        self._membership = membership_class(config)(
            cluster, config, application, self._auto_commit, wake=wake, metrics=metrics
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._running: list[asyncio.Task[None]] = []
        self._has_joined = False

    # --- lifetime

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start automatic commits; `join` may be called from now on."""
        self._tasks = tasks
        if self._auto_commit is not None:
            self._running.append(tasks.create_task(self._auto_commit.run()))

    def join(self) -> None:
        """Start the membership, unless it runs already or the consumer is not open."""
        if self._tasks is not None and not self._has_joined:
            self._has_joined = True
            self._running.append(self._tasks.create_task(self._membership.run()))

    async def first_assignment(self, timeout_s: float, stopping: asyncio.Event) -> None:
        """Wait for the first assignment, within a timeout: other members may hold up the rebalance."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._membership.is_stable and not stopping.is_set():
                    self._membership.polled()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._membership.stable(), POLL_EVERY_S)

    async def leave(self) -> None:
        """Commit finished records and leave the group."""
        await self.commits.settle(self._config.close_timeout_ms / 3_000)
        if self._has_joined:
            await self._membership.close()
        elif self._auto_commit is not None:
            await self._auto_commit.commit(timeout_s=self._config.close_timeout_ms / 1_000)

    async def close(self) -> None:
        """End the tasks and close the connection for commits."""
        self._tasks = None
        for task in self._running:
            task.cancel()
        await self.commits.close()

    # --- membership

    def subscribe(self, subscription: Subscription, listener: Any) -> None:
        """Join the group for topics, or change the subscription."""
        self._membership.subscribe(subscription, listener)
        self.join()

    def unsubscribe(self) -> None:
        """Revoke all partitions and leave the group."""
        self._membership.unsubscribe()

    def polled(self) -> None:
        """Note that the application asks for records. Raises what the group or the listener failed with."""
        self._membership.polled()

    def metadata(self) -> GroupMetadata:
        """Return the member for a producer that commits offsets of the group (KIP-447)."""
        if self._is_member:
            return self._membership.group_metadata()
        return GroupMetadata(self._config.group_id)

    @property
    def session_ends_s(self) -> float | None:
        """The loop's time until which the coordinator keeps the member; None outside of the group."""
        return self._membership.session_ends_s

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of partitions; those without one are left out."""
        return await self.commits.committed(partitions, require_stable=self._config.require_stable)

    @property
    def _is_member(self) -> bool:
        # After `unsubscribe`, finished offsets are still committed in the name of the member that leaves.
        return self._is_subscribed() or self._membership.is_involved

    def _committer(self) -> GroupMetadata | None:
        """Return the member to commit for; None while the group continues without this consumer."""
        if self._is_member:
            return self._membership.committer()
        return GroupMetadata(self._config.group_id)

    def _keeps(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether partitions stay assigned to this consumer during a rebalance."""
        return self._membership.keeps_partitions and self._application.owned().issuperset(partitions)


def membership_class(config: GroupConfig) -> Callable[..., Participation[Any, Any]]:
    """Return the class of memberships of the protocol that is configured."""
    if config.group_protocol == "classic":
        return Membership
    # Imported here: most consumers are members of classic groups.
    from ottla.consumer.group.assigned_membership import AssignedMembership

    return AssignedMembership

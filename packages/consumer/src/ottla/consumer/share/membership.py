"""The membership in a share group: its heartbeats, and what its assignment means to the fetcher."""

from __future__ import annotations

from collections.abc import Callable

from ottla.consumer.group.assigned_member import Answered, Beat, LeaveGroup
from ottla.consumer.group.assigned_membership import assignment_of
from ottla.consumer.group.config import GroupConfig
from ottla.consumer.group.coordinator_connection import CoordinatorConnection
from ottla.consumer.group.rebalance_events import Partitions
from ottla.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


class ShareHeartbeats:
    """The heartbeats of share groups (KIP-932)."""

    def __init__(self, coordinator: CoordinatorConnection, config: GroupConfig) -> None:
        self._coordinator = coordinator
        self._config = config

    async def matches_patterns(self) -> bool:
        """Return false: share groups subscribe to names, and members match patterns."""
        return False

    async def beat(self, effect: Beat) -> Answered:
        """Send a heartbeat with what changed since the last one, and return its answer."""
        request = ShareGroupHeartbeatRequest(
            group_id=self._config.group_id, member_id=effect.member_id, member_epoch=effect.epoch
        )
        if effect.before is None:
            request.rack_id = self._config.client_rack
        if effect.before is None or effect.before.topics != effect.report.topics:
            request.subscribed_topic_names = list(effect.report.topics)
        answer = await self._coordinator.send(request, ShareGroupHeartbeatResponse)
        return Answered(
            effect.token, answer.error_code, answer.error_message, answer.member_id or "",
            answer.member_epoch, answer.heartbeat_interval_ms,
            None if answer.assignment is None else assignment_of(answer.assignment.topic_partitions),
        )  # fmt: skip

    async def leave(self, effect: LeaveGroup) -> None:
        """Send the last heartbeat."""
        request = ShareGroupHeartbeatRequest(
            group_id=self._config.group_id, member_id=effect.member_id, member_epoch=effect.epoch
        )
        await self._coordinator.send(request, ShareGroupHeartbeatResponse)


class ShareAssignment:
    """The assigned partitions (implements `participation.Application`).

    Members share partitions, and acquired records stay acquired without an assignment: nothing is handed
    over.
    """

    def __init__(self, on_change: Callable[[], None], was_polled: Callable[[], bool]) -> None:
        self.partitions: Partitions = frozenset()
        self._on_change = on_change
        self._was_polled = was_polled

    def owned(self) -> Partitions:
        """Return the assigned partitions."""
        return self.partitions

    def hold(self, partitions: Partitions) -> None:
        """Do nothing: others read these partitions all the time."""

    def release(self, partitions: Partitions) -> None:
        """Do nothing: nothing was held."""

    async def revoke(self, partitions: Partitions) -> None:
        """Unassign partitions."""
        self.partitions -= partitions
        self._on_change()

    async def lost(self, partitions: Partitions) -> None:
        """Unassign partitions."""
        await self.revoke(partitions)

    async def assign(self, partitions: Partitions, added: Partitions) -> None:
        """Assign exactly these partitions."""
        self.partitions = partitions
        self._on_change()

    def was_polled(self) -> bool:
        """Return whether the application asked for records since the last call of this, or waits for some."""
        return self._was_polled()

    def is_handling(self, partitions: Partitions) -> bool:
        """Return false: acquired records may be acknowledged after their partition was unassigned."""
        return False

    def has_lost_records(self) -> bool:
        """Return false, for the same reason."""
        return False

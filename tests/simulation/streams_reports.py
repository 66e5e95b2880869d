"""Reports of members of a streams group, each compared with the log of the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.broker.groups.streams.tasks import Tasks, each_task
from simulation.invariant_violated import InvariantViolated
from simulation.member_reports import MemberReports

if TYPE_CHECKING:
    from simulation.group_cluster import GroupCluster
    from simulation.logged_streams import LoggedStreamsGroup
    from simulation.streams_members import StreamsMember


class StreamsReports(MemberReports):
    """Compares what members report with the log; each method raises InvariantViolated."""

    def __init__(
        self, cluster: GroupCluster, logged: LoggedStreamsGroup, members: Sequence[StreamsMember]
    ) -> None:
        # Both logs have members, and say since when one has a partition.
        super().__init__(cluster, logged, members)  # type: ignore[arg-type]
        self._streams, self._threads = logged, members
        self.begun = 0
        """How often an active task was begun."""

    def check_begun(self, member: StreamsMember, goal: Tasks) -> None:
        """Raise InvariantViolated if another member of the group has what this one begins."""
        present = self._streams.update().members
        active = frozenset(each_task(goal.active)) - member.running
        replicas = frozenset([*each_task(goal.standby), *each_task(goal.warmup)]) - member.replicas
        self.begun += len(active)
        if member.member_id not in present:
            return  # it was fenced, and does not know it
        for other in self._threads:
            if other is member or other.member_id not in present:
                continue
            if both := other.running & active:
                raise InvariantViolated(f"{min(both)} runs in {other} and in {member}")
            if other.process_id != member.process_id:
                continue
            if both := (other.running & replicas) | (other.replicas & (active | replicas)):
                raise InvariantViolated(f"{min(both)} is twice in one process: {other} and {member}")

"""Racks of members and replicas, as the sticky assignors look at them (KIP-881)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.consumer.assignors.contract import MemberSubscription, TopicRacks, uses_racks
from ottla.protocol.topics import TopicPartition


class Racks:
    """Who is near what. Without racks that matter everybody is as near as everybody else."""

    def __init__(self, topics: TopicRacks, members: Mapping[str, MemberSubscription]) -> None:
        of_members = {member_id: member.rack for member_id, member in members.items() if member.rack}
        of_partitions = {
            TopicPartition(topic, index): racks
            for topic, listed in topics.items()
            for index, racks in enumerate(listed)
        }
        self.matter = uses_racks(of_members.values(), list(of_partitions.values()))
        self._members = of_members if self.matter else {}
        self._partitions = of_partitions if self.matter else {}
        # Java counts the members near a partition even where racks do not matter; it orders by nothing else.
        self._near = {
            partition: sum(rack in racks for rack in of_members.values())
            for partition, racks in (of_partitions.items() if of_members else ())
        }

    def mismatch(self, member_id: str, partition: TopicPartition) -> bool:
        """Say whether a member has a rack, and no replica is there."""
        rack = self._members.get(member_id)
        return rack is not None and rack not in self._partitions.get(partition, ())

    def both_near(self, member_id: str, other_id: str, partition: TopicPartition) -> bool:
        """Say whether two members have replicas in their racks."""
        racks = self._partitions.get(partition, frozenset())
        return self._members.get(member_id) in racks and self._members.get(other_id) in racks

    def rarest_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions by how many members are near them."""
        if not self._near:
            return partitions
        return sorted(partitions, key=lambda partition: self._near.get(partition, 0))

    def next_near(self, partition: TopicPartition, member_ids: Sequence[str], first: int) -> int | None:
        """Return the place of the next member that is near, going round from `first`."""
        racks = self._partitions.get(partition, frozenset())
        for step in range(len(member_ids) if racks else 0):
            place = (first + step) % len(member_ids)
            if self._members.get(member_ids[place]) in racks:
                return place
        return None

"""Racks of members and replicas, for the sticky assignors (KIP-881)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.consumer.assignors.assignor import MemberSubscription, TopicRacks, uses_racks
from ottla.protocol.topics import TopicPartition


class Racks:
    """Which members are in a rack of which partition; if racks have no effect, none is."""

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
        # Java counts the members near a partition even if racks have no effect, and orders by that count.
        self._near = {
            partition: sum(rack in racks for rack in of_members.values())
            for partition, racks in (of_partitions.items() if of_members else ())
        }

    def mismatch(self, member_id: str, partition: TopicPartition) -> bool:
        """Return whether a member has a rack without a replica."""
        rack = self._members.get(member_id)
        return rack is not None and rack not in self._partitions.get(partition, ())

    def rarest_first(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Sort partitions by the number of members in their racks."""
        if not self._near:
            return partitions
        return sorted(partitions, key=lambda partition: self._near.get(partition, 0))

    def next_near(self, partition: TopicPartition, member_ids: Sequence[str], first: int) -> int | None:
        """Return the index of the next member in a rack of the partition, from `first` on, circularly."""
        racks = self._partitions.get(partition, frozenset())
        for step in range(len(member_ids) if racks else 0):
            index = (first + step) % len(member_ids)
            if self._members.get(member_ids[index]) in racks:
                return index
        return None

"""Sticky assignment for members with equal subscriptions.

Members keep partitions up to their share; the others are assigned in turn. Shares differ by one at most:
`floor` and `ceil` of partitions by members, and as many members get the larger one as there is a remainder.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.consumer.assignors.assignor import Racks, TopicRacks
from ottla.protocol.topics import TopicPartition

Given = dict[str, list[TopicPartition]]


class ConstrainedStickyAssignment:
    """Builds one assignment; call `build` once.

    `owned` has the partitions that each member keeps if possible. Several members claimed those of
    `disputed`: no member keeps them. `transferred` has the new owners of partitions that others must revoke
    first.
    """

    def __init__(
        self,
        topics: TopicRacks,
        racks: Racks,
        owned: Mapping[str, list[TopicPartition]],
        disputed: set[TopicPartition],
    ) -> None:
        self.transferred: dict[TopicPartition, str] = {}
        self._all = [
            TopicPartition(name, index) for name in sorted(topics) for index in range(len(topics[name]))
        ]
        self._racks = racks
        self._owned = owned
        self._disputed = disputed
        self._given: Given = {member_id: [] for member_id in owned}
        self._least, self._larger_shares = divmod(len(self._all), len(owned))
        self._most = self._least + (self._larger_shares > 0)
        self._with_most = 0
        self._revoked: set[TopicPartition] = set()
        self._below_least: list[str] = []
        self._at_least: list[str] = []

    def build(self) -> Given:
        """Return each member's partitions."""
        for member_id, partitions in self._owned.items():
            self._keep(member_id, self._worth_keeping(member_id, partitions))
        kept = {partition for partitions in self._given.values() for partition in partitions}
        self._below_least.sort()
        self._at_least.sort()
        left = self._racks.rarest_first([partition for partition in self._all if partition not in kept])
        self._deal(self._deal_by_rack(left) if self._racks.matter else left)
        return self._given

    def _worth_keeping(self, member_id: str, partitions: list[TopicPartition]) -> list[TopicPartition]:
        far = {partition for partition in partitions if self._racks.mismatch(member_id, partition)}
        self._revoked |= far
        kept = [
            partition for partition in partitions if partition not in self._disputed and partition not in far
        ]
        # By partition number first, so that lost partitions are spread over the topics.
        return sorted(kept, key=lambda each: (each.partition, each.topic))

    def _keep(self, member_id: str, had: list[TopicPartition]) -> None:
        if len(had) < self._least:
            self._given[member_id] += had
            self._below_least.append(member_id)
            return
        larger = len(had) >= self._most and self._with_most < self._larger_shares
        share = self._most if larger else self._least
        self._given[member_id] += had[:share]
        self._revoked.update(had[share:])
        if larger:
            self._count_larger_share()
        elif self._with_most < self._larger_shares:
            self._at_least.append(member_id)

    def _count_larger_share(self) -> None:
        self._with_most += 1
        if self._with_most == self._larger_shares:
            self._at_least.clear()

    def _deal_by_rack(self, left: list[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions to members in their racks; return those without such a member below its share."""
        turn = 0
        far: list[TopicPartition] = []
        for partition in left:
            index = self._racks.next_near(partition, self._below_least, turn)
            if index is not None:
                turn = self._give_in_turn(partition, index)
            elif not self._give_near_at_least(partition):
                far.append(partition)
        return far

    def _give_in_turn(self, partition: TopicPartition, index: int) -> int:
        """Assign to a member below its least share; return the index of the next member."""
        member_id = self._below_least[index]
        count = self._give(partition, member_id)
        if count >= self._least:
            del self._below_least[index]
            if count < self._most and self._with_most < self._larger_shares:
                self._at_least.append(member_id)
        else:
            index += 1
        return index % len(self._below_least) if self._below_least else 0

    def _give_near_at_least(self, partition: TopicPartition) -> bool:
        index = self._racks.next_near(partition, self._at_least, 0)
        if index is None:
            return False
        if self._give(partition, self._at_least[index]) == self._most:
            del self._at_least[index]
            self._count_larger_share()
        return True

    def _deal(self, left: list[TopicPartition]) -> None:
        """Assign to members below their least share in turn, then one more to members that have it."""
        turn = 0
        for partition in left:
            if not self._below_least:
                self._give(partition, self._at_least.pop(0))
                continue
            turn = turn if turn < len(self._below_least) else 0
            member_id = self._below_least[turn]
            if self._give(partition, member_id) == self._least:
                del self._below_least[turn]
                self._at_least.append(member_id)
            else:
                turn += 1

    def _give(self, partition: TopicPartition, member_id: str) -> int:
        self._given[member_id].append(partition)
        # Its owner must revoke it first. A partition released for its rack may return to its owner.
        revoked = partition in self._revoked and partition not in self._owned[member_id]
        if revoked or partition in self._disputed:
            self.transferred[partition] = member_id
        return len(self._given[member_id])

"""The round-robin assignor: all partitions in one row, dealt out to the members in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.consumer.assignors.assignor import Assigned, MemberSubscription, RebalanceProtocol, TopicRacks
from ottla.protocol.topics import TopicPartition


class RoundRobinAssignor:
    """Deals the partitions of all topics out; a member that does not read a topic is passed over."""

    name = "roundrobin"
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        """Return nothing: members need not be known for this."""
        return None

    def assign(
        self, topics: TopicRacks, members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        """Return each member's partitions."""
        given: dict[str, list[TopicPartition]] = {member_id: [] for member_id in members}
        turns = sorted(members, key=lambda member_id: members[member_id].order(member_id))
        turn = 0
        for topic in sorted(topics):
            readers = {member_id for member_id in turns if topic in members[member_id].topics}
            for index in range(len(topics[topic]) if readers else 0):
                while turns[turn] not in readers:
                    turn = (turn + 1) % len(turns)
                given[turns[turn]].append(TopicPartition(topic, index))
                turn = (turn + 1) % len(turns)
        return given

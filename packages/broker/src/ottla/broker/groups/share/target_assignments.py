"""The target assignment of a share group, made in steps, and what members read that it does not have yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from uuid import UUID

from ottla.broker.groups.assigned.topics import GroupTopics, add
from ottla.broker.groups.share.assignor import Assignment, assign
from ottla.broker.groups.share.members import NOTHING, ShareMember
from ottla.broker.groups.streams.java_collections import hash_map_order


def changed_targets(
    members: Mapping[str, ShareMember],
    topics: GroupTopics,
    initialized: Assignment,
    current: Mapping[str, Assignment],
) -> Generator[None, None, dict[str, Assignment]]:
    """Assign the initialized partitions; return the members that shall have others, with theirs."""
    ids: dict[frozenset[str], frozenset[UUID]] = {}
    subscriptions: dict[str, frozenset[UUID]] = {}
    for member_id in hash_map_order(members):
        names = members[member_id].topics
        if names not in ids:
            ids[names] = topics.ids_of(names)
            yield
        subscriptions[member_id] = ids[names]
    targets = yield from assign(subscriptions, initialized, current)
    return {name: target for name, target in targets.items() if target != current.get(name)}


class Coverage:
    """Counts the readers of each topic, and the targets of each partition, as members change."""

    def __init__(self) -> None:
        self.readers: Counter[str] = Counter()
        """How many members read a topic."""
        self._targets: dict[UUID, Counter[int]] = {}

    def read(self, before: ShareMember | None, after: ShareMember | None) -> bool:
        """Count a member that changes; return whether it reads other topics than before."""
        had, has = (frozenset[str]() if member is None else member.topics for member in (before, after))
        add(self.readers, had - has, -1)
        add(self.readers, has - had, 1)
        return had != has

    def topics_with(self, before: ShareMember | None, after: ShareMember) -> set[str]:
        """Return the topics that members read once a member's change is stored."""
        gone = () if before is None else before.topics - after.topics
        return self.readers.keys() - {name for name in gone if self.readers[name] == 1} | after.topics

    def topics_without(self, members: Iterable[ShareMember]) -> set[str]:
        """Return the topics that others than these members read."""
        left = self.readers.copy()
        for member in members:
            left.subtract(member.topics)
        return {name for name, count in left.items() if count > 0}

    def assigned(self, before: Assignment, after: Assignment) -> None:
        """Count the target of a member that changes."""
        for target, by in ((before, -1), (after, 1)):
            for topic, numbers in target.items():
                counts = self._targets.setdefault(topic, Counter())
                add(counts, numbers, by)
                if not counts:
                    del self._targets[topic]

    def is_target_of_any(self, topic: UUID, numbers: Collection[int]) -> bool:
        """Return whether each of these partitions is in the target of a member."""
        counts = self._targets.get(topic, NOTHING)
        return all(number in counts for number in numbers)

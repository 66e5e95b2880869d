"""How far a group is in each of its partitions: committed offset, log end, lag and owner."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.admin.groups import GroupDescription, Groups, MemberDescription
from ottla.admin.offsets import LATEST, Offsets
from ottla.admin.topics import Topics
from ottla.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """The progress of a group in a partition that it has committed or that a member owns.

    `offset` is None without a commit, `end_offset` for a partition that was deleted or whose leader is away.
    """

    partition: TopicPartition
    offset: int | None
    end_offset: int | None
    owner: MemberDescription | None = None

    @property
    def lag(self) -> int | None:
        """Records still to be read; negative for a commit beyond the end, as in Kafka; None if not known."""
        if self.offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.offset


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group with its members, and its progress by partition, sorted."""

    description: GroupDescription
    partitions: tuple[PartitionProgress, ...]

    @property
    def beyond_the_end(self) -> list[PartitionProgress]:
        """Partitions whose commit is beyond the end: `auto_offset_reset` decides where the group goes on."""
        return [partition for partition in self.partitions if partition.lag is not None and partition.lag < 0]


async def read_progress(groups: Groups, offsets: Offsets, topics: Topics, name: str) -> GroupProgress:
    """Read the progress of a group. Raises GroupIdNotFound."""
    description = await groups.describe(name)
    committed = {partition: offset for partition, (offset, _) in (await groups.committed(name)).items()}
    owners = {partition: member for member in description.members for partition in member.partitions}
    chosen = sorted({*committed, *owners})
    known = {topic.name: topic.partitions for topic in await topics.list(internal=True)} if chosen else {}
    existing = [partition for partition in chosen if partition.partition in known.get(partition.topic, ())]
    ends = await offsets.find_reachable(dict.fromkeys(existing, LATEST))
    progress = [
        PartitionProgress(partition, committed.get(partition), ends.get(partition), owners.get(partition))
        for partition in chosen
    ]
    return GroupProgress(description, tuple(progress))

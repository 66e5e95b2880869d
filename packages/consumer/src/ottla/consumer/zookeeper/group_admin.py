"""Administer the groups in ZooKeeper: lag, owners, and export and import of offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.consumer.zookeeper.assignment import GroupView
from ottla.consumer.zookeeper.group_znodes import GroupZnodes
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import NoNode, Session

_LINE = re.compile(rf"{paths.CONSUMERS}/([^/]+)/offsets/([^/]+)/(\d+):(-?\d+)\Z")

GroupOffsets = dict[str, dict[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The offset, the end offset and the owner of a partition; None where unknown."""

    partition: TopicPartition
    offset: int | None
    end_offset: int | None
    owner: str | None

    @property
    def lag(self) -> int | None:
        """The number of records from the offset to the end; negative for an offset beyond it."""
        if self.offset is None or self.end_offset is None:
            return None
        return self.end_offset - self.offset


def group_znodes_of(session: Session, group: str) -> GroupZnodes:
    """Return the znodes of a group, for a session that is no member."""
    return GroupZnodes(session.bound(), session.session_id, group)


async def groups(session: Session) -> list[str]:
    """Return the names of all groups in ZooKeeper."""
    return await _children(session, paths.CONSUMERS)


async def topics_of(session: Session, group: str) -> list[str]:
    """Return the topics that a group has offsets for."""
    return await _children(session, f"{paths.CONSUMERS}/{paths.segment(group)}/offsets")


async def read_offsets(session: Session, names: Iterable[str]) -> GroupOffsets:
    """Return all offsets of some groups."""
    found: GroupOffsets = {}
    for group in names:
        partitions: list[TopicPartition] = []
        for topic in await topics_of(session, group):
            where = paths.parent_of(paths.consumer_offset(group, topic, 0))
            numbers = [int(name) for name in await _children(session, where) if name.isdigit()]
            partitions += [TopicPartition(topic, number) for number in sorted(numbers)]
        found[group] = await group_znodes_of(session, group).offsets(partitions)
    return found


def offset_lines(offsets: GroupOffsets) -> list[str]:
    """Write offsets as Kafka's ExportZkOffsets does: `/consumers/group/offsets/topic/partition:offset`."""
    return [
        f"{paths.consumer_offset(group, *partition)}:{offset}"
        for group, found in offsets.items()
        for partition, offset in sorted(found.items())
    ]


def parse_offset_lines(lines: Iterable[str]) -> GroupOffsets:
    """Parse the lines of `offset_lines`. Raises ValueError with the number of a malformed line."""
    found: GroupOffsets = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        match = _LINE.match(line.strip())
        if match is None:
            raise ValueError(
                f"line {number}: {line.strip()!r} is not /consumers/GROUP/offsets/TOPIC/PARTITION:N"
            )
        group, topic, partition, offset = match.groups()
        found.setdefault(group, {})[TopicPartition(topic, int(partition))] = int(offset)
    return found


def unowned(view: GroupView, owners: Mapping[TopicPartition, str]) -> list[str]:
    """Return the faults of ownership: partitions without an owner, owners outside the group."""
    wrong: list[str] = []
    for topic, threads in sorted(view.threads().items()):
        known = {str(thread) for thread in threads}
        if not view.partitions.get(topic):
            wrong.append(f"topic {topic} has no partitions")
        for number in view.partitions.get(topic, ()):
            partition = TopicPartition(topic, number)
            owner = owners.get(partition)
            if owner is None:
                wrong.append(f"no owner for partition {partition}")
            elif owner not in known:
                wrong.append(f"owner {owner} of partition {partition} is not in the group")
    return wrong


async def verify(session: Session, group: str) -> list[str]:
    """Return the faults of a group's rebalance; empty if every partition has a live owner."""
    znodes = group_znodes_of(session, group)
    view = await znodes.view()
    if not view.members:
        return [f"group {group} has no members"]
    partitions = [TopicPartition(topic, number) for topic, some in view.partitions.items() for number in some]
    return unowned(view, await znodes.owners(partitions))


async def _children(session: Session, path: str) -> list[str]:
    try:
        return await session.children(path)
    except NoNode:
        return []

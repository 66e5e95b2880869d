"""The cluster in memory: its groups with their members, partitions and offsets, and the life of a member."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Protocol, TypeVar

from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.consumer import CommitFailed
from ottla.producer import ProducerFenced
from ottla.protocol.errors import IllegalGeneration, UnknownMemberId
from ottla.protocol.topics import TopicPartition
from ottla.streams.testing.memory_log import MemoryLog

M = TypeVar("M")

Assignment = dict[M, set[TopicPartition]]


class Fenceable(Protocol):
    """A producer with transactions."""

    def fence(self, error: ProducerFenced) -> None:
        """Another producer has its transactional id now."""


class MemoryCluster:
    """Topics, groups, and the producers of transactional ids.

    `on_group` is called with each new group, and has to serve it.
    """

    def __init__(self, log: MemoryLog, on_group: Callable[[MemoryGroup], None]) -> None:
        self.log = log
        self.groups: dict[str, MemoryGroup] = {}
        self._on_group = on_group
        self._transactional: dict[str, Fenceable] = {}

    def group(self, group_id: str) -> MemoryGroup:
        """Return a group, made when it is first asked for."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = MemoryGroup(group_id, self.log)
            self._on_group(found)
        return found

    def take_transactional_id(self, transactional_id: str, producer: Fenceable) -> None:
        """Give a transactional id to a producer, and fence the one that had it."""
        before = self._transactional.get(transactional_id)
        if before is not None and before is not producer:
            before.fence(ProducerFenced(transactional_id))
        self._transactional[transactional_id] = producer


class Life:
    """How long the clients of a member work. After its end they do nothing any more, and never answer."""

    def __init__(self, number: int) -> None:
        self.is_ended = False
        self._number = number
        self._clients = 0
        self._on_end: list[Callable[[], None]] = []

    def name_client(self, kind: str) -> str:
        """Return a name for a new client."""
        self._clients += 1
        return f"member-{self._number}-{kind}-{self._clients}"

    def on_end(self, function: Callable[[], None]) -> None:
        """Call a function at the end."""
        self._on_end.append(function)

    def end(self) -> None:
        """End it, as a crash does."""
        self.is_ended = True
        for end in self._on_end:
            end()

    async def going_on(self) -> None:
        """Return at once; after the end, never."""
        if self.is_ended:
            await asyncio.get_running_loop().create_future()


class GroupMember(Protocol):
    """The part of a member that its group needs."""

    @property
    def member_id(self) -> str:
        """Its id in the group."""

    @property
    def topics(self) -> Set[str]:
        """The topics that it subscribes to."""

    @property
    def owned(self) -> Set[TopicPartition]:
        """The partitions that it has."""

    async def give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Call its listener, and then read these partitions no more."""

    async def take(self, partitions: frozenset[TopicPartition]) -> None:
        """Call its listener, and then read these partitions, too."""


class MemoryGroup:
    """One group. `serve` carries out rebalances one after the other; members are drained before they move."""

    def __init__(self, group_id: str, log: MemoryLog) -> None:
        self.group_id = group_id
        self.generation = 0
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.members: list[GroupMember] = []
        self._log = log
        self._is_due = asyncio.Event()
        self._moves_all = False
        self._waiting: list[asyncio.Future[None]] = []
        self.is_rebalancing = False

    async def serve(self) -> None:
        """Rebalance whenever it is due, until cancelled."""
        while True:
            await self._is_due.wait()
            self.is_rebalancing = True
            while self._is_due.is_set():
                self._is_due.clear()
                waiting, self._waiting = self._waiting, []
                moves_all, self._moves_all = self._moves_all, False
                await self._rebalance(moves_all=moves_all)
                for work in waiting:
                    if not work.done():
                        work.set_result(None)
            self.is_rebalancing = False

    @property
    def is_stable(self) -> bool:
        """Whether no rebalance is due or under way."""
        return not (self.is_rebalancing or self._is_due.is_set())

    async def join(self, member: GroupMember) -> None:
        """Add a member; return when the partitions are shared."""
        self.members.append(member)
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(joined)
        self._is_due.set()
        await joined

    def leave(self, member: GroupMember) -> None:
        """Remove a member, which has given its partitions up, or is dead; the others share them."""
        if member in self.members:
            self.members.remove(member)
            self._is_due.set()

    def move_all(self) -> None:
        """Rebalance: every member gives all up, and takes the partitions of another one."""
        self._moves_all = True
        self._is_due.set()

    def commit(self, member: GroupMember, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets of partitions that the member has. Raises CommitFailed."""
        if member not in self.members or not offsets.keys() <= member.owned:
            raise CommitFailed(f"group {self.group_id!r} assigned the partitions to other members")
        self.offsets.update(offsets)

    def check(self, metadata: GroupMetadata) -> None:
        """Raise UnknownMemberId or IllegalGeneration for a member that lost its partitions (KIP-447)."""
        if all(member.member_id != metadata.member_id for member in self.members):
            raise UnknownMemberId(f"group {self.group_id!r}")
        if metadata.generation_id != self.generation:
            raise IllegalGeneration(f"group {self.group_id!r}")

    async def _rebalance(self, *, moves_all: bool) -> None:
        members = list(self.members)
        topics = set[str]().union(*(member.topics for member in members))
        self._log.ensure(sorted(topics))
        partitions = [partition.partition for topic in topics for partition in self._log.partitions(topic)]
        owned = {member.member_id: member.owned for member in members}
        target: Assignment[str] = balanced(
            partitions, [(member.member_id, member.topics) for member in members], owned
        )
        if moves_all:
            target = rotated([member.member_id for member in members], target)
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                kept = set() if moves_all else target[member.member_id]
                tasks.create_task(member.give_up(frozenset(member.owned - kept)))
        self.generation += 1
        async with asyncio.TaskGroup() as tasks:
            for member in [member for member in members if member in self.members]:
                tasks.create_task(member.take(frozenset(target[member.member_id] - member.owned)))


def balanced(
    partitions: Iterable[TopicPartition],
    members: Sequence[tuple[M, Set[str]]],
    owned: Mapping[M, Set[TopicPartition]],
) -> Assignment[M]:
    """Return the partitions of each member, given with the topics that it subscribes to."""
    target: Assignment[M] = {member: set() for member, _ in members}
    readers = {
        partition: [m for m, topics in members if partition.topic in topics]
        for partition in sorted(partitions)
    }
    for partition, able in readers.items():
        if able:
            owner = next((m for m in able if partition in owned.get(m, ())), None)
            target[owner if owner is not None else _least(able, target)].add(partition)
    while (move := _next_move(readers, target)) is not None:
        partition, giver, taker = move
        target[giver].discard(partition)
        target[taker].add(partition)
    return target


def rotated(members: Sequence[M], assignment: Assignment[M]) -> Assignment[M]:
    """Return an assignment in which each member has what the next one had."""
    following = [*members[1:], *members[:1]]
    return {member: assignment[other] for member, other in zip(members, following, strict=True)}


def _least(able: Sequence[M], target: Assignment[M]) -> M:
    return min(able, key=lambda member: len(target[member]))


def _next_move(
    readers: Mapping[TopicPartition, Sequence[M]], target: Assignment[M]
) -> tuple[TopicPartition, M, M] | None:
    """Return a partition whose owner has two more than another reader of its topic."""
    for partition, able in reversed(list(readers.items())):
        for giver in able:
            taker = _least(able, target)
            if partition in target[giver] and len(target[giver]) > len(target[taker]) + 1:
                return partition, giver, taker
    return None

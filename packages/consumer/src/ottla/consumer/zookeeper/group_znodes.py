"""The znodes of a group: members, owners of partitions, and offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TypeVar

from ottla.client.config import Address
from ottla.consumer.zookeeper.assignment import FILTERS, GroupView, streams_of
from ottla.consumer.zookeeper.errors import ConsumerIdInUse, PartitionsOwned
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import Create, NodeExists, NoNode, Operations, Watch
from ottla.zookeeper.znodes import (
    BrokerRegistration,
    ConsumerOffset,
    ConsumerOwner,
    ConsumerRegistration,
    TopicAssignment,
)

T = TypeVar("T")

CLAIMS_AT_ONCE = 500


class GroupZnodes:
    """Reads and writes the znodes of a group; `operations` fail once their session has ended."""

    def __init__(self, operations: Operations, session_id: int, group: str) -> None:
        self._operations = operations
        self._session_id = session_id
        self.group = group

    # --- members

    async def register(self, registration: ConsumerRegistration) -> None:
        """Register a member. Raises ConsumerIdInUse while another session has that id."""
        try:
            await self._operations.create(
                registration.path, registration.encode(), ephemeral=True, make_parents=True
            )
        except NodeExists:  # perhaps created by this session, with a lost answer
            if await self._owner_of(registration.path) != self._session_id:
                raise ConsumerIdInUse(registration.consumer_id) from None

    async def unregister(self, consumer_id: str) -> None:
        """Leave the group."""
        await self._delete_own(paths.consumer_id(self.group, consumer_id))

    async def members(self, watch: Watch | None = None) -> list[ConsumerRegistration]:
        """Return the members of the group; `watch` is called when one joins or leaves."""
        try:
            names = await self._operations.children(paths.consumer_ids(self.group), watch)
        except NoNode:
            return []
        found = await _all(self._member(name) for name in names)
        return [member for member in found if member is not None]

    async def _member(self, name: str) -> ConsumerRegistration | None:
        data = await self._data(paths.consumer_id(self.group, name))
        return None if data is None else ConsumerRegistration.decode(self.group, name, data)

    async def view(self, watch: Watch | None = None, *, exclude_internal: bool = True) -> GroupView:
        """Return the input of a rebalance; `watch` is called when it changes."""
        members = await self.members(watch)
        names: list[str] = []
        if any(member.pattern in FILTERS for member in members):
            names = await self._operations.children(paths.BROKER_TOPICS, watch)
        wanted = sorted(
            {topic for member in members for topic in streams_of(member, names, exclude_internal)}
        )
        partitions = await _all(self._partitions(topic, watch) for topic in wanted)
        return GroupView(members, dict(zip(wanted, partitions, strict=True)), names, exclude_internal)

    async def _partitions(self, topic: str, watch: Watch | None) -> Sequence[int]:
        # exists first: it sets the watch also if there is no topic yet.
        if await self._operations.exists(paths.topic(topic), watch) is None:
            return ()
        data = await self._data(paths.topic(topic))
        return () if data is None else sorted(TopicAssignment.decode(topic, data).partitions)

    async def brokers(self, security_protocol: str, watch: Watch | None = None) -> list[Address]:
        """Return the addresses of brokers for a security protocol."""
        try:
            names = await self._operations.children(paths.BROKER_IDS, watch)
        except NoNode:
            # No broker registered yet, and children set no watch: only exists watches a missing znode.
            if await self._operations.exists(paths.BROKER_IDS, watch) is None:
                return []
            names = await self._operations.children(paths.BROKER_IDS, watch)
        found = await _all(self._broker(int(name)) for name in names if name.isdigit())
        return [
            Address(endpoint.host, endpoint.port)
            for broker in found
            if broker is not None
            for endpoint in broker.endpoints
            if broker.security_protocol(endpoint.listener_name) == security_protocol
        ]

    async def _broker(self, broker_id: int) -> BrokerRegistration | None:
        data = await self._data(paths.broker(broker_id))
        return None if data is None else BrokerRegistration.decode(broker_id, data)

    # --- owners

    async def claim(self, owners: Mapping[TopicPartition, str], watch: Watch | None = None) -> None:
        """Claim partitions, all or none of them.

        Raises PartitionsOwned while others own some; `watch` is called when those are released.
        """
        await self._make_parents(owners)
        claimed: list[TopicPartition] = []
        try:
            for some in _batches(list(owners), CLAIMS_AT_ONCE):
                await self._claim_some({partition: owners[partition] for partition in some}, watch)
                claimed += some
        except BaseException:
            await self.release(claimed)
            raise

    async def _claim_some(self, owners: Mapping[TopicPartition, str], watch: Watch | None) -> None:
        try:
            await self._operations.multi(
                [self._claim(partition, owner) for partition, owner in owners.items()]
            )
            return
        except NodeExists:
            held = await self._held(owners, watch)
        missing = [partition for partition in owners if partition not in held]
        await self._operations.multi([self._claim(partition, owners[partition]) for partition in missing])

    def _claim(self, partition: TopicPartition, owner: str) -> Create:
        claim = ConsumerOwner(self.group, partition.topic, partition.partition, owner)
        return Create(claim.path, claim.encode(), ephemeral=True)

    async def _held(self, owners: Mapping[TopicPartition, str], watch: Watch | None) -> set[TopicPartition]:
        """Return claims of this session whose answer was lost. Raises PartitionsOwned for those of others."""
        others: list[tuple[TopicPartition, str]] = []
        held: set[TopicPartition] = set()
        for partition, owner in owners.items():
            path = self._owner_path(partition)
            try:
                data, stat = await self._operations.get(path, watch)
            except NoNode:
                continue
            if stat.ephemeral_owner != self._session_id:
                others.append((partition, data.decode(errors="replace")))
            elif data == owner.encode():
                held.add(partition)
            else:  # of this session, for another thread
                await self._delete(path)
        if others:
            raise PartitionsOwned(others)
        return held

    async def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Delete claims of partitions. Claims of other sessions are left alone."""
        await _all(self._delete_own(self._owner_path(partition)) for partition in partitions)

    async def owners(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the owners of partitions; partitions without an owner are left out."""
        asked = list(partitions)
        found = await _all(self._data(self._owner_path(partition)) for partition in asked)
        return {
            partition: data.decode(errors="replace")
            for partition, data in zip(asked, found, strict=True)
            if data is not None
        }

    def _owner_path(self, partition: TopicPartition) -> str:
        return paths.consumer_owner(self.group, partition.topic, partition.partition)

    # --- offsets

    async def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets; partitions without one are left out."""
        asked = list(partitions)
        found = await _all(self._offset(partition) for partition in asked)
        return {
            partition: offset for partition, offset in zip(asked, found, strict=True) if offset is not None
        }

    async def _offset(self, partition: TopicPartition) -> int | None:
        data = await self._data(paths.consumer_offset(self.group, *partition))
        # Members of Kafka 0.8 to 1.1 commit -1 for partitions that they own and have not read yet.
        offset = -1 if data is None else ConsumerOffset.decode(self.group, *partition, data).offset
        return None if offset < 0 else offset

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write offsets."""
        await _all(self._commit(partition, offset) for partition, offset in offsets.items())

    async def _commit(self, partition: TopicPartition, offset: int) -> None:
        znode = ConsumerOffset(self.group, partition.topic, partition.partition, offset)
        try:
            await self._operations.set(znode.path, znode.encode())
            return
        except NoNode:
            pass
        try:
            await self._operations.create(znode.path, znode.encode(), make_parents=True)
        except NodeExists:
            await self._operations.set(znode.path, znode.encode())

    # --- znodes

    async def _data(self, path: str) -> bytes | None:
        try:
            return (await self._operations.get(path))[0]
        except NoNode:
            return None

    async def _owner_of(self, path: str) -> int | None:
        stat = await self._operations.exists(path)
        return None if stat is None else stat.ephemeral_owner

    async def _delete_own(self, path: str) -> None:
        if await self._owner_of(path) == self._session_id:
            await self._delete(path)

    async def _delete(self, path: str) -> None:
        try:
            await self._operations.delete(path)
        except NoNode:
            return

    async def _make_parents(self, partitions: Iterable[TopicPartition]) -> None:
        for topic in sorted({partition.topic for partition in partitions}):
            path = paths.parent_of(paths.consumer_owner(self.group, topic, 0))
            if await self._operations.exists(path) is None:
                await self._make(path)

    async def _make(self, path: str) -> None:
        try:
            await self._operations.create(path, make_parents=True)
        except NodeExists:
            return


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all concurrently. Raises the first error, after every call has ended.

    A deletion still outstanding when its sibling failed could otherwise delete what is created next.
    """
    ended = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in ended if not isinstance(outcome, BaseException)]


def _batches(items: list[T], size: int) -> list[list[T]]:
    return [items[at : at + size] for at in range(0, len(items), size)]

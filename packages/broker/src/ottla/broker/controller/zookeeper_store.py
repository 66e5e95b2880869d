"""The controller's reads and writes in ZooKeeper; the controller epoch fences every write."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from ottla.broker.cluster.features import UpdateRefused, log_suspended, updated
from ottla.broker.cluster.partition_znodes import Assignment, Leadership
from ottla.broker.cluster.placement import for_bytes, for_partitions
from ottla.broker.cluster.zookeeper_session import RETRY_BACKOFF_S, all_of, retrying
from ottla.broker.controller.controller_context import Endpoint, LiveBroker, Topic
from ottla.broker.controller.controllership import Controllership
from ottla.broker.controller.events import PartitionStates, WriteFeatures, WriteResult, WriteResults
from ottla.protocol.topics import TopicPartition, why_illegal_topic_name
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode, NoAuth, NotStored, ValueTooLarge
from ottla.zookeeper.frozen_classes import replace
from ottla.zookeeper.session import (
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Operations,
    SetData,
    Stat,
    Watch,
    ZooKeeperError,
)
from ottla.zookeeper.znodes import BrokerRegistration, FeatureLevels, PartitionState, TopicAssignment

_log = logging.getLogger("controller")
_T = TypeVar("_T")
_Replicas = Mapping[int, tuple[int, ...]]

STATES_PER_MULTI: Final = 50
MULTIS_AT_ONCE: Final = 4
DELETIONS_AT_ONCE: Final = 16


class Fenced(Exception):
    """Another controller has been elected: this one must not write any more."""


class Store:
    """One controllership's view of ZooKeeper.

    `operations` are bound to the session that the controllership was won in, so nothing here outlives
    that session. Calls wait while the connection is lost; SessionExpired and `Fenced` end the controllership.
    """

    def __init__(
        self,
        operations: Operations,
        controllership: Controllership,
        new_id: Callable[[], uuid.UUID],
        watch_topic: Callable[[str], Watch],
    ) -> None:
        """`watch_topic` gives the watch on a topic's assignment, and on its states that are unreadable."""
        self._zk = operations
        self._controllership = controllership
        self._new_id = new_id
        self._watch_topic = watch_topic
        self._named: set[str] = set()

    # ---- reading

    async def brokers(self, watch: Watch) -> dict[int, LiveBroker]:
        """The registered brokers; the watch is on the list, and on each registration for its endpoints."""
        names = await retrying(lambda: self._zk.children(paths.BROKER_IDS, watch))
        found = await all_of(self._broker(int(name), watch) for name in names if name.isdigit())
        return {broker.id: broker for broker in found if broker is not None}

    async def _broker(self, broker_id: int, watch: Watch) -> LiveBroker | None:
        read = await self._read(paths.broker(broker_id), watch)
        if read is None:
            return None
        data, stat = read
        try:
            registration = BrokerRegistration.decode(broker_id, data)
        except MalformedZnode as error:
            self._name_once("broker ignored", paths.broker(broker_id), str(error))
            return None
        return live_broker(registration, stat.czxid)

    async def topic_names(self, watch: Watch, known: Container[str] = ()) -> list[str]:
        """The names of all topics, of which `known` are legal; the watch is on the list."""
        names = await retrying(lambda: self._zk.children(paths.BROKER_TOPICS, watch))
        return [name for name in names if name in known or not why_illegal_topic_name(name)]

    async def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Read topics, each with a watch on its assignment; missing and unreadable ones are left out."""
        wanted = list(names)
        found = await all_of(self._topic(name) for name in wanted)
        return {name: topic for name, topic in zip(wanted, found, strict=True) if topic is not None}

    async def _topic(self, name: str) -> Topic | None:
        read = await self._read(paths.topic(name), self._watch_topic(name))
        if read is None:
            return None
        try:
            node = await for_bytes(len(read[0]), partial(TopicAssignment.decode, name, read[0]))
        except MalformedZnode as error:
            self._name_once("topic ignored", paths.topic(name), str(error))
            return None
        if node.topic_id is None:
            return await self._with_id(node, read[1])
        return topic_of(node)

    async def _with_id(self, node: TopicAssignment, stat: Stat) -> Topic | None:
        """Write the missing id of a topic from an older release; None when another writer was first."""
        identified = replace(node, topic_id=self._new_id())
        try:
            await retrying(lambda: self.fenced([SetData(node.path, identified.encode(), stat.version)]))
        except (BadVersion, NoNode):
            # The watch of the topic has fired or will fire: it is read again.
            return None
        return topic_of(identified)

    async def deletions(self, watch: Watch) -> frozenset[str]:
        """The topics marked for deletion; the watch is on the list."""
        names = await retrying(lambda: self._zk.children(paths.DELETE_TOPICS, watch))
        return frozenset(name for name in names if not why_illegal_topic_name(name))

    async def states(self, partitions: Iterable[TopicPartition]) -> PartitionStates:
        """The state znodes of partitions; an unreadable one gets its topic's watch, and is logged once."""
        wanted = list(partitions)
        found = await all_of(self._state(partition) for partition in wanted)
        states = dict(zip(wanted, found, strict=True))
        return PartitionStates(
            {p: state for p, state in states.items() if isinstance(state, Leadership)},
            frozenset(p for p, state in states.items() if isinstance(state, ZooKeeperError)),
        )

    async def _state(self, partition: TopicPartition) -> Leadership | ZooKeeperError | None:
        """The state znode of a partition, None when there is none, or why it cannot be read."""
        try:
            return await self._leadership(partition)
        except (MalformedZnode, NoAuth):
            pass
        try:
            return await self._leadership(partition, self._watch_topic(partition.topic))
        except (MalformedZnode, NoAuth) as error:
            path = paths.partition_state(*partition)
            self._name_once("partition set aside: its state znode cannot be read", path, str(error))
            return error

    async def _leadership(self, partition: TopicPartition, watch: Watch | None = None) -> Leadership | None:
        read = await self._read(paths.partition_state(*partition), watch)
        return leadership_of(partition, *read) if read else None

    def _name_once(self, what: str, path: str, reason: str) -> None:
        if path not in self._named:
            self._named.add(path)
            _log.error(what, extra={"path": path, "reason": reason})

    async def _read(self, path: str, watch: Watch | None = None) -> tuple[bytes, Stat] | None:
        try:
            return await retrying(lambda: self._zk.get(path, watch))
        except NoNode:
            return None

    # ---- fenced writes

    async def fenced(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Perform operations in one transaction if this is the newest controller; raises `Fenced` if not.

        Other errors carry the index of the operation that failed.
        """
        check = Check(paths.CONTROLLER_EPOCH, self._controllership.epoch_version)
        try:
            return (await self._zk.multi([check, *operations]))[1:]
        except (BadVersion, NoNode) as error:
            if error.operation_index == 0:
                raise Fenced from error
            raise

    async def write_leaderships(self, wanted: Mapping[TopicPartition, Leadership]) -> WriteResults:
        """Write state znodes, each at the version it was read at; return what each holds now."""
        await self._make_parents(p for p, leadership in wanted.items() if leadership.partition_epoch < 0)
        items = list(wanted.items())
        chunks = [dict(items[at : at + STATES_PER_MULTI]) for at in range(0, len(items), STATES_PER_MULTI)]
        return {
            p: written
            for chunk in await all_of(map(self._write_chunk, chunks), MULTIS_AT_ONCE)
            for p, written in chunk.items()
        }

    async def _write_chunk(
        self, wanted: Mapping[TopicPartition, Leadership]
    ) -> dict[TopicPartition, WriteResult]:
        operations = [
            op for partition, leadership in wanted.items() for op in _state_write(partition, leadership)
        ]
        try:
            await self.fenced(operations)
        except ZooKeeperError:
            # One of them conflicted, or no answer arrived: write each by itself.
            results = await all_of(self._write_one(p, leadership) for p, leadership in wanted.items())
            return dict(zip(wanted, results, strict=True))
        return {p: WriteResult(_after(leadership), ours=True) for p, leadership in wanted.items()}

    async def _write_one(self, partition: TopicPartition, wanted: Leadership) -> WriteResult:
        """Write one state znode, or find out whether an earlier try succeeded."""
        while True:
            # Read first, in each round: an earlier try may have been applied although its answer was lost,
            # and a later try at the same version would take our own write for a conflict.
            present = await self._state(partition)
            if isinstance(present, ZooKeeperError):
                return WriteResult(None, ours=False, unreadable=True)
            if present == _after(wanted):
                return WriteResult(present, ours=True)
            if present is not None and present.controller_epoch > self._controllership.epoch:
                raise Fenced
            if (present.partition_epoch if present else -1) != wanted.partition_epoch:
                return WriteResult(present, ours=False)
            if wanted.partition_epoch < 0:
                # The parent of a first state znode; another controller's of this epoch may have made it.
                await self._fenced_quietly([Create(paths.partition(*partition))])
            try:
                await self.fenced(_state_write(partition, wanted)[-1:])
            except NoNode:
                return WriteResult(None, ours=False)
            except NoAuth as error:
                path = paths.partition_state(*partition)
                self._name_once("partition set aside: its state may not be written", path, str(error))
                return WriteResult(None, ours=False, unreadable=True)
            except ZooKeeperError as error:
                if not (error.retriable or isinstance(error, (BadVersion, NodeExists))):
                    raise
                if isinstance(error, NotStored):  # reads succeed meanwhile, and would make this a busy loop
                    await asyncio.sleep(RETRY_BACKOFF_S)

    async def write_assignments(
        self, wanted: Mapping[TopicPartition, Assignment]
    ) -> frozenset[TopicPartition]:
        """Write replicas of partitions into their topics' znodes; return the partitions that exist there."""
        by_topic: dict[str, dict[int, Assignment]] = {}
        for partition, assignment in wanted.items():
            by_topic.setdefault(partition.topic, {})[partition.partition] = assignment
        written = await all_of(self._write_topic(topic, changed) for topic, changed in by_topic.items())
        return frozenset(
            TopicPartition(topic, number)
            for topic, there in zip(by_topic, written, strict=True)
            for number in there
        )

    async def _write_topic(self, topic: str, changed: Mapping[int, Assignment]) -> Collection[int]:
        """Merge assignments into a topic's znode; partitions that others add meanwhile are kept."""
        while True:
            read = await self._read(paths.topic(topic))
            if read is None:
                return ()
            data, stat = read
            try:
                node = await for_bytes(len(data), partial(TopicAssignment.decode, topic, data))
            except MalformedZnode as error:
                self._name_once("reassignment not stored", paths.topic(topic), str(error))
                return ()
            merged = _merged(node, changed)
            try:
                # Equal: an earlier try was applied, although its answer was lost.
                if merged != node:
                    encoded = await for_partitions(len(merged.partitions), merged.encode)
                    await self.fenced([SetData(node.path, encoded, stat.version)])
                return changed.keys() & node.partitions.keys()
            except (NoNode, ValueTooLarge) as error:
                _log.error("reassignment not stored", extra={"topic": topic, "reason": str(error)})
                return ()
            except ZooKeeperError as error:
                await _again_after(error)

    async def change_request(self, path: str, change: Callable[[bytes], bytes | None]) -> None:
        """Replace the data of a request by what `change` makes of it; remove the request for None."""
        while True:
            read = await self._read(path)
            if read is None:
                return
            data, stat = read
            new = change(data)
            if new == data:
                return
            try:
                await self.fenced(
                    [Delete(path, stat.version) if new is None else SetData(path, new, stat.version)]
                )
                return
            except NoNode:
                return
            except ZooKeeperError as error:
                await _again_after(error)

    async def write_features(self, asked: WriteFeatures) -> str | None:
        """Write the levels of features and which are suspended; return why they cannot be had, None after."""
        while True:
            read = await self._read(paths.OTTLA_FEATURES)
            try:
                present = FeatureLevels.decode(read[0]) if read else FeatureLevels()
                wanted = updated(present, asked.updates, asked.members)
            except MalformedZnode as error:
                self._name_once("features not written", paths.OTTLA_FEATURES, str(error))
                return "Their present levels cannot be read: the log of the controller has the reason."
            except UpdateRefused as error:
                return str(error)
            if wanted == present or asked.validate_only:
                return None
            try:
                if read is None:
                    await self._fenced_quietly([Create(paths.OTTLA)])
                    await self.fenced([Create(wanted.path, wanted.encode())])
                else:
                    await self.fenced([SetData(wanted.path, wanted.encode(), read[1].version)])
            except (NodeExists, NoNode):
                continue
            except ZooKeeperError as error:
                await _again_after(error)
            else:
                log_suspended(present, wanted)
                return None

    async def _make_parents(self, partitions: Iterable[TopicPartition]) -> None:
        for topic in sorted({partition.topic for partition in partitions}):
            await self._fenced_quietly([Create(paths.partitions(topic))])

    async def _fenced_quietly(self, operations: Sequence[Operation]) -> None:
        """Perform operations unless they are done already or no longer possible."""

        async def attempt() -> None:
            try:
                await self.fenced(operations)
            except (NodeExists, NoNode, BadVersion):
                return

        await retrying(attempt)

    async def delete_topics(self, topics: Iterable[str]) -> None:
        """Remove topics, some at a time."""
        await all_of(map(self.delete_topic, topics), DELETIONS_AT_ONCE)

    async def delete_topic(self, topic: str) -> None:
        """Remove a topic's znodes, its configuration, and last its marker."""
        rest = [] if await self._delete_as_usual(topic) else await self._tree(paths.topic(topic))
        configurations = (paths.config_entity("topics", topic), paths.ottla_topic_settings(topic))
        for path in (*reversed(rest), *configurations):
            await self._fenced_quietly([Delete(path)])
        await self.drop_marker(topic)

    async def _delete_as_usual(self, topic: str) -> bool:
        """Remove a topic of partitions with a state each, many at a time; return whether it was one."""
        parent = paths.partitions(topic)
        znodes = [f"{parent}/{number}" for number in await self.children_of(parent)]
        try:
            for at in range(0, len(znodes), STATES_PER_MULTI):
                some = znodes[at : at + STATES_PER_MULTI]
                await self.fenced([Delete(path) for one in some for path in (f"{one}/state", one)])
            await self.fenced([Delete(parent), Delete(paths.topic(topic))])
        except ZooKeeperError as error:
            if not error.retriable and not isinstance(error, (NoNode, NotEmpty)):
                raise
            return False
        return True

    async def drop_marker(self, topic: str) -> None:
        """Remove a topic's deletion marker."""
        await self._fenced_quietly([Delete(paths.deleted_topic(topic))])

    async def delete(self, path: str) -> None:
        """Remove a request or notification that has been processed."""
        await self._fenced_quietly([Delete(path)])

    async def children_of(self, path: str, watch: Watch | None = None) -> list[str]:
        """The children of a path, none when it does not exist; a watch is on the list."""
        try:
            return await retrying(lambda: self._zk.children(path, watch))
        except NoNode:
            return []

    async def data_of(self, path: str, watch: Watch | None = None) -> bytes | None:
        """The data of a znode, None when it does not exist; the watch then waits for its creation."""
        if watch is not None and await retrying(lambda: self._zk.exists(path, watch)) is None:
            return None
        read = await self._read(path)
        return read[0] if read else None

    async def _tree(self, path: str) -> list[str]:
        """A path and everything below it, parents before children."""
        found = [path]
        for name in await self.children_of(path):
            found += await self._tree(f"{path}/{name}")
        return found


async def read_leadership(operations: Operations, partition: TopicPartition) -> Leadership | None:
    """Read the state of a partition as it is committed, None when there is none; raises ZooKeeperError."""
    path = paths.partition_state(*partition)
    # The server that this broker is connected to may be behind the one that answered the controller.
    await operations.sync(path)
    try:
        data, stat = await operations.get(path)
    except NoNode:
        return None
    return leadership_of(partition, data, stat)


async def _again_after(error: ZooKeeperError) -> None:
    """Return when a conflicting or unanswered write is to be tried again; raise any other error."""
    if error.retriable:
        await asyncio.sleep(RETRY_BACKOFF_S)
    elif not isinstance(error, BadVersion):
        raise error


def _state_write(partition: TopicPartition, wanted: Leadership) -> list[Operation]:
    node = PartitionState(
        topic=partition.topic,
        partition=partition.partition,
        leader=wanted.leader,
        leader_epoch=wanted.leader_epoch,
        isr=wanted.isr,
        controller_epoch=wanted.controller_epoch,
    )
    if wanted.partition_epoch < 0:
        return [Create(paths.partition(*partition)), Create(node.path, node.encode())]
    return [SetData(node.path, node.encode(), wanted.partition_epoch)]


def _merged(node: TopicAssignment, changed: Mapping[int, Assignment]) -> TopicAssignment:
    """A topic's znode with the assignments of some of its partitions replaced."""
    there = {number: new for number, new in changed.items() if number in node.partitions}

    def merge(
        old: Mapping[int, tuple[int, ...]], new: Mapping[int, tuple[int, ...]]
    ) -> dict[int, tuple[int, ...]]:
        kept = {number: replicas for number, replicas in old.items() if number not in there}
        return kept | {number: replicas for number, replicas in new.items() if replicas}

    return replace(
        node,
        partitions={**node.partitions, **{number: new.replicas for number, new in there.items()}},
        adding_replicas=merge(node.adding_replicas, {n: new.adding for n, new in there.items()}),
        removing_replicas=merge(node.removing_replicas, {n: new.removing for n, new in there.items()}),
    )


def _after(wanted: Leadership) -> Leadership:
    return replace(wanted, partition_epoch=wanted.partition_epoch + 1)


def leadership_of(partition: TopicPartition, data: bytes, stat: Stat) -> Leadership:
    """Decode a state znode; raises MalformedZnode."""
    node = PartitionState.decode(partition.topic, partition.partition, data)
    return Leadership(node.leader, node.leader_epoch, node.isr, node.controller_epoch, stat.version)


def live_broker(node: BrokerRegistration, epoch: int) -> LiveBroker:
    """Convert a broker's registration into the controller's form."""
    endpoints = tuple(
        Endpoint(
            endpoint.listener_name,
            endpoint.host,
            endpoint.port,
            node.security_protocol(endpoint.listener_name),
        )
        for endpoint in node.endpoints
    )
    return LiveBroker(node.broker_id, epoch, endpoints, node.rack, node.ottla_features)


def topic_of(node: TopicAssignment) -> Topic:
    """Convert a topic znode into the controller's form."""
    return Topic(
        node.topic_id or uuid.UUID(int=0),
        {
            number: Assignment(
                replicas, node.adding_replicas.get(number, ()), node.removing_replicas.get(number, ())
            )
            for number, replicas in node.partitions.items()
        },
    )

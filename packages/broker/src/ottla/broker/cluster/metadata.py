"""The metadata cache: brokers, topics and leaders. Only UpdateMetadata requests change it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import frozen

NO_LEADER = -1
LEADER_DURING_DELETION = -2
NO_ID = uuid.UUID(int=0)
KNOWN_WITHIN_MS = 10_000.0
LOOKS = 10
"""How often ZooKeeper is asked within that time which topics there are: one may be deleted meanwhile."""
_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

Published: TypeAlias = Callable[[], Awaitable[Mapping[str, int] | None]]
"""Says how many partitions of each topic a controller publishes; None if that cannot be said now."""


@frozen
class BrokerEndpoint:
    """The address of a broker on one listener."""

    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@frozen
class KnownBroker:
    """A live broker and its endpoints by listener name."""

    id: int
    endpoints: Mapping[str, BrokerEndpoint]
    rack: str | None = None

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """The broker's endpoint on that listener; None when it has no such listener."""
        return self.endpoints.get(listener)


@frozen
class KnownPartition:
    """The leader, epoch and replicas of one partition as the controller last published them."""

    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    partition_epoch: int
    controller_epoch: int


@dataclass(slots=True)
class KnownTopic:
    """A topic and its partitions by number."""

    name: str
    id: uuid.UUID
    partitions: dict[int, KnownPartition] = field(default_factory=dict)


class MetadataCache:
    """The cluster as the controller describes it. Reads return at once; `until` and `within` wait."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.controller_id = NO_LEADER
        self.controller_epoch = -1
        self.told_by = (-1, -1)
        """The controller epoch and the own broker epoch of the controller that told of all deletions."""
        self._brokers: dict[int, KnownBroker] = {}
        self._topics: dict[str, KnownTopic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self.topics_version = 0
        """Rises with every new topic."""
        self._changed = asyncio.Event()
        self._is_told = False
        self._is_told_in_parts = False
        """Whether a controller named this broker before any topic: a new one of Apache Kafka does that."""
        self._learning = asyncio.Lock()
        self._attempts = 0

    # ---- writing

    def update(self, request: UpdateMetadataRequest) -> list[TopicPartition]:
        """Apply an UpdateMetadata request; return the partitions that are being deleted."""
        self.controller_id = request.controller_id
        self.controller_epoch = request.controller_epoch
        was_here = self.broker_id in self._brokers
        self._brokers = {broker.id: _known_broker(broker) for broker in request.live_brokers}
        deleted: list[TopicPartition] = []
        for name, topic_id, state in _states(request):
            partition = TopicPartition(name, state.partition_index)
            if state.leader == LEADER_DURING_DELETION:
                self._drop(partition)
                deleted.append(partition)
                continue
            self._put(name, topic_id, KnownPartition(
                state.partition_index, state.leader, state.leader_epoch,
                tuple(state.isr), tuple(state.replicas),
                tuple(state.offline_replicas), state.zk_version, state.controller_epoch,
            ))  # fmt: skip
        if self.broker_id in self._brokers and not was_here:
            self._is_told_in_parts = not self._topics
        self.wake()
        return deleted

    def _put(self, name: str, topic_id: uuid.UUID, partition: KnownPartition) -> None:
        topic = self._topics.get(name)
        if topic is None or (topic.id != topic_id and topic_id != NO_ID):
            if topic is not None:
                self._names.pop(topic.id, None)
            topic = self._topics[name] = KnownTopic(name, topic_id)
            self._names[topic_id] = name
            self.topics_version += 1
        topic.partitions[partition.partition] = partition

    def _drop(self, partition: TopicPartition) -> None:
        topic = self._topics.get(partition.topic)
        if topic is not None:
            topic.partitions.pop(partition.partition, None)
            if not topic.partitions:
                del self._topics[partition.topic]
                self._names.pop(topic.id, None)

    def forget(self, name: str) -> list[TopicPartition]:
        """Drop a topic that does not exist any more; return its partitions."""
        topic = self._topics.get(name)
        gone = [TopicPartition(name, number) for number in topic.partitions] if topic else []
        for partition in gone:
            self._drop(partition)
        self.wake()
        return gone

    def wake(self) -> None:
        """Wake every waiter, which checks its condition again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- reading

    @property
    def topic_names(self) -> list[str]:
        """The names of all topics."""
        return list(self._topics)

    @property
    def brokers(self) -> list[KnownBroker]:
        """The live brokers."""
        return list(self._brokers.values())

    @property
    def alive(self) -> Mapping[int, KnownBroker]:
        """The live brokers by id, of this moment: an update replaces them all."""
        return self._brokers

    @property
    def alive_broker_ids(self) -> list[int]:
        """The ids of the live brokers, in ascending order."""
        return sorted(self._brokers)

    def broker(self, broker_id: int) -> KnownBroker | None:
        """A live broker by its id."""
        return self._brokers.get(broker_id)

    def rack_of(self, broker_id: int) -> str | None:
        """The rack of a live broker, None for one without a rack."""
        broker = self._brokers.get(broker_id)
        return broker.rack if broker else None

    def is_alive(self, broker_id: int) -> bool:
        """Whether that broker is registered."""
        return broker_id in self._brokers

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def topic(self, name: str) -> KnownTopic | None:
        """A topic by its name."""
        return self._topics.get(name)

    def topics(self) -> Iterator[KnownTopic]:
        """All topics; safe against changes while iterating."""
        return iter(list(self._topics.values()))

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic by its id; None when it is unknown."""
        return self._names.get(topic_id) if topic_id != NO_ID else None

    def topic_id(self, name: str) -> uuid.UUID:
        """The id of a topic, zeros when it is unknown."""
        topic = self._topics.get(name)
        return topic.id if topic else NO_ID

    def partition(self, partition: TopicPartition) -> KnownPartition | None:
        """A partition by its topic and number."""
        topic = self._topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None

    def may_exist(self, partition: TopicPartition) -> bool:
        """Whether a partition is known, or this broker has no metadata of the cluster yet.

        A broker that starts again is asked for partitions that it led before its controller has connected.
        """
        if self.partition(partition) is not None or self.broker_id not in self._brokers:
            return True
        # This broker's own controller leaves out nothing.
        return self._is_told_in_parts and not self._is_told and self.controller_id != self.broker_id

    def partition_count(self, topic: str) -> int:
        """The number of a topic's partitions; 0 when it is unknown."""
        known = self._topics.get(topic)
        return len(known.partitions) if known else 0

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The live leader of a partition; None without one, or when the partition is unknown."""
        known = self.partition(partition)
        return known.leader if known and known.leader in self._brokers else None

    # ---- waiting

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds; it is checked after each update. The caller sets the bound."""
        while not condition():
            await self._changed.wait()

    async def known(self, published: Published) -> bool:
        """Wait, within a bound, until a controller has sent this broker the metadata; return whether it has.

        A broker that starts again serves before that, because the controller has to connect first. An answer
        from its empty cache says that topics do not exist, which some clients take for final. A controller
        that runs tells a broker that starts of everything at once. A new controller of Apache Kafka tells of
        brokers first, then of the partitions with a live replica, and of the others after that: after such a
        beginning everything is waited for that `published` says.
        """
        if self._is_told and self.broker_id in self._brokers:
            return True
        if not await self.within(KNOWN_WITHIN_MS, lambda: self.broker_id in self._brokers):
            return False
        before = self._attempts
        async with self._learning:  # one of the requests that wait asks ZooKeeper
            if not self._is_told and self._attempts == before:
                self._is_told = await self._learn(published)
                self._attempts += 1
        return self._is_told

    async def _learn(self, published: Published) -> bool:
        """Wait for the rest of what a controller sends in parts; False while its extent is unknown."""
        for _ in range(LOOKS if self._is_told_in_parts else 0):
            expected = await published()
            if expected is None:
                return False
            if await self.within(KNOWN_WITHIN_MS / LOOKS, partial(self._has, expected)):
                break
        return True

    def _has(self, expected: Mapping[str, int]) -> bool:
        return all(self.partition_count(topic) >= count for topic, count in expected.items())

    async def within(self, timeout_ms: float, condition: Callable[[], bool]) -> bool:
        """Wait at most `timeout_ms` for `condition`; return whether it holds."""
        try:
            async with asyncio.timeout(max(0.0, timeout_ms) / 1000):
                await self.until(condition)
        except TimeoutError:
            return condition()
        return True


def _known_broker(broker: UpdateMetadataBroker) -> KnownBroker:
    endpoints = {
        endpoint.listener: BrokerEndpoint(
            endpoint.host, endpoint.port, _SECURITY_PROTOCOLS[endpoint.security_protocol]
        )
        for endpoint in broker.endpoints
    }
    return KnownBroker(broker.id, endpoints, broker.rack)


def _states(
    request: UpdateMetadataRequest,
) -> Iterator[tuple[str, uuid.UUID, UpdateMetadataPartitionState]]:
    for state in request.ungrouped_partition_states:
        yield state.topic_name, NO_ID, state
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state

"""For tests: the parts that the group APIs use, over a coordinator whose log is memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from ottla.broker.api.testing import FakeSession, FakeVerification
from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import BrokerConfig, broker_config_from
from ottla.broker.coordinators.testing import MemoryStore
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.broker.metrics import Metrics
from ottla.broker.requests.context import RequestContext
from ottla.broker.runtime.environment import Environment
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.testing import MemoryCluster, memory_store
from ottla.protocol.api import RequestHeader
from ottla.protocol.errors import NotLeaderOrFollower
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.schema import Message
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition
from ottla.zookeeper.session import Session
from ottla.zookeeper.testing import MemoryEnsemble

PARTITIONS = 4
BROKER = 7
R = TypeVar("R")


class TopicsStub:
    """Creates internal topics by telling the metadata of them."""

    def __init__(self, metadata: MetadataCache) -> None:
        self.metadata = metadata
        self.created: list[str] = []
        self.refusal: Exception | None = None

    async def existing(self) -> frozenset[str] | None:
        return frozenset(self.metadata.topic_names)

    async def published(self) -> dict[str, int] | None:
        return {name: self.metadata.partition_count(name) for name in self.metadata.topic_names}

    async def ensure_internal(self, name: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.created.append(name)
        tell(self.metadata, {"topic": 2, name: PARTITIONS})


@dataclass
class LogStub:
    """The log of a partition, as far as a verification knows it."""

    producers: ProducerStates = field(default_factory=ProducerStates)


@dataclass
class LeaderStub:
    """A partition that is led here."""

    log: LogStub = field(default_factory=LogStub)


@dataclass
class ReplicasStub:
    """Leads every partition, or none of them."""

    leads: bool = True
    partitions: dict[TopicPartition, LeaderStub] = field(default_factory=dict)

    def leader(self, partition: TopicPartition) -> LeaderStub:
        if not self.leads:
            raise NotLeaderOrFollower
        return self.partitions.setdefault(partition, LeaderStub())


@dataclass
class FeaturesStub:
    """Has every feature on, or some off."""

    off: set[str] = field(default_factory=set)

    def level(self, name: str) -> int:
        return 0 if name in self.off else 1


@dataclass
class GroupServices:
    """The parts that the APIs of groups use."""

    config: BrokerConfig
    environment: Environment
    zookeeper: Session
    metadata: MetadataCache
    topics: TopicsStub
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    features: FeaturesStub = field(default_factory=FeaturesStub)
    replicas: ReplicasStub = field(default_factory=ReplicasStub)
    verification: FakeVerification = field(default_factory=FakeVerification)


def tell(
    metadata: MetadataCache, topics: dict[str, int], *, controller: int = BROKER, leader: int = BROKER
) -> None:
    endpoint = UpdateMetadataEndpoint(port=9092, host="localhost", listener="PLAINTEXT", security_protocol=0)
    metadata.update(
        UpdateMetadataRequest(
            controller_id=controller,
            live_brokers=[UpdateMetadataBroker(id=BROKER, endpoints=[endpoint])],
            topic_states=[
                UpdateMetadataTopicState(
                    topic_name=name,
                    topic_id=UUID(int=number),
                    partition_states=[
                        UpdateMetadataPartitionState(
                            partition_index=index, leader=leader, replicas=[BROKER], isr=[BROKER]
                        )
                        for index in range(count)
                    ],
                )
                for number, (name, count) in enumerate(topics.items(), start=1)
            ],
        )
    )


def context_of(request: type[Message], version: int) -> RequestContext:
    """The context of a request of this kind."""
    return RequestContext(
        header=RequestHeader(request.API_KEY, version, 1, "client"), session=FakeSession(), received_ms=0
    )


async def ask(services: object, handle: Callable[..., Awaitable[R]], request: Any, version: int) -> R:
    """Send a request through its codec to the handler, and the answer through its codec back."""
    context = context_of(type(request), version)
    arrived = type(request).decode(request.encode(version), version)
    async with asyncio.timeout(10):
        answer: Any = await handle(services, arrived, context)
    decoded: R = type(answer).decode(answer.encode(version), version)
    return decoded


@asynccontextmanager
async def group_services(topics: TopicsStub) -> AsyncIterator[GroupServices]:
    """Run a coordinator that leads every partition of its topic."""
    config = broker_config_from(
        {
            "log.dirs": "/nowhere",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "100",
            "offset.metadata.max.bytes": "10",
        }
    )
    environment, metrics = Environment(), Metrics()
    groups = GroupCoordinator(
        config=config,
        environment=environment,
        metrics=metrics,
        store=MemoryStore(PARTITIONS),
        metadata=topics.metadata,
        topics=topics,
    )
    async with MemoryEnsemble().session() as session, groups:
        transactions = TransactionCoordinator(
            config=config,
            environment=environment,
            metrics=Metrics(),
            store=memory_store(),
            cluster=MemoryCluster(),
            producer_ids=ProducerIds(session, BROKER),
        )
        groups.leadership_changed(
            [(TopicPartition(GROUP_METADATA_TOPIC, number), 0) for number in range(PARTITIONS)], []
        )
        yield GroupServices(
            config=config,
            environment=environment,
            zookeeper=session,
            metadata=topics.metadata,
            topics=topics,
            groups=groups,
            transactions=transactions,
        )

"""Tests of transactions: a cluster whose brokers write markers into memory, and a coordinator on it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.broker.config import load_broker_config
from ottla.broker.controller.testing import LoopClock
from ottla.broker.coordinators.testing import MemoryStore
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.environment import Environment
from ottla.broker.transactions.coordinator import TransactionCoordinator
from ottla.broker.transactions.events import Producer, TransactionSnapshot, TransactionState
from ottla.broker.transactions.marker_sender import Destination
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode
from ottla.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.zookeeper.testing import MemoryEnsemble

PARTITIONS = 4
BROKER = 7
TOPIC_0, TOPIC_1, OTHER_0 = TopicPartition("topic", 0), TopicPartition("topic", 1), TopicPartition("other", 0)
ALL = (TOPIC_0, TOPIC_1, OTHER_0)
MINUTE_MS = 60_000
SETTINGS = {"log.dirs": "/nowhere"}


class WrittenMarker(NamedTuple):
    """A marker as the leader of a partition wrote it."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int


@dataclass
class MemoryCluster:
    """Leaders of partitions, which keep the markers that they are sent.

    `errors` has the codes of a partition's next responses, `silent` the brokers that do not answer, `deleted`
    the partitions that do not exist any more. `gate` holds every request.
    """

    leaders: dict[TopicPartition, int] = field(
        default_factory=lambda: {TOPIC_0: 1, TOPIC_1: 2, OTHER_0: BROKER}
    )
    without_leader: set[TopicPartition] = field(default_factory=set)
    deleted: set[TopicPartition] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    errors: defaultdict[TopicPartition, list[ErrorCode]] = field(default_factory=lambda: defaultdict(list))
    written: defaultdict[TopicPartition, list[WrittenMarker]] = field(
        default_factory=lambda: defaultdict(list)
    )
    requests: list[tuple[int, WriteTxnMarkersRequest]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    ensemble: MemoryEnsemble = field(default_factory=MemoryEnsemble)

    def __post_init__(self) -> None:
        self.gate.set()

    def leader_of(self, partition: TopicPartition) -> int | None:
        return None if partition in self.without_leader else self.leaders.get(partition)

    def is_known(self, partition: TopicPartition) -> bool:
        return partition in self.leaders

    async def is_deleted(self, partition: TopicPartition) -> bool:
        await asyncio.sleep(0)
        return partition in self.deleted

    def connect(self, broker_id: int) -> Destination:
        if broker_id < 0:
            raise BrokerNotAvailable
        return MemoryDestination(self, broker_id)

    def write(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """Answer as the broker does."""
        self.requests.append((broker_id, request))
        response = WriteTxnMarkersResponse()
        for marker in request.markers:
            written = WrittenMarker(
                marker.producer_id,
                marker.producer_epoch,
                marker.transaction_result,
                marker.coordinator_epoch,
            )
            topics = [
                WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=[
                        WritableTxnMarkerPartitionResult(
                            partition_index=number,
                            error_code=self._write(broker_id, TopicPartition(topic.name, number), written),
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in marker.topics
            ]
            response.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        return response

    def _write(self, broker_id: int, partition: TopicPartition, marker: WrittenMarker) -> ErrorCode:
        if self.errors[partition]:
            return self.errors[partition].pop(0)
        if self.leaders.get(partition) != broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.written[partition].append(marker)
        return ErrorCode.NONE


class MemoryDestination:
    """The way to one broker of a `MemoryCluster`."""

    def __init__(self, cluster: MemoryCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._closed = asyncio.Event()

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        arrived = WriteTxnMarkersRequest.decode(request.encode(1), 1)
        await self._cluster.gate.wait()
        if self._broker_id in self._cluster.silent:
            await self._closed.wait()
            raise ConnectionError("closed")
        return self._cluster.write(self._broker_id, arrived)

    async def close(self) -> None:
        self._closed.set()


def memory_store() -> MemoryStore:
    """A `__transaction_state` in memory."""
    return MemoryStore(PARTITIONS, topic=TRANSACTION_STATE_TOPIC)


def make(
    store: MemoryStore, cluster: MemoryCluster, producer_ids: ProducerIds, **settings: str
) -> TransactionCoordinator:
    """A coordinator of transactions on this store, not entered yet."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return TransactionCoordinator(
        config=load_broker_config(SETTINGS | named).config,
        environment=Environment(clock=LoopClock()),
        metrics=Metrics(),
        store=store,
        cluster=cluster,
        producer_ids=producer_ids,
    )


@asynccontextmanager
async def leading(
    store: MemoryStore, cluster: MemoryCluster, *, epoch: int = 0, **settings: str
) -> AsyncIterator[TransactionCoordinator]:
    """A coordinator that runs and leads every partition."""
    async with cluster.ensemble.session() as session:
        coordinator = make(store, cluster, ProducerIds(session, BROKER), **settings)
        async with coordinator:
            elect(coordinator, epoch)
            await asyncio.sleep(0.01)
            yield coordinator


def elect(coordinator: TransactionCoordinator, epoch: int = 0) -> None:
    """Lead every partition."""
    coordinator.leadership_changed(_every_partition(epoch), [])


def resign(coordinator: TransactionCoordinator, epoch: int = 0) -> None:
    """Give every partition up."""
    coordinator.leadership_changed([], _every_partition(epoch))


def _every_partition(epoch: int) -> list[tuple[TopicPartition, int]]:
    return [(TopicPartition(TRANSACTION_STATE_TOPIC, number), epoch) for number in range(PARTITIONS)]


# ---- requests of a producer


async def initialized(
    coordinator: TransactionCoordinator, transactional_id: str = "t", timeout_ms: int = MINUTE_MS
) -> Producer:
    """Initialize the producer id of a transactional id."""
    result = await coordinator.initialize(transactional_id, timeout_ms)
    assert result.error is ErrorCode.NONE
    return result.producer


async def begun(coordinator: TransactionCoordinator, transactional_id: str = "t", **more: Any) -> Producer:
    """Initialize a producer id and begin a transaction with three partitions."""
    producer = await initialized(coordinator, transactional_id, **more)
    assert await coordinator.add_partitions(transactional_id, producer, ALL) is ErrorCode.NONE
    return producer


def described(coordinator: TransactionCoordinator, transactional_id: str = "t") -> TransactionSnapshot:
    """Return the state of a transactional id."""
    found = coordinator.describe(transactional_id)
    assert isinstance(found, TransactionSnapshot)
    return found


async def until(
    coordinator: TransactionCoordinator, state: TransactionState, transactional_id: str = "t"
) -> None:
    """Wait until a transactional id is in a state."""
    for _ in range(60_000):
        if described(coordinator, transactional_id).state is state:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still {described(coordinator, transactional_id).state}")

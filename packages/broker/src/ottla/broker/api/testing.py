"""For tests: the data path of a broker over real logs in a directory, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

from ottla.broker.api.current_leaders import LeaderSources, tell_producer
from ottla.broker.api.fetch.delayed_fetches import DelayedFetches
from ottla.broker.api.fetch.fast_path import FetchFastPath
from ottla.broker.api.fetch.sessions import FetchSessions
from ottla.broker.api.produce.fast_path import ProduceFastPath
from ottla.broker.api.topic_metrics import TopicMetrics
from ottla.broker.cluster.inter_broker_access import Addresses, InterBrokerAccess
from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.file_system import DiskFiles, Files
from ottla.broker.log.log import Log
from ottla.broker.log.recovery.recovery import open_log
from ottla.broker.log.testing import SMALL_INDEX_BYTES
from ottla.broker.metrics import Metrics
from ottla.broker.quotas.rates import UNLIMITED, SessionQuotas
from ottla.broker.quotas.replication import ReplicationQuotas
from ottla.broker.replication.partition import Assignment
from ottla.broker.replication.read_replicas import ReadReplicas
from ottla.broker.replication.replicas import HostedPartition, Replicas
from ottla.broker.requests.context import Ordering, RequestContext, Target
from ottla.broker.requests.fast_path import FastPath, TurnClock
from ottla.broker.runtime.environment import Clock, Environment
from ottla.broker.runtime.loop_budget import LoopBudget
from ottla.broker.runtime.threads import RecordThreads
from ottla.broker.security.principal import ANONYMOUS, Principal
from ottla.broker.security.sasl.login import Login
from ottla.broker.transactions.events import Producer
from ottla.protocol.api import RequestHeader
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition

BROKER_ID = 1
R = TypeVar("R")


class OneDirectory:
    """Logs of one directory, opened on first use; those that are there are recovered."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self.files = files or DiskFiles()
        self._logs: dict[TopicPartition, Log] = {}

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self._logs.get(topic_partition)

    def create(
        self, topic_partition: TopicPartition, topic_id: UUID | None, config: LogConfig, **_: Any
    ) -> Log:
        directory = self.root / f"{topic_partition.topic}-{topic_partition.partition}"
        is_new = not self.files.exists(directory)
        made = open_log(
            self.files, directory, topic_partition, config, clean=is_new, is_new=is_new, topic_id=topic_id
        )
        self._logs[topic_partition] = made
        return made

    def delete(self, topic_partition: TopicPartition) -> None:
        self._logs.pop(topic_partition).close()

    async def make_way(self, topic_partitions: Iterable[TopicPartition]) -> None:
        pass

    def directories(self) -> list[Path]:
        return [self.root]

    def close(self) -> None:
        for log in self._logs.values():
            log.close()


@dataclass
class FakeSession:
    """A session without a connection; its indexes have no bound."""

    principal: Principal = ANONYMOUS
    listener_name: str = "PLAINTEXT"
    client_host: str = "127.0.0.1"
    connection_id: str = "test"
    is_authenticated: bool = True
    ordering: Ordering = field(default_factory=Ordering)
    software: tuple[str, str] | None = None
    index_epoch: int = 0
    is_gone: bool = False
    on_gone: Callable[[str], None] | None = None
    is_refused: bool = False
    login: Login | None = None
    quotas: SessionQuotas = UNLIMITED
    known: dict[int, dict[bytes, Any]] = field(default_factory=dict)

    def authenticated(self, principal: Principal, *, ends_after_ms: float | None = None) -> None:
        self.principal = principal

    def begin_login(self) -> None:
        self.principal = ANONYMOUS

    def refuse(self) -> None:
        self.is_refused = True

    def admit(self, fast_path: FastPath, key: bytes, target: Target, index_epoch: int) -> None:
        self.targets_of(fast_path.api_key)[key] = target

    def targets_of(self, api_key: int) -> dict[bytes, Any]:
        return self.known.setdefault(api_key, {})


class ClockOfTurn(TurnClock):
    """The wall clock of a plane, read each time."""

    def __init__(self, clock: Clock) -> None:
        self.now_ms = clock.now_ms  # type: ignore[method-assign]


@dataclass
class FakeVerification:
    """A transaction coordinator's answers: the same for every partition; `asked` has the transactional ids.

    While `gate` is set and closed, the answer has to be waited for.
    """

    is_enabled: bool = True
    error: ErrorCode = ErrorCode.NONE
    gate: asyncio.Event | None = None
    asked: list[str] = field(default_factory=list)
    joined: set[TopicPartition] = field(default_factory=set)
    """The partitions that were added to a transaction."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def now(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        knows_abortable: bool,
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        if self.gate is not None:
            return None
        self.asked.append(transactional_id)
        return dict.fromkeys(partitions, self.error)

    async def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        knows_abortable: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        return await self._answer(transactional_id, partitions)

    async def join(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.joined |= {*partitions}
        return await self._answer(transactional_id, partitions)

    async def _answer(
        self, transactional_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.asked.append(transactional_id)
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        return dict.fromkeys(partitions, self.error)


@dataclass(slots=True, kw_only=True)
class DataServices:
    """The parts that Produce, Fetch and the APIs about offsets use."""

    config: BrokerConfig
    environment: Environment
    inter_broker: InterBrokerAccess
    metadata: MetadataCache
    replicas: Replicas
    read_replicas: ReadReplicas
    replication_quotas: ReplicationQuotas
    topic_metrics: TopicMetrics
    record_threads: RecordThreads
    fetch_sessions: FetchSessions
    delayed_fetches: DelayedFetches
    produce_fast_path: ProduceFastPath
    fetch_fast_path: FetchFastPath
    verification: FakeVerification


class DataPlane:
    """The data path of one broker over real logs."""

    def __init__(
        self,
        root: Path,
        config: BrokerConfig | None = None,
        files: Files | None = None,
        *,
        budget: LoopBudget | None = None,
    ) -> None:
        self.config = config or BrokerConfig(log_index_size_max_bytes=SMALL_INDEX_BYTES)
        self.racks: dict[int, str] = {}
        """Racks of live brokers."""
        self.overrides: dict[str, dict[str, str]] = {}
        self.topic_ids: dict[str, UUID] = {}
        """Of topics that have another id than `topic_id_of` their name."""
        self.logs = OneDirectory(root, files)
        self.metrics = Metrics()
        self.metadata = MetadataCache(BROKER_ID)
        self.environment = Environment(budget=budget)
        self.replicas = Replicas(
            broker_id=BROKER_ID,
            config=self.config,
            environment=self.environment,
            logs=self.logs,  # type: ignore[arg-type]
            log_config=lambda topic: LogConfig.from_broker(self.config, self.overrides.get(topic)),
            metrics=self.metrics,
        )
        self.brokers: set[str] = {"127.0.0.1"}
        """Addresses of registered brokers; the session's is one of them."""
        self._access = InterBrokerAccess(
            BrokerConfig(zookeeper_connect="elsewhere:2181"),
            self._addresses,
            self.environment.clock.monotonic_ms,
        )
        self.services = self._compose()
        self.replicas.subscribe(self.services.produce_fast_path.known)
        self.replicas.subscribe(self.services.fetch_fast_path.known)
        self.session = FakeSession()

    async def _addresses(self) -> Addresses:
        return Addresses(self.brokers, are_complete=True)

    def _compose(self) -> DataServices:
        topic_metrics = TopicMetrics(self.metrics)
        delayed_fetches = DelayedFetches(self.config.max_delayed_fetches, self.environment.budget)
        return DataServices(
            config=self.config,
            environment=self.environment,
            inter_broker=self._access,
            metadata=self.metadata,
            replicas=self.replicas,
            read_replicas=ReadReplicas(self.config.replica_selector_class, self.replicas, self.racks.get),
            replication_quotas=ReplicationQuotas(
                BROKER_ID, self.config, self.environment.clock.monotonic_ms, self.metrics
            ),
            topic_metrics=topic_metrics,
            record_threads=RecordThreads(),
            fetch_sessions=FetchSessions(
                self.config.max_incremental_fetch_session_cache_slots,
                lambda: self.environment.random.randrange(1, 2**31),
            ),
            delayed_fetches=delayed_fetches,
            produce_fast_path=ProduceFastPath(
                topic_metrics, partial(tell_producer, LeaderSources(self.metadata, self.replicas))
            ),
            fetch_fast_path=FetchFastPath(topic_metrics, delayed_fetches, self.config.fetch_max_bytes),
            verification=FakeVerification(),
        )

    async def lead(
        self,
        topic: str = "t",
        partition: int = 0,
        *,
        leader: int = BROKER_ID,
        leader_epoch: int = 0,
        isr: tuple[int, ...] = (BROKER_ID,),
        replicas: tuple[int, ...] = (BROKER_ID,),
        **overrides: str,
    ) -> HostedPartition:
        topic_partition = TopicPartition(topic, partition)
        self.overrides.setdefault(topic, {}).update(
            {name.replace("_", "."): value for name, value in overrides.items()}
        )
        assignment = Assignment(
            controller_epoch=1,
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=leader_epoch,
            isr=isr,
            replicas=replicas,
        )
        topic_id = self.topic_ids.get(topic, topic_id_of(topic))
        await self.replicas.apply([(topic_partition, topic_id, assignment)])
        self.tell(topic_partition, leader, leader_epoch)
        found = self.replicas.hosted(topic_partition)
        assert found is not None
        return found

    def tell(self, topic_partition: TopicPartition, leader: int, leader_epoch: int = 0) -> None:
        """Update the metadata with the leader of a partition; brokers 1 and 2 are alive."""
        topic, number = topic_partition
        state = UpdateMetadataPartitionState(
            partition_index=number, leader=leader, leader_epoch=leader_epoch, replicas=[leader], isr=[leader]
        )
        known = UpdateMetadataTopicState(
            topic_name=topic,
            topic_id=self.topic_ids.get(topic, topic_id_of(topic)),
            partition_states=[state],
        )
        brokers = [
            UpdateMetadataBroker(
                id=node,
                endpoints=[
                    UpdateMetadataEndpoint(
                        host=f"host-{node}", port=9092, listener=self.session.listener_name
                    )
                ],
                rack=None,
            )
            for node in (1, 2)
        ]
        self.metadata.update(UpdateMetadataRequest(live_brokers=brokers, topic_states=[known]))

    def context(self, api_key: int, version: int, client_id: str = "test") -> RequestContext:
        header = RequestHeader(api_key, version, 1, client_id)
        return RequestContext(header, self.session, 0.0)


class CountedTurns:
    """Counts the turns of the loop beside a long request, whose clock gains 0.1 ms with each look at it."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.budget = LoopBudget(self._look)

    def _look(self) -> float:
        self.now_ms += 0.1
        return self.now_ms

    async def during(self, request: asyncio.Task[R]) -> tuple[int, R]:
        """Return how many turns a request took, and its answer."""
        count = 0
        async with asyncio.timeout(60):
            while not request.done():
                count += 1
                await asyncio.sleep(0)
        return count, await request


def topic_id_of(topic: str) -> UUID:
    """The id of a topic in tests."""
    return uuid5(NAMESPACE_OID, topic)


def batch_of(
    *values: bytes,
    timestamp_ms: int = 1000,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    **more: Any,
) -> bytes:
    """One v2 batch with a record for each value."""
    builder = BatchBuilder(1 << 30, **more)
    for value in values:
        builder.append(None, value, timestamp_ms, [])
    return bytes(
        builder.build(
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
    )

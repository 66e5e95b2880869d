"""A cluster of group coordinators in virtual time: brokers, the log of their groups, and the network.

The product's `GroupCoordinator` runs on each broker, with its hosting, records, loads and timers. The log of
`__consumer_offsets` has one partition: a leader's records are committed after a while, and a new leader has
those that were committed, perhaps some more. One that does not know yet that it was replaced goes on with a
log of its own. A request of a member may be lost, or its answer; it is never late, for a member waits for one
request at a time, and its connection ends with its patience.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import UUID

from ottla.broker.config import load_broker_config
from ottla.broker.controller.testing import LoopClock
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.groups.hosting.hosted_groups import GroupPartition
from ottla.broker.groups.offsets.partition_state import HostedGroup
from ottla.broker.groups.testing import FakeTopics
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import LoopBudget, Turn
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition
from simulation.group_log import BrokerStore, GroupLog
from simulation.invariant_violated import InvariantViolated

T = TypeVar("T")

BROKERS: Final = 3
SESSION_MS: Final = 6_000
REQUEST_TIMEOUT_S: Final = 3.0
NO_ANSWER_S: Final = 40.0
"""No request may be without an answer for so long: a join waits for its rebalance, a write for replicas."""
GROUPS: Final = TopicPartition(GROUP_METADATA_TOPIC, 0)
GROUP: Final = "group"
SETTINGS: Final = {
    "log.dirs": "/nowhere",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": str(SESSION_MS),
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "1000",
    "offsets.commit.timeout.ms": "4000",
}


class WorldClock(LoopClock):
    """The loop's time; the time of day is never that at which nothing has been assigned yet."""

    def now_ms(self) -> int:
        return 1_000_000 + int(self.monotonic_ms())


class SlowBudget(LoopBudget):
    """A budget whose long work takes time, so that requests come between its steps."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(WorldClock().monotonic_ms)
        self._chance = chance

    def turn(self) -> Turn:
        return _SlowTurn(self, self._chance)


class _SlowTurn(Turn):
    __slots__ = ("_chance",)

    def __init__(self, budget: LoopBudget, chance: random.Random) -> None:
        super().__init__(budget.background)
        self._chance = chance

    async def yield_if_spent(self) -> None:
        if self._chance.random() < 0.2:
            await asyncio.sleep(self._chance.choice([0.001, 0.05, 0.8]))


# ---- the log


class Topics:
    """The topics of the cluster: their ids and partitions; the racks of its brokers."""

    def __init__(self) -> None:
        self.present: dict[str, tuple[UUID, int]] = {}
        self.racks = dict.fromkeys(range(BROKERS), "rack-0")
        self.created_s: dict[UUID, float] = {}
        self.names: dict[UUID, str] = {}
        """The name of each topic, also of those that were deleted."""
        self._ids = 0

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or add partitions to it."""
        topic_id = self.present[name][0] if name in self.present else self._new_id()
        self.present[name] = topic_id, partitions
        self.names[topic_id] = name

    def _new_id(self) -> UUID:
        self._ids += 1
        topic_id = UUID(int=self._ids)
        self.created_s[topic_id] = asyncio.get_running_loop().time()
        return topic_id

    def partitions(self, name: str) -> list[tuple[UUID, int]]:
        """The partitions of a topic; none of one that does not exist."""
        topic_id, count = self.present.get(name, (UUID(int=0), 0))
        return [(topic_id, index) for index in range(count)]

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic; None of one that was deleted."""
        name = self.names.get(topic_id)
        return name if name is not None and self.present.get(name, (None, 0))[0] == topic_id else None


class BrokerTopics(FakeTopics):
    """The topics as one broker knows them: all, after a while."""

    def __init__(self, topics: Topics) -> None:
        super().__init__(is_told=False)
        self._topics = topics

    async def existing(self) -> frozenset[str] | None:
        return frozenset(self._topics.present)

    async def published(self) -> dict[str, int] | None:
        return {name: count for name, (_, count) in self._topics.present.items()}

    def learn(self, names: Sequence[str]) -> None:
        """Take over what is published of some topics, and the racks of all brokers."""
        racks, present = self._topics.racks, self._topics.present
        self.metadata.update(
            UpdateMetadataRequest(
                controller_id=0,
                live_brokers=[
                    UpdateMetadataBroker(id=broker, endpoints=[], rack=rack) for broker, rack in racks.items()
                ],
                topic_states=[
                    UpdateMetadataTopicState(
                        topic_name=name,
                        topic_id=present[name][0],
                        partition_states=[
                            UpdateMetadataPartitionState(
                                partition_index=index, leader=0, replicas=[index % BROKERS]
                            )
                            for index in range(present[name][1])
                        ],
                    )
                    for name in names
                ],
            )
        )


# ---- brokers


@dataclass(eq=False)
class Broker:
    """One broker: the coordinator that runs on it, and whether members reach it."""

    number: int
    topics: BrokerTopics
    store: BrokerStore
    coordinator: GroupCoordinator | None = None
    is_cut: bool = False
    requests: dict[asyncio.Task[Any], None] = field(default_factory=dict)
    life: asyncio.Task[None] | None = None

    def led(self) -> GroupPartition | None:
        """The partition of the log, if this broker takes itself for its leader."""
        return None if self.coordinator is None else self.coordinator._hosted.runtime.partitions.get(0)

    def hosted(self) -> HostedGroup | None:
        """The group, where this broker takes itself for its coordinator and has loaded it."""
        partition = self.led()
        return partition.state.groups.get(GROUP) if partition is not None and partition.loaded else None


class GroupCluster:
    """The brokers and their topics, with the faults that a schedule brings about."""

    def __init__(self, chance: random.Random, settings: dict[str, str]) -> None:
        self.chance = chance
        self.log = GroupLog(chance)
        self.topics = Topics()
        self.problems: list[str] = []
        self.loses = 0.03
        """How often a request is lost; its answer just as often."""
        self.group_settings: dict[str, str] = {}
        self._config = load_broker_config(SETTINGS | settings).config
        self._work = asyncio.TaskGroup()
        self._restarts: list[asyncio.Task[Any]] = []
        self._is_over = False
        self.brokers = [self._broker(number) for number in range(BROKERS)]

    async def __aenter__(self) -> GroupCluster:
        await self._work.__aenter__()
        for broker in self.brokers:
            await self._start(broker)
        self.leader.coordinator.leadership_changed([(GROUPS, 0)], [])  # type: ignore[union-attr]
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._is_over = True
        for restart in self._restarts:
            restart.cancel()
        for broker in self.brokers:
            await self._end(broker)
        await self._work.__aexit__(None, None, None)

    @property
    def leader(self) -> Broker:
        """The broker that leads the log."""
        return self.brokers[self.log.leader]

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run work that ends with the cluster; a violation ends the schedule."""
        watched = self._work.create_task(self._watched(work))
        watched.add_done_callback(lambda _: work.close())  # it may have ended before its first step
        return watched

    async def _watched(self, work: Awaitable[Any]) -> Any:
        try:
            return await work
        except InvariantViolated as violated:
            self.problems.append(str(violated))

    # ---- lives of brokers

    def _broker(self, number: int) -> Broker:
        topics = BrokerTopics(self.topics)
        topics.learn([])
        return Broker(number, topics, BrokerStore(self.log, number))

    async def _start(self, broker: Broker) -> None:
        started = asyncio.Event()
        broker.life = self._work.create_task(self._live(broker, started))
        await started.wait()

    async def _live(self, broker: Broker, started: asyncio.Event) -> None:
        async with GroupCoordinator(
            config=self._config,
            environment=Environment(WorldClock(), self.chance, budget=SlowBudget(self.chance)),
            metrics=Metrics(),
            store=broker.store,
            metadata=broker.topics.metadata,
            topics=broker.topics,
            group_settings=lambda _: self.group_settings,
        ) as broker.coordinator:
            started.set()
            await asyncio.get_running_loop().create_future()

    async def _end(self, broker: Broker) -> None:
        broker.is_cut = broker.store.is_dead = True
        if broker.life is not None:
            broker.life.cancel()
            with suppress(asyncio.CancelledError):
                await broker.life
        for request in list(broker.requests):
            request.cancel()
        broker.coordinator = broker.life = None

    def restart(self, broker: Broker) -> None:
        """Kill a broker, and begin its next life; it knows the topics, and leads nothing."""
        self._restarts.append(self.spawn(self._restart(broker)))

    async def _restart(self, broker: Broker) -> None:
        await self._end(broker)
        if self._is_over:
            return
        broker.topics, broker.store = BrokerTopics(self.topics), BrokerStore(self.log, broker.number)
        broker.topics.learn(list(self.topics.present))
        broker.is_cut = False
        await self._start(broker)

    # ---- leadership

    def elect(self, number: int, *, told_after_s: float = 0.0, begins_after_s: float = 0.0) -> None:
        """Elect a broker; the earlier leader learns it after a while, and the new one begins after another.

        One that leads already leads on. One that does not know yet that it leads no more is not elected: it
        follows no other, so no in-sync replica is with it.
        """
        before, epoch, elected = self.leader, self.log.epoch + 1, self.brokers[number]
        loop = asyncio.get_running_loop()
        if elected is before:
            self.log.elect(number)
            self._begin(elected, epoch)
        elif elected.coordinator is not None and not elected.is_cut and elected.led() is None:
            self.log.elect(number)
            loop.call_later(told_after_s, self._resign, before, epoch)
            loop.call_later(begins_after_s, self._begin, elected, epoch)

    def _resign(self, broker: Broker, epoch: int) -> None:
        if broker.coordinator is not None:
            broker.coordinator.leadership_changed([], [(GROUPS, epoch)])

    def _begin(self, broker: Broker, epoch: int) -> None:
        if broker.coordinator is not None and self.log.epoch == epoch and self.log.leader == broker.number:
            broker.coordinator.leadership_changed([(GROUPS, epoch)], [])

    # ---- topics

    def publish(self, names: Sequence[str], *, within_s: float = 1.0) -> None:
        """Publish topics to all brokers, to each after a while."""
        for broker in self.brokers:
            delay_s = self.chance.uniform(0, within_s)
            asyncio.get_running_loop().call_later(delay_s, self._learn, broker, list(names))

    def _learn(self, broker: Broker, names: Sequence[str]) -> None:
        present = [name for name in names if name in self.topics.present]
        before = {name: broker.topics.metadata.topic_id(name) for name in present}
        broker.topics.learn(present)
        replaced = [
            name for name in present if before[name].int and before[name] != self.topics.present[name][0]
        ]
        if broker.coordinator is not None:
            broker.coordinator.topics_published(present, replaced)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; brokers learn of it after a while."""
        topic_id, count = self.topics.present.pop(name)
        for broker in self.brokers:
            delay_s = self.chance.uniform(0, 1)
            asyncio.get_running_loop().call_later(delay_s, self._forget, broker, name, topic_id, count)

    def _forget(self, broker: Broker, name: str, topic_id: UUID, count: int) -> None:
        if broker.topics.metadata.topic_id(name) != topic_id:
            return
        broker.topics.metadata.forget(name)
        if broker.coordinator is not None:
            broker.coordinator.partitions_deleted([TopicPartition(name, index) for index in range(count)])

    # ---- the network

    async def call(
        self, broker: int, request: Callable[[GroupCoordinator], Awaitable[T]], timeout_s: float
    ) -> T:
        """Send a request. Raises TimeoutError where it or its answer is lost, and KafkaError."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(timeout_s):
            await asyncio.sleep(self.chance.choice([0.0, 0.001, 0.01, 0.2]))
            self._serve(self.brokers[broker], request, answer)
            result = await answer
            await asyncio.sleep(self.chance.choice([0.0, 0.001, 0.01, 0.2]))
            return result

    def _serve(
        self, broker: Broker, request: Callable[[GroupCoordinator], Awaitable[T]], answer: asyncio.Future[T]
    ) -> None:
        coordinator = broker.coordinator
        if coordinator is None or broker.is_cut or self.chance.random() < self.loses:
            return
        serving = self.spawn(self._answer(broker, request(coordinator), answer))
        broker.requests[serving] = None
        serving.add_done_callback(lambda done: broker.requests.pop(done, None))

    async def _answer(self, broker: Broker, handling: Awaitable[T], answer: asyncio.Future[T]) -> None:
        result: T | KafkaError
        try:
            async with asyncio.timeout(NO_ANSWER_S):
                result = await handling
        except KafkaError as error:
            result = error
        except TimeoutError:
            raise InvariantViolated(f"broker {broker.number} does not answer") from None
        if answer.done() or broker.is_cut or self.chance.random() < self.loses:
            return
        if isinstance(result, KafkaError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def guess_coordinator(self) -> int:
        """Return the broker that FindCoordinator names: mostly the present leader."""
        return self.log.leader if self.chance.random() < 0.9 else self.chance.randrange(BROKERS)


class LoggedFailures(logging.Handler):
    """Collects failures that the product logs with a traceback: none is expected."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._problems = problems

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._problems.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def __enter__(self) -> LoggedFailures:
        logging.getLogger("ottla").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("ottla").removeHandler(self)

"""A cluster of controllers in memory, in virtual time, with faults drawn from a seed.

Brokers here have no logs: each holds the roles that it was assigned, and accepts them by the rules of a real
broker. Every change is followed by a check of what ZooKeeper and those brokers hold.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import uuid
from collections.abc import Callable, Coroutine, Mapping
from copy import copy
from typing import Any, TypeVar

from ottla.broker.cluster.features import SUPPORTED
from ottla.broker.cluster.registration import make_roots
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.broker.controller.control_request_batch import ControlRequest
from ottla.broker.controller.controller import Controller
from ottla.broker.controller.controller_context import LiveBroker
from ottla.broker.controller.events import AlterReassignments, ControlResponse
from ottla.broker.controller.testing_invariants import Invariants, InvariantViolated
from ottla.broker.metrics import Metrics
from ottla.broker.peers.controller_requests import AlterPartition, ProposedIsr
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import BACKGROUND_MS, LoopBudget
from ottla.protocol.errors import ErrorCode, NotController
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import Create, NodeExists, NoNode, SetData, Stat
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import (
    BrokerRegistration,
    Endpoint,
    PartitionState,
    TopicAssignment,
)

__all__ = [
    "ControllerCluster",
    "Deadlock",
    "InvariantViolated",
    "Invariants",
    "SimulatedBroker",
    "VirtualTimeLoop",
    "play",
    "run_in_virtual_time",
]

T = TypeVar("T")


class Deadlock(RuntimeError):
    """Nothing can run and no timer is set: a task waits for an event that cannot happen."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is None:
            raise Deadlock
        if not ready and timeout:
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, so that sleeping takes no real time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class LoopClock:
    """Both clocks read the loop's time."""

    def now_ms(self) -> int:
        return int(self.monotonic_ms())

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


class SimulatedBroker:
    """One broker: a session, a controller, and the roles that it was assigned."""

    def __init__(self, cluster: ControllerCluster, broker_id: int) -> None:
        self.id = broker_id
        self.cluster = cluster
        self.session: MemorySession = cluster.ensemble.session(timeout_ms=6_000)
        self.epoch = -1
        self.features = SUPPORTED
        """The features that it supports; empty for a broker of Apache Kafka."""
        self.controller_epoch = 0
        self.roles: dict[TopicPartition, tuple[int, int]] = {}
        """Leader and leader epoch of every hosted partition."""
        self.assigned: dict[TopicPartition, LeaderAndIsrPartitionState] = {}
        """What the latest accepted LeaderAndIsr said of every hosted partition."""
        self.data: set[TopicPartition] = set()
        self.undeletable: set[TopicPartition] = set()
        """Partitions whose logs cannot be deleted."""
        self.failed: set[TopicPartition] = set()
        """Partitions whose logs are in a directory that failed."""
        self.is_full = False
        """Whether it gives up, for want of room, what another member of the ISR can lead."""
        self.metadata: dict[TopicPartition, int] = {}
        self.alive: set[int] = set()
        self.requests: list[ControlRequest] = []
        self.controller = Controller(
            broker_id=broker_id,
            session=self.session,
            environment=cluster.environment,
            metrics=Metrics(),
            register=self._register,
            connect=cluster.connect,
            spawn=cluster.spawn,
            unclean_topics=cluster.read_unclean_topics,
        )
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, register and run for election."""
        await self.session.wait_connected()
        await make_roots(self.session)
        self.task = self.cluster.spawn(self.controller.run(), f"controller-{self.id}")

    async def stop(self) -> None:
        """Stop as a killed process does; the session is closed here, where a real one would expire later."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.session.close()

    async def _register(self) -> int:
        bound = self.session.bound()
        where = (Endpoint("PLAINTEXT", "host", 9092 + self.id),)
        node = BrokerRegistration(self.id, where, {}, 0, ottla_features=self.features)

        async def write() -> int:
            try:
                create = Create(node.path, node.encode(), ephemeral=True)
                stat = (await bound.multi([create, SetData(node.path, node.encode())]))[1]
                assert isinstance(stat, Stat)
                return stat.czxid
            except NodeExists:
                found = await bound.exists(node.path)
                if found is None or found.ephemeral_owner != self.session.session_id:
                    # Left by the earlier session; a real broker removes it, this one waits for its expiry.
                    await asyncio.sleep(0.1)
                    return await write()
                return found.czxid

        self.epoch = await retrying(write)
        return self.epoch

    def handle(self, request: ControlRequest) -> ControlResponse:
        """Accept or refuse a request, as a broker does."""
        self.requests.append(request)
        refused = request.controller_epoch < self.controller_epoch
        error = ErrorCode.STALE_CONTROLLER_EPOCH if refused else ErrorCode.NONE
        if request.broker_epoch < self.epoch:
            refused, error = True, ErrorCode.STALE_BROKER_EPOCH
        if not refused:
            self.controller_epoch = request.controller_epoch
        match request:
            case LeaderAndIsrRequest():
                return self._lead_or_follow(request, error)
            case UpdateMetadataRequest():
                return self._update(request, error)
            case StopReplicaRequest():
                return self._stop(request, error)

    def _lead_or_follow(self, request: LeaderAndIsrRequest, error: ErrorCode) -> LeaderAndIsrResponse:
        topics = []
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                if not error and state.leader_epoch > self.roles.get(partition, (0, -1))[1]:
                    self.roles[partition] = (state.leader, state.leader_epoch)
                    self.assigned[partition] = copy(state)  # the request's are other brokers' too
                    self.data.add(partition)
            answers = [
                LeaderAndIsrPartitionError(
                    partition_index=s.partition_index, error_code=self._given_up(topic.topic_name, s)
                )
                for s in topic.partition_states
            ]
            topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=answers))
        return LeaderAndIsrResponse(error_code=error, topics=[] if error else topics)

    def _given_up(self, topic: str, state: LeaderAndIsrPartitionState) -> ErrorCode:
        has_failed = TopicPartition(topic, state.partition_index) in self.failed
        is_wanted = state.leader == -1 and self.id in state.isr
        others = set(state.isr) - {self.id}
        is_lost = has_failed or (self.is_full and others and not is_wanted)
        return ErrorCode.KAFKA_STORAGE_ERROR if is_lost else ErrorCode.NONE

    def _update(self, request: UpdateMetadataRequest, error: ErrorCode) -> UpdateMetadataResponse:
        if not error:
            self.alive = {broker.id for broker in request.live_brokers}
            for topic in request.topic_states:
                for state in topic.partition_states:
                    partition = TopicPartition(topic.topic_name, state.partition_index)
                    if state.leader == -2:
                        self.metadata.pop(partition, None)
                    else:
                        self.metadata[partition] = state.leader
                        if self.id not in state.replicas and self._is_behind(partition, state.leader_epoch):
                            del self.roles[partition], self.assigned[partition]
        return UpdateMetadataResponse(error_code=error)

    def _is_behind(self, partition: TopicPartition, leader_epoch: int) -> bool:
        return partition in self.roles and self.roles[partition][1] < leader_epoch

    def _stop(self, request: StopReplicaRequest, error: ErrorCode) -> StopReplicaResponse:
        errors = []
        for topic in () if error else request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                self.roles.pop(partition, None)
                self.assigned.pop(partition, None)
                failed = state.delete_partition and partition in self.undeletable
                if state.delete_partition and not failed:
                    self.data.discard(partition)
                code = ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE
                errors.append(
                    StopReplicaPartitionError(
                        topic_name=partition.topic, partition_index=partition.partition, error_code=code
                    )
                )
        return StopReplicaResponse(error_code=error, partition_errors=errors)


class _Wire:
    """Sends requests to a simulated broker: takes time, and fails while the broker is down."""

    def __init__(self, cluster: ControllerCluster, broker: LiveBroker) -> None:
        self._cluster = cluster
        self._broker = broker

    async def send(self, request: ControlRequest) -> ControlResponse:
        self._cluster.under_way += 1
        try:
            return await self._send(request)
        finally:
            self._cluster.under_way -= 1

    async def _send(self, request: ControlRequest) -> ControlResponse:
        await asyncio.sleep(self._cluster.random.uniform(0.001, 0.02))
        target = self._cluster.brokers.get(self._broker.id)
        if target is None:
            raise ConnectionError
        response = target.handle(request)
        await asyncio.sleep(self._cluster.random.uniform(0.001, 0.02))
        if self._cluster.random.random() < self._cluster.lost_answers:
            raise ConnectionError
        return response

    async def close(self) -> None:
        return


class ControllerCluster:
    """Brokers on one ensemble; one seed decides all randomness."""

    def __init__(self, seed: int = 0, *, background_ms: float = BACKGROUND_MS) -> None:
        self.random = random.Random(seed)
        self.lost_answers = 0.0
        self.unclean_topics: set[str] = set()
        """Topics whose settings allow unclean elections."""
        self.under_way = 0
        """Requests to brokers without a response yet."""
        self.ensemble = MemoryEnsemble(
            now_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
            delay_ms=lambda: self.random.uniform(0.2, 3.0),
        )
        clock = LoopClock()
        self.environment = Environment(
            clock,
            random.Random(seed + 1),
            budget=LoopBudget(clock.monotonic_ms, background_ms=background_ms),
        )
        self.brokers: dict[int, SimulatedBroker] = {}
        self.invariants = Invariants(self.ensemble)
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ControllerCluster:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        for broker in list(self.brokers.values()):
            await broker.stop()
        for task in list(self._tasks):
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with the cluster."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def connect(self, broker: LiveBroker) -> _Wire:
        """Make a sender of requests to a broker."""
        return _Wire(self, broker)

    async def read_unclean_topics(self, topics: frozenset[str]) -> frozenset[str]:
        """Read which of these topics allow unclean elections."""
        await asyncio.sleep(self.random.uniform(0.001, 0.02))
        return topics & self.unclean_topics

    async def start(self, *ids: int) -> None:
        """Start brokers with empty memory and the data they had."""
        for broker_id in ids:
            before = self.brokers.get(broker_id)
            broker = self.brokers[broker_id] = SimulatedBroker(self, broker_id)
            if before is not None:
                broker.data = before.data
            await broker.start()

    async def kill(self, broker_id: int) -> SimulatedBroker:
        """Kill a broker."""
        broker = self.brokers.pop(broker_id)
        await broker.stop()
        return broker

    @property
    def active(self) -> Controller | None:
        """The controller, None while there is none or there are two."""
        found = [broker.controller for broker in self.brokers.values() if broker.controller.is_active]
        return found[0] if len(found) == 1 else None

    async def create_topic(self, name: str, *replicas: tuple[int, ...]) -> None:
        """Write a topic's assignment as CreateTopics does."""
        topic_id = uuid.UUID(int=self.random.getrandbits(128), version=4)
        node = TopicAssignment(name, dict(enumerate(replicas)), topic_id)
        await self._with_any_session(
            lambda session: session.create(node.path, node.encode(), make_parents=True)
        )

    async def delete_topic(self, name: str) -> None:
        """Mark a topic for deletion."""
        path = paths.deleted_topic(name)
        await self._with_any_session(lambda session: session.create(path, b"", make_parents=True))

    async def catch_up(self) -> None:
        """Make every leader propose an ISR of all live replicas, as if they had caught up."""
        for broker in list(self.brokers.values()):
            for partition, known in list(broker.assigned.items()):
                isr = tuple(replica for replica in known.replicas if replica in self.brokers)
                if known.leader == broker.id and set(isr) != set(known.isr):
                    await self._propose(broker, partition, isr)

    async def _propose(
        self, leader: SimulatedBroker, partition: TopicPartition, isr: tuple[int, ...]
    ) -> None:
        known, active = leader.assigned[partition], self.active
        if active is None:
            return
        stored, version = self._stored(partition)
        if stored.leader_epoch != known.leader_epoch or known.partition_epoch > version:
            return
        # As a leader that lost an answer does: it goes on from what ZooKeeper holds.
        known.isr, known.partition_epoch = list(stored.isr), version
        proposal = ProposedIsr(known.leader_epoch, known.partition_epoch, isr)
        try:
            answers = await active.ask(AlterPartition(leader.id, leader.epoch, {partition: proposal}))
        except NotController:
            return
        done = answers.leaderships.get(partition)
        if done is not None and done.leader_epoch == known.leader_epoch:
            known.isr, known.partition_epoch = list(done.isr), done.partition_epoch

    def _stored(self, partition: TopicPartition) -> tuple[PartitionState, int]:
        node = self.ensemble.tree.node(paths.partition_state(*partition))
        return PartitionState.decode(*partition, node.data), node.version

    async def reassign(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> dict[TopicPartition, int]:
        """Ask the controller to move partitions; return the error codes."""
        assert self.active is not None
        return (await self.active.ask(AlterReassignments(targets))).partitions

    def assignment(self, topic: str) -> TopicAssignment:
        """The content of a topic's znode."""
        return TopicAssignment.decode(topic, self.ensemble.tree.node(paths.topic(topic)).data)

    async def _with_any_session(self, call: Callable[[MemorySession], Any]) -> None:
        async def attempt() -> None:
            session = next(broker.session for broker in self.brokers.values() if broker.session.connected)
            try:
                await call(session)
            except NodeExists:
                return

        while True:
            try:
                return await retrying(attempt)
            except StopIteration:
                await asyncio.sleep(0.05)
            except RuntimeError as error:
                if not isinstance(error.__cause__, StopIteration):
                    raise
                await asyncio.sleep(0.05)

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        """Wait in virtual time for a condition, checking invariants on the way."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not condition():
            self.invariants.check()
            if loop.time() > deadline:
                raise AssertionError(f"not within {within_s:g} s: {what}")
            await asyncio.sleep(0.01)
        self.invariants.check()

    def state(self, topic: str, partition: int = 0) -> PartitionState | None:
        """The content of a partition's state znode."""
        try:
            node = self.ensemble.tree.node(paths.partition_state(topic, partition))
        except NoNode:
            return None
        return PartitionState.decode(topic, partition, node.data)

    def exists(self, path: str) -> bool:
        """Whether a znode exists."""
        try:
            self.ensemble.tree.node(path)
        except NoNode:
            return False
        return True

    def settled(self, topic: str, partition: int = 0) -> bool:
        """Whether a live broker leads a partition, and every broker knows it."""
        state = self.state(topic, partition)
        key = TopicPartition(topic, partition)
        if state is None or state.leader not in self.brokers:
            return False
        leader = self.brokers[state.leader]
        knows = leader.roles.get(key) == (state.leader, state.leader_epoch)
        return knows and all(broker.metadata.get(key) == state.leader for broker in self.brokers.values())


def play(
    story: Callable[[ControllerCluster], Coroutine[Any, Any, None]], *brokers: int, seed: int = 0
) -> None:
    """Run a story on a cluster of the given brokers that has a controller."""

    async def main() -> None:
        async with ControllerCluster(seed) as cluster:
            await cluster.start(*brokers)
            await cluster.until(lambda: cluster.active is not None, "a controller")
            await cluster.until(
                lambda: all(cluster.brokers[broker].epoch >= 0 for broker in brokers), "registered"
            )
            await story(cluster)
            cluster.invariants.check()

    run_in_virtual_time(main())

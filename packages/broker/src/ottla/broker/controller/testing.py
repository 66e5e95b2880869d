"""A cluster of controllers in memory, in virtual time, with faults drawn from a seed.

Brokers here have no logs: each holds the roles that it was assigned, and accepts them by the rules of a real
broker. Every change is followed by a check of what ZooKeeper and those brokers hold.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.broker.cluster.registration import make_roots
from ottla.broker.cluster.zookeeper_session import retrying
from ottla.broker.controller.control_request_batch import ControlRequest
from ottla.broker.controller.controller import Controller
from ottla.broker.controller.controller_context import LiveBroker
from ottla.broker.controller.events import ControlResponse
from ottla.broker.environment import Environment
from ottla.broker.metrics import Metrics
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from ottla.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.embedded.data_tree import DataSet, NodeCreated, NodeDeleted, Transaction
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.session import Create, NodeExists, NoNode, SetData, Stat
from ottla.zookeeper.testing import MemoryEnsemble, MemorySession
from ottla.zookeeper.znodes import (
    BrokerRegistration,
    ControllerEpoch,
    Endpoint,
    PartitionState,
    TopicAssignment,
)

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


class InvariantViolated(AssertionError):
    """The cluster broke an invariant."""


class Invariants:
    """Checks the history of the ensemble.

    I1: one session per controller epoch. I2: no write of an older controller after one of a newer.
    I5: leader epoch, partition epoch and controller epoch never decrease. I6: leader in ISR in assignment.
    """

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self._ensemble = ensemble
        self._looked_at = 0
        self._owners: dict[int, int] = {}
        self._epoch = 0
        self._states: dict[str, PartitionState] = {}
        self._assignments: dict[str, TopicAssignment] = {}
        self.elections = 0

    def check(self) -> None:
        """Check every change since the last check; raises `InvariantViolated`."""
        for transaction in self._ensemble.history[self._looked_at :]:
            self._take(transaction)
        self._looked_at = len(self._ensemble.history)

    def _take(self, transaction: Transaction) -> None:
        changes = {
            change.path: change
            for change in transaction.changes
            if isinstance(change, NodeCreated | NodeDeleted | DataSet)
        }
        if paths.CONTROLLER_EPOCH in changes and (
            data := getattr(changes[paths.CONTROLLER_EPOCH], "data", b"")
        ):
            self._controller_epoch(ControllerEpoch.decode(data).epoch, changes.get(paths.CONTROLLER))
        for path, change in changes.items():
            if isinstance(change, NodeDeleted):
                self._states.pop(path, None)
            elif path.endswith("/state") and path.startswith(paths.BROKER_TOPICS):
                self._state(path, change.data)
            elif path.startswith(paths.BROKER_TOPICS + "/") and path.count("/") == 3:
                name = paths.name_of(path)
                data = change.data
                self._assignments[name] = TopicAssignment.decode(name, data)

    def _controller_epoch(self, epoch: int, claimed: object) -> None:
        if epoch < self._epoch:
            raise InvariantViolated(f"I5: controller epoch {epoch} after {self._epoch}")
        self._epoch = epoch
        if epoch == 0:
            return
        if not isinstance(claimed, NodeCreated):
            raise InvariantViolated(f"I1: controller epoch {epoch} raised without a new controllership")
        if self._owners.setdefault(epoch, claimed.owner) != claimed.owner:
            raise InvariantViolated(f"I1: two sessions with controller epoch {epoch}")
        self.elections += 1

    def _state(self, path: str, data: bytes) -> None:
        _, _, _, topic, _, number, _ = path.split("/")
        try:
            state = PartitionState.decode(topic, int(number), data)
        except MalformedZnode:
            return  # written by a test
        if state.controller_epoch < self._epoch:
            raise InvariantViolated(
                f"I2: epoch {state.controller_epoch} wrote {path} after {self._epoch} was there"
            )
        before = self._states.get(path)
        if before is not None and state.leader_epoch < before.leader_epoch:
            raise InvariantViolated(f"I5: {path} went from {before} to {state}")
        replicas = self._assignments[topic].partitions[int(number)]
        if not (state.leader == -1 or state.leader in state.isr) or not set(state.isr) <= set(replicas):
            raise InvariantViolated(f"I6: {path} holds {state}, assigned to {replicas}")
        self._states[path] = state


class SimulatedBroker:
    """One broker: a session, a controller, and the roles that it was assigned."""

    def __init__(self, cluster: ControllerCluster, broker_id: int) -> None:
        self.id = broker_id
        self.cluster = cluster
        self.session: MemorySession = cluster.ensemble.session(timeout_ms=6_000)
        self.epoch = -1
        self.controller_epoch = 0
        self.roles: dict[TopicPartition, tuple[int, int]] = {}
        """Leader and leader epoch of every hosted partition."""
        self.data: set[TopicPartition] = set()
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
        node = BrokerRegistration(self.id, (Endpoint("PLAINTEXT", "host", 9092 + self.id),), {}, 0)

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
                    self.data.add(partition)
            answers = [
                LeaderAndIsrPartitionError(partition_index=s.partition_index) for s in topic.partition_states
            ]
            topics.append(LeaderAndIsrTopicError(topic_id=topic.topic_id, partition_errors=answers))
        return LeaderAndIsrResponse(error_code=error, topics=[] if error else topics)

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
        return UpdateMetadataResponse(error_code=error)

    def _stop(self, request: StopReplicaRequest, error: ErrorCode) -> StopReplicaResponse:
        for topic in () if error else request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                self.roles.pop(partition, None)
                if state.delete_partition:
                    self.data.discard(partition)
        return StopReplicaResponse(error_code=error)


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

    def __init__(self, seed: int = 0) -> None:
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
        self.environment = Environment(clock=LoopClock(), random=random.Random(seed + 1))
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

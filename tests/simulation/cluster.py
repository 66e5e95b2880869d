"""A simulated cluster: its brokers, their disks, what is done to them, and the trace of all that happens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Final
from uuid import UUID

from ottla.broker.config import BrokerConfig
from ottla.broker.log.files.fake_files import Loss, MemoryFiles
from ottla.broker.runtime.environment import Environment
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode, ZooKeeperError
from ottla.zookeeper.session import Create, Delete, NoNode, Operation, SetData
from ottla.zookeeper.znodes import ConfigEntity, PartitionState, TopicAssignment
from simulation.broker_process import PORT, LoopClock, Process, SimulatedBroker
from simulation.coordination import Coordination
from simulation.network import Network
from simulation.virtual_time import World

SESSION_TIMEOUT_MS: Final = 3_000
MAX_LAG_MS: Final = 1_500
OPERATOR: Final = 1
"""The session of the operator, which never ends."""


class Cluster:
    """Brokers 0 to `count` - 1, all down at first."""

    def __init__(self, seed: int, count: int = 3) -> None:
        self.world = World(seed)
        self.chance = self.world.random
        self.zookeeper = Coordination(self.world)
        self.zookeeper._apply(self.zookeeper.tree.plan_session(OPERATOR, b"", 1_000_000, 0))
        self.network = Network(self.world)
        self.outside = self.world.loop("clients")
        self.outside.network = self.network
        self.ids = list(range(count))
        self.disks: dict[int, MemoryFiles] = {one: _new_disk() for one in self.ids}
        self.processes: dict[int, Process] = {}
        self.lives = 0
        self.trace: list[str] = []
        self._assignments: tuple[int, dict[str, TopicAssignment]] = (-1, {})
        self._states: dict[TopicPartition, tuple[bytes, PartitionState | None]] = {}
        self.stopping: set[int] = set()
        self.went_down: Callable[[int], None] = lambda _: None
        """Called with each broker whose process has ended, however it did."""
        self.min_insync_replicas = 1
        self.settings_changed_s = float("-inf")

    # ---- the trace

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.world.now_s * 1000:9.1f} {what}")

    def trace_hash(self) -> str:
        """Name the trace: equal seeds have equal hashes."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]

    # ---- processes

    def config(self, broker_id: int) -> BrokerConfig:
        """The configuration of a broker: everything happens soon, and segments are small."""
        return BrokerConfig(
            broker_id=broker_id,
            zookeeper_connect="zookeeper:2181",
            zookeeper_session_timeout_ms=SESSION_TIMEOUT_MS,
            listeners=f"PLAINTEXT://b{broker_id}:{PORT}",
            log_dirs=("/data",),
            log_segment_bytes=4096,
            log_index_size_max_bytes=1024,
            log_dir_full_backoff_ms=300,
            log_dir_full_backoff_max_ms=1_000,
            replica_lag_time_max_ms=MAX_LAG_MS,
            controller_socket_timeout_ms=1_500,
            replica_socket_timeout_ms=1_500,
            controlled_shutdown_retry_backoff_ms=500,
            auto_leader_rebalance_enable=False,
            replica_high_watermark_checkpoint_interval_ms=500,
            metrics_port=-1,
            # Only transactions need these; other schedules stay as they were.
            transaction_state_log_num_partitions=2,
            offsets_topic_num_partitions=2,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=500,
            request_timeout_ms=3_000,
        )

    def start(self, broker_id: int) -> None:
        """Start a broker's process, unless it runs."""
        if broker_id in self.processes:
            return
        self.lives += 1
        self.note(f"start {broker_id}")
        loop = self.world.loop(f"b{broker_id}")
        loop.network = self.network
        clock = LoopClock(loop)
        environment = Environment(clock=clock, random=Random(self.chance.getrandbits(32)))
        broker = SimulatedBroker(
            self.config(broker_id), environment, self.disks[broker_id], self.zookeeper, self.network, loop
        )
        self.processes[broker_id] = Process(broker, self.lives)

    def kill(self, broker_id: int, *, power_loss: bool = False) -> None:
        """Kill a broker; with `power_loss` what was not synced may be lost."""
        process = self.processes.pop(broker_id, None)
        if process is None:
            return
        self.stopping.discard(broker_id)
        self.note(f"{'power loss' if power_loss else 'kill'} {broker_id}")
        process.loop.kill()
        self.network.process_ended(process.loop)
        self.disks[broker_id] = self.disks[broker_id].crash(self.chance, None if power_loss else Loss.KEPT)
        self.went_down(broker_id)

    def stop(self, broker_id: int) -> None:
        """Stop a broker as an operator does."""
        process = self.processes.get(broker_id)
        if process is not None and process.is_serving:
            self.note(f"stop {broker_id}")
            self.stopping.add(broker_id)
            process.stop()

    def reap(self) -> list[int]:
        """Take away the processes that have ended by themselves; return their brokers."""
        ended = [one for one, process in self.processes.items() if process.ended]
        for broker_id in ended:
            process = self.processes.pop(broker_id)
            self.note(f"ended {broker_id} {process.failure!r}")
            self.stopping.discard(broker_id)
            process.loop.kill()
            self.network.process_ended(process.loop)
            self.disks[broker_id] = self.disks[broker_id].crash(self.chance, Loss.KEPT)
            self.went_down(broker_id)
        return ended

    def serving(self) -> list[SimulatedBroker]:
        """The brokers that serve, paused ones included."""
        return [one.broker for _, one in sorted(self.processes.items()) if one.is_serving]

    # ---- ZooKeeper, as an operator's tools use it

    def write(self, *operations: Operation) -> bool:
        """Write znodes at once; return whether they could be written."""
        try:
            transaction = self.zookeeper.tree.plan(operations, OPERATOR, self.world.now_ms())
        except ZooKeeperError:
            return False
        self.zookeeper._apply(transaction)
        return True

    def set(self, path: str, data: bytes) -> None:
        """Write a znode, whether it exists or not."""
        self.write(SetData(path, data)) or self.write(Create(path, data))

    def create_topic(self, name: str, replicas: list[tuple[int, ...]]) -> None:
        """Write a topic's settings and assignment."""
        topic_id = UUID(int=self.chance.getrandbits(128), version=4)
        node = TopicAssignment(name, dict(enumerate(replicas)), topic_id)
        settings = ConfigEntity(f"topics/{name}", {"min.insync.replicas": str(self.min_insync_replicas)})
        self.note(f"create {name} {replicas}")
        self.write(Create(settings.path, settings.encode()))
        self.write(Create(node.path, node.encode()))

    def delete_topic(self, name: str) -> None:
        """Mark a topic for deletion."""
        self.note(f"delete {name}")
        self.write(Create(paths.deleted_topic(name), b""))

    def delete_controller(self) -> None:
        """Delete the controller's znode, as an operator does to move the controller."""
        self.note("delete /controller")
        self.write(Delete(paths.CONTROLLER))

    def data(self, path: str) -> bytes | None:
        """A znode's content."""
        try:
            return self.zookeeper.tree.node(path).data
        except NoNode:
            return None

    def assignments(self) -> dict[str, TopicAssignment]:
        """All topics that exist and are not being deleted."""
        zxid = self.zookeeper.tree.zxid
        if self._assignments[0] != zxid:
            self._assignments = zxid, self._read_assignments()
        return self._assignments[1]

    def _read_assignments(self) -> dict[str, TopicAssignment]:
        try:
            names = self.zookeeper.tree.node(paths.BROKER_TOPICS).children
        except NoNode:
            return {}
        found: dict[str, TopicAssignment] = {}
        for name in sorted(names):
            data = self.data(paths.topic(name))
            if data is None or self.data(paths.deleted_topic(name)) is not None:
                continue
            try:
                found[name] = TopicAssignment.decode(name, data)
            except MalformedZnode:
                continue
        return found

    def setting(self, topic: str, name: str) -> str | None:
        """A setting of a topic as ZooKeeper has it."""
        data = self.data(paths.config_entity("topics", topic))
        return ConfigEntity.decode(f"topics/{topic}", data).config.get(name) if data is not None else None

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """A partition's state as ZooKeeper has it."""
        data = self.data(paths.partition_state(partition.topic, partition.partition))
        if data is None:
            return None
        known = self._states.get(partition)
        if known is None or known[0] != data:
            known = self._states[partition] = (data, _decoded(partition, data))
        return known[1]


def _decoded(partition: TopicPartition, data: bytes) -> PartitionState | None:
    try:
        return PartitionState.decode(partition.topic, partition.partition, data)
    except MalformedZnode:
        return None


def _new_disk() -> MemoryFiles:
    return MemoryFiles()

"""One schedule: a cluster, clients and faults of one seed, checked until the cluster has recovered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ottla.broker.replication.partition import Role
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.znodes import ControllerNode
from simulation.broker_process import simulated_machine
from simulation.clients import Clients, Topic
from simulation.cluster import SESSION_TIMEOUT_MS, Cluster
from simulation.faults import Fault, Faults, draw, draw_fills
from simulation.invariant_violated import InvariantViolated
from simulation.invariants import Invariants
from simulation.log_copies import Entry
from simulation.transaction_history import read_outputs
from simulation.transactional_clients import WORKERS, TransactionalClients, create_topics
from simulation.transactional_producer import OUTPUTS

HORIZON_S: Final = 20.0
"""When the faults end."""
RECOVERED_WITHIN_S: Final = 20.0
CHECK_EVERY_S: Final = 0.2


@dataclass
class Outcome:
    """The outcome of a schedule."""

    seed: int
    violation: str | None
    trace: list[str] = field(repr=False)
    trace_hash: str
    events: int
    acks: int
    reads: int
    transactions: int
    """Transactions that clients know to be committed."""
    faults: list[Fault] = field(repr=False)


def run_schedule(
    seed: int,
    faults: Sequence[Fault] | None = None,
    *,
    transactions: bool = False,
    full_disks: bool = False,
    leaves_garbage: bool = False,
) -> Outcome:
    """Run the schedule of a seed, or other faults in its cluster, perhaps with clients of transactions.

    With `full_disks` disks are full now and then, besides the seed's faults.
    """
    if full_disks and faults is None:
        faults = faults_with_fills(seed)
    with simulated_machine(leaves_garbage=leaves_garbage):
        return Schedule(seed, faults, transactions=transactions).run()


def faults_of(seed: int) -> list[Fault]:
    """The faults that a seed stands for."""
    return draw(Random(f"faults {seed}"), 3, HORIZON_S, SESSION_TIMEOUT_MS / 1000)


def faults_with_fills(seed: int) -> list[Fault]:
    """The faults of a seed, and full disks."""
    fills = draw_fills(Random(f"fills {seed}"), 3, HORIZON_S)
    return sorted([*faults_of(seed), *fills], key=lambda fault: fault.at_s)


class Schedule:
    """Runs one schedule."""

    def __init__(
        self, seed: int, faults: Sequence[Fault] | None = None, *, transactions: bool = False
    ) -> None:
        self.seed = seed
        self.cluster = Cluster(seed)
        self.cluster.min_insync_replicas = self.cluster.chance.choice((1, 1, 2))
        self.clients = Clients(self.cluster)
        self.transactional = TransactionalClients(self.cluster) if transactions else None
        self.invariants = Invariants(self.cluster, self.clients.history)
        self.plan = list(faults_of(seed) if faults is None else faults)
        self.faults = Faults(self.cluster, self.plan)
        self.cluster.went_down = self._went_down

    def run(self) -> Outcome:
        """Run to the end, or to the first violation."""
        violation: str | None = None
        try:
            self._run()
        except InvariantViolated as error:
            violation = str(error)
            self.cluster.note(f"VIOLATED {violation}")
        finally:
            self.cluster.world.close()
        cluster, history = self.cluster, self.clients.history
        return Outcome(
            self.seed, violation, cluster.trace, cluster.trace_hash(), cluster.world.events, history.acks,
            history.reads, self.transactional.history.committed if self.transactional else 0, self.plan,
        )  # fmt: skip

    def _run(self) -> None:
        cluster = self.cluster
        for broker_id in cluster.ids:
            cluster.start(broker_id)
        cluster.world.run_until(lambda: len(cluster.serving()) == len(cluster.ids), 10.0)
        cluster.create_topic("events", [(0, 1, 2), (2, 0, 1)])
        cluster.create_topic("moved", [(0, 1)])
        self.clients.start()
        if self.transactional is not None:
            create_topics(cluster)
            self.transactional.start()
        self._until(HORIZON_S)
        self.faults.heal()
        self._recover()

    def _went_down(self, broker_id: int) -> None:
        self.invariants.copies.read_disk(broker_id, self.cluster.disks[broker_id])

    def _until(self, end_s: float) -> None:
        world = self.cluster.world
        while world.now_s < end_s:
            self._step(min(world.now_s + CHECK_EVERY_S, end_s))

    def _step(self, until_s: float) -> None:
        world = self.cluster.world
        while world.run_until(lambda: world.look_now, until_s):
            world.look_now = False
            self.invariants.check()
        self.invariants.check()
        for clients in (self.clients, self.transactional):
            if clients is not None and clients.violation is not None:
                raise clients.violation
        if world.failures:
            raise InvariantViolated(f"L5 {world.failures[0]}")
        self._note_changes()
        for broker_id in self.cluster.reap():
            if self.faults.healed:
                self.cluster.start(broker_id)
            else:
                world.loops[0].post(self.cluster.chance.uniform(0.1, 3.0), self.cluster.start, broker_id)

    def _note_changes(self) -> None:
        history = self.cluster.zookeeper.history
        while self._noted < len(history):
            transaction = history[self._noted]
            self.cluster.note(f"zookeeper {[str(one)[:150] for one in transaction.changes]}")
            self._noted += 1

    _noted = 0

    # ---- recovery

    def _recover(self) -> None:
        world = self.cluster.world
        deadline_s = world.now_s + RECOVERED_WITHIN_S
        stop_s = world.now_s + 3.0
        while True:
            self._step(world.now_s + CHECK_EVERY_S)
            if world.now_s > stop_s:
                self._stop_clients()
            missing = self._missing()
            if missing is None and self.clients.stopping:
                break
            if world.now_s > deadline_s:
                raise InvariantViolated(missing or "L4 clients do not stop")
        self._check_final()

    def _stop_clients(self) -> None:
        self.clients.stopping = True
        if self.transactional is not None:
            self.transactional.stopping = True

    def _missing(self) -> str | None:
        """The first thing that has not recovered yet, or None."""
        cluster = self.cluster
        brokers = cluster.serving()
        if len(brokers) < len(cluster.ids):
            return f"L4 only {[one.broker_id for one in brokers]} serve"
        active = [one.broker_id for one in brokers if one.services.controller.is_active]
        data = cluster.data(paths.CONTROLLER)
        if len(active) != 1 or data is None or ControllerNode.decode(data).broker_id != active[0]:
            return f"L1 the controllers are {active}, the znode has {data!r}"
        marked = cluster.zookeeper.tree.node(paths.DELETE_TOPICS).children
        if marked:
            return f"I14 {sorted(marked)} are not deleted"
        if cluster.data(paths.REASSIGN_PARTITIONS) is not None:
            return "L2 the request for reassignments is still there"
        if left := self._left_behind():
            return left
        for name, node in cluster.assignments().items():
            if any(node.adding_replicas.values()) or any(node.removing_replicas.values()):
                return f"L2 {node} is still being reassigned"
            for number, replicas in node.partitions.items():
                missing = self._missing_in(TopicPartition(name, number), replicas)
                if missing is not None:
                    return missing
        if self.transactional is not None and not self.transactional.has_ended:
            return "L3 clients of transactions have not ended"
        return None

    def _left_behind(self) -> str | None:
        """A log of a topic that was deleted."""
        topics = self.cluster.assignments()
        for broker in self.cluster.serving():
            for log in broker.services.logs:
                node = topics.get(log.topic_partition.topic)
                if node is None or log.topic_id not in (None, node.topic_id):
                    return f"I14 broker {broker.broker_id} holds {log.topic_partition} of a deleted topic"
        return None

    def _missing_in(self, partition: TopicPartition, replicas: tuple[int, ...]) -> str | None:
        state = self.cluster.state(partition)
        if state is None or state.leader not in self.cluster.ids:
            return f"L2 {partition} has no leader: {state}"
        if sorted(state.isr) != sorted(replicas):
            return f"L2 the ISR of {partition} is {state.isr}, assigned are {replicas}"
        ends = []
        for broker in self.cluster.serving():
            hosted = broker.services.replicas.hosted(partition)
            if broker.broker_id not in replicas:
                # A replica that is removed while its broker is away stays on its disk: not mended yet.
                was_away = broker.session.session_number or self.cluster.lives > len(self.cluster.ids)
                if not was_away and broker.services.logs.get(partition) is not None:
                    return f"I14 broker {broker.broker_id} still holds {partition} of {replicas}"
                continue
            if hosted is None or hosted.core.role is Role.NONE:
                return f"L2 broker {broker.broker_id} has no role for {partition}"
            if (
                hosted.leads != (broker.broker_id == state.leader)
                or hosted.leader_epoch != state.leader_epoch
            ):
                return f"L2 broker {broker.broker_id} does not know the leadership of {partition}: {state}"
            least = self.cluster.setting(partition.topic, "min.insync.replicas")
            if str(hosted.log.config.min_insync_replicas) != least:
                return f"L2 broker {broker.broker_id} does not know the settings of {partition}: {least}"
            log = hosted.log
            ends.append((log.last_stable_offset, hosted.high_watermark, log.log_end_offset))
        if not self.clients.stopping:
            return None
        if len({one for pair in ends for one in pair}) != 1:
            return f"L3 LSO, HW and log end of the replicas of {partition} are {ends}"
        return None

    def _check_final(self) -> None:
        self.invariants.check()
        for topic, acked in self.clients.history.acked.items():
            self._check_copies(topic, acked)
        if self.transactional is not None:
            self._check_transactions(self.transactional)

    def _check_transactions(self, clients: TransactionalClients) -> None:
        """Compare what clients of transactions saw with the logs, which are equal on all replicas."""
        copies, outputs = self.invariants.copies, {}
        for partition in OUTPUTS:
            logs = [copies.of(one, partition) for one in self.cluster.ids]
            first = logs[0]
            if first is None or any(one is None or one.data != first.data for one in logs):
                raise InvariantViolated(f"I7 the replicas of {partition} differ at the end")
            outputs[partition] = read_outputs(partition, first.data)
            check_sequences(partition, first.entries)
        inputs = {}
        for worker in range(WORKERS):
            copy = copies.of(0, TopicPartition("events", worker))
            inputs[worker] = [one.value for one in copy.entries] if copy is not None else []
        clients.history.check(outputs, inputs)

    def _check_copies(self, topic: Topic, acked: list[tuple[int, bytes]]) -> None:
        node = self.cluster.assignments().get(topic.partition.topic)
        if node is None or node.topic_id != topic.id:
            return
        replicas = node.partitions[topic.partition.partition]
        copies = [self.invariants.copies.of(one, topic.partition) for one in replicas]
        first = copies[0]
        if first is None or any(one is None or one.data != first.data for one in copies):
            raise InvariantViolated(f"I7 the replicas of {topic.partition} differ at the end")
        for offset, value in acked:
            entry = first.at(offset)
            if entry is None or entry.value != value:
                raise InvariantViolated(
                    f"I8 {value!r}, acknowledged at {offset} of {topic.partition}, is lost"
                )
        check_sequences(topic.partition, first.entries)


def check_sequences(partition: TopicPartition, entries: Sequence[Entry]) -> None:
    """Raise `InvariantViolated` unless the sequences of each producer epoch follow each other from 0 on."""
    following: dict[tuple[int, int], int] = {}
    for producer_id, epoch, sequence in (one.producer for one in entries):
        if sequence < 0:  # of no idempotent producer, or of a marker
            continue
        expected = following.get((producer_id, epoch), 0)
        if sequence != expected:
            raise InvariantViolated(
                f"I10 producer {producer_id} wrote sequence {sequence} to {partition}, expected {expected}"
            )
        following[producer_id, epoch] = sequence + 1

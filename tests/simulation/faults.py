"""Faults of a cluster and their times: a list drawn from the seed before the cluster starts.

A list can be shortened, and the rest keeps its times: that is how a failing schedule is shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from ottla.broker.log.files.fake_files import Loss
from ottla.protocol.api import ApiKey
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.session import Create, Delete, SetData
from ottla.zookeeper.znodes import (
    ConfigChange,
    ConfigEntity,
    PreferredReplicaElection,
    ReassignPartitions,
)
from simulation.network import SLOW_S

if TYPE_CHECKING:
    from simulation.cluster import Cluster

AFTER_AN_ANSWER_S: Final = SLOW_S + 0.1
CLIENTS: Final = "clients"
LOSSES: Final = tuple(Loss)


@dataclass(frozen=True)
class Fault:
    """One thing that is done at `at_s`; it lasts `for_s` where it ends by itself."""

    at_s: float
    kind: str
    broker: int
    other: int
    for_s: float

    def __str__(self) -> str:
        return f"{self.kind}({self.broker}, {self.other}, {self.for_s:.2f} s)"


WEIGHTS: Final = {
    "crash": 18, "pause": 16, "cut": 14, "cut one way": 8, "cut zookeeper": 12, "expire": 5,
    "delete controller": 6, "preferred": 6, "shutdown": 8, "lose replies": 6, "break connections": 6,
    "reassign": 6, "delete topic": 3, "create topic": 3, "malformed": 2, "config": 4, "all crash": 2,
}  # fmt: skip


def draw(chance: Random, count: int, horizon_s: float, session_timeout_s: float) -> list[Fault]:
    """Draw the faults of one schedule; each schedule favours some kinds."""
    kinds = list(WEIGHTS)
    weights = [WEIGHTS[one] * chance.choice((0, 1, 1, 3)) for one in kinds]
    if not any(weights):
        weights = [WEIGHTS[one] for one in kinds]
    between_s = chance.choice((0.4, 1.0, 2.0))
    faults, at_s = [], 1.5
    while at_s < horizon_s:
        kind = chance.choices(kinds, weights)[0]
        broker = chance.randrange(count)
        other = (broker + chance.randrange(1, count)) % count
        for_s = session_timeout_s * chance.choice((0.05, 0.2, 0.5, 0.9, 1.3, 3.0)) * chance.uniform(0.7, 1.2)
        faults.append(Fault(at_s, kind, broker, other, for_s))
        at_s += chance.uniform(0.05, 2 * between_s)
    return faults


def draw_fills(chance: Random, count: int, horizon_s: float) -> list[Fault]:
    """Draw the times at which disks are full, often several at once."""
    fills, at_s = [], 1.5
    while at_s < horizon_s:
        for_s = chance.choice((0.3, 2.0, 5.0)) * chance.uniform(0.7, 1.3)
        fills.append(Fault(at_s, "fill disk", chance.randrange(count), 0, for_s))
        at_s += chance.choice((0.0, 0.2, 2.0, 5.0)) * chance.uniform(0.5, 1.5)
    return fills


class Faults:
    """Applies faults to a cluster, and undoes them all in the end."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault]) -> None:
        self._cluster = cluster
        self._topics = 0
        self.healed = False
        self._loop = cluster.world.loop("faults")
        for fault in faults:
            self._loop.post(fault.at_s, self._apply, fault)

    def _apply(self, fault: Fault) -> None:
        if self.healed:
            return
        self._cluster.note(str(fault))
        getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)

    def _later(self, delay_s: float, act: Callable[[], object]) -> None:
        self._loop.post(delay_s, lambda: None if self.healed else act())

    # ---- processes

    def _crash(self, fault: Fault) -> None:
        if fault.broker in self._cluster.processes:
            self._cluster.kill(fault.broker)
            self._later(min(fault.for_s, 4.0), lambda: self._cluster.start(fault.broker))

    def _all_crash(self, fault: Fault) -> None:
        for broker_id in self._cluster.ids:
            self._cluster.kill(broker_id)
            self._later(
                self._cluster.chance.uniform(0.0, 2.0),
                partial(self._cluster.start, broker_id),
            )

    def _shutdown(self, fault: Fault) -> None:
        self._cluster.stop(fault.broker)

    def _pause(self, fault: Fault) -> None:
        process = self._cluster.processes.get(fault.broker)
        if process is not None and not process.loop.paused:
            process.loop.pause()
            self._loop.post(min(fault.for_s, 8.0), lambda: self._resume(fault.broker))

    def _resume(self, broker_id: int) -> None:
        process = self._cluster.processes.get(broker_id)
        if process is not None and process.loop.paused:
            self._cluster.note(f"resume {broker_id}")
            process.loop.resume()

    # ---- disks

    def _fill_disk(self, fault: Fault) -> None:
        """Leave no room on a disk, until the broker's next life at most."""
        disk = self._cluster.disks[fault.broker]
        disk.is_full = True
        self._later(fault.for_s, lambda: setattr(disk, "is_full", False))

    # ---- networks

    def _cut(self, fault: Fault) -> None:
        self._cut_ways(fault, [(fault.broker, fault.other), (fault.other, fault.broker)])

    def _cut_one_way(self, fault: Fault) -> None:
        self._cut_ways(fault, [(fault.broker, fault.other)])

    def _cut_ways(self, fault: Fault, ways: Sequence[tuple[int, int]]) -> None:
        names = {(f"b{source}", f"b{target}") for source, target in ways}
        self._cluster.network.cuts |= names
        self._later(fault.for_s, lambda: self._cluster.network.cuts.difference_update(names))

    def _cut_zookeeper(self, fault: Fault) -> None:
        process = self._cluster.processes.get(fault.broker)
        session = getattr(process.broker, "session", None) if process is not None else None
        if session is not None:
            session.cut()
            self._later(fault.for_s, session.heal)

    def _expire(self, fault: Fault) -> None:
        process = self._cluster.processes.get(fault.broker)
        session = getattr(process.broker, "session", None) if process is not None else None
        if session is not None and session in self._cluster.zookeeper.clients:
            self._cluster.zookeeper.expire_now(session)

    def _lose_replies(self, fault: Fault) -> None:
        self._cluster.zookeeper.lost_replies = 0.15
        self._later(fault.for_s, lambda: setattr(self._cluster.zookeeper, "lost_replies", 0.0))

    def _break_connections(self, fault: Fault) -> None:
        self._cluster.network.broken_connections = 0.2
        self._later(fault.for_s, lambda: setattr(self._cluster.network, "broken_connections", 0.0))

    # ---- only in scenarios

    def _deafen(self, fault: Fault) -> None:
        """Drop all messages of other brokers to a broker."""
        self._cut_ways(fault, [(one, fault.broker) for one in self._cluster.ids if one != fault.broker])

    def _mute(self, fault: Fault) -> None:
        """Drop all messages of a broker to the others."""
        self._cut_ways(fault, [(fault.broker, one) for one in self._cluster.ids if one != fault.broker])

    def _slow(self, fault: Fault) -> None:
        """Delay every message between two brokers."""
        names = {(f"b{fault.broker}", f"b{fault.other}"), (f"b{fault.other}", f"b{fault.broker}")}
        self._cluster.network.slow |= names
        self._later(fault.for_s, lambda: self._cluster.network.slow.difference_update(names))

    def _crash_after_alter_partition(self, fault: Fault) -> None:
        """Crash the broker that sends the next AlterPartition, soon after it has the answer."""

        def act(sender: str) -> None:
            crash = Fault(fault.at_s, "crash", int(sender.removeprefix("b")), 0, fault.for_s)
            self._later(AFTER_AN_ANSWER_S, lambda: self._apply(crash))

        self._cluster.network.when_arrived[ApiKey.ALTER_PARTITION] = act

    def _deafen_at_alter_partition(self, fault: Fault) -> None:
        """Drop all messages to the broker that sends the next AlterPartition."""
        self._at_alter_partition("deafen", fault)

    def _mute_at_alter_partition(self, fault: Fault) -> None:
        """Drop all further messages of the broker that sends the next AlterPartition."""
        self._at_alter_partition("mute", fault)

    def _at_alter_partition(self, kind: str, fault: Fault) -> None:
        def act(sender: str) -> None:
            self._apply(Fault(fault.at_s, kind, int(sender.removeprefix("b")), 0, fault.for_s))

        self._cluster.network.when_arrived[ApiKey.ALTER_PARTITION] = act

    def _delay_stop_replica(self, fault: Fault) -> None:
        """Delay the next request to stop a replica until long after its sender has repeated it."""
        self._cluster.network.late[ApiKey.STOP_REPLICA] = fault.for_s

    def _delay_alter_partition(self, fault: Fault) -> None:
        """Delay the next proposed ISRs until long after their sender has repeated them."""
        self._cluster.network.late[ApiKey.ALTER_PARTITION] = fault.for_s

    def _crash_after_late_markers(self, fault: Fault) -> None:
        """Delay the next markers of transactions until long after their coordinator has crashed."""

        def act(sender: str) -> None:
            crash = Fault(fault.at_s, "crash", int(sender.removeprefix("b")), 0, fault.for_s)
            self._later(0.0, lambda: self._apply(crash))

        self._cluster.network.late[ApiKey.WRITE_TXN_MARKERS] = fault.for_s
        self._cluster.network.when_late[ApiKey.WRITE_TXN_MARKERS] = act

    def _delete_moved(self, fault: Fault) -> None:
        self._cluster.delete_topic("moved")

    def _create_moved(self, fault: Fault) -> None:
        self._cluster.create_topic("moved", [(0, 1)])

    def _rewrite_states(self, fault: Fault) -> None:
        """Write the state znodes of all partitions as they are."""
        for name, node in self._cluster.assignments().items():
            for path in (paths.partition_state(name, number) for number in node.partitions):
                data = self._cluster.data(path)
                if data is not None:
                    self._cluster.write(SetData(path, data))

    # ---- operators

    def _delete_controller(self, fault: Fault) -> None:
        self._cluster.delete_controller()

    def _preferred(self, fault: Fault) -> None:
        partitions = [
            TopicPartition(name, number)
            for name, node in self._cluster.assignments().items()
            for number in node.partitions
        ]
        if partitions:
            node = PreferredReplicaElection(tuple((one.topic, one.partition) for one in partitions))
            self._cluster.write(Create(paths.PREFERRED_REPLICA_ELECTION, node.encode()))

    def _reassign(self, fault: Fault) -> None:
        """Move a topic of two replicas to another two brokers, or the other way round."""
        node = ReassignPartitions({("moved", 0): (fault.broker, fault.other)})
        self._cluster.write(Create(paths.REASSIGN_PARTITIONS, node.encode()))

    def _create_topic(self, fault: Fault) -> None:
        self._topics += 1
        ids = self._cluster.ids
        replicas = tuple(ids[(fault.broker + one) % len(ids)] for one in range(len(ids)))
        self._cluster.create_topic(f"more{self._topics % 2}", [replicas])

    def _delete_topic(self, fault: Fault) -> None:
        names = [one for one in self._cluster.assignments() if one.startswith("more")]
        if names:
            self._cluster.delete_topic(names[0])

    def _malformed(self, fault: Fault) -> None:
        path = paths.topic(f"malformed{fault.broker}")
        self._cluster.write(Create(path, b"{not json"))
        if fault.other:  # else it stays: the cluster has to live with it
            self._later(fault.for_s, lambda: self._cluster.write(Delete(path)))

    def _config(self, fault: Fault) -> None:
        names = list(self._cluster.assignments())
        if not names:
            return
        least = str(1 + (fault.broker % 2))
        settings = ConfigEntity(f"topics/{names[0]}", {"min.insync.replicas": least})
        change = ConfigChange(f"topics/{names[0]}")
        self._cluster.settings_changed_s = self._cluster.world.now_s
        self._cluster.set(settings.path, settings.encode())
        self._cluster.write(Create(change.path, change.encode(), sequential=True))

    # ---- the end

    def heal(self) -> None:
        """Undo everything and start what is down."""
        self.healed = True
        cluster = self._cluster
        cluster.note("heal")
        cluster.network.cuts.clear()
        cluster.network.slow.clear()
        cluster.network.broken_connections = cluster.zookeeper.lost_replies = 0.0
        for session in list(cluster.zookeeper.clients):
            session.heal()
        for disk in cluster.disks.values():
            disk.is_full = False
        for broker_id in cluster.ids:
            self._resume(broker_id)
            cluster.start(broker_id)

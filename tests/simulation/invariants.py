"""The invariants of a simulated cluster, as `docs/design/simulation.md` lists them."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.controller.testing_invariants import Invariants as ControllerInvariants
from ottla.broker.controller.testing_invariants import InvariantViolated as ControllerInvariantViolated
from ottla.broker.replication.partition import Role
from ottla.protocol.topics import TopicPartition
from simulation.clients import History, Topic
from simulation.invariant_violated import InvariantViolated
from simulation.log_copies import LogCopies, LogCopy

if TYPE_CHECKING:
    from ottla.broker.replication.hosted_partition import HostedPartition
    from simulation.cluster import Cluster


SETTINGS_ARRIVE_WITHIN_S: Final = 15.0


class Watermark(NamedTuple):
    """The high watermark of a leader, and what it depends on."""

    offset: int
    partition_epoch: int
    min_insync_replicas: int


class Invariants:
    """Checks a cluster between two events."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._zookeeper = ControllerInvariants(cluster.zookeeper)
        self.copies = LogCopies()
        self.without_power: set[int] = set()
        """Brokers whose disks may have lost records since they were last in sync."""
        self._leaders: dict[tuple[Topic, int], int] = {}
        self._watermarks: dict[tuple[int, Topic, int], Watermark] = {}

    def check(self) -> None:
        """Raise `InvariantViolated`."""
        try:
            self._zookeeper.check()
        except ControllerInvariantViolated as error:
            raise InvariantViolated(str(error)) from error
        for process in self._cluster.processes.values():
            services = getattr(process.broker, "services", None)
            if services is None:
                continue
            if process.is_serving:
                self.copies.keep(process.broker.broker_id, {one.topic_partition for one in services.logs})
            for hosted in services.replicas:
                self._check_replica(process.broker.broker_id, process.life, hosted)
        for name, node in self._cluster.assignments().items():
            if node.topic_id is not None:
                for number, replicas in node.partitions.items():
                    self._check_partition(Topic(TopicPartition(name, number), node.topic_id), replicas)

    def _check_replica(self, broker_id: int, life: int, hosted: HostedPartition) -> None:
        log, core = hosted.log, hosted.core
        if log.offline is not None:  # closed: the process is about to end
            self.copies.read_disk(broker_id, self._cluster.disks[broker_id])
            return
        if log.topic_id is None:
            return
        copy = self.copies.update(broker_id, log)
        topic = Topic(hosted.topic_partition, log.topic_id)
        where = f"broker {broker_id}'s {hosted.topic_partition}"
        if core.role is Role.LEADER:
            leader = self._leaders.setdefault((topic, core.leader_epoch), broker_id)
            if leader != broker_id:
                raise InvariantViolated(f"I3 {where} and broker {leader} lead in epoch {core.leader_epoch}")
        if log.is_truncating:
            return
        bounds = (log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset)
        if list(bounds) != sorted(bounds):
            raise InvariantViolated(f"I9 {where} has its start, LSO, HW and end at {bounds}")
        if log.recovery_point > log.log_end_offset:
            raise InvariantViolated(f"I9 {where} has its recovery point above its end")
        self._check_watermark(life, topic, hosted, where)
        self._check_epochs(hosted, copy, where)

    def _check_watermark(self, life: int, topic: Topic, hosted: HostedPartition, where: str) -> None:
        if hosted.core.role is not Role.LEADER:
            return
        key, core = (life, topic, hosted.leader_epoch), hosted.core
        before = self._watermarks.get(key, Watermark(0, -1, 0))
        now = Watermark(hosted.high_watermark, core.partition_epoch, core.min_insync_replicas)
        if now.offset < before.offset:
            raise InvariantViolated(f"I9 {where} leads, and its HW fell from {before.offset} to {now.offset}")
        is_small = len(core.isr) < min(core.min_insync_replicas, len(core.replicas))
        if is_small and now[1:] == before[1:] and now.offset > before.offset and not self._settings_moved():
            raise InvariantViolated(
                f"I9 {where} has the ISR {sorted(core.isr)}, below min.insync.replicas, and its HW rose from "
                f"{before.offset} to {now.offset}"
            )
        self._watermarks[key] = now

    def _settings_moved(self) -> bool:
        """Whether min.insync.replicas may have had another value between two checks."""
        return self._cluster.world.now_s - self._cluster.settings_changed_s < SETTINGS_ARRIVE_WITHIN_S

    def _check_epochs(self, hosted: HostedPartition, copy: LogCopy, where: str) -> None:
        entries = hosted.log.leader_epochs.entries
        for before, after in pairwise(entries):
            if not (before.epoch < after.epoch and before.start_offset < after.start_offset):
                raise InvariantViolated(f"I13 {where} has the epochs {entries}")
        for number, (epoch, start) in enumerate(entries):
            end = entries[number + 1].start_offset if number + 1 < len(entries) else copy.end
            for offset in {start, end - 1} if start < end else ():
                entry = copy.at(offset)
                if entry is not None and entry.epoch != epoch:
                    raise InvariantViolated(f"I13 {where} has epoch {entry.epoch} at {offset}, not {epoch}")

    # ---- over all replicas of a partition

    def _check_partition(self, topic: Topic, replicas: tuple[int, ...]) -> None:
        state = self._cluster.state(topic.partition)
        if state is None:
            return
        copies = {
            one: copy
            for one in self._cluster.ids
            if (copy := self.copies.of(one, topic.partition)) is not None and copy.topic_id == topic.id
        }
        for (one, copy), (other, another) in combinations(copies.items(), 2):
            self._check_prefixes(topic, one, copy, other, another)
        acked = self._history.acked.get(topic, [])
        for member in state.isr:
            member_copy = copies.get(member)
            if acked and member_copy is None and member not in self.without_power:
                raise InvariantViolated(
                    f"I8 broker {member} is in the ISR of {topic.partition} without a log"
                )
            if member_copy is not None and member not in self.without_power:
                self._check_acked(topic, member, member_copy, acked)
        self._check_high_watermark(topic, copies)

    def _check_prefixes(self, topic: Topic, one: int, copy: LogCopy, other: int, another: LogCopy) -> None:
        size = min(len(copy.data), len(another.data))
        if copy.start == another.start and copy.data[:size] == another.data[:size]:
            return
        first, offset = max(copy.start, another.start), min(copy.end, another.end) - 1
        while offset >= first:
            mine, theirs = copy.at(offset), another.at(offset)
            if mine is not None and theirs is not None and mine.epoch == theirs.epoch:
                break
            offset -= 1
        for at in range(first, offset + 1):
            if copy.at(at) != another.at(at):
                raise InvariantViolated(
                    f"I7 brokers {one} and {other} agree on the epoch of {topic.partition} at {offset}, "
                    f"but hold {copy.at(at)} and {another.at(at)} at {at}"
                )

    def _check_acked(self, topic: Topic, member: int, copy: LogCopy, acked: list[tuple[int, bytes]]) -> None:
        for offset, value in acked[copy.checked :]:
            entry = copy.at(offset)
            if offset >= copy.start and (entry is None or entry.value != value):
                raise InvariantViolated(
                    f"I8 broker {member} is in the ISR of {topic.partition} and lacks the acknowledged "
                    f"{value[:12]!r} at {offset}: it has {entry}, its log ends at {copy.end}"
                )
        copy.checked = len(acked)

    def _check_high_watermark(self, topic: Topic, copies: dict[int, LogCopy]) -> None:
        state = self._cluster.state(topic.partition)
        process = self._cluster.processes.get(state.leader) if state is not None else None
        services = getattr(process.broker, "services", None) if process is not None else None
        hosted = services.replicas.hosted(topic.partition) if services is not None else None
        if hosted is None or state is None or not hosted.leads or hosted.leader_epoch != state.leader_epoch:
            return
        for member in sorted(set(hosted.core.maximal_isr)):
            copy = copies.get(member)
            if copy is not None and member not in self.without_power and copy.end < hosted.high_watermark:
                raise InvariantViolated(
                    f"I9 the HW of {topic.partition} is {hosted.high_watermark}, and the log of broker "
                    f"{member} of the maximal ISR ends at {copy.end}"
                )

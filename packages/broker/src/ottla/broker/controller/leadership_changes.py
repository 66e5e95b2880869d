"""Changes of partition leaderships: decide, write, decide again after a conflict, publish what was written.

Two rules hold everywhere. The controller's view of a partition is ZooKeeper's answer: after a conflict it
decides again from the state that ZooKeeper returned. And every written state is sent to the brokers, also
when it is not certain that this controller wrote it: sending twice is harmless, sending nothing leaves a
partition without a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial

from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.controller import elections
from ottla.broker.controller.control_request_batch import ControlRequestBatch
from ottla.broker.controller.controller_context import (
    NO_LEADER,
    ControllerContext,
    PartitionState,
    ReplicaState,
)
from ottla.broker.controller.events import (
    LeaderElected,
    ReadUncleanTopics,
    Steps,
    WriteLeaderships,
    WriteResults,
)
from ottla.broker.runtime.loop_budget import EndOfSlice, slices
from ottla.protocol.topics import TopicPartition

Decision = Callable[[TopicPartition], Leadership | None]


class Leaderships:
    """Writes the leader and the ISR of partitions, and keeps their states in step with these writes."""

    def __init__(self, context: ControllerContext, batch: ControlRequestBatch) -> None:
        self._context = context
        self._batch = batch

    def create_states(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Take New partitions Online, led by the first live replica."""
        context = self._context
        wanted: dict[TopicPartition, Leadership] = {}
        for some in slices(partitions):
            wanted |= {p: first for p in some if (first := self._first_leadership(p))}
            yield EndOfSlice()
        if not wanted:
            return
        results: WriteResults = yield WriteLeaderships(wanted)
        adopted = self.adopt(results)
        for some in slices(sorted(results.keys() & context.leaderships.keys())):
            for partition in some:
                self._bring_online(partition)
            yield EndOfSlice()
        yield from self.settle(adopted)

    def _bring_online(self, partition: TopicPartition) -> None:
        context, replicas = self._context, self._context.assignment(partition).replicas
        self._batch.lead_or_follow(partition, replicas, is_new=True)
        self.enter_state(partition)
        for broker in replicas:
            alive = context.is_alive(partition, broker)
            context.move_replica(partition, broker, ReplicaState.ONLINE if alive else ReplicaState.OFFLINE)

    def _first_leadership(self, partition: TopicPartition) -> Leadership | None:
        if partition in self._context.unreadable:
            return None
        replicas = self._context.assignment(partition).replicas
        alive = tuple(broker for broker in replicas if self._context.is_alive(partition, broker))
        return Leadership(alive[0], 0, alive, self._context.epoch, -1) if alive else None

    def settle(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Elect a leader from the live in-sync replicas, and drop dead replicas from the ISR."""
        partitions = list(partitions)
        unclean = yield from self._unclean_topics(partitions)
        yield from self.update(partitions, partial(self._settled, unclean=unclean))
        for some in slices(partitions):
            for partition in some:
                self.enter_state(partition)
            yield EndOfSlice()

    def _unclean_topics(self, partitions: Iterable[TopicPartition]) -> Steps[frozenset[str]]:
        """Ask which topics allow an unclean election, of those that have nothing better."""
        topics: set[str] = set()
        for some in slices(partitions):
            topics.update(p.topic for p in some if self._needs_unclean(p))
            yield EndOfSlice()
        if not topics:
            return frozenset()
        allowed: frozenset[str] = yield ReadUncleanTopics(frozenset(topics))
        return allowed

    def _needs_unclean(self, partition: TopicPartition) -> bool:
        """Whether replicas are alive, but none that is in sync, nor one that was and may lead again."""
        now = self._context.leaderships.get(partition)
        if now is None or self._may_lead_again(partition, now):
            return False
        alive = {
            b for b in self._context.assignment(partition).replicas if self._context.is_alive(partition, b)
        }
        return bool(alive) and alive.isdisjoint(now.isr)

    def _may_lead_again(self, partition: TopicPartition, now: Leadership) -> bool:
        """Whether a member of the ISR without room has yet to answer that it is the last one.

        Two full disks that were given up at one moment, each for the other, hold all acknowledged records.
        """
        return any(self._context.may_lead_again(partition, member) for member in now.isr)

    def _settled(self, partition: TopicPartition, unclean: Collection[str]) -> Leadership | None:
        """Return the next leadership of a partition, or None when the present one stays."""
        context = self._context
        now = context.leaderships[partition]

        def alive(broker: int) -> bool:
            return context.is_alive(partition, broker)

        choice = elections.elect_for_offline(
            context.assignment(partition).replicas,
            now.isr,
            alive,
            unclean_allowed=partition.topic in unclean and not self._may_lead_again(partition, now),
        )
        if choice is None:
            # The last in-sync replica stays in the ISR: it alone is known to hold every acknowledged record.
            leader, isr = NO_LEADER, now.isr
        else:
            leader, isr = (now.leader if alive(now.leader) else choice.leader), choice.isr
        if (leader, isr) == (now.leader, now.isr):
            return None
        return now.next(leader=leader, isr=isr, controller_epoch=context.epoch)

    def update(self, partitions: Iterable[TopicPartition], decide: Decision) -> Steps[set[TopicPartition]]:
        """Write what `decide` returns until nothing conflicts; publish and return the written partitions."""
        touched: set[TopicPartition] = set()
        pending = set(partitions)
        while pending:
            known = (p for p in sorted(pending) if p in self._context.leaderships)
            wanted: dict[TopicPartition, Leadership] = {}
            for some in slices(known):
                wanted |= {p: new for p in some if (new := decide(p))}
                yield EndOfSlice()
            if not wanted:
                break
            before = {p: self._context.leaderships[p] for p in wanted}
            results: WriteResults = yield WriteLeaderships(wanted)
            pending = self.adopt(results)
            touched |= results.keys()
            for partition, result in results.items():
                if result.ours and result.leadership and result.leadership.leader != before[partition].leader:
                    unclean = result.leadership.leader not in (NO_LEADER, *before[partition].isr)
                    yield LeaderElected(partition, result.leadership, unclean)
        for some in slices(sorted(touched & self._context.leaderships.keys())):
            for partition in some:
                self._batch.lead_or_follow(partition, self._context.assignment(partition).replicas)
            yield EndOfSlice()
        return touched

    def adopt(self, results: WriteResults) -> set[TopicPartition]:
        """Store what ZooKeeper holds now; return the partitions that another writer changed."""
        for partition, result in results.items():
            if result.unreadable:
                self._context.set_aside(partition)
                self._batch.metadata(self._context.live, [partition])
            elif result.leadership is None:
                self._context.leaderships.pop(partition, None)
            else:
                self._context.store_leadership(partition, result.leadership)
        return {p for p, result in results.items() if not result.ours and result.leadership is not None}

    def enter_state(self, partition: TopicPartition) -> None:
        """Move a partition to the state that its leadership says; without one it stays as it is."""
        leadership = self._context.leaderships.get(partition)
        if leadership is not None:
            self._context.move_partition(partition, self.state_of(leadership))

    def state_of(self, leadership: Leadership | None) -> PartitionState:
        """New without a leadership, Online with a live leader, Offline otherwise."""
        if leadership is None:
            return PartitionState.NEW
        return PartitionState.ONLINE if leadership.leader in self._context.live else PartitionState.OFFLINE

"""Reassignment: a partition moves to other replicas while it is served (KIP-455).

Replicas that come are stored in the topic's znode before they hear of it, and those that go are removed from
it after they were told to delete: a controller that is elected in between finds there what is left to do.

U. The znode gets the wanted replicas, those before them, and which of them are added and removed.
A. The leader epoch rises, all replicas are told, and the added ones start to copy.
B. Once all wanted replicas are in sync, one of them leads, the others leave the ISR and delete their logs,
   and last the znode gets the wanted replicas alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ottla.broker.cluster.partition_znodes import Assignment, Leadership
from ottla.broker.controller import elections
from ottla.broker.controller.control_request_batch import ControlRequestBatch
from ottla.broker.controller.controller_context import ControllerContext, ReplicaState, Stopping
from ottla.broker.controller.events import (
    AlterReassignments,
    DropReassignments,
    ListReassignments,
    Steps,
    WriteAssignments,
)
from ottla.broker.controller.leadership_changes import Leaderships
from ottla.broker.peers.controller_requests import Answers
from ottla.protocol.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    KafkaError,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.control_requests import StopReplicaRequest
from ottla.protocol.topics import TopicPartition

NOTHING = Assignment(())

Wanted = dict[TopicPartition, Assignment]


def wanted_assignment(
    context: ControllerContext, partition: TopicPartition, target: Sequence[int] | None
) -> Assignment:
    """The assignment with which a partition moves to `target`, or with None back to where it was.

    Raises NoReassignmentInProgress, InvalidReplicaAssignment or UnknownTopicOrPartition.
    """
    now = context.assignment(partition) if partition in context else NOTHING
    if target is None:
        if not now.is_reassigning:
            raise NoReassignmentInProgress(f"No reassignment of {partition} is in progress.")
        wanted = now.towards(now.origin)
    else:
        _check_target(target)
        wanted = now.towards(target)
    if dead := [broker for broker in wanted.adding if broker not in context.live]:
        raise InvalidReplicaAssignment(
            f"Replica assignment has brokers that are not alive. Replica list: {dead}, "
            f"live broker list: {sorted(context.live)}"
        )
    # A topic that waits for its deletion does so because of the move: it may be cancelled, but not go on.
    is_doomed = target is not None and partition.topic in context.deletions_waiting
    if now is NOTHING or context.is_deleting(partition) or is_doomed:
        raise UnknownTopicOrPartition("The partition does not exist.")
    _check_in_sync(context, partition, wanted)
    return wanted


def _check_target(target: Sequence[int]) -> None:
    if not target:
        raise InvalidReplicaAssignment("Empty replica list specified in partition reassignment.")
    if len(set(target)) != len(target):
        raise InvalidReplicaAssignment(
            f"Duplicate replica ids in partition reassignment replica list: {list(target)}"
        )
    if min(target) < 0:
        raise InvalidReplicaAssignment(f"Invalid broker id in replica list: {list(target)}")


def _check_in_sync(context: ControllerContext, partition: TopicPartition, wanted: Assignment) -> None:
    """Refuse to give up added replicas that alone have the committed records."""
    leadership = context.leaderships.get(partition)
    if leadership is not None and not set(leadership.isr) & set(wanted.replicas):
        raise InvalidReplicaAssignment(
            f"Only replicas that the running reassignment adds are in sync: {list(leadership.isr)}. "
            "Without them committed records would be lost."
        )


class Reassignments:
    """Moves partitions, as requested and as the topics' znodes say."""

    def __init__(
        self, context: ControllerContext, batch: ControlRequestBatch, leaderships: Leaderships
    ) -> None:
        self._context = context
        self._batch = batch
        self._leaderships = leaderships

    # ---- requests

    def alter(self, event: AlterReassignments, answers: Answers) -> Steps[None]:
        """Begin, replace and cancel reassignments; `answers` gets the error of each partition."""
        wanted: Wanted = {}
        refused: dict[TopicPartition, KafkaError] = {}
        for partition, target in event.targets.items():
            try:
                wanted[partition] = wanted_assignment(self._context, partition, target)
            except KafkaError as error:
                refused[partition] = error
        if not event.from_znode:
            # The latest request counts: a later controller must not find the earlier one.
            yield DropReassignments(frozenset(wanted))
        changed = {p: new for p, new in wanted.items() if new != self._context.assignment(p)}
        refused |= yield from self._begin(changed)
        answers.partitions |= dict.fromkeys(wanted, ErrorCode.NONE)
        for partition, refusal in refused.items():
            answers.partitions[partition] = refusal.code
            answers.messages[partition] = str(refusal)
        if event.from_znode:
            moving = self._context.reassigning | self._context.stopping.keys()
            yield DropReassignments(frozenset(event.targets) - moving)

    def list_moving(self, event: ListReassignments, answers: Answers) -> None:
        """Fill `answers` with the partitions asked for that are being moved."""
        moving = self._context.reassigning | self._context.stopping.keys()
        for partition in sorted(moving if event.partitions is None else moving & event.partitions):
            now = self._context.assignment(partition)
            if stopping := self._context.stopping.get(partition):
                now = Assignment(now.replicas + stopping.replicas, (), stopping.replicas)
            answers.reassignments[partition] = now

    # ---- U and A

    def resume(self) -> Steps[None]:
        """Go on, as a new controller, with what the znodes say."""
        # The leader may not have heard of the added replicas: only a later leader epoch makes it listen.
        yield from self._leaderships.update(self._context.reassigning, self._again)
        self._context.isr_moved |= self._context.reassigning

    def _begin(self, changed: Wanted) -> Steps[dict[TopicPartition, KafkaError]]:
        """Store and announce new assignments; return why others are not stored."""
        context = self._context
        kept = yield from self._give_up(changed)
        changed = {p: new for p, new in changed.items() if p not in kept}
        written: Collection[TopicPartition] = ()
        if changed:
            written = yield WriteAssignments(changed)
        stored = {p: new for p, new in changed.items() if p in written}
        context.assign(stored)
        for partition in stored:
            context.stopping.pop(partition, None)
        added = {p: self._new_replicas(p) for p in stored}
        led = [p for p in stored if p in context.leaderships]
        yield from self._leaderships.update(led, self._again)
        for partition in led:
            self._batch.lead_or_follow(partition, added[partition], is_new=True)
        yield from self._leaderships.create_states(p for p in stored if p not in context.leaderships)
        context.isr_moved |= stored.keys() & context.reassigning
        refused: dict[TopicPartition, KafkaError] = {
            p: InvalidReplicaAssignment("The replicas that this would remove are the only ones in sync now.")
            for p in kept
        }
        gone = changed.keys() - stored.keys()
        return refused | {p: UnknownTopicOrPartition("The partition does not exist.") for p in gone}

    def _give_up(self, changed: Wanted) -> Steps[Wanted]:
        """Stop replicas that a replaced or cancelled reassignment added, before the znode forgets them.

        Returns what `_leave` returns.
        """
        unneeded: dict[TopicPartition, tuple[int, ...]] = {}
        before: Wanted = {}
        for partition, new in changed.items():
            now = self._context.assignment(partition)
            if left := _without(now.replicas, new.replicas):
                unneeded[partition], before[partition] = left, now
                rest = Assignment(
                    _without(now.replicas, left), _without(now.adding, left), _without(now.removing, left)
                )
                self._context.assign({partition: rest})
        return (yield from self._leave(unneeded, before))

    def _new_replicas(self, partition: TopicPartition) -> list[int]:
        """Move added replicas that were unknown from NonExistent to New."""
        context = self._context
        added = [
            broker
            for broker in context.assignment(partition).adding
            if context.replica_state(partition, broker) is ReplicaState.NON_EXISTENT
        ]
        for broker in added:
            context.move_replica(partition, broker, ReplicaState.NEW)
        return added

    def _again(self, partition: TopicPartition) -> Leadership:
        """The present leadership, one leader epoch later: brokers take no new assignment without it."""
        now = self._context.leaderships[partition]
        return now.next(leader=now.leader, isr=now.isr, controller_epoch=self._context.epoch)

    # ---- B

    def advance(self) -> Steps[None]:
        """Complete the reassignments whose wanted replicas are all in sync now."""
        moved, self._context.isr_moved = self._context.isr_moved, set()
        ready = [p for p in sorted(moved & self._context.reassigning) if self._is_ready(p)]
        if ready:
            yield from self._complete(ready)

    def _is_ready(self, partition: TopicPartition) -> bool:
        now = self._context.leaderships.get(partition)
        target = self._context.assignment(partition).target
        alive = any(self._context.is_alive(partition, broker) for broker in target)
        return now is not None and alive and set(target) <= set(now.isr)

    def _complete(self, ready: list[TopicPartition]) -> Steps[None]:
        context = self._context
        before = {p: context.assignment(p) for p in ready}
        left = {p: assignment.removing for p, assignment in before.items()}
        for partition in ready:
            for broker in before[partition].adding:
                if context.is_alive(partition, broker):
                    context.move_replica(partition, broker, ReplicaState.ONLINE)
        context.assign({p: Assignment(before[p].target) for p in ready})
        kept = yield from self._leave(left, before)
        ready = [p for p in ready if p not in kept]
        for partition in ready:
            awaited = {broker for broker in left[partition] if broker in context.live}
            context.stopping[partition] = Stopping(left[partition], awaited)
        yield from self._finish(ready)

    def _leave(self, left: dict[TopicPartition, tuple[int, ...]], before: Wanted) -> Steps[Wanted]:
        """Take replicas that are no longer assigned out of the ISR, and have them deleted.

        Where another writer changed the ISR meanwhile so that they alone are in sync, they stay, with the
        assignment `before`. Returns the assignments that stay.
        """
        if not left:
            return {}
        yield from self._leaderships.update(left, self._within_assignment)
        kept = {p: before[p] for p in left if not self._can_leave(p)}
        self._context.assign(kept)
        yield from self._leaderships.update(kept, self._again)
        for partition, brokers in left.items():
            if partition in kept:
                continue
            self._leaderships.enter_state(partition)
            for broker in brokers:
                self._context.forget_replica(partition, broker)
                self._batch.stop(partition, broker, delete=True)
        yield from self._batch.requests()
        return kept

    def _can_leave(self, partition: TopicPartition) -> bool:
        now = self._context.leaderships.get(partition)
        if now is None:  # never led, so nothing is lost; of a state that cannot be read this is unknown
            return partition not in self._context.unreadable
        return not set(now.isr).isdisjoint(self._context.assignment(partition).replicas)

    def _within_assignment(self, partition: TopicPartition) -> Leadership | None:
        now = self._context.leaderships[partition]
        choice = elections.elect_for_reassignment(
            self._context.assignment(partition).replicas,
            now.isr,
            lambda broker: self._context.is_alive(partition, broker),
            now.leader,
        )
        if choice is None:
            return None
        return now.next(leader=choice.leader, isr=choice.isr, controller_epoch=self._context.epoch)

    def stopped(self, broker: int, request: StopReplicaRequest) -> Steps[None]:
        """A broker has answered a StopReplica."""
        partitions = [
            TopicPartition(topic.topic_name, state.partition_index)
            for topic in request.topic_states
            for state in topic.partition_states
            if state.delete_partition
        ]
        yield from self._no_longer_await({broker}, partitions)

    def brokers_gone(self, gone: set[int]) -> Steps[None]:
        """Do not wait for brokers that have gone: what they hold is stale, and stays with them."""
        yield from self._no_longer_await(gone, self._context.stopping)

    def brokers_started(self, started: set[int]) -> None:
        """Repeat requests to brokers that registered again: the earlier ones may not have arrived."""
        for partition, stopping in self._context.stopping.items():
            for broker in stopping.awaited & started:
                self._batch.stop(partition, broker, delete=True)

    def _no_longer_await(self, brokers: set[int], partitions: Iterable[TopicPartition]) -> Steps[None]:
        known = [p for p in partitions if p in self._context.stopping]
        for partition in known:
            self._context.stopping[partition].awaited -= brokers
        yield from self._finish(known)

    def _finish(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Write the znodes of partitions whose removed replicas are all deleted."""
        context = self._context
        done = [p for p in partitions if not context.stopping[p].awaited]
        if not done:
            return
        yield WriteAssignments({p: context.assignment(p) for p in done})
        for partition in done:
            del context.stopping[partition]
        self._batch.metadata(context.live, done)
        yield DropReassignments(frozenset(done))


def _without(brokers: tuple[int, ...], left: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in left)

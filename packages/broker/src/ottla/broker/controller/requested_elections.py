"""Requested elections: ElectLeaders, the automatic leader balance, and ControlledShutdown."""

from __future__ import annotations

from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.controller import elections
from ottla.broker.controller.control_request_batch import ControlRequestBatch
from ottla.broker.controller.controller_context import ControllerContext
from ottla.broker.controller.events import ElectLeaders, Steps
from ottla.broker.controller.leadership_changes import Leaderships
from ottla.broker.peers.controller_requests import Answers, ControlledShutdown
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition


class RequestedElections:
    """Moves leaderships between live replicas."""

    def __init__(
        self, context: ControllerContext, batch: ControlRequestBatch, leaderships: Leaderships
    ) -> None:
        self._context = context
        self._batch = batch
        self._leaderships = leaderships

    def elect(self, event: ElectLeaders, answers: Answers) -> Steps[None]:
        """Elect leaders as ElectLeaders asks; `answers` gets the error of each partition."""
        asked = list(self._context.partitions()) if event.partitions is None else sorted(event.partitions)
        electable: dict[TopicPartition, elections.Choice] = {}
        for partition in asked:
            answer = self._electable(partition, unclean=event.unclean)
            if isinstance(answer, elections.Choice):
                electable[partition] = answer
            elif answer != ErrorCode.ELECTION_NOT_NEEDED or event.partitions is not None:
                answers.partitions[partition] = answer
        yield from self._leaderships.update(electable, lambda p: self._elected(p, unclean=event.unclean))
        for partition in electable:
            self._leaderships.enter_state(partition)
            is_there = partition in self._context.leaderships
            answers.partitions[partition] = (
                ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )

    def _electable(self, partition: TopicPartition, *, unclean: bool) -> elections.Choice | ErrorCode:
        context = self._context
        if partition not in context.leaderships or context.is_deleting(partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        now, replicas = context.leaderships[partition], context.assignment(partition).replicas

        def alive(broker: int) -> bool:
            return context.is_alive(partition, broker)

        if (unclean and alive(now.leader)) or (not unclean and now.leader == replicas[0]):
            return ErrorCode.ELECTION_NOT_NEEDED
        if unclean:
            choice = elections.elect_for_offline(replicas, now.isr, alive, unclean_allowed=True)
            return choice or ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        return elections.elect_preferred(replicas, now.isr, alive) or ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE

    def _elected(self, partition: TopicPartition, *, unclean: bool) -> Leadership | None:
        choice = self._electable(partition, unclean=unclean)
        if not isinstance(choice, elections.Choice):
            return None
        now = self._context.leaderships[partition]
        return now.next(leader=choice.leader, isr=choice.isr, controller_epoch=self._context.epoch)

    def balance(self, allowed: float) -> Steps[None]:
        """Elect preferred leaders where another broker leads more than the `allowed` share of partitions."""
        preferring: dict[int, list[TopicPartition]] = {}
        for partition in self._context.leaderships:
            # While a partition moves, the first replica is one that it moves to: it leads at the end.
            if not self._context.is_deleting(partition) and partition not in self._context.reassigning:
                preferring.setdefault(self._context.assignment(partition).replicas[0], []).append(partition)
        for partitions in preferring.values():
            movable = [p for p in partitions if self._can_elect_preferred(p)]
            if elections.imbalance(len(partitions), len(movable)) > allowed:
                yield from self.elect(ElectLeaders(frozenset(movable)), Answers())

    def _can_elect_preferred(self, partition: TopicPartition) -> bool:
        return isinstance(self._electable(partition, unclean=False), elections.Choice)

    def controlled_shutdown(self, event: ControlledShutdown, answers: Answers) -> Steps[None]:
        """Move leaderships off a broker that shuts down; `answers` names those that could not move."""
        context, leaving = self._context, event.broker_id
        broker = context.live.get(leaving)
        if broker is None:
            answers.top = ErrorCode.BROKER_NOT_AVAILABLE
            return
        if event.broker_epoch not in (-1, broker.epoch):
            answers.top = ErrorCode.STALE_BROKER_EPOCH
            return
        # Marked first: otherwise AlterPartition would put the broker back into ISRs that it has just left.
        context.shutting_down.add(leaving)
        shared = [
            p
            for p in context.partitions_on([leaving])
            if p in context.leaderships
            and len(context.assignment(p).replicas) > 1
            and not context.is_deleting(p)
        ]
        yield from self._leaderships.update(shared, lambda p: self._without(p, leaving))
        for partition in shared:
            now = context.leaderships.get(partition)
            if now is None:
                continue
            if now.leader == leaving:
                answers.remaining.append(partition)
            else:
                self._batch.stop(partition, leaving, delete=False)

    def _without(self, partition: TopicPartition, leaving: int) -> Leadership | None:
        now = self._context.leaderships[partition]
        if now.leader != leaving:
            if leaving not in now.isr or len(now.isr) == 1:
                return None
            isr = tuple(member for member in now.isr if member != leaving)
            return now.next(leader=now.leader, isr=isr, controller_epoch=self._context.epoch)
        choice = elections.elect_for_shutdown(
            self._context.assignment(partition).replicas,
            now.isr,
            lambda broker: self._context.is_alive(partition, broker),
            self._context.shutting_down,
        )
        if choice is None:
            return None
        return now.next(leader=choice.leader, isr=choice.isr, controller_epoch=self._context.epoch)

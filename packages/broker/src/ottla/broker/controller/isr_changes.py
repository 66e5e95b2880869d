"""AlterPartition: check the ISR that a leader proposes, and write it (KIP-497)."""

from __future__ import annotations

from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.controller.control_request_batch import ControlRequestBatch
from ottla.broker.controller.controller_context import ControllerContext
from ottla.broker.controller.events import Steps, WriteLeaderships, WriteResults
from ottla.broker.controller.leadership_changes import Leaderships
from ottla.broker.peers.controller_requests import AlterPartition, Answers, ProposedIsr
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace

NO_EPOCH = -1


class IsrChanges:
    """Expands and shrinks ISRs as leaders propose."""

    def __init__(
        self, context: ControllerContext, batch: ControlRequestBatch, leaderships: Leaderships
    ) -> None:
        self._context = context
        self._batch = batch
        self._leaderships = leaderships

    def alter_partition(self, event: AlterPartition, answers: Answers) -> Steps[None]:
        """Write the valid proposals; `answers` gets an error or the leadership of each partition."""
        broker = self._context.live.get(event.broker_id)
        if broker is None or broker.epoch != event.broker_epoch:
            answers.top = ErrorCode.STALE_BROKER_EPOCH
            return
        wanted: dict[TopicPartition, Leadership] = {}
        for partition, proposal in event.proposals.items():
            error = self._validate_proposal(partition, proposal, event.broker_id)
            if error is not None:
                answers.partitions[partition] = error
                continue
            now = self._context.leaderships[partition]
            if proposal.partition_epoch < now.partition_epoch:
                # Applied already; the leader lost the answer.
                answers.leaderships[partition] = now
            else:
                # Also the present ISR is written: the leader that proposes it wants a later partition
                # epoch, which refuses the copies of an earlier proposal of its own.
                wanted[partition] = replace(now, isr=proposal.isr, controller_epoch=self._context.epoch)
        if not wanted:
            return
        results: WriteResults = yield WriteLeaderships(wanted)
        self._leaderships.adopt(results)
        for partition, result in results.items():
            if result.leadership and (result.ours or _is_applied(wanted[partition], result.leadership)):
                answers.leaderships[partition] = result.leadership
            else:
                answers.partitions[partition] = ErrorCode.INVALID_UPDATE_VERSION
        self._batch.metadata(self._context.live, results.keys() & self._context.leaderships.keys())

    def _validate_proposal(
        self, partition: TopicPartition, proposal: ProposedIsr, leader: int
    ) -> ErrorCode | None:
        now = self._context.leaderships.get(partition)
        if now is None or self._context.is_deleting(partition):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if proposal.leader_epoch > now.leader_epoch or proposal.partition_epoch > now.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if proposal.leader_epoch < now.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader != now.leader or leader not in proposal.isr:
            return ErrorCode.INVALID_REQUEST
        if not set(proposal.isr) <= set(self._context.assignment(partition).replicas):
            return ErrorCode.INVALID_REQUEST
        if proposal.is_recovering:  # no state of this controller is
            return ErrorCode.INVALID_REQUEST
        if proposal.partition_epoch < now.partition_epoch:
            # Asked for once more after it was applied, it gets the same answer.
            applied = set(proposal.isr) == set(now.isr)
            return None if applied else ErrorCode.INVALID_UPDATE_VERSION
        joining = set(proposal.isr) - set(now.isr)
        able = all(
            self._context.is_alive(partition, b) and b not in self._context.shutting_down for b in joining
        )
        return None if able and self._are_present(proposal) else ErrorCode.INELIGIBLE_REPLICA

    def _are_present(self, proposal: ProposedIsr) -> bool:
        """Whether the leader speaks of the present registrations of the members, not of earlier ones."""
        for member in proposal.isr:
            epoch, broker = proposal.broker_epochs.get(member, NO_EPOCH), self._context.live.get(member)
            if epoch != NO_EPOCH and (broker is None or broker.epoch != epoch):
                return False
        return True


def _is_applied(wanted: Leadership, present: Leadership) -> bool:
    return present.leader_epoch == wanted.leader_epoch and set(present.isr) == set(wanted.isr)

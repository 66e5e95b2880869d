"""The replication state of one partition on one broker: role, ISR, high watermark. Pure.

The core knows no log, clock or socket. Events go in as method calls with `now_ms`, effects come out as a
list. This module is the only one that writes a high watermark: the cell that the core shares with the log.
Three rules carry it (KIP-101, KIP-497, KIP-966):

- The high watermark is the least log end over the *maximal* ISR: the committed members, together with those
  a proposal in flight adds. A removal counts only once the controller has confirmed it, an addition counts
  from the moment it is proposed. Whatever the controller then decides, no acknowledged record is missing
  from a member.
- A follower counts at the offset it asks for, never at what was sent to it.
- Below min.insync.replicas the high watermark stands still.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ottla.broker.log.state.log_state import HighWatermark
from ottla.broker.replication.isr import (
    NEVER_MS,
    UNKNOWN_OFFSET,
    Progress,
    Proposal,
    holding_back,
    lagging_members,
    maximal_isr,
    may_expand,
)
from ottla.zookeeper.frozen_classes import frozen

NO_LEADER = -1


class Role(Enum):
    """This broker's role for the partition."""

    NONE = "none"
    """No controller has assigned a role yet, or it was taken away."""
    LEADER = "leader"
    FOLLOWER = "follower"


@frozen(kw_only=True)
class Assignment:
    """The state of a partition in a LeaderAndIsr request."""

    controller_epoch: int
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    is_new: bool = False


@frozen
class HighWatermarkAdvanced:
    """Records below `offset` are committed now."""

    offset: int


@frozen
class IsrProposed:
    """The controller has to be asked for this ISR; its answer carries the same `token`."""

    token: int
    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


@frozen
class IsrChanged:
    """The controller confirmed an ISR."""

    isr: tuple[int, ...]
    shrunk: bool


@frozen
class LeadershipEnded:
    """This broker no longer leads: waits for its high watermark have to fail."""

    leader_epoch: int


Effect = HighWatermarkAdvanced | IsrProposed | IsrChanged | LeadershipEnded


class SharesWatermark(Protocol):
    """A log, as far as the core knows it."""

    watermark: HighWatermark


@dataclass(slots=True)
class Partition:
    """The state of one partition on broker `broker_id`, and its transitions."""

    broker_id: int
    min_insync_replicas: int = 1
    max_lag_ms: int = 30_000
    role: Role = Role.NONE
    leader: int = NO_LEADER
    leader_epoch: int = -1
    partition_epoch: int = -1
    controller_epoch: int = -1
    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    isr: frozenset[int] = frozenset()
    """The committed ISR: what the controller last confirmed."""
    proposal: Proposal | None = None
    watermark: HighWatermark = field(default_factory=HighWatermark)
    """The cell of the partition's log. The methods here are the only code that writes it."""
    log_end_offset: int = 0
    log_start_offset: int = 0
    leader_high_watermark: int = 0
    """Of a follower: the leader's high watermark, by its last answer."""
    epoch_start_offset: int = 0
    """The log end when this leadership began."""
    followers: dict[int, Progress] = field(default_factory=dict)
    _tokens: int = 0

    # ---- state

    @property
    def high_watermark(self) -> int:
        """Records below it are committed."""
        return self.watermark.offset

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The committed ISR, with the members that a pending proposal would add."""
        return maximal_isr(self.isr, self.proposal)

    @property
    def effective_min_isr(self) -> int:
        """min.insync.replicas, or the number of replicas where that is less."""
        return min(self.min_insync_replicas, max(1, len(self.replicas)))

    @property
    def is_under_min_isr(self) -> bool:
        """Whether the committed ISR is too small to take acks=all."""
        return len(self.isr) < self.effective_min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """Whether acks=all would be refused if one member more left the committed ISR."""
        return len(self.isr) == self.effective_min_isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is missing from the ISR; only a leader knows."""
        return self.role is Role.LEADER and len(self.isr) < len(self.replicas)

    @property
    def is_reassigning(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def low_watermark(self) -> int:
        """The least log start over the replicas that have reported one; DeleteRecords waits for it."""
        known = [
            follower.log_start_offset
            for replica, follower in self.followers.items()
            if follower.log_start_offset != UNKNOWN_OFFSET and replica in self.replicas
        ]
        return min([self.log_start_offset, *known])

    def accepts(self, assignment: Assignment) -> bool:
        """Return whether an assignment is newer than the known one: a later leader epoch."""
        return (
            assignment.leader_epoch > self.leader_epoch and assignment.partition_epoch >= self.partition_epoch
        )

    # ---- roles

    def lead(self, assignment: Assignment, log_end_offset: int, now_ms: int) -> list[Effect]:
        """Become the leader, or lead on in a new epoch. The high watermark does not change."""
        ended = self._take(assignment)
        self.role, self.leader = Role.LEADER, self.broker_id
        self.log_end_offset = self.epoch_start_offset = log_end_offset
        self.followers = {
            replica: Progress(last_caught_up_ms=now_ms if replica in self.isr else 0)
            for replica in self.replicas
            if replica != self.broker_id
        }
        return [*ended, *self._advance(now_ms)]

    def follow(self, assignment: Assignment) -> list[Effect]:
        """Become a follower, perhaps without a leader. The log stays; an ended leadership is an effect."""
        ended = self._take(assignment)
        self.role, self.leader = Role.FOLLOWER, assignment.leader
        self.followers = {}
        return ended

    def stop(self) -> list[Effect]:
        """Give up any role."""
        ended: list[Effect] = [LeadershipEnded(self.leader_epoch)] if self.role is Role.LEADER else []
        self.role, self.leader, self.followers, self.proposal = Role.NONE, NO_LEADER, {}, None
        return ended

    def _take(self, assignment: Assignment) -> list[Effect]:
        was_other = self.role is Role.LEADER and assignment.leader != self.broker_id
        ended: list[Effect] = [LeadershipEnded(self.leader_epoch)] if was_other else []
        self.controller_epoch = assignment.controller_epoch
        self.leader_epoch, self.partition_epoch = assignment.leader_epoch, assignment.partition_epoch
        self.isr, self.proposal = frozenset(assignment.isr), None
        self.replicas = assignment.replicas
        self.adding_replicas, self.removing_replicas = (
            assignment.adding_replicas,
            assignment.removing_replicas,
        )
        return ended

    # ---- the log's events, in any role

    def restored(self, high_watermark: int, log_start_offset: int, log_end_offset: int) -> None:
        """The log was opened with these bounds; `high_watermark` is what its checkpoint says.

        The checkpoint may be older than the log's start, or newer than what a crash has left of the log.
        """
        self.log_start_offset, self.log_end_offset = log_start_offset, log_end_offset
        self.watermark.offset = max(log_start_offset, min(high_watermark, log_end_offset))

    def truncated(self, log_start_offset: int, log_end_offset: int) -> None:
        """The log was truncated to these bounds; a log that begins again has both at one offset."""
        self.restored(self.watermark.offset, log_start_offset, log_end_offset)

    def log_replaced(self, log: SharesWatermark) -> None:
        """Another log with the same records took the place of the partition's: they share the cell on."""
        log.watermark = self.watermark

    def log_start_moved(self, log_start_offset: int) -> None:
        """DeleteRecords or retention moved the log's start; records below it count as committed."""
        self.log_start_offset = log_start_offset
        if self.watermark.offset < log_start_offset:
            self.watermark.offset = log_start_offset

    # ---- a follower's events

    def copied(self, log_end_offset: int, leader_high_watermark: int) -> list[Effect]:
        """A follower's log has the leader's records below `log_end_offset`: those may be committed here."""
        self.log_end_offset, self.leader_high_watermark = log_end_offset, leader_high_watermark
        committed = min(log_end_offset, leader_high_watermark)
        if self.role is not Role.FOLLOWER or committed <= self.watermark.offset:
            return []
        self.watermark.offset = committed
        return [HighWatermarkAdvanced(committed)]

    # ---- a leader's events

    def appended(self, log_end_offset: int, now_ms: int) -> list[Effect]:
        """The leader's own log has grown to `log_end_offset`."""
        self.log_end_offset = log_end_offset
        return self._advance(now_ms)

    def appended_alone(self, log_end_offset: int) -> int:
        """`appended` for a leader without followers: all is committed; returns the high watermark."""
        self.log_end_offset = self.watermark.offset = log_end_offset
        return log_end_offset

    def fetched(self, replica: int, offset: int, log_start_offset: int, now_ms: int) -> list[Effect]:
        """A follower asked for `offset`, so it has all below: may advance, may propose it for the ISR.

        One whose log is longer than the leader's has other records behind the leader's log end. It will
        truncate them, and must not count for what the leader appends there meanwhile.
        """
        progress = self.followers.get(replica)
        if self.role is not Role.LEADER or progress is None or offset > self.log_end_offset:
            return []
        progress.fetched(offset, log_start_offset, self.log_end_offset, now_ms)
        return [*self._propose_expansion(replica), *self._advance(now_ms)]

    def asked_for_end(self, replica: int, now_ms: int) -> None:
        """A follower that lacked nothing went on fetching until `now_ms`, before anything changed here.

        Its session names no partition without news. While the log end, the high watermark and the ISR stand
        still, and it is in the ISR, such a fetch changes nothing but this time.
        """
        progress = self.followers.get(replica)
        if progress is not None:
            progress.asked_for_end(now_ms)

    def shrink(self, now_ms: int) -> list[Effect]:
        """Propose an ISR without the followers that have lagged for too long."""
        if self.role is not Role.LEADER or self.proposal is not None:
            return []
        lagging = lagging_members(self.isr, self.followers, self.log_end_offset, now_ms, self.max_lag_ms)
        return self._propose(self.isr - lagging) if lagging else []

    def isr_answered(self, token: int, isr: Iterable[int], partition_epoch: int, now_ms: int) -> list[Effect]:
        """The controller confirmed an ISR. An answer that is not the pending proposal's is ignored.

        So is one that changed nothing while another ISR is proposed: copies of the proposal may still
        travel, and only a later partition epoch makes sure that none of them is applied any more.
        """
        if self.proposal is None or self.proposal.token != token:
            return []
        members = frozenset(isr)
        settled = partition_epoch > self.partition_epoch or (
            partition_epoch == self.partition_epoch and members == self.proposal.isr
        )
        return self._committed(members, partition_epoch, now_ms) if settled else []

    def isr_read(
        self, leader_epoch: int, isr: Iterable[int], partition_epoch: int, now_ms: int
    ) -> list[Effect]:
        """The partition's committed state was read; a later one of this leadership replaces the known one.

        A pending proposal ends with it: the controller refuses its copies, whose partition epoch is old.
        Without a later state the proposal stays, and may still be applied.
        """
        is_news = leader_epoch == self.leader_epoch and partition_epoch > self.partition_epoch
        if self.role is not Role.LEADER or not is_news:
            return []
        return self._committed(frozenset(isr), partition_epoch, now_ms)

    def isr_refused(self, token: int, now_ms: int) -> list[Effect]:
        """The controller rejected the proposal: nothing is in flight, only the committed ISR counts.

        Only for a proposal that was sent once and definitely rejected. After a lost answer the proposal is
        kept and sent again: it may have been applied, and then its additions count.
        """
        if self.proposal is None or self.proposal.token != token:
            return []
        refused, self.proposal = self.proposal, None
        self._await_no_more(refused.isr - self.isr)
        return self._advance(now_ms)

    def isr_retracted(self, token: int) -> list[Effect]:
        """The controller rejected a proposal of which copies may still travel: propose the committed ISR.

        Its answer has a later partition epoch, which the copies do not have. Until then the additions of
        the rejected proposal count.
        """
        if self.proposal is None or self.proposal.token != token:
            return []
        return self._send(self.proposal.isr, self.isr)

    def _committed(self, isr: frozenset[int], partition_epoch: int, now_ms: int) -> list[Effect]:
        before, self.isr = self.isr, isr
        refused = self.proposal.isr - isr if self.proposal is not None else ()
        self.partition_epoch, self.proposal = partition_epoch, None
        self._await_no_more(refused)
        changed: list[Effect] = []
        if isr != before:
            changed = [IsrChanged(tuple(sorted(isr)), shrunk=len(isr) < len(before))]
        return [*changed, *self._advance(now_ms)]

    def _propose_expansion(self, replica: int) -> list[Effect]:
        if self.proposal is not None or replica in self.isr:
            return []
        if not may_expand(self.followers[replica], self.watermark.offset, self.epoch_start_offset):
            return []
        return self._propose(self.isr | {replica})

    def _await_no_more(self, replicas: Iterable[int]) -> None:
        """Advance without followers that may not join, until each of them asks for more.

        A broker that shuts down may have caught up a moment ago, and asks for nothing any more.
        """
        for replica in replicas:
            if replica in self.followers:
                self.followers[replica].last_caught_up_ms = NEVER_MS

    def _propose(self, isr: frozenset[int]) -> list[Effect]:
        return self._send(isr, isr)

    def _send(self, counted: frozenset[int], isr: frozenset[int]) -> list[Effect]:
        """Propose `isr`; meanwhile `counted` are the members that a pending proposal may have added."""
        self._tokens += 1
        self.proposal = Proposal(self._tokens, counted)
        return [IsrProposed(self._tokens, tuple(sorted(isr)), self.leader_epoch, self.partition_epoch)]

    def _advance(self, now_ms: int) -> list[Effect]:
        if self.is_under_min_isr:
            return []
        members = maximal_isr(self.isr, self.proposal)
        awaited = holding_back(members, self.followers, self.epoch_start_offset, now_ms, self.max_lag_ms)
        committed = min([self.log_end_offset, *(follower.log_end_offset for follower in awaited)])
        if committed <= self.watermark.offset:
            return []
        self.watermark.offset = committed
        return [HighWatermarkAdvanced(committed)]

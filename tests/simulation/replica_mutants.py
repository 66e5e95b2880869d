"""Changed rules of replicas: ISR, high watermark, roles, leader epochs, and what is acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

from ottla.broker.api import list_offsets
from ottla.broker.api.fetch import reading as fetch_read
from ottla.broker.api.produce import delayed as delayed_produce
from ottla.broker.cluster.configs import Configs
from ottla.broker.cluster.notifications import Notifications
from ottla.broker.cluster.zookeeper_session import SessionLease
from ottla.broker.log.hosting.log_opening import LogOpener
from ottla.broker.log.state.leader_epochs import LeaderEpochs
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.broker.replication import partition, replicas
from ottla.broker.replication.alter_partition_requests import AlterPartitionRequests
from ottla.broker.replication.full_directories import FullDirectories
from ottla.broker.replication.isr import UNKNOWN_OFFSET, Progress, Proposal
from ottla.broker.replication.partition import Assignment, Partition
from ottla.broker.replication.replicas import Replicas
from simulation.mutants import Patch, mutant


@mutant()
def join_when_almost_caught_up() -> list[Patch]:
    """A follower joins the ISR a few records below the high watermark."""

    def may_expand(progress: Progress, high_watermark: int, epoch_start_offset: int) -> bool:
        return progress.log_end_offset != UNKNOWN_OFFSET and progress.log_end_offset >= high_watermark - 5

    return [(partition, "may_expand", may_expand)]


@mutant(within=12, scenario="between watermark and epoch")
def join_without_epoch_start() -> list[Patch]:
    """A follower joins at the high watermark, below the start of the leader's epoch."""

    def may_expand(progress: Progress, high_watermark: int, epoch_start_offset: int) -> bool:
        return progress.log_end_offset != UNKNOWN_OFFSET and progress.log_end_offset >= high_watermark

    return [(partition, "may_expand", may_expand)]


@mutant()
def shrink_before_the_controller_confirms() -> list[Patch]:
    """A proposed removal from the ISR counts at once."""

    def early(isr: frozenset[int], proposal: Proposal | None) -> frozenset[int]:
        return isr if proposal is None else proposal.isr

    return [(partition, "maximal_isr", early)]


@mutant(within=400)
def join_counts_late() -> list[Patch]:
    """A proposed member does not hold the high watermark back before the controller confirms it."""

    def committed(isr: frozenset[int], proposal: Proposal | None) -> frozenset[int]:
        return isr

    def members_only(members: Any, followers: Any, *_: Any) -> list[Progress]:
        return [progress for replica, progress in followers.items() if replica in members]

    return [(partition, "maximal_isr", committed), (partition, "holding_back", members_only)]


@mutant()
def new_leader_commits_its_log_end() -> list[Patch]:
    """A new leader takes its log end for the high watermark."""
    original = Partition.lead

    def lead(self: Partition, assignment: Assignment, log_end_offset: int, now_ms: int) -> Any:
        self.watermark.offset = max(self.watermark.offset, log_end_offset)
        return original(self, assignment, log_end_offset, now_ms)

    return [(Partition, "lead", lead)]


@mutant()
def watermark_counts_what_was_sent() -> list[Patch]:
    """A follower counts at the leader's log end when it fetches, not at the offset it asks for."""
    original = Progress.fetched

    def fetched(self: Progress, offset: int, log_start_offset: int, leader_end: int, now_ms: int) -> None:
        original(self, leader_end, log_start_offset, leader_end, now_ms)

    return [(Progress, "fetched", fetched)]


@mutant(within=400, equivalent=True)
def any_answer_confirms_the_proposal() -> list[Patch]:
    """An answer to AlterPartition counts for whatever proposal is pending.

    Equivalent here: one request is in flight at a time, and a proposal that replaces another has a later
    partition epoch, which `isr_answered` checks besides.
    """
    original = Partition.isr_answered

    def isr_answered(self: Partition, token: int, isr: Any, partition_epoch: int, now_ms: int) -> Any:
        token = self.proposal.token if self.proposal is not None else token
        return original(self, token, isr, partition_epoch, now_ms)

    return [(Partition, "isr_answered", isr_answered)]


@mutant(within=8, scenario="deaf after a proposal")
def lost_answer_taken_for_a_refusal() -> list[Patch]:
    """A proposal whose answer was lost is dropped, although the controller may have written it."""
    original = AlterPartitionRequests._hand_back

    def hand_back(self: Any, one: Any, sending: Any, answers: Any, hosted: Replicas) -> bool:
        if answers.top:
            hosted.isr_refused(one, sending.proposal.token)
            return True
        return original(self, one, sending, answers, hosted)

    return [(AlterPartitionRequests, "_hand_back", hand_back)]


@mutant(within=4, scenario="state rewritten")
def committed_isr_not_read_again() -> list[Patch]:
    """After a conflict the leader does not read what is committed, and repeats its proposal for ever."""

    async def read_back(self: Any, one: Any, hosted: Replicas) -> None:
        return

    return [(AlterPartitionRequests, "_read_back", read_back)]


@mutant(equivalent=True)
def isr_never_shrinks() -> list[Patch]:
    """A follower that has gone stays in the ISR until the controller notices.

    Equivalent here: a follower that is down leaves the ISR by its session, and cuts heal before the end.
    """
    return [(Replicas, "shrink_isrs", lambda self: None)]


@mutant()
def old_leader_epoch_accepted() -> list[Patch]:
    """An assignment of an earlier leader epoch is taken."""
    return [(Partition, "accepts", lambda self, assignment: True)]


@mutant(within=400, equivalent=True)
def replaced_controller_accepted() -> list[Patch]:
    """A broker obeys a controller that was replaced.

    Equivalent for what is checked here: a replaced controller cannot write state, so what it sends carries
    no leader epoch that a broker does not know, and LeaderAndIsr and StopReplica check those.
    """
    return [(Replicas, "is_stale_controller", lambda self, epoch: False)]


@mutant()
def acknowledged_at_once() -> list[Patch]:
    """Produce with acks=all answers before the followers have the records."""
    return [(delayed_produce.Placed, "is_safe", lambda self, acks: True)]


@mutant()
def read_above_the_watermark() -> list[Patch]:
    """Consumers see records that are not committed."""
    return [(fetch_read, "_visible_end", lambda terms, hosted: hosted.log.log_end_offset)]


@mutant(within=6, scenario="stale watermark")
def latest_before_the_epoch_start() -> list[Patch]:
    """ListOffsets(latest) answers with the stale high watermark of a new leader."""
    return [(list_offsets, "_check_available", lambda *_: None)]


@mutant()
def divergence_not_told() -> list[Patch]:
    """The leader does not tell a follower that its log diverges."""
    return [(fetch_read, "_divergence", lambda hosted, wanted: None)]


@mutant(within=400)
def diverging_follower_counts() -> list[Patch]:
    """A follower whose log diverges counts at the offset it asks for."""

    def note(terms: Any, hosted: Any, wanted: Any) -> None:
        now_ms = terms.services.environment.clock.now_ms()
        hosted.fetched(terms.replica, wanted.fetch_offset, wanted.log_start_offset, now_ms)

    return [(fetch_read, "_note_follower", note)]


@mutant()
def fetch_in_another_epoch_served() -> list[Patch]:
    """Fetch does not compare the follower's leader epoch with the leader's."""
    return [(replicas, "check_epoch", lambda current, epoch: None)]


@mutant(within=400)
def epoch_not_begun_by_its_leader() -> list[Patch]:
    """A new leader does not note where its epoch begins; its first append does."""
    original = LeaderEpochs.assign

    def assign(self: LeaderEpochs, epoch: int, start_offset: int) -> None:
        original(self, epoch, start_offset)
        if not self._entries:
            return
        epochs = sorted(self._entries)
        self._entries[:] = epochs[:1] + [one for one in epochs[1:] if one.start_offset < start_offset]

    return [(LeaderEpochs, "assign", assign)]


@mutant()
def epochs_kept_when_truncated() -> list[Patch]:
    """The leader epochs above a truncation stay."""
    return [(LeaderEpochs, "truncate_from_end", lambda self, end_offset: None)]


@mutant()
def first_epoch_for_every_question() -> list[Patch]:
    """The end of an epoch is looked up as that of the newest one (KIP-101 without epochs)."""

    def end_offset_for(self: LeaderEpochs, epoch: int, log_end_offset: int) -> tuple[int, int]:
        return epoch, log_end_offset

    return [(LeaderEpochs, "end_offset_for", end_offset_for)]


@mutant()
def retries_appended_twice() -> list[Patch]:
    """A repeated batch of an idempotent producer is appended once more."""
    return [
        (ProducerStates, "check", lambda self, headers: None),
        (ProducerStates, "check_one", lambda self, header: None),
    ]


@mutant()
def settings_unknown_to_other_brokers() -> list[Patch]:
    """A broker that gets a new topic does not read its settings."""

    async def ensure_topics(self: Configs, topics: Any) -> None:
        return

    return [(Configs, "ensure_topics", ensure_topics)]


@mutant()
def config_notifications_ignored() -> list[Patch]:
    """A broker does not follow changes of settings."""

    async def follow(self: Notifications) -> None:
        await asyncio.Event().wait()

    return [(Notifications, "follow", follow)]


@mutant(within=20, scenario="another topic of the same name")
def topic_ids_ignored() -> list[Patch]:
    """A replica of a topic that was deleted is taken for one of the topic created again."""
    original = Replicas._apply_one

    def apply_one(self: Any, one: Any, topic_id: Any, assignment: Assignment) -> None:
        log = self._logs.get(one)
        original(self, one, topic_id if log is None else log.topic_id, assignment)

    return [(Replicas, "_apply_one", apply_one)]


@mutant(within=6, scenario="late stop")
def stopped_by_an_old_request() -> list[Patch]:
    """StopReplica is obeyed whatever leader epoch it has."""
    original = Replicas._stop_one

    def stop_one(self: Any, one: Any, leader_epoch: int, delete: bool) -> Any:
        return original(self, one, replicas.DELETE_EPOCH, delete)

    return [(Replicas, "_stop_one", stop_one)]


@mutant()
def minimum_isr_not_checked() -> list[Patch]:
    """acks=all is taken below min.insync.replicas, and committed."""
    return [(Partition, "is_under_min_isr", property(lambda self: False))]


@mutant()
def zombie_serves() -> list[Patch]:
    """A broker that slept until its session had expired answers at once when it wakes."""

    async def run(self: Any) -> None:
        self._serving.extend(float("inf"))

    return [(SessionLease, "run", run)]


@mutant(within=20, full_disks=True)
def room_not_announced() -> list[Patch]:
    """A replica that was given up on a full disk is not taken back."""
    return [(FullDirectories, "_is_back", lambda _self, _partition: False)]


@mutant(within=20, full_disks=True)
def log_without_a_flush_not_served() -> list[Patch]:
    """A log that finds no room for its flush at a start is left out, though its directory is in use."""
    original = LogOpener.open

    def open_log(self: LogOpener, directory: Any, found: Any, log_config: Any) -> Any:
        opened = original(self, directory, found, log_config)
        has_flushed = opened is not None and opened.recovery_point == opened.log_end_offset
        return opened if has_flushed or directory.clean else None

    return [(LogOpener, "open", open_log)]

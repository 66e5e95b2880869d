"""Reports of members about what they do and what they are told, each compared with the log of the group."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.protocol.errors import ErrorCode
from simulation.invariant_violated import InvariantViolated

if TYPE_CHECKING:
    from simulation.group_cluster import GroupCluster
    from simulation.group_members import Member, Partition
    from simulation.logged_group import LoggedConsumerGroup

REFUSED: Final = {
    ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
}  # fmt: skip
NEW_S: Final = 15.0
"""The time in which all brokers know of a topic, and classic members have joined again that read it."""


class MemberEpochs(NamedTuple):
    """The present and the previous epoch of a member by the log; the epoch of its leader, -1 for another."""

    allowed: frozenset[int]
    leader_epoch: int


class CommitAttempt(NamedTuple):
    """A commit, and what the log had of its member when it was sent; its epoch was -1 if it was none."""

    epoch: int
    at_s: float
    offsets: Mapping[Partition, int]
    was_member: bool
    member_epoch: int
    since: Mapping[Partition, int | None]
    leadership: tuple[int, int]


class MemberReports:
    """Compares what members report with the log; each method raises InvariantViolated."""

    def __init__(self, cluster: GroupCluster, logged: LoggedConsumerGroup, members: Sequence[Member]) -> None:
        self._cluster, self._logged, self._members = cluster, logged, members
        self.acknowledged: dict[Partition, int] = {}
        """The offsets whose commits were answered without an error."""
        self.forgotten_s = -1.0
        """When the group was last deleted."""
        self.taken = 0
        """How often a partition was taken."""

    def check_taken(self, member: Member, partitions: Collection[Partition]) -> None:
        """Raise InvariantViolated if another member of the group reads one of these partitions."""
        self._logged.update()
        self.taken += len(partitions)
        if not self._is_known(member):
            return  # it was fenced, and does not know it
        for other in self._members:
            if other is member or not self._is_known(other):
                continue
            if both := other.owned.keys() & set(partitions):
                raise InvariantViolated(f"{min(both)} is read by {other} and by {member}")

    def check_read(self, now_s: float) -> None:
        """Raise InvariantViolated if a member reads what it has not by the log of a consumer group.

        As with Apache Kafka, a coordinator may answer from records of its predecessor that are lost with it,
        and one that upgrades a group forgets the partitions of a topic that it does not know yet.
        """
        log, topics = self._cluster.log, self._cluster.topics
        self._logged.update()
        for member in self._members:
            if member.confirmed_in != log.epoch or not self._is_known(member):
                continue
            for partition in member.owned:
                is_new = now_s - topics.created_s[partition[0]] < NEW_S and topics.created_s[partition[0]] > 0
                if is_new or topics.name_of(partition[0]) is None:
                    continue
                if self._logged.since(member.member_id, partition) is None:
                    raise InvariantViolated(f"{member} reads {partition}, which counts as free")

    def confirmation(self, member: Member) -> tuple[int, int]:
        """Return how often a member was taken out of the group, and in which epoch its coordinator leads."""
        return self._logged.update().removals[member.member_id], self._leadership(member)[0]

    def _is_known(self, member: Member) -> bool:
        """Whether the log has a member with what it was assigned last.

        A consumer group takes a classic member in again, by the id that it had, before it hears that it was
        removed (so does Apache Kafka): until its SyncGroup it reads what others have.
        """
        logged = self._logged
        return member.member_id in logged.members and logged.removals[member.member_id] == member.removals

    # ---- heartbeats

    def epochs(self, member: Member) -> MemberEpochs:
        """Return the epochs in which a member may send a heartbeat now, by the log."""
        known = self._logged.update().data.members.get(member.member_id)
        allowed = frozenset() if known is None else frozenset({known.epoch, known.previous_epoch})
        return MemberEpochs(allowed, self._leadership(member)[0])

    def heartbeat_answered(self, member: Member, epoch: int, before: MemberEpochs) -> None:
        """Raise InvariantViolated if a member that has missed an epoch was not fenced."""
        now = self.epochs(member)
        if epoch <= 0 or epoch in before.allowed | now.allowed:
            return
        if now.leader_epoch == before.leader_epoch >= 0:
            raise InvariantViolated(f"{member} is answered in epoch {epoch}, and known in {[*now.allowed]}")

    # ---- offsets

    def committing(self, member: Member, epoch: int, offsets: Mapping[Partition, int]) -> CommitAttempt:
        """Note what the log has of a member that begins to commit."""
        logged = self._logged.update()
        since = {partition: logged.since(member.member_id, partition) for partition in offsets}
        known = logged.data.members.get(member.member_id)
        return CommitAttempt(
            epoch,
            self._now_s(),
            offsets,
            member.member_id in logged.members,
            -1 if known is None else known.epoch,
            since,
            self._leadership(member),
        )

    def forget(self) -> None:
        """Note that the group was deleted, and its offsets with it."""
        self.acknowledged.clear()
        self.forgotten_s = self._now_s()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _leadership(self, member: Member) -> tuple[int, int]:
        log = self._cluster.log
        return (log.epoch, log.rewritten) if member._broker == log.leader else (-1, -1)

    def committed(self, member: Member, attempt: CommitAttempt, code: ErrorCode) -> None:
        """Check the answer to a commit.

        A generation of a classic group is known to its members before it is in the log: where it is lost
        with the coordinator, their commits in it are refused, as by Apache Kafka.
        """
        logged = self._logged.update()
        is_member = member.member_id in logged.members
        since = {p: logged.since(member.member_id, p) for p in attempt.offsets}
        if code is ErrorCode.NONE:
            if not is_member and not attempt.was_member:
                raise InvariantViolated(f"a commit of {member} is taken, which was fenced")
            for partition, first in since.items():
                if first is not None and attempt.epoch < first == attempt.since[partition]:
                    raise InvariantViolated(
                        f"{member} commits {partition} in epoch {attempt.epoch}, which it has since {first}"
                    )
            if attempt.at_s <= self.forgotten_s:
                return  # its offsets may have gone with the group before the answer came
            for partition, offset in attempt.offsets.items():
                self.acknowledged[partition] = max(offset, self.acknowledged.get(partition, 0))
        elif code in REFUSED and is_member and attempt.was_member and not logged.is_classic:
            if attempt.leadership != self._leadership(member) or attempt.leadership[0] < 0:
                return
            known = self._cluster.leader.topics.metadata
            if all(
                first is not None and first == attempt.since[p]
                and first <= attempt.epoch <= attempt.member_epoch
                and known.topic_name(p[0]) is not None
                for p, first in since.items()
            ):  # fmt: skip
                raise InvariantViolated(f"a commit of {member} is refused: {code.name}")

    def check_fetched(self, partition: Partition, offset: int, least: int) -> None:
        """Raise InvariantViolated if an acknowledged offset is gone."""
        metadata = [broker.topics.metadata for broker in self._cluster.brokers]
        if offset < least and all(known.topic_name(partition[0]) is not None for known in metadata):
            raise InvariantViolated(f"offset {least} of {partition} was acknowledged, {offset} is fetched")

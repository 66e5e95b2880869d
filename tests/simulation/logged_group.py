"""The group as its log has it: its members, epochs that rise, and what the product makes of a replay."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.early_heartbeats import EarlyHeartbeats
from ottla.broker.groups.kinds import GroupKind, GroupLimits, GroupSurroundings, KindRecord
from ottla.broker.groups.records import GroupRecord, LogRecord
from ottla.protocol.stored_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from simulation.group_cluster import GROUP
from simulation.group_log import GroupLog
from simulation.invariant_violated import InvariantViolated

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig


class LoggedConsumerGroup:
    """Reads the log as it grows, and all of it again when records were taken away."""

    def __init__(self, log: GroupLog, config: BrokerConfig, metadata: MetadataCache) -> None:
        self._log = log
        early = EarlyHeartbeats(config.group_rebalance_heartbeat_interval_ms)
        self._surroundings = GroupSurroundings(
            config, GroupLimits(), lambda _: {}, metadata, random.Random(1), lambda: early
        )
        self._rewritten = self._read = 0
        self.removals: Counter[str] = Counter()
        """How often each member was taken out of the group."""
        self._begin()

    def _begin(self) -> None:
        self._modern: dict[str, None] = {}
        self._classic: dict[str, None] = {}
        self.data = ConsumerGroup(GROUP, self._surroundings)
        self._epoch = self._assignment_epoch = 0
        self._member_epochs: dict[str, int] = {}

    def update(self) -> LoggedConsumerGroup:
        """Read what is new. Raises InvariantViolated for an epoch that goes back."""
        is_whole = self._rewritten != self._log.rewritten
        before: Collection[str] = list(self.members)
        if is_whole:
            self._rewritten, self._read = self._log.rewritten, 0
            self._begin()
        for entry in self._log.entries[self._read :]:
            self._take(entry.records, checks=not is_whole)
            if not is_whole:
                before = self._count_removals(before)
        self._count_removals(before)
        self._read = len(self._log.entries)
        if is_whole:
            self._epoch = self.data.epoch
            self._assignment_epoch = self.data.assignment_epoch
        return self

    def _count_removals(self, before: Collection[str]) -> Collection[str]:
        present = list(self.members)
        self.removals.update(set(before).difference(present))
        return present

    @property
    def members(self) -> Mapping[str, None]:
        """The ids of all members, those of the classic protocol too."""
        return self._modern or self._classic

    @property
    def is_classic(self) -> bool:
        """Whether it is a classic group that has members."""
        return bool(self._classic) and not self._modern

    def since(self, member_id: str, partition: tuple[UUID, int]) -> int | None:
        """Return the epoch in which a member got a partition; None where it has it not."""
        member = self.data.members.get(member_id)
        return None if member is None else member.assigned_epoch(*partition)

    def _take(self, records: list[LogRecord], *, checks: bool) -> None:
        snapshots = [record for record in records if isinstance(record, GroupRecord)]
        for record in records:
            if isinstance(record, KindRecord) and record.kind is GroupKind.CONSUMER:
                if checks:
                    self._check_epochs(record, snapshots)
                self._note(record)
        for snapshot in snapshots:
            members = () if snapshot.snapshot is None else snapshot.snapshot.members
            self._classic = dict.fromkeys(member.member_id for member in members)

    def _note(self, record: KindRecord) -> None:
        match record.key, record.value:
            case ConsumerGroupMemberMetadataKey(member_id=member_id), None:
                self._modern.pop(member_id, None)
                self._member_epochs.pop(member_id, None)
            case ConsumerGroupMemberMetadataKey(member_id=member_id), _:
                self._modern[member_id] = None
        self.data.replay(record)
        if isinstance(record.key, ConsumerGroupMetadataKey) and record.value is None:
            self.data = ConsumerGroup(GROUP, self._surroundings)

    def _check_epochs(self, record: KindRecord, snapshots: list[GroupRecord]) -> None:
        match record.key, record.value:
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue(epoch=epoch):
                self._require(epoch >= self._epoch, "the group epoch", self._epoch, epoch)
                self._epoch = epoch
            case ConsumerGroupMetadataKey(), None:
                for snapshot in snapshots:
                    generation = 0 if snapshot.snapshot is None else snapshot.snapshot.generation
                    self._require(generation >= self._epoch, "the generation", self._epoch, generation)
                self._epoch = self._assignment_epoch = 0
            case (
                ConsumerGroupTargetAssignmentMetadataKey(),
                ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
            ):
                before = self._assignment_epoch
                self._require(before <= epoch, "the assignment epoch", before, epoch)
                self._require(epoch <= self._epoch, "the group epoch", epoch, self._epoch)
                self._assignment_epoch = epoch
            case (
                ConsumerGroupCurrentMemberAssignmentKey(member_id=member_id),
                ConsumerGroupCurrentMemberAssignmentValue(member_epoch=epoch),
            ):
                before = self._member_epochs.get(member_id, 0)
                self._require(epoch >= before or epoch == -2, f"the epoch of {member_id}", before, epoch)
                self._member_epochs[member_id] = max(epoch, 0)

    def _require(self, holds: bool, name: str, before: Any, after: Any) -> None:
        if not holds:
            raise InvariantViolated(f"{name} goes back from {before} to {after}")

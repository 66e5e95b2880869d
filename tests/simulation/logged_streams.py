"""The streams group as its log has it: epochs that rise, and what the product makes of a replay."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.groups.early_heartbeats import EarlyHeartbeats
from ottla.broker.groups.kinds import GroupKind, GroupLimits, GroupSurroundings, KindRecord
from ottla.broker.groups.streams.group import StreamsGroup, new_group
from ottla.broker.groups.streams.state import StreamsGroupData
from ottla.protocol.stored_groups import (
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
)
from simulation.group_cluster import GROUP, Topics
from simulation.group_log import GroupLog
from simulation.invariant_violated import InvariantViolated

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.groups.streams.members import StreamsMember


class LoggedStreamsGroup:
    """Reads the log as it grows, and all of it again when records were taken away."""

    is_classic: Final = False

    def __init__(self, log: GroupLog, config: BrokerConfig, metadata: MetadataCache, topics: Topics) -> None:
        self._log, self._topics = log, topics
        early = EarlyHeartbeats(config.group_rebalance_heartbeat_interval_ms)
        self._surroundings = GroupSurroundings(
            config, GroupLimits(), lambda _: {}, metadata, random.Random(1), lambda: early
        )
        self._rewritten = self._read = 0
        self._begin()

    def _begin(self) -> None:
        self._group: StreamsGroup = new_group(GROUP, self._surroundings)
        self._epoch = self._assignment_epoch = 0
        self._member_epochs: dict[str, int] = {}

    @property
    def data(self) -> StreamsGroupData:
        """The group of the log, as it was last read."""
        return self._group.data

    @property
    def members(self) -> Mapping[str, StreamsMember]:
        """The members by their ids."""
        return self.data.members

    def update(self) -> LoggedStreamsGroup:
        """Read what is new. Raises InvariantViolated for an epoch that goes back."""
        is_whole = self._rewritten != self._log.rewritten
        if is_whole:
            self._rewritten, self._read = self._log.rewritten, 0
            self._begin()
        for entry in self._log.entries[self._read :]:
            for record in entry.records:
                if isinstance(record, KindRecord) and record.kind is GroupKind.STREAMS:
                    self._take(record, checks=not is_whole)
        self._read = len(self._log.entries)
        if is_whole:
            self._epoch, self._assignment_epoch = self.data.facts.epoch, self.data.assignment_epoch
            self._member_epochs = {name: max(one.epoch, 0) for name, one in self.data.members.items()}
        return self

    def since(self, member_id: str, partition: tuple[UUID, int]) -> int | None:
        """Return the epoch in which a member got the active task that reads a partition; None without it."""
        member, topology = self.data.members.get(member_id), self.data.topology
        if member is None or topology is None:
            return None
        name, number = self._topics.name_of(partition[0]), partition[1]
        part = topology.subtopology_of_topic.get(name or "", "")
        for held in (member.assigned, member.pending_revocation):
            if number in (epochs := held.active.get(part, {})):
                return epochs[number]
        return None

    def _take(self, record: KindRecord, *, checks: bool) -> None:
        if checks:
            self._check_epochs(record)
        self._group.replay(record)
        match record.key, record.value:
            case StreamsGroupMetadataKey(), None:
                self._begin()
            case StreamsGroupMemberMetadataKey(member_id=member_id), None:
                self._member_epochs.pop(member_id, None)

    def _check_epochs(self, record: KindRecord) -> None:
        match record.key, record.value:
            case StreamsGroupMetadataKey(), StreamsGroupMetadataValue(epoch=epoch):
                self._require(epoch > self._epoch or epoch == self._epoch == 1, "the group epoch",
                              self._epoch, epoch)  # fmt: skip
                self._epoch = epoch
            case (
                StreamsGroupTargetAssignmentMetadataKey(),
                StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
            ):
                self._require(epoch >= self._assignment_epoch, "the assignment epoch",
                              self._assignment_epoch, epoch)  # fmt: skip
                self._require(epoch <= self._epoch, "the group epoch", epoch, self._epoch)
                self._assignment_epoch = epoch
            case (
                StreamsGroupCurrentMemberAssignmentKey(member_id=member_id),
                StreamsGroupCurrentMemberAssignmentValue(member_epoch=epoch),
            ):
                before = self._member_epochs.get(member_id, 0)
                self._require(epoch >= before or epoch == -2, f"the epoch of {member_id}", before, epoch)
                self._require(epoch <= max(self._epoch, self._assignment_epoch), f"{member_id}'s epoch",
                              self._epoch, epoch)  # fmt: skip
                self._member_epochs[member_id] = max(epoch, 0)

    def _require(self, holds: bool, name: str, before: int, after: int) -> None:
        if not holds:
            raise InvariantViolated(f"{name} goes back from {before} to {after}")

"""The state of one partition of `__consumer_offsets`: its groups, each with its committed offsets."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.broker.groups.classic.events import GroupLimits, GroupSnapshot, GroupState
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.offsets.committed_offsets import GroupOffsets
from ottla.broker.groups.records import GroupRecord, LogRecord, OffsetRecord


@dataclass(slots=True, eq=False)
class HostedGroup:
    """A group, its offsets, and the number of the partition that stores both."""

    group: Group
    partition: int
    offsets: GroupOffsets = field(default_factory=GroupOffsets)

    def __str__(self) -> str:
        return self.group.group_id

    @property
    def is_unused(self) -> bool:
        """Whether the group can be forgotten: no member, no generation, no offset."""
        group = self.group
        return (
            group.state is GroupState.EMPTY
            and group.generation == 0
            and not group.pending_members
            and self.offsets.is_idle
        )


class GroupsState:
    """The groups of one partition by group id.

    Offset records replay both while loading and once a commit is in the log: a plain one when all in-sync
    replicas have it, one of a transaction when it is appended. A group record replays only
    while loading: a live group knows more than its snapshot holds (which members wait for an answer), so it
    applies its own snapshot when it is told that the record is committed.
    """

    def __init__(self, partition: int, limits: GroupLimits) -> None:
        self.groups: dict[str, HostedGroup] = {}
        self._partition = partition
        self._limits = limits
        self._loading: _LoadingGroups | None = _LoadingGroups()
        self._transactions: dict[int, set[str]] = {}
        """Producer id -> the groups whose offsets its open transaction commits."""

    def replay(self, record: LogRecord, position: int, producer_id: int | None) -> None:
        if isinstance(record, OffsetRecord):
            if producer_id is not None and record.committed is not None:
                self._transactions.setdefault(producer_id, set()).add(record.group_id)
            if self._loading is not None:
                self._loading.replay_offset(record, position, producer_id)
            elif (hosted := self.groups.get(record.group_id)) is not None:
                # A group that was deleted while its commit was pending stays deleted.
                hosted.offsets.replay(record.partition, record.committed, position, producer_id)
        elif self._loading is not None:
            self._loading.replay_group(record)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Make the offsets of a transaction visible, or drop them."""
        for group_id in self._transactions.pop(producer_id, ()):
            offsets = self._offsets_of(group_id)
            if offsets is not None:
                offsets.end_transaction(producer_id, commit=commit)

    def _offsets_of(self, group_id: str) -> GroupOffsets | None:
        if self._loading is not None:
            return self._loading.offsets.get(group_id)
        hosted = self.groups.get(group_id)
        return None if hosted is None else hosted.offsets

    def complete_load(self) -> None:
        """Make the groups from the last snapshot of each, and from their offsets."""
        loading, self._loading = self._loading, None
        if loading is None:
            return
        for group_id in loading.snapshots.keys() | loading.offsets.keys():
            snapshot, offsets = loading.snapshots.get(group_id), loading.offsets.get(group_id)
            if snapshot is None and (offsets is None or offsets.is_idle):
                continue
            group = (
                Group(group_id, self._limits) if snapshot is None else Group.restore(snapshot, self._limits)
            )
            self.groups[group_id] = HostedGroup(
                group, self._partition, GroupOffsets() if offsets is None else offsets
            )


@dataclass(slots=True)
class _LoadingGroups:
    """The load so far: the last snapshot and the offsets of each group."""

    snapshots: dict[str, GroupSnapshot] = field(default_factory=dict)
    offsets: dict[str, GroupOffsets] = field(default_factory=dict)

    def replay_offset(self, record: OffsetRecord, position: int, producer_id: int | None) -> None:
        offsets = self.offsets.get(record.group_id)
        if offsets is None:
            offsets = self.offsets[record.group_id] = GroupOffsets()
        offsets.replay(record.partition, record.committed, position, producer_id)

    def replay_group(self, record: GroupRecord) -> None:
        if record.snapshot is None:
            self.snapshots.pop(record.group_id, None)
        else:
            self.snapshots[record.group_id] = record.snapshot

"""The state of one partition of `__consumer_offsets`: its groups, each with its committed offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ottla.broker.groups.classic.events import GroupSnapshot
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.kinds import AnyReply, GroupKind, GroupLimits, HostableGroup, KindRecord
from ottla.broker.groups.offsets.committed_offsets import GroupOffsets
from ottla.broker.groups.records import GroupRecord, LogRecord, OffsetRecord

NewGroup: TypeAlias = Callable[[GroupKind, str], HostableGroup | None]
"""Makes an empty group; None of a kind that is not hosted."""


@dataclass(slots=True, eq=False)
class HostedGroup:
    """A group, its offsets, and the number of the partition that stores both."""

    group: HostableGroup
    partition: int
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    behind: list[AnyReply] | None = None
    """Replies that are sent once the last records of the group are committed; None without such records."""

    def __str__(self) -> str:
        return self.group.group_id

    @property
    def classic(self) -> Group | None:
        """The group, if it is a classic one."""
        return self.group if isinstance(self.group, Group) else None

    @property
    def serves_classic_members(self) -> bool:
        """Whether the group has members of the classic protocol, or may have them."""
        kind = self.group.kind
        return kind is GroupKind.CLASSIC or (kind is GroupKind.CONSUMER and not self.group.is_empty)

    @property
    def is_unused(self) -> bool:
        """Whether the group can be forgotten: no member, no record in the log, no offset."""
        return self.group.is_unused and self.offsets.is_idle


class GroupsState:
    """The groups of one partition by group id.

    Offset records replay both while loading and once a commit is in the log: a plain one when all in-sync
    replicas have it, one of a transaction when it is appended. The record of a classic group replays only
    while loading: a live group knows more than its snapshot holds (which members wait for an answer), so it
    applies its own snapshot when it is told that the record is committed. Records of other groups replay
    when they are appended: the next step builds on them.
    """

    def __init__(self, partition: int, limits: GroupLimits, new_group: NewGroup) -> None:
        self.groups: dict[str, HostedGroup] = {}
        self._partition = partition
        self._limits = limits
        self._loading: _LoadingGroups | None = _LoadingGroups(new_group)
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
        elif isinstance(record, KindRecord):
            self._replay_kind(record)
        elif self._loading is not None:
            self._loading.replay_group(record)

    def _replay_kind(self, record: KindRecord) -> None:
        if self._loading is not None:
            self._loading.replay_kind(record)
        elif (hosted := self.groups.get(record.group_id)) is not None and hosted.group.kind is record.kind:
            hosted.group.replay(record)

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
        for group_id in loading.snapshots.keys() | loading.offsets.keys() | loading.groups.keys():
            offsets = loading.offsets.get(group_id)
            offsets = GroupOffsets() if offsets is None else offsets
            group = self._loaded_group(loading, group_id)
            if group is None and offsets.is_idle:
                continue
            group = Group(group_id, self._limits) if group is None else group
            self.groups[group_id] = HostedGroup(group, self._partition, offsets)

    def _loaded_group(self, loading: _LoadingGroups, group_id: str) -> HostableGroup | None:
        """Return the group that the log describes; None for one that only simple consumers have used."""
        group = loading.groups.get(group_id)
        if group is not None and not group.is_unused:
            return group
        snapshot = loading.snapshots.get(group_id)
        return None if snapshot is None else Group.restore(snapshot, self._limits)


@dataclass(slots=True)
class _LoadingGroups:
    """The load so far: the offsets of each group, and its last snapshot or what its records make."""

    new_group: NewGroup
    snapshots: dict[str, GroupSnapshot] = field(default_factory=dict)
    groups: dict[str, HostableGroup] = field(default_factory=dict)
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

    def replay_kind(self, record: KindRecord) -> None:
        group = self.groups.get(record.group_id)
        if group is None or group.kind is not record.kind:
            if record.value is None:
                return  # the group that the tombstone belongs to was deleted before
            group = self.new_group(record.kind, record.group_id)
            if group is None:
                return
            self.groups[record.group_id] = group
        group.replay(record)

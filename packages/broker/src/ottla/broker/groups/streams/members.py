"""Members of a streams group, and the reconciliation of what each has with what it shall have.

    STABLE           it has its target of its epoch
    UNREVOKED_TASKS  it must give up tasks, and keeps its epoch until it reports that it has
    UNRELEASED_TASKS it waits for tasks that other members have not given up yet

A member gets an active task once no member has it as such, and no other member of its own process, whose
members share one state directory, has it in any role. A member that changes the role of a task it has may
keep its state: the new role is granted at once where that is safe. A task counts as given up once the member
reports it in no role but one that it keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.broker.groups.streams.tasks import (
    NOTHING_HELD,
    HeldTasks,
    TaskId,
    Tasks,
    each_active,
    each_task,
    grouped,
    grouped_active,
)
from ottla.protocol.errors import FencedMemberEpoch
from ottla.zookeeper.frozen_classes import frozen, replace

LEAVE_GROUP_EPOCH: Final = -1
LEAVE_GROUP_STATIC_EPOCH: Final = -2
UNKNOWN_TOPOLOGY: Final = -1


class MemberState(IntEnum):
    """The states of a member, by the numbers that the log stores."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


class Endpoint(NamedTuple):
    """The address on which a process answers queries of its state."""

    host: str
    port: int


@frozen(kw_only=True)
class StreamsMember:
    """One member, and the tasks it has."""

    id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = UNKNOWN_TOPOLOGY
    process_id: str = ""
    user_endpoint: Endpoint | None = None
    client_tags: tuple[tuple[str, str], ...] = ()
    """Sorted by key."""
    assigned: HeldTasks = NOTHING_HELD
    pending_revocation: HeldTasks = NOTHING_HELD

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has the tasks of this assignment epoch, and no others."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def waits_for(self, epoch: int) -> bool:
        """Whether the next heartbeat may bring the member nearer to a group epoch, without its own doing.

        A member that must give up something sends one at once when it has done so.
        """
        return self.state is not MemberState.UNREVOKED_TASKS and not self.is_reconciled_to(epoch)

    @property
    def metadata(self) -> tuple[object, ...]:
        """The fields that the member's metadata record stores."""
        return (
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.topology_epoch,
            self.process_id,
            self.user_endpoint,
            self.client_tags,
        )


class Holders:
    """The processes that have each task, over all members of a group."""

    def __init__(self) -> None:
        self._active: dict[TaskId, str] = {}
        self._standby: dict[TaskId, set[str]] = {}
        self._warmup: dict[TaskId, set[str]] = {}

    def active(self, task: TaskId) -> str | None:
        """Return the id of the process that runs a task; None while no process does."""
        return self._active.get(task)

    def standby(self, task: TaskId) -> AbstractSet[str]:
        """Return the ids of the processes that have a standby task."""
        return self._standby.get(task, _NO_PROCESS)

    def warmup(self, task: TaskId) -> AbstractSet[str]:
        """Return the ids of the processes that have a warm-up task."""
        return self._warmup.get(task, _NO_PROCESS)

    def add(self, member: StreamsMember) -> None:
        """Note the tasks of a member."""
        for held in (member.assigned, member.pending_revocation):
            self._active.update(dict.fromkeys(each_active(held.active), member.process_id))
            for sets, processes in ((held.standby, self._standby), (held.warmup, self._warmup)):
                for task in each_task(sets):
                    processes.setdefault(task, set()).add(member.process_id)

    def remove(self, member: StreamsMember) -> None:
        """Forget the tasks of a member, where they are still noted as its own."""
        for held in (member.assigned, member.pending_revocation):
            for task in each_active(held.active):
                if self._active.get(task) == member.process_id:
                    del self._active[task]
            for sets, processes in ((held.standby, self._standby), (held.warmup, self._warmup)):
                for task in each_task(sets):
                    of_task = processes.get(task, set())
                    of_task.discard(member.process_id)
                    if not of_task:
                        processes.pop(task, None)


_NO_PROCESS: Final[frozenset[str]] = frozenset()


# ---- reconciliation


def reconciled(
    member: StreamsMember, epoch: int, target: Tasks, owned: Tasks | None, holders: Holders
) -> StreamsMember:
    """Return the member one step nearer to its target of assignment epoch `epoch`, or as it is.

    `owned` are the tasks that the member reports; None when the heartbeat does not say. Raises
    FencedMemberEpoch for a member in a state that this version does not know, unless it has no tasks.
    """
    match member.state:
        case MemberState.STABLE:
            if member.epoch == epoch:
                return member
            return _Step(member, epoch, target, owned, holders).next_member(member.epoch)
        case MemberState.UNREVOKED_TASKS:
            if _has_not_released(owned, member.pending_revocation, member.assigned):
                return member
            return _Step(member, epoch, target, owned, holders).next_member(member.epoch + 1)
        case MemberState.UNRELEASED_TASKS:
            return _Step(member, epoch, target, owned, holders).next_member(member.epoch)
        case MemberState.UNKNOWN:
            if owned is None or not owned.is_empty:
                raise FencedMemberEpoch(
                    "The streams group member is in a unknown state. "
                    "The member must abandon all its tasks and rejoin."
                )
            return _Step(member, epoch, target, owned, holders).next_member(epoch)


def _has_not_released(owned: Tasks | None, pending: HeldTasks, kept: HeldTasks) -> bool:
    """Return whether a member may still have a task that it must give up.

    It may have one in another role than it was told last: it has not heard of that, or is not there yet.
    """
    return owned is None or owned.contains_any(pending) or owned.has_elsewhere(pending, kept)


class _Role:
    """The tasks of a member in one role: those it keeps, must revoke, and gets now."""

    __slots__ = ("assigned", "held", "pending", "target", "unreleased", "unrevoked")

    def __init__(self, held: AbstractSet[TaskId], target: AbstractSet[TaskId]) -> None:
        self.held = held
        self.target = target
        self.assigned: set[TaskId] = set(held & target)
        self.unrevoked: set[TaskId] = set(held - target)
        self.pending: set[TaskId] = set(target - held)
        """Tasks that it gets, as soon as there is nothing to be revoked."""
        self.unreleased = False

    def wait_for(self, unreleased: AbstractSet[TaskId]) -> None:
        """Leave out tasks that others have not given up yet."""
        self.pending -= unreleased
        self.unreleased = bool(unreleased)

    def grant(self, task: TaskId) -> None:
        """Assign a pending task before the others."""
        self.pending.remove(task)
        self.assigned.add(task)


class _Step:
    """One step of one member."""

    def __init__(
        self, member: StreamsMember, epoch: int, target: Tasks, owned: Tasks | None, holders: Holders
    ) -> None:
        self._member = member
        self._epoch = epoch
        self._owned = owned
        self._holders = holders
        held = member.assigned
        self._epochs: Mapping[TaskId, int] = each_active(held.active)
        self._active = _Role(self._epochs.keys(), set(each_task(target.active)))
        self._standby = _Role(set(each_task(held.standby)), set(each_task(target.standby)))
        self._warmup = _Role(set(each_task(held.warmup)), set(each_task(target.warmup)))

    def next_member(self, epoch: int) -> StreamsMember:
        """Return the member in its next state; it has `epoch` until it has revoked what it must."""
        self._leave_out_unreleased()
        self._convert_roles()
        revocation = self._revocation()
        kept = self._assigned(with_pending=False)
        must_revoke = not revocation.is_empty and _has_not_released(self._owned, revocation, kept)
        self._keep_until_promoted(must_revoke)
        unreleased = any(role.unreleased for role in (self._active, self._standby, self._warmup))
        return replace(
            self._member,
            previous_epoch=self._member.epoch,
            epoch=epoch if must_revoke else self._epoch,
            state=MemberState.UNREVOKED_TASKS
            if must_revoke
            else MemberState.UNRELEASED_TASKS
            if unreleased
            else MemberState.STABLE,
            assigned=self._assigned(with_pending=not must_revoke),
            pending_revocation=revocation if must_revoke else NOTHING_HELD,
        )

    def _assigned(self, *, with_pending: bool) -> HeldTasks:
        def of(role: _Role) -> set[TaskId]:
            return role.assigned | role.pending if with_pending else role.assigned

        active = {task: self._epochs.get(task, self._epoch) for task in of(self._active)}
        return HeldTasks(grouped_active(active), grouped(of(self._standby)), grouped(of(self._warmup)))

    # ---- tasks that others have

    def _leave_out_unreleased(self) -> None:
        holders, process = self._holders, self._member.process_id
        active, standby, warmup = self._active, self._standby, self._warmup
        active.wait_for(
            {
                task
                for task in active.pending
                if holders.active(task) is not None
                or (process in holders.standby(task) and task not in standby.held)
                or (process in holders.warmup(task) and task not in warmup.held)
            }
        )
        standby.wait_for(
            {
                task
                for task in standby.pending
                if (holders.active(task) == process and task not in active.held)
                or process in holders.standby(task)
                or (process in holders.warmup(task) and task not in warmup.held)
            }
        )
        warmup.wait_for(
            {
                task
                for task in warmup.pending
                if holders.active(task) == process
                or (process in holders.standby(task) and task not in standby.held)
                or process in holders.warmup(task)
            }
        )

    # ---- tasks that change their role in this member

    def _convert_roles(self) -> None:
        """Grant the standby role of what was active, and swap standby and warm-up roles, at once."""
        for task in self._active.held & self._standby.pending:
            self._standby.grant(task)
        for before, after in ((self._standby, self._warmup), (self._warmup, self._standby)):
            for task in before.held & after.pending:
                after.grant(task)
                before.unrevoked.discard(task)

    def _revocation(self) -> HeldTasks:
        """Return the tasks to be revoked, but no replica that becomes active: its state stays open."""
        for role in (self._standby, self._warmup):
            role.unrevoked -= self._active.target
        active = {task: self._epochs[task] for task in self._active.unrevoked}
        return HeldTasks(
            grouped_active(active), grouped(self._standby.unrevoked), grouped(self._warmup.unrevoked)
        )

    def _keep_until_promoted(self, must_revoke: bool) -> None:
        """Keep replicas that become active in their role until the active one is granted."""
        granted: AbstractSet[TaskId] = set() if must_revoke else self._active.pending
        for role in (self._standby, self._warmup):
            role.assigned |= (role.held & self._active.target) - granted

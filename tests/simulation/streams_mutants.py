"""Changed rules of streams groups. The schedules of `streams_groups` have to notice each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.broker.groups.streams import group as streams_group
from ottla.broker.groups.streams import heartbeats, members, records, state, sticky_assignor, tasks
from ottla.broker.groups.streams.members import Holders
from ottla.zookeeper.frozen_classes import replace
from simulation.mutants import Patch

STREAMS_MUTANTS: Final[dict[str, Callable[[], list[Patch]]]] = {}


def mutant(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    """Add a mutant."""
    STREAMS_MUTANTS[patches.__name__] = patches
    return patches


@mutant
def active_tasks_of_others_are_not_awaited() -> list[Patch]:
    """A member gets an active task that another one still has."""
    return [(Holders, "active", lambda self, task: None)]


@mutant
def revocation_is_not_awaited() -> list[Patch]:
    """A member counts as having given its tasks up before it says so."""
    return [(members, "_has_not_released", lambda owned, pending: False)]


@mutant
def pending_revocation_is_not_stored() -> list[Patch]:
    """The tasks that a member must give up are not in its record's state."""
    original = records.with_tasks

    def with_tasks(member: Any, value: Any) -> Any:
        return replace(original(member, value), pending_revocation=tasks.NOTHING_HELD)

    return [(state, "with_tasks", with_tasks)]


@mutant
def any_member_frees_a_task() -> list[Patch]:
    """A member that gives a task up frees it, though another process has got it meanwhile."""

    def add(self: Any, member: Any) -> None:
        for held in (member.assigned,):
            self._active.update(dict.fromkeys(tasks.each_active(held.active), member.process_id))

    return [(Holders, "add", add)]


@mutant
def removed_member_does_not_raise_the_epoch() -> list[Patch]:
    """The tasks of a member that was removed go to no other."""
    original = records.group_record

    def group_record(group_id: str, facts: Any) -> Any:
        return original(group_id, replace(facts, epoch=facts.epoch - 1))

    return [(streams_group, "group_record", group_record)]


@mutant
def new_member_does_not_raise_the_epoch() -> list[Patch]:
    """A member that joins a group gets no task."""
    original = heartbeats.HeartbeatStep._note_metadata

    def note_metadata(self: Any, before: Any, member: Any) -> bool:
        original(self, before, member)
        return False

    return [(heartbeats.HeartbeatStep, "_note_metadata", note_metadata)]


@mutant
def assignment_interval_never_ends() -> list[Patch]:
    """No second assignment is made."""
    return [(heartbeats, "may_assign", lambda group, settings, wall_ms: group.assignment_timestamp_ms == 0)]


@mutant
def assignor_forgets_tasks_without_state() -> list[Patch]:
    """Tasks without state are assigned to no member."""
    original = sticky_assignor._task_ids
    return [
        (sticky_assignor, "_task_ids", lambda parts, *, only_stateful: original(parts, only_stateful=True))
    ]


@mutant
def stable_members_do_not_move_on() -> list[Patch]:
    """A member that has its target does not take the next one."""
    original = members.reconciled

    def reconciled(member: Any, epoch: int, target: Any, owned: Any, holders: Any) -> Any:
        if member.state is members.MemberState.STABLE and member.epoch > 1:
            return member
        return original(member, epoch, target, owned, holders)

    return [(heartbeats, "reconciled", reconciled)]

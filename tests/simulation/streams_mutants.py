"""Changed rules of streams groups. The schedules of `streams_groups` have to notice each of them."""

from __future__ import annotations

from typing import Any, Final

from ottla.broker.groups.streams import group as streams_group
from ottla.broker.groups.streams import heartbeats, members, records, state, sticky_assignor, tasks
from ottla.broker.groups.streams import target_assignment as targets
from ottla.broker.groups.streams.events import Wait
from ottla.broker.groups.streams.group import StreamsGroup
from ottla.broker.groups.streams.heartbeats import HeartbeatStep
from ottla.broker.groups.streams.members import Holders, MemberState
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.frozen_classes import replace
from simulation.hosting_mutants import answers_come_before_replicas
from simulation.mutants import NamedMutants, Patch

STREAMS_MUTANTS: Final = NamedMutants()
mutant: Final = STREAMS_MUTANTS.add
mutant(answers_come_before_replicas)


@mutant
def active_tasks_of_others_are_not_awaited() -> list[Patch]:
    """A member gets an active task that another one still has."""
    return [(Holders, "active", lambda self, task: None)]


@mutant
def revocation_is_not_awaited() -> list[Patch]:
    """A member counts as having given its tasks up before it says so."""
    return [(members, "_has_not_released", lambda *_: False)]


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
    original = HeartbeatStep._note_metadata

    def note_metadata(self: Any, before: Any, member: Any) -> bool:
        original(self, before, member)
        return False

    return [(HeartbeatStep, "_note_metadata", note_metadata)]


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
        if member.state is MemberState.STABLE and member.epoch > 1:
            return member
        return original(member, epoch, target, owned, holders)

    return [(heartbeats, "reconciled", reconciled)]


@mutant
def replicas_of_the_process_are_not_awaited() -> list[Patch]:
    """A member gets a task whose state another one of its process still has open."""
    return [(Holders, "standby", lambda self, task: frozenset())]


@mutant
def lost_answers_are_not_repeated() -> list[Patch]:
    """A member whose answer was lost does not hear of its tasks again."""
    return [(HeartbeatStep, "_misses_tasks", lambda self, after: False)]


@mutant
def fenced_members_may_commit() -> list[Patch]:
    """A commit of a member that was removed is taken."""
    original = StreamsGroup.check_commit

    def check_commit(self: Any, *given: Any, **more: Any) -> Any:
        code = original(self, *given, **more)
        return ErrorCode.NONE if code is ErrorCode.UNKNOWN_MEMBER_ID else code

    return [(StreamsGroup, "check_commit", check_commit)]


@mutant
def any_epoch_may_commit() -> list[Patch]:
    """A member commits in an epoch in which it had not got the task."""
    return [(StreamsGroup, "_has_had", lambda self, member, partitions, since: True)]


@mutant
def no_past_epoch_may_commit() -> list[Patch]:
    """A member that learns its new epoch late cannot commit."""
    return [(StreamsGroup, "_has_had", lambda self, member, partitions, since: False)]


@mutant
def sessions_do_not_begin_with_a_load() -> list[Patch]:
    """A member that died before its coordinator did stays for ever."""
    return [(StreamsGroup, "_loaded", lambda self, now_ms, wall_ms: None)]


@mutant
def a_leave_ends_the_session_before_it_is_written() -> list[Patch]:
    """A member whose leave the log refuses stays for ever."""
    original = StreamsGroup._remove

    def remove(self: Any, gone: Any, outcome: Any) -> None:
        original(self, gone, outcome)
        for member in gone:
            self._deadlines.cancel((Wait.SESSION, member.id))

    return [(StreamsGroup, "_remove", remove)]


@mutant
def revocation_has_no_deadline() -> list[Patch]:
    """A member that never gives a task up keeps it."""
    return [(streams_group, "_still_revokes", lambda member: False)]


@mutant
def assignments_made_in_steps_are_never_void() -> list[Patch]:
    """An assignment that takes long is stored though everyone has left meanwhile."""

    def assigned(self: Any, part: Any, wall_ms: int, outcome: Any) -> None:
        outcome.records += targets.changed_targets(self.group_id, part.tasks, self.data.target)
        if part.epoch is not None:
            self.data.assigning = None
            outcome.records.append(records.assignment_record(self.group_id, part.epoch, wall_ms))

    return [(StreamsGroup, "_assigned", assigned)]


@mutant
def topics_are_looked_at_once() -> list[Patch]:
    """Topics that appear later are not noticed."""
    return [(StreamsGroup, "topics_changed", lambda self, names: None)]


@mutant
def replicas_are_not_stored() -> list[Patch]:
    """The record of a member leaves out its standby tasks."""
    original = records.current_record

    def current_record(group_id: str, member: Any) -> Any:
        record = original(group_id, member)
        return record._replace(value=replace_standby(record.value))

    def replace_standby(value: Any) -> Any:
        value.standby_tasks = []
        return value

    return [(heartbeats, "current_record", current_record)]


@mutant
def endpoints_are_told_once() -> list[Patch]:
    """Members do not hear of the tasks that one with an endpoint gets later."""
    original = HeartbeatStep._response

    def response(self: Any, before: Any, after: Any) -> Any:
        epoch = self._group.endpoint_epoch
        made = original(self, before, after)
        self._group.endpoint_epoch = made.endpoint_information_epoch = max(epoch, 1)
        return made

    return [(HeartbeatStep, "_response", response)]


@mutant
def tasks_are_noted_before_they_are_written() -> list[Patch]:
    """A step changes a member, whose record the log may refuse."""
    original = HeartbeatStep._reconciled

    def reconciled(self: Any, member: Any, assignment: Any) -> Any:
        after = original(self, member, assignment)
        if after.id in self._group.members:
            self._group.members[after.id] = after
        return after

    return [(HeartbeatStep, "_reconciled", reconciled)]

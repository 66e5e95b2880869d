"""The target assignment of a streams group: when it may be made, by whom, and the records that store it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Final

from ottla.broker.groups.kinds import KindRecord, StepOutcome, Work
from ottla.broker.groups.streams import sticky_assignor
from ottla.broker.groups.streams.events import AssignmentPart
from ottla.broker.groups.streams.members import StreamsMember
from ottla.broker.groups.streams.records import assignment_record, target_record
from ottla.broker.groups.streams.settings import StreamsSettings
from ottla.broker.groups.streams.state import NO_MEMBER_OFFSETS, StreamsGroupData
from ottla.broker.groups.streams.tasks import NO_TASKS, Tasks, without_epochs
from ottla.broker.groups.streams.topic_configuration import ConfiguredTopology
from ottla.broker.runtime.loop_budget import LONG, at_once, slices
from ottla.zookeeper.frozen_classes import frozen

MANY_TASKS: Final = 1_000
"""Tasks from which on an assignment is made in steps."""


@frozen
class TargetAssignment:
    """The target of each member, and the epoch that it is for."""

    epoch: int
    tasks: Mapping[str, Tasks]


def may_assign(group: StreamsGroupData, settings: StreamsSettings, wall_ms: int) -> bool:
    """Return whether so much time has passed since the last assignment that there may be another."""
    last_ms, interval_ms = group.assignment_timestamp_ms, settings.assignment_interval_ms
    return last_ms == 0 or interval_ms == 0 or wall_ms >= last_ms + interval_ms


def assign(
    group: StreamsGroupData,
    epoch: int,
    configured: ConfiguredTopology,
    settings: StreamsSettings,
    wall_ms: int,
    outcome: StepOutcome,
    *,
    members: Mapping[str, StreamsMember],
    target: Mapping[str, Tasks],
) -> TargetAssignment | None:
    """Make the target assignment of an epoch for these members, and write where it differs from `target`.

    While the topics are not as the topology needs them, nobody gets a task. None if there is so much to
    assign that it becomes work of its own, which ends with events.
    """
    if not configured.is_ready or configured.subtopologies is None:
        made: Mapping[str, Tasks] = dict.fromkeys(members, NO_TASKS)
    else:
        subtopologies = {
            name: sticky_assignor.AssignedSubtopology(part.tasks, bool(part.changelog_topics))
            for name, part in configured.subtopologies.items()
        }
        steps = _steps(group, dict(members), subtopologies, settings.standby_replicas)
        tasks = sum(part.tasks for part in subtopologies.values())
        if len(members) > LONG or tasks * (1 + settings.standby_replicas) > MANY_TASKS:
            number = group.begin_assignment()
            work = Work("assign-tasks", lambda: steps, lambda made: _in_parts(made, number, epoch))
            outcome.work.append(work)
            return None
        made = at_once(steps)
    outcome.records += changed_targets(group.group_id, made, target)
    outcome.records.append(assignment_record(group.group_id, epoch, wall_ms))
    return TargetAssignment(epoch, made)


def _steps(
    group: StreamsGroupData,
    members: Mapping[str, StreamsMember],
    subtopologies: Mapping[str, sticky_assignor.AssignedSubtopology],
    standby_replicas: int,
) -> Generator[None, None, dict[str, Tasks]]:
    assigned: dict[str, sticky_assignor.AssignedMember] = {}
    for some in slices(members.values()):
        for member in some:
            assigned[member.id] = _assigned_member(group, member)
        yield
    return (yield from sticky_assignor.assign(assigned, subtopologies, standby_replicas))


def changed_targets(
    group_id: str, made: Mapping[str, Tasks], target: Mapping[str, Tasks]
) -> list[KindRecord]:
    """Return the records of members that shall have other tasks than before."""
    return [
        target_record(group_id, member_id, tasks)
        for member_id, tasks in made.items()
        if target.get(member_id) != tasks
    ]


def _in_parts(made: Mapping[str, Tasks], number: int, epoch: int) -> Iterator[AssignmentPart]:
    for some in slices(made.items()):
        yield AssignmentPart(dict(some), number)
    yield AssignmentPart({}, number, epoch)


def _assigned_member(group: StreamsGroupData, member: StreamsMember) -> sticky_assignor.AssignedMember:
    return sticky_assignor.AssignedMember(
        process_id=member.process_id,
        active=without_epochs(member.assigned.active),
        standby=member.assigned.standby,
        task_offsets=group.task_offsets.get(member.id, NO_MEMBER_OFFSETS).offsets,
    )

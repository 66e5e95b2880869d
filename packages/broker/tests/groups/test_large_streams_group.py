"""Streams groups of 10,000 members: their assignment is made in steps that are short by what they touch."""

from __future__ import annotations

from typing import Any, ClassVar

from ottla.broker.groups.streams.sticky_assignor import AssignedMember, AssignedSubtopology, assign
from ottla.broker.runtime.loop_budget import SLICE

MEMBERS = 10_000
TASKS = 500


class Id(str):
    """An id that counts how often one is looked at."""

    looks: ClassVar[int] = 0

    def encode(self, *args: Any) -> bytes:
        Id.looks += 1
        return super().encode(*args)

    def __hash__(self) -> int:
        Id.looks += 1
        return super().__hash__()


def test_no_step_of_an_assignment_walks_over_all_members_or_processes() -> None:
    members: dict[str, AssignedMember] = {
        Id(f"m{number}"): AssignedMember(process_id=Id(f"p{number // 2}"), active={}, standby={})
        for number in range(MEMBERS)
    }
    steps = assign(members, {"0": AssignedSubtopology(TASKS, is_stateful=True)}, 1)
    most, made = 0, None

    while made is None:
        Id.looks = 0
        try:
            next(steps)
        except StopIteration as end:
            made = end.value
        most = max(most, Id.looks)

    assert most <= 10 * SLICE
    assert sum(len(tasks.active.get("0", ())) for tasks in made.values()) == TASKS
    assert sum(len(tasks.standby.get("0", ())) for tasks in made.values()) == TASKS

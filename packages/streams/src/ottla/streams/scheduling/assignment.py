"""One assignment of a partition: its lanes, its frontier, and its counts. Pure.

A lane is a queue of records that keep their order, with one active piece of work at a time. A partition that
is assigned again is a new assignment: what happens to work of an earlier one changes nothing for it.
The work is native (`_core.pyx`).
"""

from __future__ import annotations

from ottla.streams.scheduling._core import Assignment, Phase, WorkItem

__all__ = ["Assignment", "Phase", "WorkItem"]

"""Paces: how long groups have been behind, and have finished nothing, by the looks at them. Pure.

A group that is idle has nothing to commit, and one that got records a moment ago has had no time to: only
one whose records were unread at an earlier look, and that has finished none since, stands still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.admin.groups import GroupProgress
from ottla.console.clusters.group_rows import total_lag
from ottla.protocol.topics import TopicPartition

_BLURRED: Final = 100
"""Ends and lags of share groups are of two moments: a hundredth of what was written between looks is blur."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a group moves that is behind; what no look has seen is None.

    `behind_s` is how long each look has found it behind, and `still_s` how long it has finished nothing.
    """

    per_s: float | None = None
    behind_s: float | None = None
    still_s: float | None = None
    falls_behind: bool = False
    """Whether its lag has grown beyond what it swings between two commits."""


UNKNOWN: Final = Pace()


@dataclass(frozen=True, slots=True)
class Stands:
    """Since when groups have been behind, and since when those of them have finished nothing, in seconds."""

    behind_since_s: Mapping[str, int]
    still_since_s: Mapping[str, int]


NOWHERE: Final = Stands({}, {})
Groups = Mapping[str, GroupProgress]


def stands_of(now: Groups, at_s: int, then: Groups, then_s: int, before: Stands) -> Stands:
    """Return where groups stand at a look, by what the look before it saw and concluded."""
    behind = [group for group, progress in now.items() if (total_lag(progress) or 0) > 0]
    still = {
        group: before.still_since_s.get(group, then_s)
        for group in behind
        if group in before.behind_since_s and not has_moved(then[group], now[group])
    }
    return Stands({group: before.behind_since_s.get(group, at_s) for group in behind}, still)


def has_moved(then: GroupProgress, now: GroupProgress) -> bool:
    """Whether a group has finished records between two looks, or has got other partitions or offsets."""
    if _offsets(then) != _offsets(now):
        return True
    known = {found.partition: found for found in then.partitions if found.unacknowledged is not None}
    pairs = [
        (known[found.partition], found)
        for found in now.partitions
        if found.unacknowledged is not None and found.partition in known
    ]
    done = sum((later.read or 0) - (earlier.read or 0) for earlier, later in pairs)
    written = sum((later.end_offset or 0) - (earlier.end_offset or 0) for earlier, later in pairs)
    return done * _BLURRED > max(0, written)


def _offsets(progress: GroupProgress) -> dict[TopicPartition, int]:
    return {found.partition: found.offset for found in progress.partitions if found.offset is not None}

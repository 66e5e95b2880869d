"""Groups of a cluster as rows, with their lag. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.admin import GroupListing
from ottla.admin.groups import GroupProgress


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group; `lag`, `members` and `topics` are None until its coordinator answers, `failure` says why."""

    name: str
    state: str
    protocol_type: str
    lag: int | None = None
    members: int | None = None
    topics: tuple[str, ...] | None = None
    unread: int = 0
    """Partitions with a member and no commit."""
    failure: str = ""


def group_row(listing: GroupListing, progress: GroupProgress | None, failure: str = "") -> GroupRow:
    """Return the row of a group, with its progress where that is known."""
    if progress is None:
        return GroupRow(listing.name, listing.state, listing.protocol_type, failure=failure)
    return GroupRow(
        listing.name,
        progress.description.state,
        progress.description.protocol_type,
        total_lag(progress),
        len(progress.description.members),
        tuple(sorted({partition.partition.topic for partition in progress.partitions})),
        sum(partition.offset is None for partition in progress.partitions),
        failure,
    )


def total_lag(progress: GroupProgress) -> int | None:
    """Return the records that a group has not read, over all partitions; None if no partition's are known.

    A commit beyond the end counts as nothing: it makes up for no lag of another partition.
    """
    known = [partition.lag for partition in progress.partitions if partition.lag is not None]
    return sum(max(lag, 0) for lag in known) if known else None


def chosen_groups(groups: list[GroupListing], *, text: str = "", state: str = "") -> list[GroupListing]:
    """Return the groups whose name contains every word of a text, and that are in a state, by name."""
    words = text.lower().split()
    return sorted(
        (
            group
            for group in groups
            if all(word in group.name.lower() for word in words) and state in ("", group.state)
        ),
        key=lambda group: group.name,
    )

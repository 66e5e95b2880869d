"""Groups of a cluster as rows, with their lag. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ottla.admin import GroupListing, MemberDescription
from ottla.admin.groups import GroupProgress, PartitionProgress
from ottla.console.clusters.metrics_pages import GroupAcquired
from ottla.console.web.formats import at_most, count
from ottla.protocol.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group; `lag`, `members` and `topics` are None until its coordinator answers, `failure` says why."""

    name: str
    state: str
    type: str
    lag: int | None = None
    members: int | None = None
    topics: tuple[str, ...] | None = None
    unread: int = 0
    """Partitions with a member and no commit, which may have records: `lag` is that of the others."""
    unknown: int = 0
    """Partitions with a commit whose end is not known: `lag` is that of the others."""
    failure: str = ""
    acquired: GroupAcquired | None = None
    """The records that its members hold, of a share group."""


def group_row(listing: GroupListing, progress: GroupProgress | None, failure: str = "") -> GroupRow:
    """Return the row of a group, with its progress where that is known."""
    if progress is None:
        return GroupRow(listing.name, listing.state, listing.type, failure=failure)
    return GroupRow(
        listing.name,
        progress.description.state,
        progress.description.type,
        total_lag(progress),
        len(progress.description.members),
        tuple(sorted({partition.partition.topic for partition in progress.partitions})),
        len(uncommitted(progress)),
        unknown_ends(progress),
        failure,
    )


def total_lag(progress: GroupProgress) -> int | None:
    """Return the records that a group has not read, over all partitions; None if no partition's are known.

    A commit beyond the end counts as nothing: it makes up for no lag of another partition.
    """
    known = [partition.lag for partition in progress.partitions if partition.lag is not None]
    return sum(max(lag, 0) for lag in known) if known else None


def unknown_ends(progress: GroupProgress) -> int:
    """Return how many partitions with a commit have no known lag: their leader does not answer."""
    return sum(found.offset is not None and found.lag is None for found in progress.partitions)


def uncommitted(progress: GroupProgress) -> list[TopicPartition]:
    """Return the partitions without a commit that may have had records.

    How many of them are unread is not known: the members begin where their `auto.offset.reset` says.
    """
    return [
        found.partition for found in progress.partitions if found.offset is None and found.end_offset != 0
    ]


def most_unread(progress: GroupProgress, held: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    """Return the lag of each partition as it is shown: without a commit at most the records that it holds."""
    return {
        found.partition: count(found.lag)
        if found.offset is not None or found.partition not in held
        else at_most(held[found.partition])
        for found in progress.partitions
    }


def owned_lags(progress: GroupProgress, held: Mapping[TopicPartition, int]) -> dict[MemberDescription, str]:
    """Return the lag of the partitions of each member as it is shown; members of a share group share it."""
    return {
        member: _shown_lag([found for found in progress.partitions if member in found.owners], held)
        for member in progress.description.members
    }


def _shown_lag(partitions: list[PartitionProgress], held: Mapping[TopicPartition, int]) -> str:
    known = sum(max(found.lag or 0, 0) for found in partitions)
    unclear = [found for found in partitions if found.lag is None and found.end_offset != 0]
    if not unclear:
        return count(known)
    if all(found.offset is None and found.partition in held for found in unclear):
        return at_most(known + sum(held[found.partition] for found in unclear))
    return f"at least {count(known)}" if len(unclear) < len(partitions) else count(None)


def lagging_partitions(progress: GroupProgress) -> str:
    """Return where the lag of a group is: its partition, or how many and the one with the most."""
    behind = [found for found in progress.partitions if (found.lag or 0) > 0]
    if not behind:
        return ""
    most = max(behind, key=lambda found: found.lag or 0)
    if len(behind) == 1:
        return str(most.partition)
    return f"{len(behind)} partitions, the most in {most.partition}"


def chosen_groups(
    groups: list[GroupListing], *, text: str = "", state: str = "", kind: str = ""
) -> list[GroupListing]:
    """Return the groups whose name contains every word of a text, of a state and a type, by name."""
    words = text.lower().split()
    return sorted(
        (
            group
            for group in groups
            if all(word in group.name.lower() for word in words)
            and state in ("", group.state)
            and kind in ("", group.type)
        ),
        key=lambda group: group.name,
    )


def partition_ranges(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions by topic, those that follow each other as one: `orders 0-3, 7; payments 0`."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(set(partitions)):
        by_topic[partition.topic].append(partition.partition)
    return "; ".join(f"{topic} {_ranges(indexes)}" for topic, indexes in by_topic.items())


def _ranges(indexes: list[int]) -> str:
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][-1] + 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join("-".join(map(str, run)) for run in runs)

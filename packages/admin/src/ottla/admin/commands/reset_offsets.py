"""`ottla group reset-offsets` and `ottla share-group reset-offsets`: where a group goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import click

from ottla.admin.commands import complete_groups, counted, named_partitions, with_admin
from ottla.admin.commands.group_kinds import SHARE, check_share_group
from ottla.client.commands import cluster_options, json_option, read_time, show

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.admin.groups import GroupProgress, PartitionProgress
    from ottla.protocol.topics import TopicPartition

F = TypeVar("F", bound=Callable[..., object])
COLUMNS: Final = ("topic", "partition", "offset", "new offset", "lag", "new lag")
_EARLIEST, _LATEST = -2, -1


class Goal(NamedTuple):
    """Where a group is to go on: one of the two is None. Negative timestamps are the ends of the log."""

    timestamp_ms: int | None = None
    offset: int | None = None
    shift: int | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The new offsets of a group beside its progress; without one the group does not exist yet."""

    progress: GroupProgress | None
    offsets: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    outside: Mapping[TopicPartition, int]
    """The offsets that a goal named outside of the log, which ends of the log stand in for."""

    @property
    def is_share(self) -> bool:
        """Whether it is a share group, whose offsets are set in another way."""
        return self.progress is not None and self.progress.description.type == SHARE

    @property
    def members(self) -> int:
        """The number of members, which keep the offsets from being set."""
        return 0 if self.progress is None else len(self.progress.description.members)

    def rows(self) -> list[tuple[object, ...]]:
        """Return each partition with its offset and its lag, now and then."""
        known = known_offsets(self.progress)
        return [
            (
                *partition,
                known[partition].offset if partition in known else None,
                self.offsets[partition],
                known[partition].lag if partition in known else None,
                self.ends[partition] - self.offsets[partition],
            )
            for partition in sorted(self.offsets)
        ]

    def replaced_offsets(self) -> list[str]:
        """Return a sentence for each offset outside of the log."""
        return [
            f"{partition}: {offset} is {_where(offset, self.offsets[partition])} of the log, "
            f"the new offset is {self.offsets[partition]}."
            for partition, offset in sorted(self.outside.items())
        ]

    def shifted_from_a_guess(self) -> list[PartitionProgress]:
        """Return the partitions of a share group that have finished records above their start offset."""
        known = known_offsets(self.progress)
        return [
            found
            for partition in sorted(self.offsets)
            if (found := known.get(partition)) is not None and found.acknowledged_ahead and found.lag
        ]


def _where(offset: int, nearest: int) -> str:
    return "past the end" if offset > nearest else "before the start"


def known_offsets(progress: GroupProgress | None) -> dict[TopicPartition, PartitionProgress]:
    """Return the partitions of which a group has an offset; of a share group also those that it began."""
    if progress is None:
        return {}
    is_share = progress.description.type == SHARE
    return {found.partition: found for found in progress.partitions if is_share or found.offset is not None}


def reset_options(command: F) -> F:
    """Add the options that choose partitions and where to go on."""
    for option in (
        click.option(
            "--execute", is_flag=True, help="Commit the new offsets; without it they are only shown."
        ),
        click.option("--shift-by", type=int, help="Forward by this many records; back when negative."),
        click.option(
            "--to-datetime", metavar="ISO", help="To the first record at or after: 2026-01-31T08:00Z"
        ),
        click.option("--to-offset", type=click.IntRange(0), help="To this offset."),
        click.option("--to-latest", is_flag=True, help="After the last record of each partition."),
        click.option("--to-earliest", is_flag=True, help="To the first record of each partition."),
        click.option(
            "--topic",
            "topics",
            multiple=True,
            help="TOPIC or TOPIC:PARTITION; without it, all with a commit.",
        ),
    ):
        command = option(command)
    return click.argument("name", shell_complete=complete_groups)(command)


@click.command(name="reset-offsets")
@reset_options
@json_option
@cluster_options
def reset_offsets(name: str, bootstrap_server: str, properties: str | None, **given: object) -> None:
    """Set the committed offsets of a group. The group must have no members.

    NEW LAG has the records that it reads then, those among them that it read before as well.

    \b
    Examples:
      ottla group reset-offsets billing --topic orders --to-earliest
      ottla group reset-offsets billing --topic orders:3 --shift-by -100 --execute
      ottla group reset-offsets billing --to-datetime 2026-01-31T08:00:00Z --execute
    """
    _run(name, bootstrap_server, properties, given, only_share=False)


@click.command(name="reset-offsets")
@reset_options
@json_option
@cluster_options
def reset_share_offsets(name: str, bootstrap_server: str, properties: str | None, **given: object) -> None:
    """Set where a share group goes on. The group must have no members.

    All records from there on are delivered again, also those that are acknowledged: NEW LAG counts them.
    --shift-by counts from the end where the group has no lag, else from its start offset.

    \b
    Examples:
      ottla share-group reset-offsets workers --topic jobs --to-earliest
      ottla share-group reset-offsets workers --topic jobs:3 --shift-by -100 --execute
      ottla share-group reset-offsets workers --to-datetime 2026-01-31T08:00:00Z --execute
    """
    _run(name, bootstrap_server, properties, given, only_share=True)


def _run(
    name: str, bootstrap_server: str, properties: str | None, given: Mapping[str, object], *, only_share: bool
) -> None:
    goal = _goal(given)
    topics, execute, as_json = given["topics"], bool(given["execute"]), bool(given["as_json"])
    assert isinstance(topics, tuple)

    async def use(admin: Admin) -> Reset:
        reset = await planned(admin, name, topics, goal, only_share=only_share)
        if execute:
            commit = admin.groups.alter_share_offsets if reset.is_share else admin.groups.commit
            await commit(name, reset.offsets)
        return reset

    reset = with_admin(bootstrap_server, properties, use)
    show(COLUMNS, reset.rows(), as_json=as_json)
    if not as_json:
        for line in remarks(name, reset, goal, execute=execute):
            click.echo(line, err=True)


def _goal(given: Mapping[str, object]) -> Goal:
    """Return the goal that the options name. Raises click.UsageError unless it is one."""
    kinds = ("to_earliest", "to_latest", "to_offset", "to_datetime", "shift_by")
    named = [kind for kind in kinds if given[kind] is not None and given[kind] is not False]
    if len(named) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    value = given[named[0]]
    match named[0]:
        case "to_earliest":
            return Goal(timestamp_ms=_EARLIEST)
        case "to_latest":
            return Goal(timestamp_ms=_LATEST)
        case "to_datetime":
            return Goal(timestamp_ms=read_time(str(value)))
    assert isinstance(value, int)
    return Goal(offset=value) if named[0] == "to_offset" else Goal(shift=value)


async def planned(admin: Admin, name: str, topics: tuple[str, ...], goal: Goal, *, only_share: bool) -> Reset:
    """Return the new offsets of a group. Raises WrongKindOfGroup, or GroupIdNotFound for a share group."""
    from ottla.protocol.errors import GroupIdNotFound

    progress: GroupProgress | None = None
    try:
        progress = await admin.group_progress(name)
    except GroupIdNotFound:
        if only_share or not topics:
            raise
    if only_share and progress is not None:
        check_share_group(name, progress.description.type, "reset-offsets")
    known = known_offsets(progress)
    partitions = await named_partitions(admin, topics) if topics else await _existing(admin, known)
    if not partitions:
        raise ValueError(f"group {name!r} has no committed offsets; name topics with --topic")
    first = await admin.offsets.find(dict.fromkeys(partitions, _EARLIEST))
    last = await admin.offsets.find(dict.fromkeys(partitions, _LATEST))
    if goal.timestamp_ms is not None:
        wanted = await admin.offsets.find(dict.fromkeys(partitions, goal.timestamp_ms))
    elif goal.offset is not None:
        wanted = dict.fromkeys(partitions, goal.offset)
    else:
        positions = {partition: found.position or 0 for partition, found in known.items()}
        wanted = {partition: positions.get(partition, 0) + (goal.shift or 0) for partition in partitions}
    within = {
        partition: min(max(wanted[partition], first[partition]), last[partition]) for partition in wanted
    }
    outside = {
        partition: offset
        for partition, offset in wanted.items()
        if goal.timestamp_ms is None and offset != within[partition]
    }
    return Reset(progress, within, last, outside)


async def _existing(admin: Admin, known: Mapping[TopicPartition, object]) -> list[TopicPartition]:
    """Return the partitions that are there; name those that were deleted since their commit."""
    there = {topic.name: topic.partitions for topic in await admin.topics.list(internal=True)}
    gone = [
        partition for partition in sorted(known) if partition.partition not in there.get(partition.topic, ())
    ]
    for partition in gone:
        click.echo(f"{partition} is left out: there is no such partition any more.", err=True)
    return [partition for partition in sorted(known) if partition not in gone]


def remarks(name: str, reset: Reset, goal: Goal, *, execute: bool) -> list[str]:
    """Return what a user should know of new offsets beside the table."""
    lines = reset.replaced_offsets()
    if goal.shift is not None:
        lines += [
            f"{found.partition}: the shift counts from the start offset {found.offset}; of the records from "
            f"there on, {found.acknowledged_ahead} are acknowledged, and the broker does not tell which."
            for found in reset.shifted_from_a_guess()
        ]
    if execute:
        if reset.progress is None:
            lines.append(f"Group {name} is new.")
        return [*lines, f"Committed {counted(len(reset.offsets), 'offset')}."]
    if reset.progress is None:
        lines.append(f"There is no group {name}: --execute makes it.")
    if reset.members:
        members = "a member" if reset.members == 1 else f"{reset.members} members"
        return [
            *lines,
            f"Nothing can be changed yet: group {name!r} has {members}; stop them before --execute.",
        ]
    return [*lines, "Nothing is changed yet. Add --execute to commit."]

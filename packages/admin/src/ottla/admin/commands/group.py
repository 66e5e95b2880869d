"""`ottla group`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.admin.commands import complete_groups, delete_each, named_partitions, with_admin
from ottla.client.commands import (
    ExtensibleGroup,
    cluster_options,
    json_option,
    read_time,
    records,
    show,
    show_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.admin import Admin, MemberDescription
    from ottla.protocol.topics import TopicPartition


_TYPES = ("classic", "consumer", "share", "streams")
_PACKAGES = {"offsets": "ottla-consumer", "verify-rebalance": "ottla-consumer"}


@click.group(cls=ExtensibleGroup, entry_point_group="ottla.group.commands", packages=_PACKAGES)
def group() -> None:
    """List, describe, reset and delete groups; show offsets and owners."""


@group.command(name="list")
@click.option(
    "--type", "types", type=click.Choice(_TYPES, case_sensitive=False), multiple=True,
    help="Only groups of this type. Repeatable.",
)  # fmt: skip
@json_option
@cluster_options
def list_groups(types: tuple[str, ...], as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """List the groups of all brokers.

    \b
    Examples:
      ottla group list
      ottla group list --type share --type streams --json
    """
    groups = with_admin(bootstrap_server, properties, lambda admin: admin.groups.list(types=types))
    rows = [(listing.name, listing.state, listing.type, listing.protocol_type) for listing in groups]
    show(("group", "state", "type", "protocol"), rows, as_json=as_json)


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("--members", is_flag=True, help="Show its members and their partitions.")
@json_option
@cluster_options
def describe(name: str, members: bool, as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Show the committed offset, lag and owners of each partition that a group reads.

    A negative lag is a commit beyond the end of the partition: it was deleted and created again, or it lost
    records, and `auto_offset_reset` of the consumers decides where they go on. The offset of a share group is
    the first one that is not acknowledged, or that is still with a member.

    \b
    Examples:
      ottla group describe billing
      ottla group describe billing --members
    """
    progress = with_admin(bootstrap_server, properties, lambda admin: admin.group_progress(name))
    found = progress.description
    rows = [
        (
            *partition.partition, partition.offset, partition.end_offset, partition.lag,
            *_owners(partition.owners),
        )
        for partition in progress.partitions
    ]  # fmt: skip
    columns = ("topic", "partition", "offset", "end offset", "lag", *_OWNER_COLUMNS)
    members_rows = [_member_row(member) for member in found.members]
    member_columns = _MEMBER_COLUMNS
    if found.type != "classic":
        members_rows = [(*_member_row(member), *_member_of_epoch(member)) for member in found.members]
        member_columns = (*_MEMBER_COLUMNS, "epoch", "rack", "target", "tasks")
    if as_json:
        show_json(
            {
                "group": found.name,
                "type": found.type,
                "state": found.state,
                "assignor": found.assignor,
                "coordinator": found.coordinator,
                "epoch": found.epoch,
                "assignment_epoch": found.assignment_epoch,
                "offsets": records(columns, rows),
                "members": records(member_columns, members_rows),
            }
        )
        return
    epoch = "" if found.epoch is None else f", epoch {found.epoch}"
    click.echo(f"Group {found.name}: {found.type}, {found.state}{epoch}, {len(found.members)} members")
    show(member_columns if members else columns, members_rows if members else rows, as_json=False)
    for partition in progress.beyond_the_end:
        click.echo(
            f"{partition.partition}: the commit {partition.offset} is beyond the end {partition.end_offset}.",
            err=True,
        )


_OWNER_COLUMNS: tuple[str, ...] = ("client", "host", "member")


def _owners(owners: Sequence[MemberDescription]) -> tuple[str | None, ...]:
    """Return the clients, hosts and members that have a partition: several of a share group may."""
    clients = sorted({owner.client_id for owner in owners})
    hosts = sorted({owner.host for owner in owners})
    members = sorted(owner.instance_id or owner.id for owner in owners)
    return tuple(", ".join(texts) or None for texts in (clients, hosts, members))


_MEMBER_COLUMNS: tuple[str, ...] = ("client", "host", "instance id", "member id", "partitions")


def _member_row(member: MemberDescription) -> tuple[object, ...]:
    partitions = [str(partition) for partition in member.partitions]
    return member.client_id, member.host, member.instance_id, member.id, partitions


def _member_of_epoch(member: MemberDescription) -> tuple[object, ...]:
    """Return what members of classic groups do not have."""
    target = None if member.is_settled else [str(partition) for partition in member.target or ()]
    tasks = None if member.tasks is None else list(member.tasks.active)
    return member.epoch, member.rack, target, tasks


@group.command(name="reset-offsets")
@click.argument("name", shell_complete=complete_groups)
@click.option(
    "--topic", "topics", multiple=True, help="TOPIC or TOPIC:PARTITION; without it, all with a commit."
)
@click.option("--to-earliest", is_flag=True, help="To the first record of each partition.")
@click.option("--to-latest", is_flag=True, help="After the last record of each partition.")
@click.option("--to-offset", type=click.IntRange(0), help="To this offset.")
@click.option("--to-datetime", metavar="ISO", help="To the first record at or after: 2026-01-31T08:00Z")
@click.option("--shift-by", type=int, help="Forward by this many records; back when negative.")
@click.option("--execute", is_flag=True, help="Commit the new offsets; without it they are only shown.")
@json_option
@cluster_options
def reset_offsets(
    name: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    execute: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Set the committed offsets of a group. The group must have no members.

    \b
    Examples:
      ottla group reset-offsets billing --topic orders --to-earliest
      ottla group reset-offsets billing --topic orders:3 --shift-by -100 --execute
      ottla group reset-offsets billing --to-datetime 2026-01-31T08:00:00Z --execute
    """
    goals = (to_earliest, to_latest, to_offset is not None, to_datetime is not None, shift_by is not None)
    if sum(goals) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    timestamp_ms = read_time(to_datetime) if to_datetime else (-2 if to_earliest else -1)

    async def use(admin: Admin) -> list[tuple[str, int, int | None, int]]:
        is_share, current = await _current_offsets(admin, name)
        partitions = await named_partitions(admin, topics) if topics else await _existing(admin, current)
        if not partitions:
            raise ValueError(f"group {name!r} has no committed offsets; name topics with --topic")
        if shift_by is not None:
            goal = {partition: current.get(partition, 0) + shift_by for partition in partitions}
        elif to_offset is not None:
            goal = dict.fromkeys(partitions, to_offset)
        else:
            goal = await admin.offsets.find(dict.fromkeys(partitions, timestamp_ms))
        goal = await _within_log(admin, goal)
        if execute:
            await (admin.groups.alter_share_offsets if is_share else admin.groups.commit)(name, goal)
        return [(p.topic, p.partition, current.get(p), goal[p]) for p in sorted(goal)]

    rows = with_admin(bootstrap_server, properties, use)
    show(("topic", "partition", "offset", "new offset"), rows, as_json=as_json)
    if not execute and not as_json:
        click.echo("Nothing is changed yet. Add --execute to commit.", err=True)


async def _current_offsets(admin: Admin, name: str) -> tuple[bool, dict[TopicPartition, int]]:
    """Return whether it is a share group, and its offsets; a group that does not exist has none."""
    if not await admin.groups.is_share_group(name):
        committed = await admin.groups.committed(name)
        return False, {partition: offset for partition, (offset, _) in committed.items()}
    found = await admin.groups.share_offsets(name)
    return True, {offset.partition: offset.start_offset or 0 for offset in found}


async def _existing(admin: Admin, committed: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that are there; name those that were deleted since their commit."""
    partitions = sorted(committed)
    there = {topic.name: topic.partitions for topic in await admin.topics.list(internal=True)}
    for gone in (
        partition for partition in partitions if partition.partition not in there.get(partition.topic, ())
    ):
        click.echo(f"{gone} is left out: there is no such partition any more.", err=True)
    return [partition for partition in partitions if partition.partition in there.get(partition.topic, ())]


async def _within_log(admin: Admin, goal: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    first = await admin.offsets.find(dict.fromkeys(goal, -2))
    last = await admin.offsets.find(dict.fromkeys(goal, -1))
    return {
        partition: min(max(offset, first[partition]), last[partition]) for partition, offset in goal.items()
    }


@group.command(name="delete-offsets")
@click.argument("name", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, required=True, help="TOPIC or TOPIC:PARTITION. Repeatable.")
@cluster_options
def delete_offsets(name: str, topics: tuple[str, ...], bootstrap_server: str, properties: str | None) -> None:
    """Delete committed offsets of a group, of topics that none of its members reads.

    \b
    Examples:
      ottla group delete-offsets billing --topic orders
      ottla group delete-offsets billing --topic orders:3
    """

    async def use(admin: Admin) -> int:
        partitions = await named_partitions(admin, topics)
        await admin.groups.delete_offsets(name, partitions)
        return len(partitions)

    count = with_admin(bootstrap_server, properties, use)
    click.echo(f"Deleted the offsets of {name} for {count} {'partition' if count == 1 else 'partitions'}.")


@group.command()
@click.argument("names", nargs=-1, shell_complete=complete_groups)
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option("--every", metavar="TIME", default="2s", show_default=True, help="With --watch: how often.")
@click.option("--times", type=click.IntRange(1), help="With --watch: stop after so many times.")
@json_option
@cluster_options
def lag(
    names: tuple[str, ...],
    watch: bool,
    every: str,
    times: int | None,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Show how many records groups are behind, by topic. Default: all groups.

    With --watch, "read/s" is what the group commits, and "written/s" what producers append: a lag grows where
    the second is larger.

    \b
    Examples:
      ottla group lag
      ottla group lag billing --watch --every 5s
    """
    from ottla.client.times import duration_s

    try:
        every_s = duration_s(every)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def use(admin: Admin) -> None:
        from asyncio import get_running_loop, sleep

        before: Totals = {}
        before_s, round_number = 0.0, 0
        while True:
            totals, now_s = await _totals(admin, names), get_running_loop().time()
            rows = [_lag_row(key, total, before.get(key), now_s - before_s) for key, total in totals.items()]
            columns = _LAG_COLUMNS if watch else _LAG_COLUMNS[:4]
            show(columns, [row[: len(columns)] for row in rows], as_json=as_json)
            round_number += 1
            if not watch or round_number == times:
                return
            if not as_json:
                click.echo()
            before, before_s = totals, now_s
            await sleep(every_s)

    with_admin(bootstrap_server, properties, use)


_LAG_COLUMNS: tuple[str, ...] = ("group", "topic", "partitions", "lag", "read/s", "written/s")


class Total(NamedTuple):
    """The sums over the partitions of a topic that a group reads."""

    partitions: int
    lag: int
    offset: int
    end: int


Totals = dict[tuple[str, str], Total]


async def _totals(admin: Admin, names: Iterable[str]) -> Totals:
    totals: Totals = {}
    for name in names or [listing.name for listing in await admin.groups.list()]:
        for found in (await admin.group_progress(name)).partitions:
            if found.offset is None or found.end_offset is None:
                continue
            key = name, found.partition.topic
            sums = totals.get(key, Total(0, 0, 0, 0))
            totals[key] = Total(
                sums.partitions + 1,
                sums.lag + found.end_offset - found.offset,
                sums.offset + found.offset,
                sums.end + found.end_offset,
            )
    return totals


def _lag_row(key: tuple[str, str], now: Total, before: Total | None, seconds: float) -> tuple[object, ...]:
    if before is None or not seconds:
        return *key, now.partitions, now.lag, None, None
    read, written = now.offset - before.offset, now.end - before.end
    return *key, now.partitions, now.lag, round(read / seconds), round(written / seconds)


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@cluster_options
def delete(names: tuple[str, ...], bootstrap_server: str, properties: str | None) -> None:
    """Delete groups with their offsets. They must have no members. Exits with 1 if one cannot be deleted.

    \b
    Examples:
      ottla group delete billing
    """

    with_admin(bootstrap_server, properties, lambda admin: delete_each(names, "group", admin.groups.delete))

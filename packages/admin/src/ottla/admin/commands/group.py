"""`ottla group`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.admin.commands import complete_groups, counted, delete_each, named_partitions, with_admin
from ottla.admin.commands.group_kinds import check_no_share_group, kind_of
from ottla.admin.commands.reset_offsets import reset_offsets
from ottla.client.commands import ExtensibleGroup, cluster_options, json_option, records, show, show_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.admin import Admin, MemberDescription, PartitionProgress


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
    """Show offsets, lag and owners of a group's partitions.

    A negative lag is a commit beyond the end of the partition: it was deleted and created again, or it lost
    records, and `auto_offset_reset` of the consumers decides where they go on. The offset of a share group is
    its start offset; its lag leaves out what is finished above it.

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
    click.echo(
        f"Group {found.name}: {found.type}, {found.state}{epoch}, {counted(len(found.members), 'member')}"
    )
    show(member_columns if members else columns, members_rows if members else rows, as_json=False)
    for at in progress.beyond_the_end:
        click.echo(f"{at.partition}: the commit {at.offset} is beyond the end {at.end_offset}.", err=True)


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


group.add_command(reset_offsets)


@group.command(name="delete-offsets")
@click.argument("name", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, required=True, help="TOPIC or TOPIC:PARTITION. Repeatable.")
@cluster_options
def delete_offsets(name: str, topics: tuple[str, ...], bootstrap_server: str, properties: str | None) -> None:
    """Delete committed offsets of a group.

    Only those of topics that none of its members reads can be deleted.

    \b
    Examples:
      ottla group delete-offsets billing --topic orders
      ottla group delete-offsets billing --topic orders:3
    """

    async def use(admin: Admin) -> int:
        check_no_share_group(name, await kind_of(admin, name), "delete-offsets")
        partitions = await named_partitions(admin, topics)
        await admin.groups.delete_offsets(name, partitions)
        return len(partitions)

    count = with_admin(bootstrap_server, properties, use)
    click.echo(f"Deleted the offsets of {name} for {counted(count, 'partition')}.")


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

    That of a share group counts the records that are not acknowledged. A partition that a member reads and
    the group has no commit for has no lag that one could know: where its reader begins is its own affair.

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
            _name_unknown_lags(totals, as_json)
            if not watch or round_number == times:
                return
            if not as_json:
                click.echo()
            before, before_s = totals, now_s
            await sleep(every_s)

    with_admin(bootstrap_server, properties, use)


_LAG_COLUMNS: tuple[str, ...] = ("group", "topic", "partitions", "lag", "read/s", "written/s")


class Total(NamedTuple):
    """The sums over the partitions of a topic that a group reads, those of them that have a lag."""

    partitions: int = 0
    known: int = 0
    lag: int = 0
    read: int = 0
    end: int = 0


Totals = dict[tuple[str, str], Total]


async def _totals(admin: Admin, names: Iterable[str]) -> Totals:
    totals: Totals = {}
    for name in names or [listing.name for listing in await admin.groups.list()]:
        for found in (await admin.group_progress(name)).partitions:
            key = name, found.partition.topic
            totals[key] = _plus(totals.get(key, Total()), found)
    return totals


def _plus(sums: Total, found: PartitionProgress) -> Total:
    if found.lag is None:
        return sums._replace(partitions=sums.partitions + 1)
    return Total(
        sums.partitions + 1,
        sums.known + 1,
        sums.lag + found.lag,
        sums.read + (found.read or 0),
        sums.end + (found.end_offset or 0),
    )


def _name_unknown_lags(totals: Totals, as_json: bool) -> None:
    """Print to the errors which partitions have no lag; in JSON it is null."""
    for (name, topic), total in totals.items():
        if total.known < total.partitions and not as_json:
            click.echo(
                f"{name}: {total.partitions - total.known} of the {total.partitions} partitions of {topic} "
                f"have no known lag: no commit, or no leader that answers.",
                err=True,
            )


def _lag_row(key: tuple[str, str], now: Total, before: Total | None, seconds: float) -> tuple[object, ...]:
    lag = now.lag if now.known else None
    if before is None or not seconds or before.known != now.known:  # a partition more is no read record
        return *key, now.partitions, lag, None, None
    read, written = now.read - before.read, now.end - before.end
    return *key, now.partitions, lag, round(read / seconds), round(written / seconds)


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@cluster_options
def delete(names: tuple[str, ...], bootstrap_server: str, properties: str | None) -> None:
    """Delete groups of any type with their offsets. Exits with 1 if one cannot be deleted.

    They must have no members.

    \b
    Examples:
      ottla group delete billing
    """

    with_admin(bootstrap_server, properties, lambda admin: delete_each(names, "group", admin.groups.delete))

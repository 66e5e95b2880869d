"""`ottla share-group`: the groups whose members share partitions (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.admin.commands import complete_groups, counted, delete_each, named_partitions, with_admin
from ottla.admin.commands.group_kinds import SHARE, check_share_group, kind_of
from ottla.admin.commands.metrics_pages import metrics_options, read_page
from ottla.admin.commands.reset_offsets import reset_share_offsets
from ottla.client.commands import cluster_options, json_option, show

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ottla.admin import Admin, MemberDescription, PartitionProgress
    from ottla.admin.groups import GroupProgress
    from ottla.protocol.topics import TopicPartition

_COLUMNS = ("topic", "partition", "start offset", "end offset", "lag", "acknowledged ahead", "members")
_NO_START = (
    "Where the start offset is -, members have acknowledged nothing yet: it is stored with the first "
    "acknowledgement, and until then the lag is not known."
)
_MEMBERS = ("client", "host", "member id", "epoch", "rack", "partitions")


@click.group(name="share-group")
def share_group() -> None:
    """List, describe, reset and delete share groups.

    They are those of ShareConsumers, which read topics as queues.

    Records are acknowledged one by one: a group has a start offset, below which all are finished, and may
    have finished others from there on. Commands of `ottla group` are for groups of every type.
    """


@share_group.command(name="list")
@json_option
@cluster_options
def list_groups(as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """List the share groups of all brokers.

    \b
    Examples:
      ottla share-group list
    """
    groups = with_admin(bootstrap_server, properties, lambda admin: admin.groups.list(types=[SHARE]))
    show(("group", "state"), [(listing.name, listing.state) for listing in groups], as_json=as_json)


@share_group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("--members", is_flag=True, help="Show its members and their partitions.")
@metrics_options
@json_option
@cluster_options
def describe(
    name: str,
    members: bool,
    pages: tuple[str, ...],
    token_file: str | None,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Show a share group's start offsets and lag, or members.

    The lag counts the records that are not acknowledged yet, those that members have in work among them.
    Records acknowledged ahead are behind the start offset, and are not delivered again.

    No API has the records that members have in work. The metrics of brokers do: with the pages of all
    brokers, each partition shows how many are acquired.

    \b
    Examples:
      ottla share-group describe workers
      ottla share-group describe workers --metrics http://127.0.0.1:9308
      ottla share-group describe workers --members
    """
    if members and pages:
        raise click.UsageError("--metrics is for the offsets: leave out --members")
    progress = with_admin(bootstrap_server, properties, lambda admin: _progress(admin, name))
    found = progress.description
    if members:
        show(_MEMBERS, [_member_row(member) for member in found.members], as_json=as_json)
        return
    acquired = _acquired(name, pages, token_file) if pages else None
    if not as_json:
        members_text = counted(len(found.members), "member")
        click.echo(f"Group {name}: {found.state}, epoch {found.epoch}, {members_text}")
    _show_partitions(progress.partitions, acquired, as_json)


def _show_partitions(
    parts: Sequence[PartitionProgress], acquired: Mapping[TopicPartition, int] | None, as_json: bool
) -> None:
    rows = [_row(part) for part in parts]
    if acquired is None:
        show(_COLUMNS, rows, as_json=as_json)
    else:
        counts = [acquired.get(part.partition) for part in parts]
        whole = [(*row, count) for row, count in zip(rows, counts, strict=True)]
        show((*_COLUMNS, "acquired"), whole, as_json=as_json)
    if not as_json and any(part.offset is None for part in parts):
        click.echo(_NO_START)


def _member_row(member: MemberDescription) -> tuple[object, ...]:
    partitions = [str(partition) for partition in member.partitions]
    return member.client_id, member.host, member.id, member.epoch, member.rack, partitions


def _row(part: PartitionProgress) -> tuple[object, ...]:
    return (
        *part.partition, part.offset, part.end_offset, part.lag, part.acknowledged_ahead, len(part.owners),
    )  # fmt: skip


def _acquired(name: str, pages: tuple[str, ...], token_file: str | None) -> dict[TopicPartition, int]:
    """Return the records that members hold, of the partitions whose leaders serve one of the pages."""
    from ottla.admin.share_meters import acquired_records

    found: dict[TopicPartition, int] = {}
    for page in pages:
        text = read_page(page, "/metrics", token_file).decode(errors="replace")
        found.update(acquired_records(text, name))
    return found


async def _progress(admin: Admin, name: str) -> GroupProgress:
    progress = await admin.group_progress(name)
    check_share_group(name, progress.description.type, "describe")
    return progress


share_group.add_command(reset_share_offsets)


@share_group.command(name="delete-offsets")
@click.argument("name", shell_complete=complete_groups)
@click.option("--topic", "topics", multiple=True, required=True, help="TOPIC. Repeatable.")
@cluster_options
def delete_offsets(name: str, topics: tuple[str, ...], bootstrap_server: str, properties: str | None) -> None:
    """Delete the offsets of topics from a share group.

    The group must have no members. It reads them then as a new group does.

    \b
    Examples:
      ottla share-group delete-offsets workers --topic jobs
    """

    async def use(admin: Admin) -> None:
        check_share_group(name, await kind_of(admin, name), "delete-offsets")
        await named_partitions(admin, topics)
        await admin.groups.delete_share_offsets(name, topics)

    with_admin(bootstrap_server, properties, use)
    click.echo(f"Deleted the offsets of {name} for {', '.join(topics)}.")


@share_group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@cluster_options
def delete(names: tuple[str, ...], bootstrap_server: str, properties: str | None) -> None:
    """Delete share groups without members. Exits with 1 if one cannot be deleted.

    \b
    Examples:
      ottla share-group delete workers
    """

    async def use(admin: Admin) -> None:
        async def delete_one(name: str) -> None:
            check_share_group(name, await kind_of(admin, name), "delete")
            await admin.groups.delete(name)

        await delete_each(names, "share group", delete_one)

    with_admin(bootstrap_server, properties, use)

"""`ottla group offsets` and `ottla group verify-rebalance`: for groups in Kafka and in ZooKeeper.

They are commands of `ottla group`, which ottla-admin brings, so that the admin client is there when they run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from ottla.client.commands import cluster_options, json_option, load_config, show
from ottla.consumer.zookeeper.cli import zookeeper_config_option

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.client.config import ClientConfig
    from ottla.protocol.topics import TopicPartition
    from ottla.zookeeper.session import Session

F = TypeVar("F", bound=Callable[..., object])
Row = tuple[object, ...]
_COLUMNS = ("group", "topic", "partition", "offset", "log end", "lag", "owner")


def _zookeeper_option(command: F) -> F:
    with_config = zookeeper_config_option(command)
    return click.option(
        "--zookeeper", "hosts", metavar="HOST:PORT[/CHROOT]",
        help="For groups that use ZooKeeper: its address, instead of --bootstrap-server.",
    )(with_config)  # fmt: skip


@click.command(
    epilog="""\b
Examples:
  ottla group offsets billing
  ottla group offsets --json
  ottla group offsets billing --zookeeper localhost:2181/kafka
"""
)
@click.argument("names", nargs=-1)
@_zookeeper_option
@json_option
@cluster_options
def offsets(
    names: tuple[str, ...], hosts: str | None, as_json: bool, bootstrap_server: str, properties: str | None
) -> None:
    """Show offset, log end, lag and owner by partition.

    The partitions are those that the groups read. Default: all groups.
    """
    if hosts is not None:
        rows = _from_zookeeper(hosts, names, load_config(properties))
    else:
        from ottla.admin.commands import with_admin

        rows = with_admin(bootstrap_server, properties, lambda admin: _of_groups(admin, names))
    show(_COLUMNS, rows, as_json=as_json)


async def _of_groups(admin: Admin, names: tuple[str, ...]) -> list[Row]:
    chosen = names or [listing.name for listing in await admin.groups.list()]
    return [row for name in chosen for row in await _of_group(admin, name)]


async def _of_group(admin: Admin, name: str) -> list[Row]:
    """Return a row for each partition with a commit or an owner."""
    progress = await admin.group_progress(name)
    return [
        _row(
            name, progress.partition, progress.offset, progress.end_offset, progress.lag,
            None if progress.owner is None else progress.owner.instance_id or progress.owner.id,
        )
        for progress in progress.partitions
    ]  # fmt: skip


def _row(
    group: str, partition: TopicPartition, offset: int | None, end: int | None, lag: int | None,
    owner: str | None,
) -> Row:  # fmt: skip
    return group, *partition, offset, end, lag, owner


def _from_zookeeper(hosts: str, names: tuple[str, ...], config: ClientConfig) -> list[Row]:
    from ottla.consumer.zookeeper import group_admin
    from ottla.consumer.zookeeper.cli import progress, with_session

    async def use(session: Session) -> list[Row]:
        rows: list[Row] = []
        for name in names or await group_admin.groups(session):
            found, _ = await progress(session, name, (), config)
            rows += [_row(name, at.partition, at.offset, at.end_offset, at.lag, at.owner) for at in found]
        return rows

    return with_session(hosts, use)


@click.command(
    name="verify-rebalance",
    epilog="""\b
Examples:
  ottla group verify-rebalance billing
  ottla group verify-rebalance billing --zookeeper localhost:2181/kafka
""",
)
@click.argument("name")
@_zookeeper_option
@cluster_options
def verify_rebalance(name: str, hosts: str | None, bootstrap_server: str, properties: str | None) -> None:
    """Check that each partition of a group has one owner.

    The partitions are those of the topics that the group reads. The exit status is 1 if one has none, or two.
    """
    if hosts is not None:
        from ottla.consumer.zookeeper import group_admin
        from ottla.consumer.zookeeper.cli import with_session

        wrong = with_session(hosts, lambda session: group_admin.verify(session, name))
    else:
        from ottla.admin.commands import with_admin

        wrong = with_admin(bootstrap_server, properties, lambda admin: _faults(admin, name))
    for fault in wrong:
        click.echo(fault)
    if wrong:
        raise click.ClickException(f"the rebalance of {name} has not succeeded")
    click.echo(f"Every partition that {name} reads has an owner.")


async def _faults(admin: Admin, name: str) -> list[str]:
    """Return the faults of the assignment of a Kafka group."""
    from ottla.protocol.topics import TopicPartition

    found = await admin.groups.describe(name)
    if found.state != "Stable":
        return [f"group {name} is {found.state}, not Stable"]
    owned = [partition for member in found.members for partition in member.partitions]
    twice = sorted({partition for partition in owned if owned.count(partition) > 1})
    topics = sorted({partition.topic for partition in (*owned, *await admin.groups.committed(name))})
    there = {topic.name: topic for topic in await admin.topics.list(internal=True)}
    wanted = [
        TopicPartition(topic, index)
        for topic in topics
        if topic in there
        for index in there[topic].partitions
    ]
    free = sorted(set(wanted) - set(owned))
    return [f"{partition} has no owner" for partition in free] + [
        f"{partition} has several owners" for partition in twice
    ]

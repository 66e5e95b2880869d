"""`ottla zookeeper-group`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeVar

import click

from ottla.client.commands import json_option, load_config, login_options, run, show

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig
    from ottla.consumer.zookeeper.group_admin import PartitionLag
    from ottla.zookeeper.session import Session

_CONFIG: Final = "ottla.zookeeper-config"
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


@click.group(name="zookeeper-group")
def zookeeper_group() -> None:
    """Inspect consumer groups that use ZooKeeper, and move their offsets."""


def zookeeper_option(command: F) -> F:
    """Add the --zookeeper option, and that of its credentials and TLS."""
    with_config = zookeeper_config_option(command)
    return click.option(
        "--zookeeper",
        "hosts",
        metavar="HOST:PORT[/CHROOT]",
        envvar="OTTLA_ZOOKEEPER",
        default="127.0.0.1:2181",
        show_default=True,
        show_envvar=True,
        help="The ZooKeeper of the brokers, or the directory of an embedded coordinator.",
    )(with_config)


def zookeeper_config_option(command: F) -> F:
    """Add the --zookeeper-config option, which `with_session` reads."""

    def keep(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        context.meta[_CONFIG] = path

    return click.option(
        "--zookeeper-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="OTTLA_ZOOKEEPER_CONFIG",
        show_envvar=True,
        expose_value=False,
        callback=keep,
        help="A properties file with credentials and TLS for ZooKeeper (zookeeper.sasl.*, zookeeper.ssl.*).",
    )(command)


@zookeeper_group.command(name="list")
@json_option
@zookeeper_option
def list_groups(as_json: bool, hosts: str) -> None:
    """List the groups and their number of members.

    \b
    Examples:
      ottla zookeeper-group list
      ottla zookeeper-group list --zookeeper localhost:2181/kafka --json
    """
    from ottla.consumer.zookeeper import group_admin

    async def use(session: Session) -> list[tuple[str, int]]:
        names = await group_admin.groups(session)
        return [(name, len(await group_admin.group_znodes_of(session, name).members())) for name in names]

    show(("group", "members"), with_session(hosts, use), as_json=as_json)


@zookeeper_group.command()
@click.argument("name")
@click.option("--topic", "topics", multiple=True, help="Only this topic. Default: all that the group reads.")
@click.option("--broker-info", is_flag=True, help="Add the addresses of the brokers.")
@login_options
@json_option
@zookeeper_option
def describe(
    name: str, topics: tuple[str, ...], broker_info: bool, properties: str | None, as_json: bool, hosts: str
) -> None:
    """Show offset, lag and owner of a group's partitions.

    \b
    Examples:
      ottla zookeeper-group describe billing --zookeeper localhost:2181/kafka
      ottla zookeeper-group describe billing --topic orders --broker-info
      ottla zookeeper-group describe billing --profile production
    """
    config = load_config(properties)

    async def use(session: Session) -> tuple[list[PartitionLag], list[str]]:
        return await progress(session, name, topics, config)

    found, brokers = with_session(hosts, use)
    if not found:
        raise click.ClickException(f"group {name} has no offsets and no members in ZooKeeper")
    rows = [
        (name, *partition.partition, partition.offset, partition.end_offset, partition.lag, partition.owner)
        for partition in found
    ]
    show(("group", "topic", "pid", "offset", "log size", "lag", "owner"), rows, as_json=as_json)
    if broker_info and not as_json:
        click.echo("BROKER INFO")
        for broker in brokers:
            click.echo(broker)


async def progress(
    session: Session, group: str, topics: tuple[str, ...], config: ClientConfig
) -> tuple[list[PartitionLag], list[str]]:
    """Return how far a group has read each partition, and the brokers with their addresses."""
    from ottla.client.cluster import Cluster
    from ottla.consumer.fetch.offset_lookups import LATEST, OffsetLookups
    from ottla.consumer.zookeeper import group_admin
    from ottla.protocol.topics import TopicPartition

    znodes = group_admin.group_znodes_of(session, group)
    offsets = (await group_admin.read_offsets(session, [group]))[group]
    view = await znodes.view()
    partitions = {
        *offsets,
        *(TopicPartition(topic, number) for topic, some in view.partitions.items() for number in some),
    }
    chosen = sorted(partition for partition in partitions if not topics or partition.topic in topics)
    owners = await znodes.owners(chosen)
    addresses = await znodes.brokers(config.security.security_protocol)
    async with Cluster([str(address) for address in addresses], config) as cluster:
        known = {t: await cluster.refresh([t]) for t in {partition.topic for partition in chosen}}
        there = [
            partition for partition in chosen if any(t.partitions for t in known[partition.topic].topics)
        ]
        lookups = OffsetLookups(cluster, read_committed=False)
        ends = await lookups.offsets(dict.fromkeys(there, LATEST))
        brokers = [f"{node.id} -> {node.address}" for _, node in sorted(cluster.nodes.items())]
    found = [group_admin.PartitionLag(p, offsets.get(p), ends.get(p), owners.get(p)) for p in chosen]
    return found, brokers


@zookeeper_group.command()
@click.argument("name")
@zookeeper_option
def verify(name: str, hosts: str) -> None:
    """Check that each partition of a group has an owner.

    The exit status is 1 if one that the group reads has none.

    \b
    Examples:
      ottla zookeeper-group verify billing --zookeeper localhost:2181/kafka
    """
    from ottla.consumer.zookeeper import group_admin

    wrong = with_session(hosts, lambda session: group_admin.verify(session, name))
    for fault in wrong:
        click.echo(fault)
    if wrong:
        raise click.ClickException(f"the rebalance of {name} has not succeeded")
    click.echo(f"Every partition that {name} reads has an owner.")


@zookeeper_group.command(name="export-offsets")
@click.option("--group", "names", multiple=True, help="Only this group. Default: all groups.")
@click.option("--output-file", type=click.File("w"), default="-", help="Default: standard output.")
@zookeeper_option
def export_offsets(names: tuple[str, ...], output_file: IO[str], hosts: str) -> None:
    """Write offsets from ZooKeeper, one line each.

    A line is /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET.

    \b
    Examples:
      ottla zookeeper-group export-offsets --group billing --output-file offsets.txt
    """
    from ottla.consumer.zookeeper import group_admin

    async def use(session: Session) -> group_admin.GroupOffsets:
        return await group_admin.read_offsets(session, names or await group_admin.groups(session))

    for line in group_admin.offset_lines(with_session(hosts, use)):
        output_file.write(f"{line}\n")


@zookeeper_group.command(name="import-offsets")
@click.argument("input_file", type=click.File())
@zookeeper_option
def import_offsets(input_file: IO[str], hosts: str) -> None:
    """Set offsets in ZooKeeper from those of export-offsets. Stop the groups before.

    \b
    Examples:
      ottla zookeeper-group import-offsets offsets.txt
    """
    from ottla.consumer.zookeeper import group_admin

    try:
        offsets = group_admin.parse_offset_lines(input_file)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def use(session: Session) -> None:
        for group, found in offsets.items():
            await group_admin.group_znodes_of(session, group).commit(found)

    with_session(hosts, use)
    for group, found in offsets.items():
        click.echo(f"Set {_offsets(len(found))} of group {group}.")


@zookeeper_group.command(name="move-to-kafka")
@click.argument("name")
@login_options
@zookeeper_option
def move_to_kafka(name: str, properties: str | None, hosts: str) -> None:
    """Commit a group's offsets to Kafka.

    Consumers that have their groups there read on from them. Stop the group's members before.

    \b
    Examples:
      ottla zookeeper-group move-to-kafka billing --zookeeper localhost:2181/kafka
      ottla zookeeper-group move-to-kafka billing --profile production
    """
    from ottla.consumer.zookeeper import group_admin

    config = load_config(properties)

    async def use(session: Session) -> int:
        from ottla.client.cluster import Cluster
        from ottla.client.group_metadata import commit_without_member

        znodes = group_admin.group_znodes_of(session, name)
        if members := await znodes.members():
            raise ValueError(f"{members[0].consumer_id} is still in group {name}")
        offsets = (await group_admin.read_offsets(session, [name]))[name]
        addresses = await znodes.brokers(config.security.security_protocol)
        async with Cluster([str(address) for address in addresses], config) as cluster:
            if offsets:
                await commit_without_member(cluster, name, offsets)
        return len(offsets)

    moved = with_session(hosts, use)
    click.echo(f"Committed {_offsets(moved)} of group {name} to Kafka.")


def _offsets(count: int) -> str:
    return f"{count} offset" if count == 1 else f"{count} offsets"


def with_session(hosts: str, use: Callable[[Session], Awaitable[T]]) -> T:
    """Run a function with a ZooKeeper session; its errors become one line."""
    from ottla.zookeeper.client_security import NO_SECURITY, client_security_from, settings_in
    from ottla.zookeeper.embedded.access import access_for
    from ottla.zookeeper.errors import ZooKeeperError
    from ottla.zookeeper.kazoo_session import KazooSession

    path: Path | None = click.get_current_context().meta.get(_CONFIG)

    async def call() -> T:
        security = NO_SECURITY if path is None else client_security_from(settings_in(path))
        where, credentials = await access_for(hosts, 0)
        async with KazooSession(
            where, connection_timeout_ms=10_000, credentials=credentials, security=security
        ) as session:
            return await use(session)

    try:
        return run(call)
    except ZooKeeperError as error:
        raise click.ClickException(str(error)) from None

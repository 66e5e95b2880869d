"""`ottla topic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.admin.commands import delete_each, named_partitions, with_admin
from ottla.client.commands import cluster_options, json_option, key_values, read_time, show, show_json
from ottla.client.commands.completion import complete_topics

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.client.cluster import Topic


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--partitions",
    "-p",
    type=click.IntRange(1),
    help="Number of partitions; the broker's default without it.",
)
@click.option("--replication-factor", "-r", type=click.IntRange(1), help="Replicas of each partition.")
@click.option("--config", "-c", "configs", metavar="KEY=VALUE", multiple=True, help="Set a key of the topic.")
@click.option("--if-not-exists", is_flag=True, help="Succeed when the topic exists already.")
@cluster_options
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Create a topic.

    \b
    Examples:
      ottla topic create orders
      ottla topic create orders --partitions 6 --config retention.ms=86400000
    """
    wanted = key_values(configs)

    async def use(admin: Admin) -> str:
        created = await admin.topics.create(
            name,
            partitions=partitions or -1,
            replication_factor=replication_factor or -1,
            configs=wanted,
            if_not_exists=if_not_exists,
        )
        if created.existed:
            return f"Topic {name} exists already."
        if created.partitions < 0:
            return f"Created topic {name}."
        return (
            f"Created topic {name}: {_count(created.partitions, 'partition')}, "
            f"{_count(created.replication_factor, 'replica')} each."
        )

    click.echo(with_admin(bootstrap_server, properties, use))


@topic.command(name="list")
@click.option("--internal", is_flag=True, help="Include the brokers' internal topics.")
@json_option
@cluster_options
def list_topics(internal: bool, as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """List topics.

    \b
    Examples:
      ottla topic list
      ottla topic list --internal --json
    """
    topics = with_admin(bootstrap_server, properties, lambda admin: admin.topics.list(internal=internal))
    rows = [
        (listed.name, len(listed.partitions), _replicas(listed), _under_replicated(listed))
        for listed in topics
    ]
    show(("topic", "partitions", "replicas", "under replicated"), rows, as_json=as_json)


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@json_option
@cluster_options
def describe(name: str, as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Show a topic's partitions and its configuration.

    Partitions have their leaders, replicas, first and end offsets.

    A partition whose leader does not answer is shown without offsets.

    \b
    Examples:
      ottla topic describe orders
      ottla topic describe orders --json
    """

    async def use(admin: Admin) -> tuple[list[dict[str, object]], dict[str, str | None]]:
        from ottla.admin import EARLIEST, LATEST, TOPIC
        from ottla.protocol.topics import TopicPartition

        found = await admin.topics.describe(name)
        led = [TopicPartition(name, p.index) for p in found.partitions.values() if p.leader >= 0]
        first = await admin.offsets.find_reachable(dict.fromkeys(led, EARLIEST))
        last = await admin.offsets.find_reachable(dict.fromkeys(first, LATEST))
        entries = await admin.configs.describe(TOPIC, name)
        set_here = {entry.name: entry.value for entry in entries if entry.source == "topic"}
        partitions: list[dict[str, object]] = [
            {
                "partition": index,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "first_offset": first.get(TopicPartition(name, index)),
                "end_offset": last.get(TopicPartition(name, index)),
            }
            for index, partition in sorted(found.partitions.items())
        ]
        return partitions, set_here

    partitions, configs = with_admin(bootstrap_server, properties, use)
    if as_json:
        show_json({"topic": name, "configs": configs, "partitions": partitions})
        return
    click.echo(f"Topic {name}: {_count(len(partitions), 'partition')}")
    for key, value in sorted(configs.items()):
        click.echo(f"  {key}={value}")
    columns = [key.replace("_", " ") for key in partitions[0]] if partitions else []
    show(columns, [list(partition.values()) for partition in partitions], as_json=False)


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--partitions", "-p", type=click.IntRange(1), help="The new total; it can only grow.")
@click.option("--config", "-c", "configs", metavar="KEY=VALUE", multiple=True, help="Set a key.")
@click.option("--delete-config", "unset", metavar="KEY", multiple=True, help="Unset a key.")
@cluster_options
def alter(
    name: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Add partitions to a topic, or change its configuration.

    \b
    Examples:
      ottla topic alter orders --partitions 12
      ottla topic alter orders --config retention.ms=3600000 --delete-config segment.bytes
    """
    changes: dict[str, str | None] = {**key_values(configs), **dict.fromkeys(unset)}
    if partitions is None and not changes:
        raise click.UsageError("give --partitions, --config or --delete-config")

    async def use(admin: Admin) -> None:
        from ottla.admin import TOPIC

        if changes:
            await admin.configs.alter(TOPIC, name, changes)
        if partitions is not None:
            await admin.topics.add_partitions(name, partitions)

    with_admin(bootstrap_server, properties, use)
    click.echo(f"Altered topic {name}.")


@topic.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--if-exists", is_flag=True, help="Succeed when the topic does not exist.")
@cluster_options
def delete(names: tuple[str, ...], if_exists: bool, bootstrap_server: str, properties: str | None) -> None:
    """Delete topics with all their records. Exits with 1 if one cannot be deleted.

    \b
    Examples:
      ottla topic delete orders
      ottla topic delete orders payments --if-exists
    """

    async def use(admin: Admin) -> None:
        await delete_each(names, "topic", admin.topics.delete, if_exists=if_exists)

    with_admin(bootstrap_server, properties, use)


@topic.command(name="delete-records")
@click.argument(
    "partitions", nargs=-1, required=True, shell_complete=complete_topics, metavar="TOPIC[:PARTITION]..."
)  # fmt: skip
@click.option("--before-offset", type=click.IntRange(0), help="Those below this offset.")
@click.option(
    "--before", "before_time", metavar="TIME", help="Those up to the first at or after: -7d, today."
)
@click.option("--all", "everything", is_flag=True, help="All that are there now.")
@click.option("--execute", is_flag=True, help="Delete them; without it the offsets are only shown.")
@json_option
@cluster_options
def delete_records(
    partitions: tuple[str, ...],
    before_offset: int | None,
    before_time: str | None,
    everything: bool,
    execute: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Delete the oldest records, up to an offset or a time. This cannot be taken back.

    \b
    Examples:
      ottla topic delete-records orders --before -7d
      ottla topic delete-records orders:3 --before-offset 1000 --execute
    """
    if (before_offset is not None) + (before_time is not None) + everything != 1:
        raise click.UsageError("give one of --before-offset, --before and --all")
    # A lookup by a time later than all records finds none: all of them are before it.
    time_ms = read_time(before_time) if before_time is not None else _LATEST

    async def use(admin: Admin) -> list[tuple[str, int, int, int]]:
        named = await named_partitions(admin, partitions)
        first = await admin.offsets.find(dict.fromkeys(named, _EARLIEST))
        end = await admin.offsets.find(dict.fromkeys(named, _LATEST))
        if before_offset is not None:
            goal = {partition: min(before_offset, end[partition]) for partition in named}
        else:
            found = await admin.offsets.find(dict.fromkeys(named, time_ms))
            goal = {
                partition: found[partition] if found[partition] >= 0 else end[partition]
                for partition in named
            }
        goal = {partition: max(offset, first[partition]) for partition, offset in goal.items()}
        if execute:
            await admin.offsets.delete_records(goal)
        return [(*partition, first[partition], offset) for partition, offset in sorted(goal.items())]

    rows = with_admin(bootstrap_server, properties, use)
    show(("topic", "partition", "first offset", "new first offset"), rows, as_json=as_json)
    if not execute and not as_json:
        click.echo("Nothing is deleted yet. Add --execute to delete.", err=True)


_EARLIEST, _LATEST = -2, -1


def _replicas(topic: Topic) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


def _under_replicated(topic: Topic) -> int:
    return sum(len(partition.isr) < len(partition.replicas) for partition in topic.partitions.values())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

"""`ottla replica`: compare replicas, and show how far they lag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.admin.commands import named_partitions, with_admin
from ottla.client.commands import cluster_options, json_option, show

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ottla.admin import Admin
    from ottla.admin.replicas import ReplicaEnd, Verified
    from ottla.client.cluster import Partition
    from ottla.protocol.topics import TopicPartition


@click.group()
def replica() -> None:
    """Compare the replicas of partitions, and show how far they lag."""


def _topic_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION]",
        help="Which partitions. Default: all. Repeatable.",
    )(command)  # fmt: skip


@replica.command()
@_topic_option
@json_option
@cluster_options
def verify(topics: tuple[str, ...], as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Read every replica and compare them byte by byte.

    The exit status is 1 if there is a difference.

    Compared is what all replicas have, from the latest log start to the least log end. A replica that does
    not answer is a difference, and the others are compared without it. Replicas of compacted topics differ
    after each has compacted by itself; that is no fault. A batch whose records cannot be read is named by its
    offset: all replicas have it, and consumers stop there.

    \b
    Examples:
      ottla replica verify --topic orders
      ottla replica verify --topic orders:3 --json
    """

    async def use(admin: Admin) -> list[Verified]:
        wanted = await _wanted(admin, topics)
        return [await admin.replicas.verify(partition, state) for partition, state in sorted(wanted.items())]

    found = with_admin(bootstrap_server, properties, use)
    rows = [
        (
            *verified.partition,
            verified.replicas,
            verified.start,
            verified.end,
            verified.batches,
            verified.difference or "equal",
            [f"{batch.base_offset}: {batch.unreadable}" for batch in verified.unreadable],
        )
        for verified in found
    ]
    show(
        ("topic", "partition", "replicas", "from", "to", "batches", "result", "unreadable"),
        rows,
        as_json=as_json,
    )
    if any(verified.difference is not None for verified in found):
        raise click.exceptions.Exit(1)


@replica.command()
@_topic_option
@click.option("--lagging", is_flag=True, help="Only replicas that lack records or do not answer.")
@json_option
@cluster_options
def lag(
    topics: tuple[str, ...], lagging: bool, as_json: bool, bootstrap_server: str, properties: str | None
) -> None:
    """Show the log end of replicas, and how far they lag.

    The lag of a replica is the number of its leader's records that it lacks.

    \b
    Examples:
      ottla replica lag --topic orders
      ottla replica lag --lagging --json
    """

    async def use(admin: Admin) -> list[ReplicaEnd]:
        return await admin.replicas.ends(await _wanted(admin, topics))

    found = with_admin(bootstrap_server, properties, use)
    rows = [
        (
            *end.partition,
            end.broker,
            "leader" if end.is_leader else "follower",
            end.in_sync,
            end.log_end_offset,
            end.lag,
        )
        for end in found
        if not lagging or end.lag != 0
    ]
    columns = ("topic", "partition", "broker", "role", "in sync", "log end", "lag")
    show(columns, rows, as_json=as_json)


async def _wanted(admin: Admin, topics: tuple[str, ...]) -> dict[TopicPartition, Partition]:
    from ottla.protocol.topics import TopicPartition

    if topics:
        chosen = await named_partitions(admin, topics)
        known = {
            topic: await admin.topics.describe(topic) for topic in {partition.topic for partition in chosen}
        }
        return {partition: known[partition.topic].partitions[partition.partition] for partition in chosen}
    return {
        TopicPartition(topic.name, index): partition
        for topic in await admin.topics.list(internal=True)
        for index, partition in topic.partitions.items()
    }

"""`ottla leader`: elect leaders of partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.admin.commands import named_partitions, with_admin
from ottla.client.commands import cluster_options, json_option, show

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.protocol.errors import KafkaError
    from ottla.protocol.topics import TopicPartition


@click.group()
def leader() -> None:
    """Elect leaders of partitions."""


@leader.command()
@click.option("--preferred", is_flag=True, help="Make the first replica of each partition its leader.")
@click.option(
    "--unclean", is_flag=True,
    help="Where no in-sync replica is left, make another one leader: records are lost.",
)  # fmt: skip
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION]", help="Which partitions. Repeatable."
)
@click.option("--all", "everything", is_flag=True, help="All partitions of the cluster.")
@json_option
@cluster_options
def elect(
    preferred: bool,
    unclean: bool,
    topics: tuple[str, ...],
    everything: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Elect leaders, and show the outcome for each partition.

    The exit status is 1 if an election has failed.

    \b
    Examples:
      ottla leader elect --preferred --all
      ottla leader elect --preferred --topic orders --topic payments:3
      ottla leader elect --unclean --topic orders:0
    """
    if preferred == unclean:
        raise click.UsageError("give one of --preferred and --unclean")
    if bool(topics) == everything:
        raise click.UsageError("give --topic TOPIC[:PARTITION] or --all")

    async def use(admin: Admin) -> dict[TopicPartition, KafkaError | None]:
        wanted = None if everything else await named_partitions(admin, topics)
        return await admin.partitions.elect_leaders(wanted, unclean=unclean)

    outcomes = with_admin(bootstrap_server, properties, use)
    rows = [
        (*partition, "elected" if error is None else " ".join(str(error).split()))
        for partition, error in sorted(outcomes.items(), key=lambda outcome: outcome[0])
    ]
    show(("topic", "partition", "outcome"), rows, as_json=as_json)
    if any(outcomes.values()):
        raise click.exceptions.Exit(1)

"""`ottla cluster`: describe a cluster and its faults. ottla-tools adds `start` and `stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.admin.commands import with_admin
from ottla.client.commands import ExtensibleGroup, cluster_options, json_option, records, show, show_json

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.admin.cluster_health import ClusterState


_PACKAGES = {"start": "ottla-tools", "stop": "ottla-tools"}


@click.group(cls=ExtensibleGroup, entry_point_group="ottla.cluster.commands", packages=_PACKAGES)
def cluster() -> None:
    """Start, stop and describe clusters; check their health."""


@cluster.command()
@json_option
@cluster_options
def describe(as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Show the controller, the brokers, and incomplete partitions.

    Brokers have their racks, and the number of partitions that they lead. A partition is incomplete while a
    replica is missing.

    \b
    Examples:
      ottla cluster describe
      ottla cluster describe -b host1:9092,host2:9092 --json
    """
    state = with_admin(bootstrap_server, properties, lambda admin: admin.cluster_state())
    brokers = _broker_rows(state)
    partitions = [
        (
            partition.partition.topic,
            partition.partition.partition,
            partition.leader,
            partition.replicas,
            partition.isr,
        )
        for partition in state.under_replicated
    ]
    if as_json:
        show_json(
            {
                "cluster_id": state.cluster_id,
                "controller": state.controller,
                "brokers": records(_BROKER_COLUMNS, brokers),
                "partitions": len(state.partitions),
                "under_replicated": records(_PARTITION_COLUMNS, partitions),
            }
        )
        return
    controller = "none" if state.controller is None else f"broker {state.controller}"
    click.echo(f"Cluster {state.cluster_id or '-'}: controller {controller}, {_topics(state)}")
    show(_BROKER_COLUMNS, brokers, as_json=False)
    if partitions:
        click.echo(f"Under-replicated: {len(partitions)}")
        show(_PARTITION_COLUMNS, partitions, as_json=False)


_BROKER_COLUMNS = ("broker", "address", "rack", "controller", "leaders", "replicas", "in sync")
_PARTITION_COLUMNS = ("topic", "partition", "leader", "replicas", "isr")


def _broker_rows(state: ClusterState) -> list[tuple[object, ...]]:
    return [
        (
            broker.id,
            f"{broker.host}:{broker.port}",
            broker.rack,
            broker.id == state.controller,
            sum(partition.leader == broker.id for partition in state.partitions),
            sum(broker.id in partition.replicas for partition in state.partitions),
            sum(broker.id in partition.isr for partition in state.partitions),
        )
        for broker in state.brokers
    ]


def _topics(state: ClusterState) -> str:
    count = len({partition.partition.topic for partition in state.partitions})
    topics = "1 topic" if count == 1 else f"{count} topics"
    partitions = len(state.partitions)
    return f"{topics}, {partitions} partition" if partitions == 1 else f"{topics}, {partitions} partitions"


@cluster.command()
@json_option
@cluster_options
def info(as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Show a cluster in a few lines.

    They have its id, controller, brokers, topics, partitions and groups.

    \b
    Examples:
      ottla cluster info
    """

    async def use(admin: Admin) -> tuple[ClusterState, int]:
        return await admin.cluster_state(), len(await admin.groups.list())

    state, groups = with_admin(bootstrap_server, properties, use)
    facts = {
        "cluster": state.cluster_id or "-",
        "controller": "none" if state.controller is None else state.controller,
        "brokers": [f"{broker.id}@{broker.host}:{broker.port}" for broker in state.brokers],
        "topics": len({partition.partition.topic for partition in state.partitions}),
        "partitions": len(state.partitions),
        "without leader": sum(partition.leader in (None, -1) for partition in state.partitions),
        "under replicated": len(state.under_replicated),
        "groups": groups,
    }
    if as_json:
        show_json({key.replace(" ", "_"): value for key, value in facts.items()})
        return
    for key, value in facts.items():
        click.echo(f"{key:16}  {', '.join(value) if isinstance(value, list) else value}")


@cluster.command()
@json_option
@cluster_options
def health(as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Print one line per problem of the cluster.

    The exit status is 1 if there is one.

    Problems are a missing controller, brokers that hold replicas and are away, log directories that are
    offline or full, and partitions that have no leader, fewer in-sync replicas than min.insync.replicas, or
    fewer than replicas. Partitions with the same cause are one problem; --json names them.

    \b
    Examples:
      ottla cluster health
      ottla cluster health --json && echo all is well
    """
    from ottla.admin.cluster_health import problems

    found = problems(with_admin(bootstrap_server, properties, lambda admin: admin.cluster_state()))
    if as_json:
        show_json(
            [
                {
                    "kind": problem.kind,
                    "what": problem.what,
                    "problem": problem.text,
                    "partitions": list(map(str, problem.partitions)),
                }
                for problem in found
            ]
        )
    elif not found:
        click.echo("The cluster is healthy.")
    else:
        for problem in found:
            click.echo(problem.text)
    if found:
        raise click.exceptions.Exit(1)

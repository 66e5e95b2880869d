"""`ottla txn`: transactions, the producers of partitions, and the abort of a transaction that hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ottla.admin.commands import check_partition, named_partitions, with_admin
from ottla.client.commands import Count, cluster_options, json_option, records, show, show_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.admin import Admin
    from ottla.admin.transactions import PartitionProducer
    from ottla.protocol.topics import TopicPartition

_MAX_CELL_LENGTH = 60
_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
    "PrepareEpochFence",
)  # fmt: skip
_PRODUCER_COLUMNS = (
    "topic", "partition", "producer id", "producer epoch", "coordinator epoch", "last sequence",
    "last timestamp ms", "start offset",
)  # fmt: skip


def _read_states(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return Kafka's spelling of states; click's own Choice would list them in lower case."""
    known = {state.lower(): state for state in _STATES}
    for name in given:
        if name.lower() not in known:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(_STATES)}")
    return tuple(known[name.lower()] for name in given)


@click.group()
def txn() -> None:
    """List, describe and abort transactions; find those that hang."""


@txn.command(name="list")
@click.option(
    "--state", "states", callback=_read_states, multiple=True, metavar="STATE",
    help=f"Only in this state: {', '.join(_STATES)}. Repeatable.",
)  # fmt: skip
@click.option("--producer-id", "producer_ids", type=int, multiple=True, help="Only of this one. Repeatable.")
@click.option("--longer-than-ms", type=Count(0), help="Only what has run for longer.")
@json_option
@cluster_options
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """List transactional ids, and the state of their transactions.

    All coordinators are asked. A table cuts long ids; --json has them whole.

    \b
    Examples:
      ottla txn list
      ottla txn list --state Ongoing --longer-than-ms 60000 --json
    """
    found = with_admin(
        bootstrap_server,
        properties,
        lambda admin: admin.transactions.list(
            states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms
        ),
    )
    rows = [
        (listing.transactional_id, listing.coordinator, listing.producer_id, listing.state)
        for listing in found
    ]
    columns = ("transactional id", "coordinator", "producer id", "state")
    if rows or as_json:
        show(columns, rows, as_json=as_json, max_cell_length=_MAX_CELL_LENGTH)
    else:
        click.echo("No transactional id was found.")


@txn.command()
@click.argument("transactional_id")
@json_option
@cluster_options
def describe(transactional_id: str, as_json: bool, bootstrap_server: str, properties: str | None) -> None:
    """Show the transaction of an id, and the partitions in it.

    \b
    Examples:
      ottla txn describe billing-1
      ottla txn describe billing-1 --json
    """
    found = with_admin(
        bootstrap_server, properties, lambda admin: admin.transactions.describe(transactional_id)
    )
    columns = (
        "transactional id", "coordinator", "producer id", "producer epoch", "state", "timeout ms",
    )  # fmt: skip
    row = (
        found.transactional_id, found.coordinator, found.producer_id, found.producer_epoch, found.state,
        found.timeout_ms,
    )  # fmt: skip
    partitions = [(partition.topic, partition.partition) for partition in sorted(found.partitions)]
    if as_json:
        partition_rows = records(("topic", "partition"), partitions)
        known = records((*columns, "start ms"), [(*row, found.start_ms)])[0]
        show_json({**known, "partitions": partition_rows})
        return
    started = _time(found.start_ms)
    show((*columns, "start"), [(*row, started)], as_json=False, max_cell_length=_MAX_CELL_LENGTH)
    if partitions:
        show(("topic", "partition"), partitions, as_json=False)


@txn.command()
@click.argument("partitions", nargs=-1, required=True, metavar="TOPIC[:PARTITION]...")
@click.option("--open", "only_open", is_flag=True, help="Only producers with an open transaction.")
@json_option
@cluster_options
def producers(
    partitions: tuple[str, ...],
    only_open: bool,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Show the producers of partitions.

    They are those that the leaders know, with the offset where their open transaction begins.

    \b
    Examples:
      ottla txn producers orders:3
      ottla txn producers orders --open --json
    """

    async def use(admin: Admin) -> list[PartitionProducer]:
        return await admin.transactions.producers(await _wanted(admin, partitions))

    found = with_admin(bootstrap_server, properties, use)
    shown = [producer for producer in found if not only_open or producer.start_offset is not None]
    _show_producers(shown, as_json=as_json)


@txn.command(name="find-hanging")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION]",
    help="Which partitions. Default: all. Repeatable.",
)  # fmt: skip
@click.option(
    "--longer-than-ms", type=Count(0), default=900_000, show_default=True,
    help="Only without a record for longer; at least the brokers' transaction.max.timeout.ms.",
)  # fmt: skip
@json_option
@cluster_options
def find_hanging(
    topics: tuple[str, ...],
    longer_than_ms: int,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Find open transactions that no coordinator will end.

    The exit status is 1 if there is one.

    Readers of committed records do not get past such a transaction, and a compacted topic is not cleaned
    behind it. `ottla txn abort TOPIC:PARTITION --start-offset N` ends it.

    \b
    Examples:
      ottla txn find-hanging
      ottla txn find-hanging --topic orders --longer-than-ms 60000 --json
    """

    async def use(admin: Admin) -> list[PartitionProducer]:
        from ottla.client.environment import now_ms

        wanted = await _wanted(admin, topics)
        return await admin.transactions.hanging(wanted, now_ms=now_ms(), longer_than_ms=longer_than_ms)

    found = with_admin(bootstrap_server, properties, use)
    if found or as_json:
        _show_producers(found, as_json=as_json)
    else:
        click.echo("No transaction hangs.")
    if found:
        raise click.exceptions.Exit(1)


@txn.command()
@click.argument("partition", metavar="TOPIC:PARTITION")
@click.option(
    "--start-offset", type=Count(0), required=True,
    help="Where the transaction begins, as find-hanging and producers show it.",
)  # fmt: skip
@json_option
@cluster_options
def abort(
    partition: str, start_offset: int, as_json: bool, bootstrap_server: str, properties: str | None
) -> None:
    """Abort a transaction that hangs in one partition.

    The marker is written without the coordinator.

    Never do this to a transaction that its producer may still commit: the coordinator would commit the rest
    of it, and this partition would lack its part.

    \b
    Examples:
      ottla txn abort orders:3 --start-offset 17042
    """
    check_partition(partition)

    async def use(admin: Admin) -> PartitionProducer:
        (wanted,) = await named_partitions(admin, [partition])
        return await admin.transactions.abort(wanted, start_offset)

    done = with_admin(bootstrap_server, properties, use)
    if as_json:
        show_json(records(_PRODUCER_COLUMNS, [_row(done)])[0])
    else:
        click.echo(
            f"Aborted the transaction of producer {done.producer_id}, epoch {done.producer_epoch}, in "
            f"{done.partition} from offset {start_offset} on."
        )


def _show_producers(found: Iterable[PartitionProducer], *, as_json: bool) -> None:
    """Print producers: a table has the time of the last record, JSON its timestamp in ms."""
    rows = [_row(producer) for producer in found]
    at = _PRODUCER_COLUMNS.index("last timestamp ms")
    if as_json:
        show(_PRODUCER_COLUMNS, rows, as_json=True)
        return
    columns = (*_PRODUCER_COLUMNS[:at], "last record", *_PRODUCER_COLUMNS[at + 1 :])
    show(columns, [(*row[:at], _time(row[at]), *row[at + 1 :]) for row in rows], as_json=False)


def _time(timestamp_ms: int | None) -> str | None:
    """Return a time for a table; nothing where a transaction or a producer has none."""
    from ottla.client.times import utc_text

    return None if timestamp_ms is None or timestamp_ms < 0 else utc_text(timestamp_ms)


def _row(each: PartitionProducer) -> tuple[Any, ...]:
    return (
        *each.partition, each.producer_id, each.producer_epoch, each.coordinator_epoch, each.last_sequence,
        each.last_timestamp_ms, each.start_offset,
    )  # fmt: skip


async def _wanted(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    from ottla.protocol.topics import TopicPartition

    if topics:
        return await named_partitions(admin, topics)
    return [
        TopicPartition(topic.name, index)
        for topic in await admin.topics.list(internal=True)
        for index in topic.partitions
    ]

"""The command `ottla consume`."""

from __future__ import annotations

import string
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ottla.client.commands import cluster_options, load_config, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ottla.consumer.cli_offset_commits import PrintedOffsets
    from ottla.consumer.consumer import Consumer
    from ottla.consumer.record import ConsumerRecord
    from ottla.protocol.topics import TopicPartition

AT_ONCE = 500
FIELDS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--from-beginning", is_flag=True, help="Read from the first record, not only new ones.")
@click.option("--max-messages", "-n", type=click.IntRange(1), help="Stop after this number of records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at the end offsets found at the start.")
@click.option("--partition", type=click.IntRange(0), help="Read only this partition.")
@click.option("--offset", type=click.IntRange(0), help="With --partition: read from this offset.")
@click.option(
    "--group",
    metavar="NAME",
    help="Join this group: share its partitions, start at its committed offsets, and commit.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="Whether to print records of transactions before they are committed.",
)
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    help=f"How to print a record, as a Python format string: {', '.join('{' + f + '}' for f in FIELDS)}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@cluster_options
def consume(
    topics: tuple[str, ...],
    from_beginning: bool,
    max_messages: int | None,
    exit_at_end: bool,
    partition: int | None,
    offset: int | None,
    group: str | None,
    isolation_level: str,
    template: str | None,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Print the records of topics, one per line, until Ctrl-C.

    \b
    Examples:
      ottla consume orders
      ottla consume orders --from-beginning --max-messages 10
      ottla consume orders --from-beginning --exit-at-end --format '{offset} {key}: {value}'
      ottla consume orders --group billing --json
    """
    if offset is not None and (partition is None or len(topics) != 1):
        raise click.UsageError("--offset needs one topic and --partition")
    if template is not None:
        _check_template(template)
    client = load_config(properties)

    async def call() -> None:
        from ottla.consumer import Consumer, ConsumerConfig

        config = ConsumerConfig(
            group_id=group,
            auto_offset_reset="earliest" if from_beginning else "latest",
            allow_auto_create_topics=False,
            enable_auto_commit=False,  # offsets of printed records are committed, not of delivered ones
            isolation_level=isolation_level,  # type: ignore[arg-type]
            client=client,
        )
        consumer = Consumer(bootstrap_servers=bootstrap_server, config=config)
        printing = partial(
            _print, limit=max_messages, exit_at_end=exit_at_end, show=partial(_show, template, as_json)
        )
        await _consume(consumer, topics, partition, offset, printing)

    run(call)


async def _consume(
    consumer: Consumer,
    topics: tuple[str, ...],
    partition: int | None,
    offset: int | None,
    printing: Callable[[Consumer, PrintedOffsets], Awaitable[None]],
) -> None:
    """Open a consumer of topics, or of one partition of each; print, and commit what was printed."""
    from ottla.consumer.cli_offset_commits import PrintedOffsets
    from ottla.protocol.topics import TopicPartition

    printed_offsets = PrintedOffsets(consumer, commits=consumer.config.group_id is not None)
    if partition is None:
        consumer.subscribe(topics, listener=printed_offsets)
    async with consumer:
        known = {topic: await consumer.partitions_for_topic(topic) for topic in topics}
        _check_topics(known)
        if partition is not None:
            consumer.assign(_only(partition, known))
        if offset is not None and partition is not None:
            consumer.seek(TopicPartition(topics[0], partition), offset)
        try:
            await printing(consumer, printed_offsets)
        finally:
            await printed_offsets.end()


def _check_topics(known: Mapping[str, set[int] | None]) -> None:
    """Raise NoSuchTopic for a topic that does not exist: the command creates none, and waits for none."""
    from ottla.client.cluster import NoSuchTopic

    for topic, partitions in known.items():
        if partitions is None:
            raise NoSuchTopic(topic)


def _only(partition: int, known: Mapping[str, set[int] | None]) -> list[TopicPartition]:
    """Return one partition of every topic. Raises ValueError if a topic does not have it."""
    from ottla.protocol.topics import TopicPartition

    for topic, partitions in known.items():
        if partitions is None or partition not in partitions:
            raise ValueError(
                f"topic {topic!r} has no partition {partition}, only 0 to {max(partitions or {0})}"
            )
    return [TopicPartition(topic, partition) for topic in known]


async def _print(
    consumer: Consumer,
    printed_offsets: PrintedOffsets,
    limit: int | None,
    exit_at_end: bool,
    show: Callable[[ConsumerRecord], object],
) -> None:
    ends: dict[TopicPartition, int] = {}
    remaining = limit
    while remaining is None or remaining > 0:
        if exit_at_end and await _is_at_end(consumer, ends):
            return
        count = AT_ONCE if remaining is None else min(remaining, AT_ONCE)
        for records in (await consumer.getmany(timeout_ms=500, max_records=count)).values():
            for record in records:
                show(record)
                printed_offsets.add(record)
                remaining = None if remaining is None else remaining - 1
        await printed_offsets.commit_when_due()


async def _is_at_end(consumer: Consumer, ends: dict[TopicPartition, int]) -> bool:
    """Return whether all partitions are read up to the ends that they had when they were assigned.

    In a group the assignment may change: partitions of other members are not waited for.
    """
    from ottla.consumer.errors import NotAssigned

    if new := consumer.assignment() - ends.keys():
        ends.update(await consumer.end_offsets(new))
    for partition in consumer.assignment() & ends.keys():
        with suppress(NotAssigned):  # revoked meanwhile
            if await consumer.position(partition) < ends[partition]:
                return False
    return True


def _show(template: str | None, as_json: bool, record: ConsumerRecord) -> None:
    click.echo(_line(record, template, as_json))


def _line(record: ConsumerRecord, template: str | None, as_json: bool) -> str | bytes:
    if as_json:
        import json

        return json.dumps(_shown(record) | {"headers": [(k, _text(v)) for k, v in record.headers]})
    if template is None:
        return record.value or b""
    return template.format(**{name: "" if value is None else value for name, value in _shown(record).items()})


def _shown(record: ConsumerRecord) -> dict[str, Any]:
    headers = ",".join(f"{key}={_text(value)}" for key, value in record.headers)
    plain = {name: getattr(record, name) for name in FIELDS[:4]}
    return plain | {"key": _text(record.key), "value": _text(record.value), "headers": headers}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _check_template(template: str) -> None:
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from None
    if unknown := used - set(FIELDS):
        raise click.UsageError(f"--format knows {', '.join(FIELDS)}, not {', '.join(sorted(unknown))}")

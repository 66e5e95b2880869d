"""The command `ottla consume`."""

from __future__ import annotations

import string
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.client.commands import cluster_options, load_config, read_time, run
from ottla.client.commands.record_lines import FIELDS, json_bytes, json_headers, unescape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ottla.client.config import ClientConfig
    from ottla.consumer.cli_offset_commits import PrintedPositions
    from ottla.consumer.config import ConsumerConfig
    from ottla.consumer.consumer import Consumer
    from ottla.consumer.record import ConsumerRecord
    from ottla.protocol.topics import TopicPartition

    Polled = Mapping[TopicPartition, Sequence[ConsumerRecord]]
    Poll = Callable[[Consumer, int], Awaitable[Polled]]

AT_ONCE = 500
POLL_MS = 500


@click.command()
@click.argument("topics", nargs=-1, required=True)
@click.option("--from-beginning", is_flag=True, help="Read from the first record, not only new ones.")
@click.option("--max-messages", "-n", type=click.IntRange(1), help="Stop after this number of records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at the end offsets found at the start.")
@click.option("--partition", type=click.IntRange(0), help="Read only this partition.")
@click.option("--offset", type=click.IntRange(0), help="With --partition: read from this offset.")
@click.option(
    "--tail", metavar="N", type=click.IntRange(0), help="Start N offsets before the end of each partition."
)
@click.option(
    "--since", metavar="ISO", help="Start at the first record at or after this time: 2026-01-31T08:00Z"
)
@click.option(
    "--until", metavar="ISO", help="Stop before the first record at or after this time, or at the end."
)
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
@click.option(
    "--null-marker", metavar="TEXT", default="",
    help="What to print for keys and values that are null (tombstones); nothing by default.",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True,
    help='Print one JSON object per line; bytes that are not UTF-8 are {"base64": "…"}.',
)  # fmt: skip
@click.option(
    "--skip-corrupt",
    is_flag=True,
    help="Go on behind batches that cannot be read; standard error has a line for each, and their number.",
)
@cluster_options
def consume(
    topics: tuple[str, ...],
    from_beginning: bool,
    max_messages: int | None,
    exit_at_end: bool,
    partition: int | None,
    offset: int | None,
    tail: int | None,
    since: str | None,
    until: str | None,
    group: str | None,
    isolation_level: str,
    template: str | None,
    null_marker: str,
    as_json: bool,
    skip_corrupt: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Print the records of topics, one per line, until Ctrl-C.

    \b
    Examples:
      ottla consume orders
      ottla consume orders --from-beginning --max-messages 10
      ottla consume orders --from-beginning --exit-at-end --format '{offset} {key}: {value}'
      ottla consume orders --from-beginning --format '{key}\\t{value}' --null-marker NULL
      ottla consume orders --tail 10
      ottla consume orders --since 2026-01-31T08:00Z --until 2026-01-31T09:00Z --json
      ottla consume orders --group billing --json
      ottla consume orders --from-beginning --skip-corrupt
    """
    if offset is not None and (partition is None or len(topics) != 1):
        raise click.UsageError("--offset needs one topic and --partition")
    wanted = Range(tail, read_time(since) if since else None, read_time(until) if until else None)
    _check_range(wanted, from_beginning, offset, group)
    shown = partial(_show, template and _checked_template(template), as_json, null_marker)
    config = partial(_config, group, from_beginning, isolation_level, load_config(properties))
    printing = partial(_print, limit=max_messages, exit_at_end=exit_at_end or until is not None, show=shown)
    _run(
        config, bootstrap_server, partial(_consume, topics, partition, offset, wanted), printing, skip_corrupt
    )


def _run(
    config: Callable[[], ConsumerConfig],
    bootstrap_server: str,
    consume: Callable[[Consumer, Callable[..., Awaitable[None]]], Awaitable[None]],
    printing: Callable[..., Awaitable[None]],
    skip_corrupt: bool,
) -> None:
    skipped = SkippedBatches()

    async def call() -> None:
        from ottla.consumer import Consumer

        consumer = Consumer(bootstrap_servers=bootstrap_server, config=config())
        await consume(consumer, partial(printing, poll=skipped.poll if skip_corrupt else _poll))

    try:
        run(call)
    finally:
        skipped.report()


def _config(
    group: str | None, from_beginning: bool, isolation_level: str, client: ClientConfig
) -> ConsumerConfig:
    from ottla.consumer import ConsumerConfig

    return ConsumerConfig(
        group_id=group,
        auto_offset_reset="earliest" if from_beginning else "latest",
        allow_auto_create_topics=False,
        enable_auto_commit=False,  # a record that is delivered is not printed yet
        isolation_level=isolation_level,  # type: ignore[arg-type]
        client=client,
    )


async def _consume(
    topics: tuple[str, ...],
    partition: int | None,
    offset: int | None,
    wanted: Range,
    consumer: Consumer,
    printing: Callable[[Consumer, PrintedPositions, dict[TopicPartition, int]], Awaitable[None]],
) -> None:
    """Open a consumer of topics, or of one partition of each; print, and commit positions."""
    from ottla.consumer.cli_offset_commits import PrintedPositions
    from ottla.protocol.topics import TopicPartition

    printed_positions = PrintedPositions(consumer, commits=consumer.config.group_id is not None)
    if partition is None and not wanted:
        consumer.subscribe(topics, listener=printed_positions)
    async with consumer:
        known = {topic: await consumer.partitions_for_topic(topic) for topic in topics}
        _check_topics(known)
        if partition is not None:
            consumer.assign(_only(partition, known))
        elif wanted:
            consumer.assign(
                TopicPartition(name, number) for name, found in known.items() for number in found or ()
            )
        ends = await wanted.seek(consumer) if wanted else {}
        if offset is not None and partition is not None:
            consumer.seek(TopicPartition(topics[0], partition), offset)
        try:
            await printing(consumer, printed_positions, ends)
        finally:
            await printed_positions.end()


async def _poll(consumer: Consumer, count: int) -> Polled:
    """Return records, perhaps none. Raises UnreadableBatch with the option that skips it."""
    from ottla.consumer.errors import UnreadableBatch

    try:
        return await consumer.getmany(timeout_ms=POLL_MS, max_records=count)
    except UnreadableBatch as error:
        raise click.ClickException(f"{error}, or give --skip-corrupt") from error


class SkippedBatches:
    """Polls past batches that cannot be read, and reports them on standard error."""

    def __init__(self) -> None:
        self._count = 0

    async def poll(self, consumer: Consumer, count: int) -> Polled:
        """Return records, perhaps none: none after a skipped batch, so that the end is looked for again."""
        from ottla.consumer.errors import NotAssigned, UnreadableBatch

        try:
            return await consumer.getmany(timeout_ms=POLL_MS, max_records=count)
        except UnreadableBatch as error:
            with suppress(NotAssigned):  # revoked meanwhile: its next owner meets the batch
                consumer.seek(error.partition, error.next_offset)
                self._count += 1
                click.echo(
                    f"skipped offsets {error.offset} to {error.next_offset - 1} of {error.partition}: "
                    f"{error.reason}",
                    err=True,
                )
            return {}

    def report(self) -> None:
        """Write how many batches were skipped, if there were any."""
        if self._count:
            batches = "batch" if self._count == 1 else "batches"
            click.echo(f"skipped {self._count} {batches} that cannot be read", err=True)


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
    printed_positions: PrintedPositions,
    ends: dict[TopicPartition, int],
    limit: int | None,
    exit_at_end: bool,
    show: Callable[[ConsumerRecord], object],
    poll: Poll = _poll,
) -> None:
    bounds = dict(ends)
    remaining = limit
    while remaining is None or remaining > 0:
        if exit_at_end and await _is_at_end(consumer, ends):
            return
        count = AT_ONCE if remaining is None else min(remaining, AT_ONCE)
        polled = await poll(consumer, count)
        printed_positions.polled(polled)
        for partition, records in polled.items():
            for record in records:
                if partition in bounds and record.offset >= bounds[partition]:
                    break
                show(record)
                printed_positions.printed(record)
                remaining = None if remaining is None else remaining - 1
        await printed_positions.commit_when_due()


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


def _show(template: str | None, as_json: bool, null_marker: str, record: ConsumerRecord) -> None:
    click.echo(_line(record, template, as_json, null_marker))


def _line(record: ConsumerRecord, template: str | None, as_json: bool, null_marker: str = "") -> str | bytes:
    if as_json:
        import json

        return json.dumps(_as_json(record))
    if template is None:
        return null_marker if record.value is None else record.value
    shown = _shown(record).items()
    return template.format(**{name: null_marker if value is None else value for name, value in shown})


def _as_json(record: ConsumerRecord) -> dict[str, object]:
    plain = {name: getattr(record, name) for name in FIELDS[:4]}
    payload = {"key": json_bytes(record.key), "value": json_bytes(record.value)}
    return plain | payload | {"headers": json_headers(record.headers)}


def _shown(record: ConsumerRecord) -> dict[str, Any]:
    headers = ",".join(f"{key}={_text(value)}" for key, value in record.headers)
    plain = {name: getattr(record, name) for name in FIELDS[:4]}
    return plain | {"key": _text(record.key), "value": _text(record.value), "headers": headers}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _check_range(wanted: Range, from_beginning: bool, offset: int | None, group: str | None) -> None:
    starts = (from_beginning, offset is not None, wanted.tail is not None, wanted.since_ms is not None)
    if sum(starts) > 1:
        raise click.UsageError("give one of --from-beginning, --offset, --tail and --since")
    if wanted and group is not None:
        raise click.UsageError(
            "--tail, --since and --until need no --group: it starts where `ottla group reset-offsets` puts it"
        )


def _checked_template(text: str) -> str:
    template = unescape(text)
    try:
        used = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from None
    if unknown := used - set(FIELDS):
        raise click.UsageError(f"--format knows {', '.join(FIELDS)}, not {', '.join(sorted(unknown))}")
    return template


class Range(NamedTuple):
    """The part of a topic to print; None where it is not limited."""

    tail: int | None
    since_ms: int | None
    until_ms: int | None

    def __bool__(self) -> bool:
        """Return whether anything is limited."""
        return any(limit is not None for limit in self)

    async def seek(self, consumer: Consumer) -> dict[TopicPartition, int]:
        """Seek the assigned partitions to the start; return the offsets to stop at, if there are some.

        With only an end the start is the first record.
        """
        partitions = consumer.assignment()
        ends = await consumer.end_offsets(partitions)
        if self.since_ms is not None:
            starts = await _at(consumer, self.since_ms, ends)
        else:
            starts = await consumer.beginning_offsets(partitions)
        for partition, first in starts.items():
            consumer.seek(
                partition, max(first, ends[partition] - self.tail) if self.tail is not None else first
            )
        return {} if self.until_ms is None else await _at(consumer, self.until_ms, ends)


async def _at(consumer: Consumer, time_ms: int, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the offset of the first record at or after a time in each partition, or its end."""
    found = await consumer.offsets_for_times(dict.fromkeys(ends, time_ms))
    return {
        partition: end if (at := found.get(partition)) is None else at.offset
        for partition, end in ends.items()
    }

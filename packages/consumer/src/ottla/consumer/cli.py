"""The command `ottla consume`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from ottla.client.commands import OVERRIDES, cluster_options, did_you_mean, load_config, read_time, run
from ottla.client.commands.completion import complete_topics
from ottla.client.commands.record_lines import FIELDS, FORMAT_FIELDS, json_bytes, json_headers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ottla.client.config import ClientConfig
    from ottla.consumer.cli_offset_commits import PrintedPositions
    from ottla.consumer.cli_selection import Range, Test
    from ottla.consumer.config import ConsumerConfig
    from ottla.consumer.consumer import Consumer
    from ottla.consumer.record import ConsumerRecord
    from ottla.protocol.topics import TopicPartition

    Polled = Mapping[TopicPartition, Sequence[ConsumerRecord]]
    Poll = Callable[[Consumer, int], Awaitable[Polled]]

AT_ONCE = 500
POLL_MS = 500
_SET_BY_OPTIONS = frozenset({"group_id", "enable_auto_commit", "allow_auto_create_topics", "client"})


@click.command()
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--from-beginning", is_flag=True, help="Read from the first record, not only new ones.")
@click.option("--max-messages", "-n", type=click.IntRange(1), help="Stop after this number of records.")
@click.option("--exit-at-end", is_flag=True, help="Stop at the end offsets found at the start.")
@click.option("--partition", type=click.IntRange(0), help="Read only this partition.")
@click.option("--offset", type=click.IntRange(0), help="With --partition: read from this offset.")
@click.option(
    "--tail", metavar="N", type=click.IntRange(0), help="Start N offsets before the end of each partition."
)
@click.option(
    "--since", metavar="TIME", help="Only records at or after this time: 2026-01-31T08:00Z, -1h, yesterday."
)
@click.option(
    "--until", metavar="TIME", help="Only records before this time, up to the end that there is now."
)
@click.option(
    "--filter",
    "wanted_text",
    metavar="EXPRESSION",
    help="Only records of which this is true: value.amount > 100 && key.startsWith('eu-').",
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
    help="How to print a record, as a Python format string of "
    f"{', '.join('{' + f + '}' for f in FORMAT_FIELDS)}, or as for kcat and rpk: '%t %p %o %k %s'.",
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
    wanted_text: str | None,
    group: str | None,
    isolation_level: str,
    template: str | None,
    null_marker: str,
    as_json: bool,
    skip_corrupt: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Print the records of topics, one per line, until Ctrl-C. A topic that begins with ^ is a pattern.

    A pattern stands for the topics that there are at the start; in a group, for later ones, too.

    \b
    Examples:
      ottla consume orders --from-beginning --max-messages 10
      ottla consume orders --from-beginning --exit-at-end --format '{offset} {key}: {value}'
      ottla consume orders --from-beginning --format '{key}\\t{value}' --null-marker NULL
      ottla consume orders --since 2026-01-31T08:00Z --until 2026-01-31T09:00Z --json
      ottla consume '^orders-.*' --since -1h --filter 'value.amount > 100'
      ottla consume orders --tail 5 --exit-at-end --format '%i %p:%o %k %s'
      ottla consume orders --group billing --json -X group.protocol=consumer
      ottla consume orders --from-beginning --skip-corrupt
    """
    from ottla.consumer.cli_selection import Range, record_test, topic_pattern

    pattern = topic_pattern(topics)
    if offset is not None and (partition is None or len(topics) != 1 or pattern is not None):
        raise click.UsageError("--offset needs one topic and --partition")
    wanted = Range(tail, read_time(since) if since else None, read_time(until) if until else None)
    _check_range(wanted, from_beginning, offset, group)
    shown = partial(_show, _format(template), as_json, null_marker)
    chosen = (group, from_beginning, isolation_level, own_settings(), load_config(properties))
    printing = partial(
        _print, limit=max_messages, exit_at_end=exit_at_end or until is not None, show=shown,
        wanted=wanted, passes=record_test(wanted_text),
    )  # fmt: skip
    consuming = partial(_consume, topics, pattern, partition, offset, wanted)
    _run(partial(_config, *chosen), bootstrap_server, consuming, printing, skip_corrupt)


def _run(
    config: Callable[[], ConsumerConfig],
    bootstrap_server: str,
    consume: Callable[[Consumer, Callable[..., Awaitable[None]]], Awaitable[None]],
    printing: Callable[..., Awaitable[None]],
    skip_corrupt: bool,
) -> None:
    skipped = SkippedBatches()

    async def call() -> None:
        from ottla.client.cluster import NoSuchTopic
        from ottla.consumer import Consumer, ConsumerConfig

        opened = config()
        consumer = Consumer(bootstrap_servers=bootstrap_server, config=opened)
        try:
            await consume(consumer, partial(printing, poll=skipped.poll if skip_corrupt else _poll))
        except NoSuchTopic as error:
            async with Consumer(
                bootstrap_servers=bootstrap_server, config=ConsumerConfig(client=opened.client)
            ) as other:
                near = did_you_mean(error.name, await other.topics())
            raise click.ClickException(f"{error}{near}") from None

    try:
        run(call)
    finally:
        skipped.report()


def own_settings() -> dict[str, str]:
    """Return the settings of the consumer that options -X give, and leave those of connections."""
    from ottla.client.config import ClientConfig
    from ottla.client.settings import aliases, settings_of
    from ottla.consumer.config import ConsumerConfig

    names = settings_of(ConsumerConfig).keys() | aliases(ConsumerConfig).keys()
    names -= settings_of(ClientConfig).keys() | aliases(ClientConfig).keys()
    meta = click.get_current_context().meta
    given: dict[str, str] = dict(meta.get(OVERRIDES, {}))
    own = {name: given.pop(name) for name in list(given) if name.replace(".", "_") in names}
    if own:
        meta[OVERRIDES] = given
    return own


def _config(
    group: str | None, from_beginning: bool, isolation_level: str, own: dict[str, str], client: ClientConfig
) -> ConsumerConfig:
    from dataclasses import fields, replace

    from ottla.consumer import ConsumerConfig

    config = ConsumerConfig(
        group_id=group,
        auto_offset_reset="earliest" if from_beginning else "latest",
        allow_auto_create_topics=False,
        enable_auto_commit=False,  # a record that is delivered is not printed yet
        isolation_level=isolation_level,  # type: ignore[arg-type]
        client=client,
    )
    if not own:
        return config
    read = ConsumerConfig.from_properties(own, group_id=group)
    default = ConsumerConfig(group_id=group)
    given = {setting.name: getattr(read, setting.name) for setting in fields(read)}
    return replace(
        config,
        **{
            name: value
            for name, value in given.items()
            if name not in _SET_BY_OPTIONS and value != getattr(default, name)
        },
    )


async def _consume(
    topics: tuple[str, ...],
    pattern: str | None,
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
    # Without a group, a subscription to a pattern has its partitions some time after the start: too late for
    # a read up to the end.
    is_subscribed = partition is None and not wanted and not (pattern and consumer.config.group_id is None)
    if is_subscribed:
        consumer.subscribe(() if pattern else topics, pattern=pattern, listener=printed_positions)
    async with consumer:
        names = topics if pattern is None else await _matching(consumer, pattern)
        known = {topic: await consumer.partitions_for_topic(topic) for topic in names}
        _check_topics(known)
        if partition is not None:
            consumer.assign(_only(partition, known))
        elif not is_subscribed:
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


async def _matching(consumer: Consumer, pattern: str) -> list[str]:
    import re

    found = sorted(topic for topic in await consumer.topics() if re.search(pattern, topic))
    if not found:
        raise click.ClickException(f"no topic matches {pattern}; `ottla topic list` lists topics")
    return found


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
    wanted: Range,
    passes: Test | None = None,
    poll: Poll = _poll,
) -> None:
    bounds = dict(ends)
    remaining, read = limit, 0
    while remaining is None or remaining > 0:
        if exit_at_end and await _is_at_end(consumer, ends):
            if remaining == limit and not printed_positions.any:
                _say_empty(read)
            return
        count = AT_ONCE if remaining is None or passes or wanted else min(remaining, AT_ONCE)
        polled = await poll(consumer, count)
        printed_positions.polled(polled)
        for partition, records in polled.items():
            for record in records:
                if remaining == 0 or (partition in bounds and record.offset >= bounds[partition]):
                    break
                if wanted.ends_with(record):
                    ends[partition] = bounds[partition] = record.offset
                    break
                read += 1
                if wanted.holds(record) and (passes is None or passes(record)):
                    show(record)
                    printed_positions.any = True
                    remaining = None if remaining is None else remaining - 1
                printed_positions.printed(record)
        await printed_positions.commit_when_due()


def _say_empty(read: int) -> None:
    """Report on standard error that a read up to the end found nothing to print."""
    found = "there are none" if not read else f"none of {read} matches"
    click.echo(f"No records: {found} up to the end.", err=True)


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


def _show(
    formatted: Callable[[ConsumerRecord, str], str] | None,
    as_json: bool,
    null_marker: str,
    record: ConsumerRecord,
) -> None:
    click.echo(_line(record, formatted, as_json, null_marker))


def _line(
    record: ConsumerRecord,
    formatted: Callable[[ConsumerRecord, str], str] | None,
    as_json: bool,
    null_marker: str = "",
) -> str | bytes:
    if as_json:
        import json

        return json.dumps(_as_json(record))
    if formatted is None:
        return null_marker if record.value is None else record.value
    return formatted(record, null_marker)


def _as_json(record: ConsumerRecord) -> dict[str, object]:
    plain = {name: getattr(record, name) for name in FIELDS[:4]}
    payload = {"key": json_bytes(record.key), "value": json_bytes(record.value)}
    return plain | payload | {"headers": json_headers(record.headers)}


def _check_range(wanted: Range, from_beginning: bool, offset: int | None, group: str | None) -> None:
    starts = (from_beginning, offset is not None, wanted.tail is not None, wanted.since_ms is not None)
    if sum(starts) > 1:
        raise click.UsageError("give one of --from-beginning, --offset, --tail and --since")
    if wanted and group is not None:
        raise click.UsageError(
            "--tail, --since and --until need no --group: it starts where `ottla group reset-offsets` puts it"
        )


def _format(template: str | None) -> Callable[[ConsumerRecord, str], str] | None:
    from ottla.client.commands.record_lines import record_format

    if template is None:
        return None
    try:
        return record_format(template)
    except ValueError as error:
        raise click.UsageError(f"--format: {error}") from None

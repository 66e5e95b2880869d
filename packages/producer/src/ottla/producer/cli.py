"""`ottla produce`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING

import click

from ottla.client.commands import cluster_options, key_values, load_config, run
from ottla.client.commands.record_lines import Headers, from_json, unescape

if TYPE_CHECKING:
    from ottla.producer.accumulator import Acknowledgement
    from ottla.producer.cli_input import Lines
    from ottla.producer.producer import Producer


Parsed = tuple[bytes | None, bytes | None, Headers, int | None, int | None]
"""Key, value, headers, partition and timestamp in ms of a line, as in `JsonRecord`."""
Parser = Callable[[bytes], Parsed]

_NO_HEADERS: Headers = []


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option(
    "--key-separator", "-k", metavar="TEXT", help=r"The text between key and value in a line; \t is a tab."
)
@click.option(
    "--null-marker",
    metavar="TEXT",
    help="Lines, and keys or values, that are this text are null: tombstones.",
)
@click.option(
    "--json", "as_json", is_flag=True,
    help="Lines are records as `ottla consume --json` prints them; they keep partition and timestamp.",
)  # fmt: skip
@click.option("--partition", type=click.IntRange(0), help="Write to this partition; ignore keys.")
@click.option("--header", "headers", metavar="KEY=VALUE", multiple=True, help="A header for each record.")
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record: none, the leader, or all in-sync replicas.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing on success.")
@cluster_options
def produce(
    topic: str,
    files: tuple[IO[bytes], ...],
    key_separator: str | None,
    null_marker: str | None,
    as_json: bool,
    partition: int | None,
    headers: tuple[str, ...],
    acks: str,
    compression: str,
    quiet: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Write lines to a topic, one record each, from files or standard input, until its end or Ctrl-C.

    \b
    Examples:
      echo hello | ottla produce greetings
      ottla produce orders --key-separator , orders.csv
      ottla produce orders -k '\\t' --null-marker NULL orders.tsv
      ottla consume orders --from-beginning --exit-at-end --json | ottla produce copy --json
      journalctl -f -o cat | ottla produce logs --compression zstd
    """
    parse = _parser(as_json, key_separator, null_marker)
    client = load_config(properties)
    extra: Headers = [(key, value.encode()) for key, value in key_values(headers).items()]

    async def call() -> int:
        from ottla.producer import Producer, ProducerConfig

        config = ProducerConfig(
            acks=-1 if acks == "all" else (0 if acks == "0" else 1),
            compression_type=compression,  # type: ignore[arg-type]
            client=client,
        )
        async with Producer(bootstrap_server, config) as producer:
            partitions = Partitions(producer, topic)
            await partitions.check(partition)
            sending = Sending(producer, topic, parse, partition, partitions, extra)
            await sending.all_of(files or (sys.stdin.buffer,))
            return sending.count

    count = run(call)
    if not quiet:
        click.echo(f"Produced {_counted(count)} to {topic}.")


class Partitions:
    """The partitions of the topic: one that is not there is refused, for the producer would wait for it."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._known: set[int] = set()

    async def check(self, partition: int | None) -> None:
        """Raise ValueError for a partition that is not there; None stands for any."""
        if partition is None or partition in self._known:
            return
        self._known = await self._producer.partitions_for(self._topic)
        if partition not in self._known:
            last = max(self._known)
            raise ValueError(f"topic {self._topic!r} has no partition {partition}, only 0 to {last}")


class Sending:
    """Sends lines, each a record, and counts those that were sent."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        parse: Parser,
        partition: int | None,
        partitions: Partitions,
        headers: Headers,
    ) -> None:
        self.count = 0
        self._producer = producer
        self._topic = topic
        self._parse = parse
        self._partition = partition
        self._partitions = partitions
        self._headers = headers
        self._failed: list[BaseException] = []

    async def all_of(self, files: Sequence[IO[bytes]]) -> None:
        """Send all lines of files and wait until they are acknowledged; a wrong line ends it."""
        from ottla.producer.cli_input import Input

        try:
            async with Input(files, self._producer.config.max_request_size) as given:
                while not self._failed and (found := await given.next()) is not None:
                    await self._send(found)
        except ValueError as error:
            await self._flush()
            sent = f"{_counted(self.count)} before it {'was' if self.count == 1 else 'were'} sent"
            raise click.ClickException(f"{error}; {sent}") from None
        await self._flush()

    async def _send(self, found: Lines) -> None:
        send, topic, parse, finished = self._producer.send, self._topic, self._parse, self._finished
        for number, line in enumerate(found.lines, found.first_number):
            try:
                key, value, headers, partition, timestamp_ms = parse(line)
                if self._partition is not None:
                    partition = self._partition
                elif partition is not None:
                    await self._partitions.check(partition)
            except ValueError as error:
                raise ValueError(f"{found.file}, line {number}: {error}") from None
            headers = [*headers, *self._headers] if headers else self._headers
            sent = await send(
                topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
            sent.add_done_callback(finished)
            self.count += 1

    def _finished(self, sent: Acknowledgement) -> None:
        if (error := sent.exception()) is not None:
            self._failed.append(error)

    async def _flush(self) -> None:
        await self._producer.flush()
        if self._failed:
            raise self._failed[0]


def _counted(count: int) -> str:
    return f"{count} {'record' if count == 1 else 'records'}"


def _parser(as_json: bool, separator: str | None, null: str | None) -> Parser:
    if not as_json and separator is None and null is None:
        return _whole_line
    if not as_json:
        return partial(_record, separator=_encoded(separator), null=_encoded(null))
    if separator is not None or null is not None:
        raise click.UsageError("--json has keys and nulls: leave out --key-separator and --null-marker")
    return from_json


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else unescape(text).encode()


def _whole_line(line: bytes) -> Parsed:
    return None, line, _NO_HEADERS, None, None


def _record(line: bytes, *, separator: bytes | None, null: bytes | None) -> Parsed:
    """Split a line into key and value. Raises ValueError for one without separator."""
    key: bytes | None = None
    value: bytes | None = line
    if separator is not None:
        key, found, value = line.partition(separator)
        if not found:
            start = line[:60].decode(errors="replace")
            raise ValueError(f"there is no key separator {separator.decode()!r} in {start!r}")
    if null is not None:
        key, value = (None if part == null else part for part in (key, value))
    return key, value, _NO_HEADERS, None, None

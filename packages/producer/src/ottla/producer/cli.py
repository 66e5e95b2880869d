"""`ottla produce`, with its lines read on a thread that Ctrl-C need not wait for."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, Self, cast

import click

from ottla.client.commands import cluster_options, key_values, load_config, read_time, run
from ottla.client.commands.completion import complete_topics
from ottla.client.commands.record_lines import Headers, from_json, unescape
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig
    from ottla.producer.accumulator import Acknowledgement, Acknowledgements
    from ottla.producer.producer import Producer


Fields = Sequence[bytes | None]
Records = tuple[Fields | None, Fields, str | None]
"""Keys and values of lines, and what is wrong with the line after the last of them."""
Split = Callable[[list[bytes]], Records]

CHUNK_BYTES: Final = 64 * 1024
_AHEAD: Final = 2


@click.command()
@click.argument("topic", shell_complete=complete_topics)
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
@click.option("--timestamp", metavar="TIME", help="The time of each record: 2026-01-31T08:00Z, -1h.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Write so many records per second.")
@click.option(
    "--template",
    metavar="TEXT",
    help="Make values instead of reading lines: {{n}}, {{random:1-100}}, {{choice:a|b}}, {{hex}}, {{now}}.",
)
@click.option("--key-template", metavar="TEXT", help="With --template: make keys, too.")
@click.option("--count", "-n", type=click.IntRange(1), help="With --template: stop after so many records.")
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
    **load: Any,
) -> None:
    """Write lines to a topic, one record each, from files or standard input, until its end or Ctrl-C.

    \b
    Examples:
      echo hello | ottla produce greetings
      ottla produce orders --key-separator , orders.csv
      ottla produce orders -k '\\t' --null-marker NULL orders.tsv
      ottla consume orders --from-beginning --exit-at-end --json | ottla produce copy --json
      journalctl -f -o cat | ottla produce logs --compression zstd
      ottla produce load --template '{"n": {{n}}, "amount": {{random:1-100}}}' --rate 500
    """
    if generated := _generated(files, load["template"], load["key_template"], load["count"]):
        files, key_separator = (generated,), _separator(load["key_template"])
    split = _splitter(as_json, key_separator, null_marker)
    how = How(partition, load["timestamp"] and read_time(load["timestamp"]), load["rate"])
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
            sending = Sending(producer, topic, split, how, extra)
            await sending.all_of(files or (sys.stdin.buffer,))
            return sending.count

    sent = run(call)
    if not quiet:
        nothing = partial(_why_nothing, bootstrap_server, client, topic)
        click.echo(f"Produced {_counted(sent)} to {topic}." if sent else run(nothing))


async def _why_nothing(servers: str, client: ClientConfig, topic: str) -> str:
    """Return the line about an input without a record, for which alone no topic is made."""
    from ottla.client.cluster import Cluster

    async with Cluster(servers, client) as cluster:
        response = await cluster.refresh([topic])
    missing = [found.name for found in response.topics if found.error_code == UnknownTopicOrPartition.code]
    end = f"; topic {topic!r} does not exist, and was not created" if topic in missing else ""
    return f"Produced 0 records to {topic}, for the input is empty{end}."


def _generated(
    files: tuple[IO[bytes], ...], value: str | None, key: str | None, count: int | None
) -> IO[bytes] | None:
    from ottla.producer.cli_load import GeneratedLines

    if value is None:
        if key is not None or count is not None:
            raise click.UsageError("--key-template and --count need --template")
        return None
    if files:
        raise click.UsageError("--template makes records itself: leave out the files")
    try:
        return cast("IO[bytes]", GeneratedLines(value, key, count))
    except ValueError as error:
        raise click.UsageError(f"--template: {error}") from None


def _separator(key_template: str | None) -> str | None:
    from ottla.producer.cli_load import KEY_SEPARATOR

    return None if key_template is None else KEY_SEPARATOR


class How(NamedTuple):
    """The partition and the time of all records, where they are given, and the rate."""

    partition: int | None = None
    timestamp_ms: int | None = None
    rate: float | None = None


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
    """Sends lines, each a record, and counts those that were sent.

    `split` makes keys and values of all lines of a read at once; without it lines are JSON records, each with
    a partition, a timestamp and headers of its own.
    """

    def __init__(
        self, producer: Producer, topic: str, split: Split | None, how: How, headers: Headers
    ) -> None:
        from ottla.producer.cli_load import Pace

        self.count = 0
        self._producer = producer
        self._topic = topic
        self._split = split
        self._partition = how.partition
        self._timestamp_ms = how.timestamp_ms
        self._pace = Pace(how.rate, asyncio.get_running_loop().time())
        self._partitions = Partitions(producer, topic)
        self._headers = headers
        self._underway: deque[Acknowledgements] = deque()
        self._failed: list[BaseException] = []

    async def all_of(self, files: Sequence[IO[bytes]]) -> None:
        """Send all lines of files and wait until they are acknowledged; a wrong line ends it."""
        await self._partitions.check(self._partition)
        try:
            async with Input(files, self._producer.config.max_request_size) as given:
                while not self._failed and (found := await given.next()) is not None:
                    await self._send_paced(found)
        except ValueError as error:
            await self._flush()
            sent = f"{_counted(self.count)} before it {'was' if self.count == 1 else 'were'} sent"
            raise click.ClickException(f"{error}; {sent}") from None
        await self._flush()

    async def _send_paced(self, found: Lines) -> None:
        """Send lines, in slices with pauses where there is a rate."""
        size = self._pace.slice_records or len(found.lines)
        for start in range(0, len(found.lines), size):
            part = Lines(found.file, found.first_number + start, found.lines[start : start + size])
            if self._split is None:
                await self._send_each(part)
            else:
                await self._send_many(part, self._split)
            if pause_s := self._pace.pause_s(len(part.lines), asyncio.get_running_loop().time()):
                await asyncio.sleep(pause_s)

    async def _send_many(self, found: Lines, split: Split) -> None:
        keys, values, wrong = split(found.lines)
        self._underway.append(
            await self._producer.send_many(
                self._topic,
                values,
                keys=keys,
                partition=self._partition,
                headers=self._headers,
                timestamps_ms=None if self._timestamp_ms is None else [self._timestamp_ms] * len(values),
            )
        )
        self.count += len(values)
        if wrong is not None:
            raise ValueError(f"{found.file}, line {found.first_number + len(values)}: {wrong}")
        while self._underway and self._underway[0].done():
            await self._acknowledged(self._underway.popleft())

    async def _acknowledged(self, sent: Acknowledgements) -> None:
        try:
            await sent
        except (ClientError, KafkaError) as error:
            self._failed.append(error)

    async def _send_each(self, found: Lines) -> None:
        for number, line in enumerate(found.lines, found.first_number):
            try:
                key, value, headers, partition, timestamp_ms = from_json(line)
                partition = partition if self._partition is None else self._partition
                timestamp_ms = timestamp_ms if self._timestamp_ms is None else self._timestamp_ms
                await self._partitions.check(partition)
            except ValueError as error:
                raise ValueError(f"{found.file}, line {number}: {error}") from None
            headers = [*headers, *self._headers] if headers else self._headers
            sent = await self._producer.send(
                self._topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
            sent.add_done_callback(self._finished)
            self.count += 1

    def _finished(self, sent: Acknowledgement) -> None:
        if (error := sent.exception()) is not None:
            self._failed.append(error)

    async def _flush(self) -> None:
        await self._producer.flush()
        while self._underway:
            await self._acknowledged(self._underway.popleft())
        if self._failed:
            raise self._failed[0]


def _counted(count: int) -> str:
    return f"{count} {'record' if count == 1 else 'records'}"


def _splitter(as_json: bool, separator: str | None, null: str | None) -> Split | None:
    """Return what splits lines into keys and values; None for records in JSON."""
    if as_json:
        if separator is not None or null is not None:
            raise click.UsageError("--json has keys and nulls: leave out --key-separator and --null-marker")
        return None
    if separator is None and null is None:
        return _whole_lines
    return partial(_keys_and_values, separator=_encoded(separator), null=_encoded(null))


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else unescape(text).encode()


def _whole_lines(lines: Fields) -> Records:
    return None, lines, None


def _keys_and_values(lines: Sequence[bytes], *, separator: bytes | None, null: bytes | None) -> Records:
    """Split lines into keys and values, up to the first one without a separator, which is named."""
    keys: list[bytes | None] | None = None
    values: list[bytes | None] = list(lines)
    wrong = None
    if separator is not None:
        parts = [line.partition(separator) for line in lines]
        if not all(found for _, found, _ in parts):
            at = next(at for at, (_, found, _) in enumerate(parts) if not found)
            start = lines[at][:60].decode(errors="replace")
            wrong = f"there is no key separator {separator.decode()!r} in {start!r}"
            parts = parts[:at]
        keys, values = [key for key, _, _ in parts], [value for _, _, value in parts]
    if null is not None:
        values = [None if value == null else value for value in values]
        keys = None if keys is None else [None if key == null else key for key in keys]
    return keys, values, wrong


class Lines(NamedTuple):
    """Lines of one file that were read together, without line ends."""

    file: str
    first_number: int
    lines: list[bytes]


class Input:
    """Lines of files, read ahead on a thread of its own: standard input may be slow, or a terminal.

    The thread is a daemon, and reads without Python's buffer: a read without an end does not keep the
    program from ending.
    """

    def __init__(self, files: Sequence[IO[bytes]], longest: int) -> None:
        self._chunks = chunks_of(files, longest)
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Lines | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(_AHEAD)
        self._left = False

    async def __aenter__(self) -> Self:
        threading.Thread(target=self._read, name="ottla-produce-input", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left = True
        self._room.release()

    async def next(self) -> Lines | None:
        """Return the next lines, as soon as there are some; None at the end. Raises the errors of reading."""
        found = await self._queue.get()
        self._room.release()
        if isinstance(found, Exception):
            raise found
        return found

    def _read(self) -> None:
        end: Exception | None = None
        try:
            for chunk in self._chunks:
                self._room.acquire()
                if self._left:
                    return
                self._give(chunk)
        except OSError as error:
            end = ValueError(f"the input cannot be read: {error.strerror or error}")
        except Exception as error:  # `next` raises it
            end = error
        self._give(end)

    def _give(self, found: Lines | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._queue.put_nowait, found)


def chunks_of(files: Sequence[IO[bytes]], longest: int) -> Iterator[Lines]:
    """Yield the lines of files as they become available.

    Raises ValueError for a line longer than a record can be, without reading it to its end.
    """
    for file in files:
        name, number, rest = getattr(file, "name", "input"), 1, b""
        read: Callable[[int], bytes | None] = getattr(file, "raw", file).read
        while data := read(CHUNK_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                yield Lines(name, number, [line.removesuffix(b"\r") for line in lines])
            number += len(lines)
            if len(rest) > longest:
                raise ValueError(f"{name}, line {number} is longer than a record can be, {longest} bytes")
        if rest:
            yield Lines(name, number, [rest])

"""`ottla produce`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING

import click

from ottla.client.commands import cluster_options, key_values, load_config, run

if TYPE_CHECKING:
    from ottla.producer.accumulator import Acknowledgement
    from ottla.producer.producer import Producer

CHUNK_BYTES = 64 * 1024


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.File("rb"))
@click.option("--key-separator", "-k", metavar="TEXT", help="The text between key and value in a line.")
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
    partition: int | None,
    headers: tuple[str, ...],
    acks: str,
    compression: str,
    quiet: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Write lines to a topic, one record each, from files or standard input.

    \b
    Examples:
      echo hello | ottla produce greetings
      ottla produce orders --key-separator , orders.csv
      journalctl -f -o cat | ottla produce logs --compression zstd
    """
    client = load_config(properties)
    extra = [(key, value.encode()) for key, value in key_values(headers).items()]
    separator = key_separator.encode() if key_separator is not None else None

    async def call() -> int:
        from ottla.producer import Producer, ProducerConfig

        config = ProducerConfig(
            acks=-1 if acks == "all" else (0 if acks == "0" else 1),
            compression_type=compression,  # type: ignore[arg-type]
            client=client,
        )
        async with Producer(bootstrap_server, config) as producer:
            return await _send_lines(producer, topic, files, separator, partition, extra)

    count = run(call)
    if not quiet:
        click.echo(f"Produced {count} {'record' if count == 1 else 'records'} to {topic}.")


async def _send_lines(
    producer: Producer,
    topic: str,
    files: tuple[IO[bytes], ...],
    separator: bytes | None,
    partition: int | None,
    headers: list[tuple[str, bytes]],
) -> int:
    import asyncio

    # The producer would wait for an unknown partition, which may still be created, until its own timeout.
    if partition is not None and partition not in (there := await producer.partitions_for(topic)):
        raise ValueError(f"topic {topic!r} has no partition {partition}, only 0 to {max(there)}")
    failed: list[BaseException] = []

    def finished(sent: Acknowledgement) -> None:
        if (error := sent.exception()) is not None:
            failed.append(error)

    count = 0
    chunks = _chunks(files or (sys.stdin.buffer,), producer.config.max_request_size)
    # Standard input may be slow: it is read on a thread, and the lines read so far are sent meanwhile.
    loop = asyncio.get_running_loop()
    while (lines := await loop.run_in_executor(None, _next, chunks)) is not None and not failed:
        for line in lines:
            key, value = _split(line, separator)
            sent = await producer.send(topic, value, key=key, partition=partition, headers=headers)
            sent.add_done_callback(finished)
        count += len(lines)
    await producer.flush()
    if failed:
        raise failed[0]
    return count


def _next(chunks: Iterator[list[bytes]]) -> list[bytes] | None:
    return next(chunks, None)


def _chunks(files: tuple[IO[bytes], ...], longest: int) -> Iterator[list[bytes]]:
    """Yield the lines of files as they become available, without line ends.

    Raises ValueError for a line longer than a record can be, without reading it to its end.
    """
    for file in files:
        rest = b""
        read: Callable[[int], bytes] = getattr(file, "read1", file.read)
        while data := read(CHUNK_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            yield [line.removesuffix(b"\r") for line in lines]
            if len(rest) > longest:
                raise ValueError(f"a line is longer than a record can be, {longest} bytes")
        if rest:
            yield [rest]


def _split(line: bytes, separator: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line
    key, found, value = line.partition(separator)
    if not found:
        raise ValueError(
            f"a line has no key separator {separator.decode()!r}: {line[:60].decode(errors='replace')}"
        )
    return key, value

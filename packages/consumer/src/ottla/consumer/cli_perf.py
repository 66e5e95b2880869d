"""`ottla perf consume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.client.commands import cluster_options, load_config, run
from ottla.client.commands.completion import complete_topics
from ottla.client.environment import monotonic_s, now_ms

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig

_IDLE_MS = 10_000


class Measured(NamedTuple):
    """Records and bytes that were read, in how many seconds, and how old each record of a live read was."""

    records: int
    size: int
    seconds: float
    ages_ms: list[float]


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--count", "-n", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--live", is_flag=True, help="Read new records, and measure how old each is when it arrives.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def consume(
    topic: str, count: int, live: bool, as_json: bool, bootstrap_server: str, properties: str | None
) -> None:
    """Read records from the first on, and print the rate.

    Reading ends early after ten seconds without any record.

    With --live, the latency is from a record's timestamp to its arrival: run `ottla perf produce --rate`
    beside it on the same machine, as both read its clock.

    \b
    Examples:
      ottla perf consume load --count 1000000
      ottla perf consume load --live --count 10000 --json
    """
    from ottla.client.commands.perf import report

    client = load_config(properties)
    found = run(lambda: _measure(bootstrap_server, client, topic, count, live))
    report("read", found.records, found.size, found.seconds, found.ages_ms, as_json=as_json)


async def _measure(servers: str, client: ClientConfig, topic: str, count: int, live: bool) -> Measured:
    from ottla.consumer import Consumer, ConsumerConfig

    config = ConsumerConfig(
        client=client, enable_auto_commit=False, allow_auto_create_topics=False,
        auto_offset_reset="latest" if live else "earliest",
    )  # fmt: skip
    read = size = 0
    ages_ms: list[float] = []
    async with Consumer(topic, bootstrap_servers=servers, config=config) as consumer:
        began_s = ended_s = monotonic_s()
        while read < count:
            found = await consumer.getmany(timeout_ms=_IDLE_MS, max_records=count - read)
            if not found:
                break
            at_ms, ended_s = now_ms(), monotonic_s()
            for records in found.values():
                if not read:
                    began_s = began_s if not live else ended_s
                read += len(records)
                size += sum(len(record.value or b"") + len(record.key or b"") for record in records)
                if live:
                    ages_ms += [at_ms - record.timestamp_ms for record in records]
    return Measured(read, size, ended_s - began_s, ages_ms)

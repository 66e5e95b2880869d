"""Load for `ottla produce` and `ottla perf produce`: lines made of a template, at a rate."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from ottla.client.commands import cluster_options, load_config, run
from ottla.client.commands.completion import complete_topics
from ottla.client.environment import chance, monotonic_s, now_ms, unique_suffix

if TYPE_CHECKING:
    from ottla.client.config import ClientConfig

KEY_SEPARATOR: Final = "\x1f"
_FIELD: Final = re.compile(r"\{\{\s*(\w+)(?::([^{}]*))?\s*\}\}")
_RANGE: Final = re.compile(r"(-?\d+)-(-?\d+)")
_SLICES_PER_S: Final = 20

Make = Callable[[int], str]


def template(text: str) -> Make:
    """Return a function that makes the n-th text of a template. Raises ValueError for an unknown field.

    Fields are `{{n}}`, `{{random:1-100}}`, `{{choice:a|b|c}}`, `{{hex}}`, `{{now}}` and `{{now_ms}}`.
    """
    parts: list[Make] = []
    at = 0
    for found in _FIELD.finditer(text):
        parts += [_literal(text[at : found.start()]), _field(found[1], found[2])]
        at = found.end()
    parts.append(_literal(text[at:]))
    return lambda number: "".join(part(number) for part in parts)


def _literal(text: str) -> Make:
    return lambda _: text


def _field(name: str, argument: str | None) -> Make:
    match name, argument:
        case "n", None:
            return str
        case "hex", None:
            return lambda _: unique_suffix()
        case "now", None:
            return lambda _: datetime.fromtimestamp(now_ms() / 1_000, UTC).isoformat(timespec="milliseconds")
        case "now_ms", None:
            return lambda _: str(now_ms())
        case "random", str(text) if (found := _RANGE.fullmatch(text)) is not None:
            low, high = int(found[1]), int(found[2])
            return lambda _: str(low + int(chance() * (high - low + 1)))
        case "choice", str(text) if text:
            choices = text.split("|")
            return lambda _: choices[int(chance() * len(choices))]
    raise ValueError(
        f"{{{{{name}{'' if argument is None else ':' + argument}}}}} is no field of a template: n, hex, now, "
        f"now_ms, random:1-100, choice:a|b|c"
    )


class GeneratedLines:
    """A file of lines that are made when they are read: `count` of them, or without an end."""

    name = "the template"

    def __init__(self, value: str, key: str | None, count: int | None) -> None:
        if "\n" in value or "\n" in (key or ""):
            raise ValueError("a template is one line")
        self._value = template(value)
        self._key = None if key is None else template(key)
        self._count = count
        self._made = 0

    def read(self, size: int) -> bytes:
        """Return whole lines of about so many bytes; none after the last."""
        lines: list[str] = []
        length = 0
        while length < size and self._made != self._count:
            key = "" if self._key is None else self._key(self._made) + KEY_SEPARATOR
            lines.append(f"{key}{self._value(self._made)}\n")
            length += len(lines[-1])
            self._made += 1
        return "".join(lines).encode()


class Pace:
    """A rate in records per second; None is as fast as it goes."""

    def __init__(self, rate: float | None, now_s: float) -> None:
        self._rate = rate
        self._began_s = now_s
        self._count = 0

    @property
    def slice_records(self) -> int | None:
        """The records to send before the next pause."""
        return None if self._rate is None else max(1, int(self._rate / _SLICES_PER_S))

    def pause_s(self, sent: int, now_s: float) -> float:
        """Count records that were sent; return the seconds until the next is due."""
        self._count += sent
        if self._rate is None:
            return 0.0
        return max(0.0, self._began_s + self._count / self._rate - now_s)


@click.command(name="produce")
@click.argument("topic", shell_complete=complete_topics)
@click.option("--count", "-n", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--size", type=click.IntRange(1), default=100, show_default=True, help="Bytes of a value.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Records per second; else all at once.")
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option(
    "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none",
    show_default=True,
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def perf_produce(
    topic: str,
    count: int,
    size: int,
    rate: float | None,
    acks: str,
    compression: str,
    as_json: bool,
    bootstrap_server: str,
    properties: str | None,
) -> None:
    """Write records of random text; print rate and latency.

    The latency is the time to the acknowledgement, by percentiles.

    Without --rate the buffer is kept full, and the latency is that of waiting in it.

    \b
    Examples:
      ottla perf produce load --count 1000000
      ottla perf produce load --rate 5000 --size 1000 --json
    """
    from ottla.client.commands.perf import report

    client = load_config(properties)
    seconds, latencies_ms = run(
        lambda: _measure(bootstrap_server, client, topic, count, size, rate, acks, compression)
    )
    report("wrote", count, count * size, seconds, latencies_ms, as_json=as_json)


async def _measure(
    servers: str, client: ClientConfig, topic: str, count: int, size: int, rate: float | None, acks: str,
    compression: str,
) -> tuple[float, list[float]]:  # fmt: skip
    import asyncio

    from ottla.producer import Producer, ProducerConfig

    config = ProducerConfig(
        acks=-1 if acks == "all" else int(acks), compression_type=compression, client=client  # type: ignore[arg-type]
    )  # fmt: skip
    text = (unique_suffix() * (size // 8 + 2)).encode()
    latencies_ms: list[float] = []

    def acknowledged(sent_s: float, _: object) -> None:
        latencies_ms.append((monotonic_s() - sent_s) * 1_000)

    async with Producer(servers, config) as producer:
        await producer.partitions_for(topic)
        began_s = monotonic_s()
        pace = Pace(rate, began_s)
        for number in range(count):
            sent_s = monotonic_s()
            sent = await producer.send(topic, text[number % 8 : number % 8 + size])
            sent.add_done_callback(partial(acknowledged, sent_s))
            if pause_s := pace.pause_s(1, sent_s):
                await asyncio.sleep(pause_s)
        await producer.flush()
        await sent  # raises what the last record failed with
        return monotonic_s() - began_s, latencies_ms

"""Shared parts of the commands: options, running a coroutine, one-line errors, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.client.commands.printable import printable, shortened

if TYPE_CHECKING:
    from ottla.client.admin import Admin
    from ottla.client.config import ClientConfig
    from ottla.protocol.topics import TopicPartition

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
BOOTSTRAP_TIMEOUT_MS = 3_000


def cluster_options(command: F) -> F:
    """Add the options of a command that connects to a cluster."""
    for option in (
        click.option(
            "--command-config",
            "properties",
            type=click.Path(exists=True, dir_okay=False),
            help="A properties file with security and timeouts (security.protocol, sasl.username, ...).",
        ),
        click.option(
            "--bootstrap-server",
            "-b",
            metavar="HOST:PORT",
            envvar="OTTLA_BOOTSTRAP_SERVER",
            default=DEFAULT_BOOTSTRAP,
            show_default=True,
            show_envvar=True,
            help="A broker of the cluster, or several separated by commas.",
        ),
    ):
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Add the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(command)


class Count(click.IntRange):
    """A whole number of at least `min`. Errors and the help say "number", not click's "integer range"."""

    name = "number"


def load_config(properties: str | None) -> ClientConfig:
    """Read a properties file with Kafka's dotted names; an unknown name is a usage error."""
    from dataclasses import replace

    from ottla.client.config import ClientConfig
    from ottla.client.settings import from_properties

    try:
        config = ClientConfig() if properties is None else from_properties(ClientConfig, properties)
        # The user waits at a terminal: fail soon when no broker can be reached.
        return replace(config, bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS)
    except (ValueError, OSError) as error:
        raise click.UsageError(f"{properties}: {error}") from None


def run(call: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine; errors of brokers and networks become a one-line message."""
    import asyncio

    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError

    async def main() -> T:
        return await call()

    try:
        return asyncio.run(main())
    except (ClientError, KafkaError) as error:
        raise click.ClickException(_one_line(error)) from None
    except ValueError as error:  # malformed addresses and names
        raise click.UsageError(str(error)) from None


def with_admin(bootstrap: str, properties: str | None, use: Callable[[Admin], Awaitable[T]]) -> T:
    """Connect an admin client, call `use` with it, disconnect."""
    config = load_config(properties)

    async def call() -> T:
        from ottla.client.admin import Admin

        async with Admin(bootstrap, config) as admin:
            return await use(admin)

    return run(call)


def _one_line(error: Exception) -> str:
    from ottla.client.errors import NO_TLS_THERE, DeadlineExceeded, NoBrokerAvailable

    text = " ".join(str(error).split())
    cause = error.__cause__ if isinstance(error, DeadlineExceeded) else error
    if isinstance(cause, NoBrokerAvailable):
        if NO_TLS_THERE in str(cause):  # something listens there
            return str(cause)
        return f"{cause}. Is a broker running there? Name one with --bootstrap-server HOST:PORT."
    return text


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    as_json: bool,
    max_cell_length: int | None = None,
) -> None:
    """Print rows under upper-case column names, or as a JSON list of objects with snake-case keys.

    A table has escapes for control characters, and cuts cells that are longer than `max_cell_length`.
    """
    if as_json:
        show_json(records(columns, rows))
        return
    cells = [
        [column.upper() for column in columns],
        *([_shown(_cell(value), max_cell_length) for value in row] for row in rows),
    ]
    numeric = [all(_is_number(row[i]) or row[i] is None for row in rows) for i in range(len(columns))]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        click.echo("  ".join(aligned).rstrip())


def records(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    """Turn rows into JSON objects with snake-case keys."""
    keys = [column.replace(" ", "_") for column in columns]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def show_json(value: object) -> None:
    """Print indented JSON."""
    click.echo(json.dumps(value, indent=2, default=str))


def _shown(cell: str, max_length: int | None) -> str:
    return printable(cell) if max_length is None else shortened(cell, max_length)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def read_time(text: str) -> int:
    """Read an ISO time and return its timestamp in ms; local time unless it says otherwise."""
    from datetime import datetime

    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a time like 2026-01-31T08:00:00Z") from None


def key_values(pairs: Sequence[str]) -> dict[str, str]:
    """Read KEY=VALUE arguments."""
    parted = [pair.partition("=") for pair in pairs]
    for pair, (key, separator, _) in zip(pairs, parted, strict=True):
        if not key or not separator:
            raise click.UsageError(f"{pair!r} must be KEY=VALUE")
    return {key: value for key, _, value in parted}


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit()


def check_partition(text: str) -> None:
    """Check that an argument names one partition, TOPIC:PARTITION. Raises click.UsageError."""
    topic, _, index = text.partition(":")
    if not topic or not _is_index(index):
        raise click.UsageError(f"{text!r} must be TOPIC:PARTITION")


async def named_partitions(admin: Admin, topics: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions that TOPIC and TOPIC:PARTITION name. Raises NoSuchTopic or ValueError."""
    from ottla.protocol.topics import TopicPartition

    wanted: list[TopicPartition] = []
    for text in topics:
        topic, colon, index = text.partition(":")
        if not topic or (colon and not _is_index(index)):
            raise ValueError(f"{text!r} must be TOPIC or TOPIC:PARTITION")
        known = (await admin.topics.describe(topic)).partitions
        if index and int(index) not in known:
            raise ValueError(f"topic {topic!r} has no partition {index}, only 0 to {max(known)}")
        wanted += [TopicPartition(topic, each) for each in ([int(index)] if index else sorted(known))]
    return wanted

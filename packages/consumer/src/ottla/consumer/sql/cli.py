"""The command `ottla sql`."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import click

from ottla.client.commands import cluster_options, key_values, load_config, one_line, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ottla.consumer.sql.columns import Decode
    from ottla.consumer.sql.session import Topics, Window

_M_ARENA_MAX = -8
_FORMATS = ("table", "csv", "json", "parquet")


@click.command()
@click.argument("query")
@click.option(
    "--output",
    "-o",
    type=click.Choice(_FORMATS),
    help="How rows are printed. Default: table, or as --to ends.",
)
@click.option("--to", "path", type=click.Path(dir_okay=False), help="Write the rows to this file.")
@click.option("--schema", "schema_only", is_flag=True, help="Show the columns of the topics; read no more.")
@click.option("--follow", is_flag=True, help="Run the query for new records, window after window.")
@click.option(
    "--every", metavar="TIME", default="10s", show_default=True, help="With --follow: how long a window is."
)
@click.option("--windows", type=click.IntRange(1), help="With --follow: stop after this number of windows.")
@click.option(
    "--sample", type=click.IntRange(1), default=2_000, show_default=True,
    help="The records of a topic in which fields are looked for.",
)  # fmt: skip
@click.option("--lenient", is_flag=True, help="Values that do not fit the sample are NULL, and no errors.")
@click.option(
    "--values", metavar="TOPIC=FORMAT", multiple=True,
    help="The values of a topic are json, msgpack, avro, text or bytes; else the sample decides. Repeatable.",
)  # fmt: skip
@click.option("--registry", metavar="URL", help="The schema registry of values in Avro.")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="Whether to read records of transactions before they are committed.",
)
@click.option("--allow-files", is_flag=True, help="The query may read files, and load DuckDB's extensions.")
@click.option("--memory", metavar="SIZE", default="64MB", show_default=True, help="DuckDB's share of memory.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True,
    help="DuckDB's threads, beside that which reads.",
)  # fmt: skip
@cluster_options
def sql(
    query: str,
    output: str | None,
    path: str | None,
    schema_only: bool,
    follow: bool,
    every: str,
    windows: int | None,
    values: tuple[str, ...],
    registry: str | None,
    bootstrap_server: str,
    properties: str | None,
    **options: Any,
) -> None:
    """Query topics with SQL: each is a table of DuckDB, with a column for each field of its values.

    \b
    Examples:
      ottla sql "SELECT origin, count(*) FROM flights WHERE timestamp > now() - INTERVAL 1 HOUR GROUP BY 1"
      ottla sql --schema flights
      ottla sql 'SELECT * FROM orders JOIN "my-customers" USING (customer_id)' --to joined.parquet
      ottla sql "SELECT count(*) FROM orders WHERE amount > 100" --follow --every 5s
    """
    chosen = output or _format_of(path)
    if chosen == "parquet" and (path is None or follow):
        raise click.UsageError("parquet needs --to FILE, and no --follow")
    if query.replace("-", "_").replace(".", "_").isidentifier():
        query = f'FROM "{query}"'
    # pyarrow imports numpy and pandas wherever they are installed: 55 MB and a second, for nothing here.
    for unused in ("numpy", "pandas"):
        sys.modules.setdefault(unused, None)  # type: ignore[arg-type]
    _keep_memory_together()
    with _one_line_errors(), ExitStack() as resources:
        from ottla.client.times import duration_s
        from ottla.consumer.sql import Topics

        topics = resources.enter_context(
            Topics(
                bootstrap_server, load_config(properties), values=key_values(values),
                decode=_decode(registry, resources), **options,
            )
        )  # fmt: skip
        if schema_only:
            show(("topic", "values", "column", "type"), topics.columns(query), as_json=chosen == "json")
        else:
            out = sys.stdout.buffer if path is None else resources.enter_context(_opened(path))
            if follow:
                _follow(topics.windows(query, duration_s(every)), chosen, out, windows)
            else:
                _print(topics, query, chosen, out)


def _decode(registry: str | None, resources: ExitStack) -> Decode | None:
    if registry is None:
        return None
    from ottla.consumer.sql.registry_values import registry_values

    return resources.enter_context(registry_values(registry))


def _keep_memory_together() -> None:
    """Keep glibc from a heap for each thread: buffers pass from one thread to another."""
    import ctypes

    with suppress(OSError, AttributeError, TypeError):  # another C library, or Windows
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _print(topics: Topics, query: str, chosen: str, out: IO[bytes]) -> None:
    from ottla.consumer.sql.output import WRITERS

    result = topics.query(query)
    count = WRITERS[chosen](result.schema, result.batches(), out)
    out.flush()
    if not count and chosen == "table":
        click.echo("No rows.", err=True)


def _follow(windows: Iterator[Window], chosen: str, out: IO[bytes], limit: int | None) -> None:
    """Print the rows of each window; those of CSV and JSON begin with its start and end."""
    from ottla.consumer.sql.output import WRITERS, write_csv
    from ottla.consumer.sql.session import with_times

    for number, window in enumerate(windows, 1):
        if chosen == "table":
            out.write(f"-- {window.start:%Y-%m-%dT%H:%M:%SZ} to {window.end:%H:%M:%SZ}\n".encode())
            WRITERS[chosen](window.result.schema, window.result.batches(), out)
        else:
            schema, batches = with_times(window)
            if chosen == "csv":
                write_csv(schema, batches, out, header=number == 1)
            else:
                WRITERS[chosen](schema, batches, out)
        out.flush()
        if number == limit:
            return


def _format_of(path: str | None) -> str:
    ending = "" if path is None else path.rpartition(".")[2].lower()
    return {"csv": "csv", "json": "json", "jsonl": "json", "parquet": "parquet"}.get(ending, "table")


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    try:
        file = open(path, "wb")  # noqa: SIM115
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written: {error.strerror}") from None
    with file:
        yield file


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from ottla.client.errors import ClientError
    from ottla.protocol.errors import KafkaError

    try:
        yield
    except (ClientError, KafkaError) as error:
        raise click.ClickException(one_line(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None

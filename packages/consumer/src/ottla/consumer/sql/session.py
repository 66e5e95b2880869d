"""Queries over topics: a table for each topic that a query names; results as Arrow, Polars or pandas."""

from __future__ import annotations

import difflib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

import duckdb
import pyarrow as pa

from ottla.client.cluster import NoSuchTopic
from ottla.client.config import ClientConfig
from ottla.client.environment import now_ms
from ottla.client.times import time_ms
from ottla.consumer.config import ConsumerConfig, IsolationLevel
from ottla.consumer.sql.columns import (
    FORMATS,
    Decode,
    TableColumns,
    identifier,
    infer_columns,
)
from ottla.consumer.sql.errors import QueryFailed, query_failed
from ottla.consumer.sql.scanning import OffsetReader, TopicDataset, reading_config
from ottla.consumer.sync import SyncConsumer
from ottla.protocol.errors import InvalidTopicException
from ottla.protocol.topics import TopicPartition

SAMPLE: Final = 2_000
"""The records of a topic whose values are looked at for their fields."""
MEMORY: Final = "64MB"
BATCH_ROWS: Final = 4_096
_FLUSHED: Final = "2MB"

Wait = Callable[[float], object]


@dataclass(frozen=True, slots=True)
class Options:
    """How topics become tables, and what a query may use."""

    sample: int = SAMPLE
    lenient: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    decode: Decode | None = None
    allow_files: bool = False
    memory: str = MEMORY
    threads: int = 1


class Topics:
    """Topics as tables of a DuckDB in memory, each from the first query that names it on.

        with Topics("127.0.0.1:9092") as topics:
            print(topics.query("SELECT origin, count(*) FROM flights GROUP BY 1").to_pandas())

    A query sees the records that are there when it starts. `values` has the format of topics whose sample is
    misleading: json, msgpack, avro, text or bytes. `decode` reads values of a schema registry. With
    `lenient`, values that do not fit the sample are NULL and no errors. Queries read no files, and load no
    extensions, unless `allow_files`. DuckDB works on `threads` beside that of the consumer, each with buffers
    of its own, and may take `memory`. Raises SqlMissing without DuckDB, pyarrow or msgspec.
    """

    def __init__(
        self,
        bootstrap_servers: str = "127.0.0.1:9092",
        config: ClientConfig | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        **options: Any,
    ) -> None:
        client = config or ClientConfig()
        self._config = reading_config(
            ConsumerConfig(
                client=replace(client, bootstrap_servers=bootstrap_servers), isolation_level=isolation_level
            )
        )
        self._options = Options(**options)
        if unknown := set(self._options.values.values()) - set(FORMATS):
            raise ValueError(f"values are {', '.join(FORMATS)}, not {', '.join(sorted(unknown))}")
        self._tables: dict[str, TopicDataset] = {}
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._catalog = opened.enter_context(SyncConsumer(config=self._config))
            self._duckdb = opened.enter_context(_connect(self._options))
            self._resources = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def query(self, sql: str) -> Result:
        """Start a query. Raises QueryFailed, NoSuchTopic and errors of brokers, here or while it is read."""
        used = self.tables(sql)
        for topic, table in used.items():
            table.available = self.offsets(topic)
        return self._execute(sql, list(used.values()))

    def tables(self, sql: str) -> dict[str, TopicDataset]:
        """Return the topics that a query names, each made a table. Raises QueryFailed, NoSuchTopic."""
        names, ctes = _named_tables(self._duckdb, sql)
        return {
            topic: self._table(topic, schema, table)
            for (schema, table), topic in names.items()
            if not (topic in ctes and topic not in self._tables and self._partitions(topic) is None)
            and not (self._options.allow_files and self._partitions(topic) is None)
        }

    def columns(self, sql: str) -> list[tuple[str, str, str, str]]:
        """Return topic, format of values, column and type of each column of the topics of a query."""
        found: list[tuple[str, str, str, str]] = []
        for topic, table in self.tables(sql).items():
            view = self._duckdb.sql(f"DESCRIBE {table.columns.select(_source(topic), lenient=False)}")
            found += [(topic, table.columns.value_format, name, kind) for name, kind, *_ in view.fetchall()]
        return found

    def windows(self, sql: str, every_s: float, *, wait: Wait | None = None) -> Iterator[Window]:
        """Run a query for the records of each window of time that ends from now on, without an end.

        A window holds the records that were appended while it lasted, by their arrival and not by their
        timestamps: each record is in exactly one, however late it is.
        """
        used = self.tables(sql)
        starts = {topic: self.offsets(topic) for topic in used}
        began_ms = now_ms()
        pause = wait or threading.Event().wait
        while True:
            pause(every_s)
            ended_ms = now_ms()
            for topic, table in used.items():
                now = self.offsets(topic)
                table.available = {
                    partition: _added(starts[topic].get(partition), span) for partition, span in now.items()
                }
                starts[topic] = now
            yield Window(_utc(began_ms), _utc(ended_ms), self._execute(sql, list(used.values())))
            began_ms = ended_ms

    def offsets(self, topic: str) -> dict[int, range]:
        """Return the offsets that a topic has now, by partition. Raises NoSuchTopic."""
        numbers = self._partitions(topic)
        if numbers is None:
            raise NoSuchTopic(topic)
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        firsts = self._catalog.beginning_offsets(partitions)
        ends = self._catalog.end_offsets(partitions)
        return {found.partition: range(firsts[found], ends[found]) for found in partitions}

    def _partitions(self, topic: str) -> set[int] | None:
        try:
            return self._catalog.partitions_for_topic(topic)
        except InvalidTopicException:  # a name that no topic can have
            return None

    def _execute(self, sql: str, used: Sequence[TopicDataset]) -> Result:
        for table in used:
            table.begin()
        with _one_line_errors(sql, used):
            reader = self._duckdb.sql(sql).to_arrow_reader(BATCH_ROWS)
        return Result(reader, sql, used)

    def _table(self, topic: str, schema: str, table: str) -> TopicDataset:
        if (there := self._tables.get(topic)) is not None:
            return there
        if self._partitions(topic) is None:
            near = difflib.get_close_matches(topic, self._catalog.topics(), 1)
            raise QueryFailed(
                f"there is no topic {topic!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        dataset = TopicDataset(self._columns(topic), self._config, self._offsets_at, self._options.decode)
        self._duckdb.register(_source(topic), dataset)
        if schema:
            self._duckdb.execute(f"CREATE SCHEMA IF NOT EXISTS {identifier(schema)}").fetchall()
        name = f"{identifier(schema)}.{identifier(table)}" if schema else identifier(table)
        view = dataset.columns.select(_source(topic), lenient=self._options.lenient)
        self._duckdb.execute(f"CREATE OR REPLACE VIEW {name} AS {view}").fetchall()
        self._tables[topic] = dataset
        return dataset

    def _columns(self, topic: str) -> TableColumns:
        """Infer the columns of a topic from its first and its last records."""
        available = self.offsets(topic)
        share = max(1, self._options.sample // (2 * max(1, len(available))))
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        for ends in (
            {
                number: range(span.start, min(span.start + share, span.stop))
                for number, span in available.items()
            },
            {
                number: range(max(span.start + share, span.stop - share), span.stop)
                for number, span in available.items()
            },
        ):
            for batch in OffsetReader(topic, self._config).batches(ends, ["key", "value"]):
                keys += batch["key"].to_pylist()
                values += batch["value"].to_pylist()
        return infer_columns(topic, keys, values, self._options.values.get(topic), self._options.decode)

    def _offsets_at(self, topic: str, at_ms: int, offsets: Mapping[int, range]) -> dict[int, int]:
        wanted = {TopicPartition(topic, number): at_ms for number in offsets}
        found = self._catalog.offsets_for_times(wanted)
        return {
            partition.partition: offsets[partition.partition].stop
            if (at := found.get(partition)) is None
            else at.offset
            for partition in wanted
        }


@dataclass
class Result:
    """The rows of a query, read once: as Arrow batches while they come, or whole."""

    _reader: pa.RecordBatchReader
    _sql: str
    _used: Sequence[TopicDataset]

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as they are found. Raises QueryFailed, and errors of brokers."""
        with _one_line_errors(self._sql, self._used):
            yield from self._reader

    def to_arrow(self) -> pa.Table:
        """Return the rows as a `pyarrow.Table`."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame`."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a `polars.DataFrame`. Raises QueryFailed without Polars."""
        try:
            import polars
        except ImportError as error:
            raise QueryFailed("to_polars needs Polars: pip install polars") from error
        return polars.from_arrow(self.to_arrow())


@dataclass(frozen=True, slots=True)
class Window:
    """The result of a query over the records that arrived between two times."""

    start: datetime
    end: datetime
    result: Result


def read_table(
    topic: str,
    bootstrap_servers: str = "127.0.0.1:9092",
    *,
    start: str | datetime | None = None,
    end: str | datetime | None = None,
    columns: Sequence[str] = (),
    config: ClientConfig | None = None,
    **options: Any,
) -> Result:
    """Return the records of a topic with timestamps from `start` on and before `end`, as columns.

        read_table("flights", start="-1h").to_polars()

    Times are datetimes, ISO texts, or relative: `-1h`, `30m`, `yesterday`. `columns` selects some; all are
    topic, partition, offset, timestamp, key, value, headers and the fields of values, as `ottla sql --schema`
    shows them. Rows with both are in the order of partition and offset. Options are those of `Topics`. Raises
    as `Topics.query`.
    """
    bounds = [
        f"timestamp {sign} make_timestamptz({time_ms(at) * 1_000})"
        for sign, at in ((">=", start), ("<", end))
        if at is not None
    ]
    chosen = ", ".join(map(identifier, columns)) or "*"
    where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
    with Topics(bootstrap_servers, config, **options) as topics:
        table = topics.query(f"SELECT {chosen} FROM {identifier(topic)}{where}").to_arrow()
    order = [(name, "ascending") for name in ("partition", "offset") if name in table.column_names]
    return Result((table.sort_by(order) if len(order) == 2 else table).to_reader(), topic, ())


@contextmanager
def _connect(options: Options) -> Iterator[Any]:
    """Open a DuckDB that queries cannot leave."""
    opened = str(options.allow_files).lower()
    settings: dict[str, Any] = {
        "memory_limit": options.memory,
        "threads": options.threads,
        # Buffers of megabytes go back when they are free, and not when there are 128 MB of them.
        "allocator_flush_threshold": _FLUSHED,
        "allocator_bulk_deallocation_flush_threshold": _FLUSHED,
        "autoload_known_extensions": opened,
        "autoinstall_known_extensions": opened,
        "enable_external_access": opened,
        "preserve_insertion_order": "false",
    }
    try:
        connection = duckdb.connect(config=settings)
    except duckdb.Error as error:
        raise query_failed(str(error), "") from None
    with connection:
        connection.execute("SET enable_progress_bar = false").fetchall()
        connection.execute("SET lock_configuration = true").fetchall()
        yield connection


def _named_tables(connection: Any, sql: str) -> tuple[dict[tuple[str, str], str], set[str]]:
    """Return the tables of a query with the topics they stand for, and the names that it defines itself."""
    with _one_line_errors(sql, ()):  # a result that is not read yet, for instance
        ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        if tree["error_type"] == "not implemented":
            raise QueryFailed("a query is one SELECT: topics are read, and not written")
        raise query_failed(tree["error_message"], sql)
    if len(tree["statements"]) != 1:
        raise QueryFailed("give one statement at a time")
    tables: dict[tuple[str, str], str] = {}
    ctes: set[str] = set()
    for node in _nodes(tree):
        ctes |= {entry["key"] for entry in node.get("cte_map", {}).get("map", ())}
        if node.get("type") == "BASE_TABLE":
            schema, table = node.get("schema_name", ""), node["table_name"]
            if catalog := node.get("catalog_name"):
                raise QueryFailed(f'write the topic in quotes: "{catalog}.{schema}.{table}"')
            tables[schema, table] = f"{schema}.{table}" if schema else table
    return tables, ctes


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


@contextmanager
def _one_line_errors(sql: str, used: Sequence[TopicDataset]) -> Iterator[None]:
    """Raise what a scan failed with, and errors of DuckDB as QueryFailed."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        for table in used:
            if table.failure is not None:
                raise table.failure from None
        raise query_failed(str(error), sql) from None


def _added(before: range | None, now: range) -> range:
    """Return the offsets that were added: all of a partition that is new, or was created once more."""
    if before is None or now.stop < before.stop:
        return now
    return range(max(before.stop, now.start), now.stop)


def _source(topic: str) -> str:
    return f"records of {topic}"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)


def with_times(window: Window) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the rows of a window with its start and its end before them."""
    times = [("window_start", window.start), ("window_end", window.end)]
    kind = pa.timestamp("ms", "UTC")
    schema = pa.schema([*(pa.field(name, kind) for name, _ in times), *window.result.schema])

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in window.result.batches():
            own = [pa.array([time] * batch.num_rows, kind) for _, time in times]
            yield pa.RecordBatch.from_arrays([*own, *batch.columns], schema=schema)

    return schema, batches()

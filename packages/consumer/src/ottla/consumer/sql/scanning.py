"""A topic as a dataset that DuckDB scans: its filter becomes offsets, its columns those that are fetched.

DuckDB takes any subclass of `pyarrow.dataset.Dataset`, asks it for a `scanner` with the columns and the
filter that a query needs, and reads the batches on its own threads, each when it is wanted: a topic of any
size goes through in a few megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ottla.client.environment import monotonic_s
from ottla.consumer.config import ConsumerConfig
from ottla.consumer.sql.columns import DOCUMENT, Decode, TableColumns, as_document
from ottla.consumer.sql.errors import QueryFailed
from ottla.consumer.sql.ranges import beyond, earliest_ms, names_in, wanted_offsets
from ottla.consumer.sync import SyncConsumer
from ottla.protocol.topics import TopicPartition

BATCH_BYTES: Final = 512 * 1024
STEP_BYTES: Final = 128 * 1024
"""The bytes of rows that DuckDB works on at once: it takes four times as many for each field of them."""
BUFFERED_BYTES: Final = 2 * 1024 * 1024
FIRST_RECORDS: Final = 500
"""The records of a reader's first batch: their size decides how many the next ones have."""
STALL_S: Final = 60.0
_POLL_MS: Final = 1_000

OffsetsAt = Callable[[str, int, Mapping[int, range]], dict[int, int]]
"""The first offsets at or after a time in ms, by partition; the end where there is none."""


def reading_config(config: ConsumerConfig) -> ConsumerConfig:
    """Return the settings of a consumer that reads for a query: no group, and bounded buffers."""
    return replace(
        config,
        group_id=None,
        enable_auto_commit=False,
        allow_auto_create_topics=False,
        auto_offset_reset="earliest",
        fetch_max_bytes=min(config.fetch_max_bytes, BUFFERED_BYTES),
        max_partition_fetch_bytes=min(config.max_partition_fetch_bytes, BATCH_BYTES),
    )


@dataclass
class OffsetReader:
    """Reads ranges of offsets of one topic as Arrow batches, up to their ends and no further."""

    topic: str
    config: ConsumerConfig
    rows_read: int = 0
    most_records: int = FIRST_RECORDS

    def batches(self, offsets: Mapping[int, range], columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches with partition, offset and other columns, in the order of each partition."""
        until = {TopicPartition(self.topic, number): span.stop for number, span in offsets.items() if span}
        if not until:
            return
        ends = beyond({partition.partition: end for partition, end in until.items()})
        fetched = {"partition", "offset", *columns}
        with SyncConsumer(config=self.config) as consumer:
            consumer.assign(until)
            for partition in until:
                consumer.seek(partition, offsets[partition.partition].start)
            while (batch := self._next(consumer, until, fetched)) is not None:
                inside = pc.less(batch["offset"], pc.take(ends, batch["partition"]))
                if not pc.all(inside).as_py():
                    consumer.pause(*(tp for tp, end in until.items() if consumer.position(tp) >= end))
                    batch = batch.filter(inside)
                self.rows_read += batch.num_rows
                # Bounds of a fetch are those of compressed bytes, which may become thirty times as many.
                self.most_records = max(FIRST_RECORDS, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes))
                if batch.num_rows:
                    yield batch

    def _next(
        self, consumer: SyncConsumer, until: Mapping[TopicPartition, int], columns: set[str]
    ) -> pa.RecordBatch | None:
        """Return the next batch; None once all is read. Raises QueryFailed after a minute without any."""
        deadline_s = monotonic_s() + STALL_S
        while monotonic_s() < deadline_s:
            batch = consumer.fetch_arrow(
                timeout_ms=_POLL_MS, max_bytes=BATCH_BYTES, max_records=self.most_records, columns=columns,
                until=until,
            )  # fmt: skip
            if batch.num_rows:
                return batch
            if all(consumer.position(partition) >= end for partition, end in until.items()):
                return None
        raise QueryFailed(f"no records of {self.topic} arrived for {STALL_S:g} s; are its leaders reachable?")


class TopicDataset(ds.Dataset):  # type: ignore[misc]
    """The records of a topic between offsets that the session sets before each query."""

    def __init__(
        self, columns: TableColumns, config: ConsumerConfig, offsets_at: OffsetsAt, decode: Decode | None
    ) -> None:
        # The dataset of Arrow below this one stays unset: DuckDB calls nothing but these two methods.
        self.columns = columns
        self.available: Mapping[int, range] = {}
        self.scanned: list[dict[int, range]] = []
        """The offsets that each scan reads."""
        self.failure: BaseException | None = None
        self.readers: list[OffsetReader] = []
        self._config = config
        self._offsets_at = offsets_at
        self._decode = decode

    def begin(self) -> None:
        """Forget the scans of the query before: `--follow` runs one query after another without an end."""
        self.scanned.clear()
        self.readers.clear()
        self.failure = None

    @property
    def schema(self) -> pa.Schema:
        """The columns that a scan can give."""
        return self.columns.scanned

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Scan:  # noqa: A002
        """Return a scan of the records that pass a filter, with some columns."""
        return Scan(self, columns or self.schema.names, filter)

    def offsets(self, where: Any) -> dict[int, range]:
        """Return the offsets that hold all records that pass a filter."""
        found = wanted_offsets(where, self.available, self.schema)
        since_ms = earliest_ms(where, self.schema)
        if since_ms is None or not found:
            return found
        # No earlier record is so late. A later one may be early again, so the end stays where it is.
        firsts = self._offsets_at(self.columns.topic, since_ms, found)
        return {
            partition: span
            for partition, offsets in found.items()
            if (span := range(max(offsets.start, firsts[partition]), offsets.stop))
        }

    def batches(self, columns: list[str], where: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records that pass a filter; what reading them raises is kept in `failure`."""
        try:
            yield from self._batches(columns, where)
        except Exception as error:
            self.failure = self.failure or error  # DuckDB has room for its text only
            raise

    def _batches(self, columns: list[str], where: Any) -> Iterator[pa.RecordBatch]:
        needed = list(dict.fromkeys((*columns, *names_in(where, self.schema.names))))
        fetched = ["value" if name == DOCUMENT else name for name in needed]
        offsets = self.offsets(where)
        self.scanned.append(offsets)
        reader = OffsetReader(self.columns.topic, self._config)
        self.readers.append(reader)
        schema = pa.schema([self.schema.field(name) for name in columns])
        with closing(reader.batches(offsets, fetched)) as batches:  # type: ignore[type-var]
            for batch in batches:
                table = pa.table({name: self._column(name, batch) for name in needed})
                passed = table if where is None else table.filter(where)
                step = max(1, STEP_BYTES * table.num_rows // max(1, table.nbytes))
                yield from passed.select(columns).cast(schema).to_batches(max_chunksize=step)

    def _column(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        if name == DOCUMENT:
            is_text = self.columns.value_format == "json"
            documents = _text if is_text else partial(_documents, columns=self.columns, decode=self._decode)
            return pa.FixedSizeListArray.from_arrays(documents(batch["value"]), 1)
        wanted = self.schema.field(name).type
        return _text(batch[name]) if pa.types.is_string(wanted) else batch[name].cast(wanted)


@dataclass(frozen=True)
class Scan:
    """One scan of a dataset, as DuckDB asks for it."""

    dataset: TopicDataset
    columns: list[str]
    filter: Any

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the batches, each read when it is asked for."""
        schema = pa.schema([self.dataset.schema.field(name) for name in self.columns])
        return pa.RecordBatchReader.from_batches(schema, self.dataset.batches(self.columns, self.filter))


def _text(data: pa.Array) -> pa.Array:
    """Return bytes as text, with escapes for bytes that are none, as `ottla consume` prints them."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        shown = [
            None if value is None else value.decode(errors="backslashreplace") for value in data.to_pylist()
        ]
        return pa.array(shown, pa.string())


def _documents(values: pa.Array, columns: TableColumns, decode: Decode | None) -> pa.Array:
    """Return values as JSON documents; one that is not in the format stays what it is, and is no JSON."""
    documents: list[str | None] = []
    for value in values.to_pylist():
        if value is None:
            documents.append(None)
        else:
            document = as_document(value, columns.value_format, decode)
            shown = value.decode(errors="backslashreplace") if document is None else document.decode()
            documents.append(shown)
    return pa.array(documents, pa.string())

"""Columns of rows as columns of records: checked once on the driver, and cut by topic in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import RowsUnfit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are written, and where the topic comes from."""

    names: tuple[str, ...]
    topic: str | None
    """The topic of all rows; None: the column `topic` says."""

    @classmethod
    def of(cls, schema: StructType, config: SinkConfig) -> Columns:
        """Check the columns of rows; others than those of records are left out. Raises RowsUnfit."""
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if "value" not in types:
            raise RowsUnfit(
                f"the rows have no column 'value'; there are {_listed(types)}. A record needs one: "
                'df.selectExpr("to_json(struct(*)) AS value")'
            )
        if config.topic is None and "topic" not in types:
            raise RowsUnfit(
                f"where should the rows go? .option('topic', 'orders'), or a column 'topic'; there are "
                f"{_listed(types)}"
            )
        wanted = ["key", "value", "headers", "partition"]
        wanted += ["topic"] if config.topic is None else []
        wanted += ["timestamp"] if config.include_timestamps else []
        if config.include_timestamps and "timestamp" not in types:
            raise RowsUnfit(f"includeTimestamps needs a column 'timestamp'; there are {_listed(types)}")
        for name in wanted:
            _check(name, types.get(name))
        return cls(tuple(name for name in wanted if name in types and name != "topic"), config.topic)

    def records(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of records alone."""
        return rows.select(list(self.names))

    def by_topic(self, records: pa.RecordBatch, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the records of rows with the topic that they go to, in their order.

        Raises RowsUnfit for a null topic.
        """
        if self.topic is not None:
            yield self.topic, records
        elif rows.num_rows:
            yield from _cut(records, rows.column("topic"))


def _check(name: str, found: str | None) -> None:
    if found is not None and found.split(" collate ")[0] not in _TYPES[name]:
        raise RowsUnfit(
            f"column {name!r} must be {' or '.join(_TYPES[name])}, not {found}: "
            f'df.withColumn("{name}", ...), or CAST({name} AS {_TYPES[name][-1].upper()})'
        )


def _listed(types: dict[str, str]) -> str:
    return ", ".join(types) or "none at all"


def _cut(records: pa.RecordBatch, topics: pa.Array) -> Iterator[tuple[str, pa.RecordBatch]]:
    import pyarrow.compute as pc

    if topics.null_count:
        raise RowsUnfit(
            f"{topics.null_count} rows have a null in column 'topic', and so nowhere to go; option 'topic' "
            "sends all rows to one topic"
        )
    encoded = topics.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], records
        return
    # Sorting by topic keeps the order within a topic, and makes of each topic's rows one piece.
    order = pc.array_sort_indices(encoded.indices)
    ordered, start = records.take(order), 0
    counts = {each["values"]: each["counts"] for each in encoded.indices.value_counts().to_pylist()}
    for index, name in enumerate(names):
        yield name, ordered.slice(start, counts[index])
        start += counts[index]

"""The mapping of row columns to record columns: checked once on the driver, split by topic in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipeline.lazy import pa, pc
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import RowsUnfit

if TYPE_CHECKING:
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
    """The columns to write, and the topic."""

    names: tuple[str, ...]
    topic: str | None
    """The topic of all rows; None: the column `topic` names it."""

    @classmethod
    def of(cls, schema: StructType, config: SinkConfig) -> Columns:
        """Check the columns of the rows and drop those that no record has. Raises RowsUnfit."""
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if "value" not in types:
            raise RowsUnfit(
                "the rows have no column 'value', which each record needs; the columns are "
                f'{_listed(types)}. For example: df.selectExpr("to_json(struct(*)) AS value")'
            )
        if config.topic is None and "topic" not in types:
            raise RowsUnfit(
                "no topic is given: set .option('topic', 'orders'), or add a column 'topic'; the "
                f"columns are {_listed(types)}"
            )
        wanted = ["key", "value", "headers", "partition"]
        wanted += ["topic"] if config.topic is None else []
        wanted += ["timestamp"] if config.include_timestamps else []
        if config.include_timestamps and "timestamp" not in types:
            raise RowsUnfit(f"includeTimestamps needs a column 'timestamp'; the columns are {_listed(types)}")
        for name in wanted:
            _check(name, types.get(name))
        return cls(tuple(name for name in wanted if name in types and name != "topic"), config.topic)

    def records(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return only the columns of records."""
        return rows.select(list(self.names))

    def by_topic(self, records: pa.RecordBatch, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the records of each topic, in the order of the rows.

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
    if topics.null_count:
        raise RowsUnfit(
            f"{topics.null_count} rows have a null in column 'topic', so no topic is known for them; "
            "option 'topic' sends all rows to one topic"
        )
    encoded = topics.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], records
        return
    # Sorting by topic keeps the order within a topic and puts the rows of each topic into one slice.
    order = pc.array_sort_indices(encoded.indices)
    ordered, start = records.take(order), 0
    counts = {entry["values"]: entry["counts"] for entry in encoded.indices.value_counts().to_pylist()}
    for index, name in enumerate(names):
        yield name, ordered.slice(start, counts[index])
        start += counts[index]

"""Changelog pipelines: a change log becomes a table with the last state of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.change_reader import DELETED, IGNORED, ROW, SAID, ChangeReader, Changes
from ottla.pipeline.jobs.declaration import Job, Mistake, Topics
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.jobs.delta_table import column_clashes, need_delta, shapes_of
from ottla.pipeline.jobs.lake import Lake
from ottla.pipeline.jobs.topic_sink import TopicSink, dead_letters
from ottla.pipeline.jobs.value_parsing import REASON
from ottla.pipeline.lazy import functions, pa

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.run import Run
    from ottla.pipeline.jobs.state_files import BatchKey


_TAG = "ottla-batch"
_COUNTED = {
    "inserted": "num_target_rows_inserted",
    "updated": "num_target_rows_updated",
    "deleted": "num_target_rows_deleted",
}
_LOOKED_AT = 1_000
"""The number of commits that are searched for a batch's commit: others may write to the table too."""


class MalformedChange(PipelineError):
    """A malformed record of a change log, in a pipeline without dead letters."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where}: {reason}. Without this record the table would be silently wrong; declare "
            "[dead_letters] with a topic to send such records there and continue"
        )


class Changelog(Job):
    """Change log (compacted topic or CDC) → Delta table by merge; tombstones delete."""

    kind: Literal["changelog"] = "changelog"
    source: Topics
    changes: Changes
    table: Merged
    dead_letters: TopicSink | None = None

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values."""
        yield from within("source", self.source.inspect())
        yield from within("changes", self.changes.inspect())
        yield from within("table", self.table.inspect())
        if self.dead_letters is not None:
            yield from within("dead_letters", self.dead_letters.inspect(self.source))
        for where, types in (("key", self.changes.key), ("columns", self.changes.columns)):
            for name, why in self.table.inspect_types(types):
                yield Mistake(("changes", where, name), why)
        for name in self.table.partition_by:
            if name not in self.changes.names():
                there = ", ".join(self.changes.names())
                yield Mistake(
                    ("table", "partition_by"), (f"there is no column {name!r}; the columns are {there}")
                )

    def run(self, run: Run) -> None:
        """Merge changes into the table, batch by batch."""
        frame = self.source.stream(run.spark, {"includeHeaders": "true"})

        def each(batch: DataFrame, batch_id: int) -> Mapping[str, int]:
            return self._merge(run, ChangeReader(self.changes).add_to(batch), batch_id)

        run.stream(frame, each)
        run.wait()

    def _merge(self, run: Run, read: DataFrame, batch_id: int) -> dict[str, int]:
        rows, seen = self._newest(read)
        if seen["dead"]:
            self._put_away(read.where(f"{REASON} IS NOT NULL"))
        done = self.table.merge(rows, list(self.changes.key), run.batch_key("main", batch_id))
        return done | seen

    def _newest(self, read: DataFrame) -> tuple[pa.Table, dict[str, int]]:
        """Return the last change of each row and the number of malformed records, in one pass."""
        from pyspark.sql import Observation

        seen = Observation()
        is_dead = functions.col(REASON).isNotNull()
        # Spark counts the records of a batch with malformed ones twice, because it reads those again.
        observed = read.observe(
            seen, functions.count_if(is_dead).alias("dead"), functions.count("*").alias("rows")
        )
        good = observed.where(~is_dead & ~functions.col(IGNORED))
        rows: pa.Table = newest(good, list(self.changes.key)).toArrow()
        return rows, {name: int(count) for name, count in seen.get.items()}

    def _put_away(self, dead: DataFrame) -> None:
        if self.dead_letters is not None:
            self.dead_letters.write(dead_letters(dead, self.name), self.source, "dead-letters")
            return
        first = dead.select("topic", "partition", "offset", REASON).first()
        assert first is not None, "a batch with dead letters has a first one"
        raise MalformedChange(
            f"{first['topic']}-{first['partition']} at offset {first['offset']}", first[REASON]
        )


class Merged(Lake):
    """A Delta table that applies a change log."""

    format: Literal["delta"] = "delta"
    columns: Literal["merge"] = Field(default="merge", alias="schema")
    """New columns are always added."""
    compact_every: int = Field(default=50, ge=0)
    """The number of batches after which small files are compacted; 0: never."""

    def merge(self, changes: pa.Table, keys: Sequence[str], key: BatchKey) -> dict[str, int]:
        """Apply at most one change of each row, once over all repetitions; return the counts."""
        if self.is_done(key):
            return self.counts_of(key)
        table = self._made(changes)
        if not changes.num_rows:
            return counted({})
        counts = counted(_merge(table, changes, keys, self._remembers(key)))
        if self.compact_every and key.id % self.compact_every == self.compact_every - 1:
            table.optimize.compact()
        return counts

    def counts_of(self, key: BatchKey) -> dict[str, int]:
        """Return the counts of a batch that is already committed; zeros if its commit is too old to find."""
        table = self.delta()
        for commit in table.history(_LOOKED_AT) if table is not None else ():
            if commit.get(_TAG) == str(key):
                return counted(commit.get("operationMetrics", {}))
        return counted({})

    def _made(self, changes: pa.Table) -> DeltaTable:
        """Return the table, created empty if it does not exist."""
        schema = changes.drop_columns([DELETED]).schema
        table = self.delta() or need_delta().DeltaTable.create(
            self.path, schema, mode="ignore", partition_by=self.partition_by or None
        )
        rows = shapes_of(need_delta().Schema.from_arrow(schema))
        for _, said in column_clashes(table, rows, adds_columns=True):
            raise PipelineError(f"the Delta table {self.path} {said}")
        return table

    def _remembers(self, key: BatchKey) -> CommitProperties:
        library = need_delta()
        return library.CommitProperties(
            custom_metadata={_TAG: str(key)}, app_transactions=[library.Transaction(key.app, key.id)]
        )


def newest(records: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return the last change of each row: the columns of the row, and DELETED.

    Within a partition, offsets define the order. If a row has changes in several partitions, for example
    after partitions were added, timestamps do.
    """
    place = ("timestamp", "topic", "partition")
    changes = records.select(functions.explode(SAID).alias("_what"), *place, "offset")
    row = functions.col("_what")[ROW]
    named = {f"_key_{at}": row[name] for at, name in enumerate(keys)}
    what = functions.struct(functions.col("_what.*"), *place).alias("_what")
    in_partition = (
        changes.select(*(column.alias(name) for name, column in named.items()), what, *place[1:], "offset")
        .groupBy(*named, "topic", "partition")
        .agg(functions.max_by("_what", "offset").alias("_what"))
    )
    order = functions.struct(*(functions.col("_what")[name] for name in place))
    last = in_partition.groupBy(*named).agg(functions.max_by("_what", order).alias("_what"))
    return last.select(f"_what.{ROW}.*", f"_what.{DELETED}")


def _merge(
    table: DeltaTable, changes: pa.Table, keys: Sequence[str], properties: CommitProperties
) -> dict[str, Any]:
    """Merge; add columns that the table does not have yet."""
    columns = [name for name in changes.column_names if name != DELETED]
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in keys)
    values = {_quoted(name): f"s.{_quoted(name)}" for name in columns}
    merger = table.merge(
        changes, predicate=same, source_alias="s", target_alias="t", merge_schema=True,
        # The changes are in memory, so their key range tells which files contain none of the rows.
        streamed_exec=False, commit_properties=properties,
    )  # fmt: skip
    done: dict[str, Any] = (
        merger.when_matched_delete(predicate=f"s.{DELETED}")
        .when_matched_update(updates=values)
        .when_not_matched_insert(updates=values, predicate=f"NOT s.{DELETED}")
        .execute()
    )
    return done


def _quoted(name: str) -> str:
    return f'"{name}"'


def counted(metrics: dict[str, Any]) -> dict[str, int]:
    """Return how many rows a merge inserted, updated and deleted."""
    return {name: int(metrics.get(metric) or 0) for name, metric in _COUNTED.items()}

"""Results as Parquet files or a Delta table: each batch once, however often it is repeated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs import delta_table
from ottla.pipeline.jobs.declaration import Mistake, Names, PathOrUrl, Table
from ottla.pipeline.jobs.delta_table import shape_of_ddl
from ottla.pipeline.jobs.state_files import BatchKey, StateFile
from ottla.pipeline.lazy import functions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

BATCH = "batch"
"""The column of Parquet tables that names the batch of a row; the innermost partition folder."""


class Lake(Table):
    """A table of files."""

    path: PathOrUrl = Field(examples=["lake/orders"])
    format: Literal["parquet", "delta"] = "parquet"
    partition_by: Names = Field(default_factory=list, examples=[["day"]])
    columns: Literal["same", "merge"] = Field(default="same", alias="schema")
    """Whether a Delta table gets the columns that only the rows have; with `same` it must have them."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes; paths are within this table."""
        if self.format == "parquet" and BATCH in (name.lower() for name in self.partition_by):
            yield Mistake(("partition_by",), f"{BATCH!r} is reserved for the batch of a row")
        if self.format == "parquet" and self._adds_columns:
            yield Mistake(("schema",), 'is for format = "delta": each Parquet file has its own columns')
        if self.format == "delta" and not delta_table.has_delta():
            yield Mistake(("format",), "delta needs a library: pip install 'ottla-pipeline[delta]'")

    def clashes(self, given: Iterable[str], own: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield column names that clash with the pipeline's, in any case, and the reason."""
        taken = {name.lower(): "the pipeline writes that column itself" for name in own}
        if self.format == "parquet":
            taken[BATCH] = "in Parquet it names the batch of a row; Delta needs no such column"
        for name in given:
            if name.lower() in taken:
                yield name, f"{name!r} is reserved: {taken[name.lower()]}"
            taken.setdefault(
                name.lower(), (f"there is already {name!r}, and case does not distinguish columns")
            )

    def inspect_partitions(self, columns: Collection[str]) -> Iterator[Mistake]:
        """Yield partition columns that the rows do not have."""
        for name in self.partition_by:
            if name not in columns:
                there = ", ".join(columns)
                yield Mistake(("partition_by",), f"there is no column {name!r}; the columns are {there}")

    def inspect_types(self, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield the columns that an existing Delta table on this machine cannot take, and the reason."""
        if self.format != "delta" or not delta_table.has_delta() or not Path(self.path).is_dir():
            return
        if (table := self.delta()) is not None:
            shapes = {name: shape_of_ddl(kind) for name, kind in types.items()}
            for name, said in delta_table.column_clashes(table, shapes, adds_columns=self._adds_columns):
                yield name, f"the Delta table {self.path} {said}"

    @property
    def _adds_columns(self) -> bool:
        return self.columns == "merge"

    def append(
        self, batch: DataFrame, key: BatchKey, begun: StateFile, before: Callable[[], None] = lambda: None
    ) -> None:
        """Write the rows of a batch exactly once, even if the declaration changed before a repetition.

        `begun` stores which batch was begun, and in which lake. `before` is called when the rows are written,
        before a Delta commit; if the batch is already committed, nothing is written.
        """
        earlier = self.begun_in(key, begun)
        if self.is_done(key) or (earlier is not None and earlier.is_done(key)):
            # Counts of the batch are computed again, even if nothing is written.
            batch.write.format("noop").mode("append").save()
            return
        if earlier is not None:
            earlier._remove(batch.sparkSession, key)
        begun.write({"batch": key.id, "lake": self.model_dump(by_alias=True)})
        self._write(batch, key, before)

    def begun_in(self, key: BatchKey, begun: StateFile) -> Lake | None:
        """Return where the batch may have been begun before; None if it was not begun."""
        found = begun.read()
        if not found:
            return self  # a checkpoint of a version that did not store this
        is_again = found["batch"] >= key.id
        return Lake(**found["lake"]) if is_again else None

    def is_done(self, key: BatchKey) -> bool:
        """Whether the batch is committed to Delta. A Parquet batch is always rewritten."""
        return self.format == "delta" and delta_table.has_batch(self.delta(), key)

    def delta(self) -> DeltaTable | None:
        """Return the Delta table; None before the first batch."""
        return delta_table.table_at(self.path)

    def _write(self, batch: DataFrame, key: BatchKey, before: Callable[[], None]) -> None:
        if self.format == "delta":
            table = delta_table.table_for(
                batch, self.path, self.partition_by, adds_columns=self._adds_columns
            )
            files = delta_table.written(batch, table, self.path)
            before()
            if files:
                delta_table.commit(table, files, key)
        else:
            self._write_parquet(batch, key)
            before()

    def _write_parquet(self, batch: DataFrame, key: BatchKey) -> None:
        # The mode is set here too: with Spark's default, `overwrite` would remove all existing rows.
        marked = batch.withColumn(BATCH, functions.lit(str(key)))
        writer = marked.write.partitionBy(*self.partition_by, BATCH).mode("overwrite")
        writer.option("partitionOverwriteMode", "dynamic").parquet(self.path)

    def _remove(self, spark: SparkSession, key: BatchKey) -> None:
        """Remove the Parquet files of a batch: its rows may belong in other folders now.

        Delta files without a commit are invisible. Raises PipelineError for a folder that cannot be removed.
        """
        if self.format == "parquet":
            partitions = ["*"] * len(self.partition_by)
            remove(spark, "/".join([_literal(self.path), *partitions, f"{BATCH}={key}"]))


def remove(spark: SparkSession, pattern: str) -> None:
    """Remove folders that match a Hadoop glob. Raises PipelineError if one remains."""
    # Only Hadoop supports all storage that Spark writes to, and PySpark has no API for it.
    path = spark._jvm.org.apache.hadoop.fs.Path(pattern)
    store = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    for status in store.globStatus(path) or ():
        if not store.delete(status.getPath(), True) and store.exists(status.getPath()):
            raise PipelineError(
                f"{status.getPath()} was written by a batch that is repeated now, and cannot be removed: "
                "remove it"
            )


def _literal(path: str) -> str:
    """Return a glob that matches only this path."""
    return re.sub(r"([\\*?\[\]{},^])", r"\\\1", path.rstrip("/"))

"""Where results go: Parquet files or a Delta table, each batch once over all replays."""

from __future__ import annotations

import json
import re
import time
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration import Mistake, Names, Place, Table
from ottla.pipeline.jobs.state import BatchKey, StateFile
from ottla.pipeline.spark import pandas_of_any_age

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, Row, SparkSession

BATCH = "batch"
"""The column of Parquet tables that says which batch wrote a row; a folder, below all others."""


_RULES = (
    "delta.constraints.",
    "delta.invariants",
    "delta.generationExpression",
    "delta.identity.",
    "delta.columnMapping.",
)
"""Settings of Delta tables and columns by which rows would have to be checked, made or renamed."""


class Lake(Table):
    """A table of files."""

    path: Place = Field(examples=["lake/orders"])
    format: Literal["parquet", "delta"] = "parquet"
    partition_by: Names = Field(default_factory=list, examples=[["day"]])

    def inspect(self) -> Iterator[Mistake]:
        """Yield what cannot be; paths are within this table."""
        if self.format == "parquet" and BATCH in (name.lower() for name in self.partition_by):
            yield Mistake(("partition_by",), f"{BATCH!r} is taken: it says which batch wrote a row")
        if self.format == "delta" and not _has_delta():
            yield Mistake(("format",), "delta needs a library: pip install 'ottla-pipeline[delta]'")

    def clashes(self, given: Iterable[str], own: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield columns that cannot be beside the pipeline's own, and why: their case tells none apart."""
        taken = {name.lower(): "the pipeline writes that column itself" for name in own}
        if self.format == "parquet":
            taken[BATCH] = "in Parquet it says which batch wrote a row; Delta needs no such column"
        for name in given:
            if name.lower() in taken:
                yield name, f"{name!r} is taken: {taken[name.lower()]}"
            taken.setdefault(name.lower(), f"there is {name!r} already, and case tells no columns apart")

    def inspect_partitions(self, columns: Collection[str]) -> Iterator[Mistake]:
        """Yield what it is partitioned by and does not have."""
        for name in self.partition_by:
            if name not in columns:
                there = ", ".join(columns)
                yield Mistake(("partition_by",), f"there is no column {name!r}; there are {there}")

    def append(
        self, batch: DataFrame, key: BatchKey, begun: StateFile, before: Callable[[], None] = lambda: None
    ) -> None:
        """Write the rows of a batch: once over all replays, whatever was declared otherwise in between.

        `begun` keeps which batch was begun, and in which lake. `before` is called when the rows are written,
        and before a Delta table has them; where it has them already nothing is done.
        """
        earlier = self.begun_in(key, begun)
        if any(each.is_done(key) for each in (self, *earlier) if each.format == "delta"):
            # What is counted on the way is counted again, even where nothing is written.
            batch.write.format("noop").mode("append").save()
            return
        for each in earlier:
            each._remove(batch.sparkSession, key)
        begun.write({"batch": key.id, "lake": self.model_dump()})
        self._write(batch, key, before)

    def begun_in(self, key: BatchKey, begun: StateFile) -> tuple[Lake, ...]:
        """Return where a batch may have been begun before: most often nowhere."""
        found = begun.read()
        if not found:
            return (self,)  # as with a checkpoint of which this was not kept
        return (Lake(**found["lake"]),) if found["batch"] >= key.id else ()

    def _write(self, batch: DataFrame, key: BatchKey, before: Callable[[], None]) -> None:
        if self.format == "delta":
            self._write_delta(batch, key, before)
        else:
            self._write_parquet(batch, key)
            before()

    def _remove(self, spark: SparkSession, key: BatchKey) -> None:
        """Remove what a batch wrote in Parquet: its rows may belong into other folders by now.

        Without a commit nothing of Delta is seen. Raises PipelineError for what cannot be removed.
        """
        if self.format == "parquet":
            folders = [_literal(self.path), *("*" for _ in self.partition_by), f"{BATCH}={key}"]
            remove(spark, "/".join(folders))

    def _write_parquet(self, batch: DataFrame, key: BatchKey) -> None:
        from pyspark.sql import functions

        # The mode is named here too: with Spark's default, `overwrite` would remove all that is there.
        marked = batch.withColumn(BATCH, functions.lit(str(key)))
        writer = marked.write.partitionBy(*self.partition_by, BATCH).mode("overwrite")
        writer.option("partitionOverwriteMode", "dynamic").parquet(self.path)

    def _write_delta(self, batch: DataFrame, key: BatchKey, before: Callable[[], None]) -> None:
        """Let tasks write files, and name all of them in one commit: the driver never has the rows."""
        from ottla.pipeline.jobs.delta_files import FILES, layout_of, writing

        table = self._delta_for(batch)
        with pandas_of_any_age():
            files = batch.mapInArrow(writing(layout_of(table, self.path)), FILES).collect()
        before()
        if files:
            columns = table.metadata().partition_columns
            table.create_write_transaction(
                [_added(each) for each in files], "append", table.schema(), columns,
                commit_properties=self.commit_properties(key),
            )  # fmt: skip

    def _delta_for(self, batch: DataFrame) -> DeltaTable:
        """Return the table, made if there is none. Raises PipelineError where it cannot have the rows."""
        table = self.delta()
        if table is None:
            # Rows that are none have the same types in Arrow, and ask nothing of the batch.
            schema = batch.sparkSession.createDataFrame([], batch.schema).toArrow().schema
            table = need_delta().DeltaTable.create(
                self.path, schema, mode="ignore", partition_by=self.partition_by or None
            )
        for said in unfit(table, batch.columns, self.partition_by):
            raise PipelineError(f"the Delta table {self.path} {said}")
        return table

    def delta(self) -> DeltaTable | None:
        """Return the Delta table; None before the first batch."""
        table: type[DeltaTable] = need_delta().DeltaTable
        return table(self.path) if table.is_deltatable(self.path) else None

    def is_done(self, key: BatchKey) -> bool:
        """Whether the Delta table has a batch already."""
        table = self.delta()
        done = table.transaction_version(key.app) if table is not None else None
        return done is not None and int(done) >= key.id

    def commit_properties(self, key: BatchKey) -> CommitProperties:
        """Return what makes a commit to the Delta table remember its batch."""
        library = need_delta()
        return library.CommitProperties(app_transactions=[library.Transaction(key.app, key.id)])


def remove(spark: SparkSession, pattern: str) -> None:
    """Remove folders by a pattern of Hadoop's. Raises PipelineError for one that is still there after."""
    # Only Hadoop knows all places that Spark writes to, and PySpark has no word for it.
    path = spark._jvm.org.apache.hadoop.fs.Path(pattern)
    store = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    for each in store.globStatus(path) or ():
        if not store.delete(each.getPath(), True) and store.exists(each.getPath()):
            raise PipelineError(f"{each.getPath()} was written by a batch that is done again: remove it")


def _literal(path: str) -> str:
    """Return a path as a pattern that matches nothing else."""
    return re.sub(r"([\\*?\[\]{},^])", r"\\\1", path.rstrip("/"))


def unfit(table: DeltaTable, columns: Sequence[str], partition_by: Sequence[str]) -> Iterator[str]:
    """Yield why files with some columns cannot be added to a table as they are."""
    fields = {field.name: field for field in table.schema().fields}
    if missing := [name for name in columns if name not in fields]:
        yield f"has no column {missing[0]!r}; there are {', '.join(fields)}. Add it, or choose another path"
    there = list(table.metadata().partition_columns)
    if partition_by and there != list(partition_by):
        yield f"is partitioned by {there}, and partition_by says {list(partition_by)}: choose another path"
    rules = {name for field in fields.values() for name in field.metadata}
    for name in sorted((*rules, *table.metadata().configuration)):
        if name.startswith(_RULES):
            yield f"has {name}, which is not looked at here: choose a table without it"


def _added(file: Row) -> AddAction:
    """Return a file of a task as a commit names it."""
    from deltalake.transaction import AddAction

    now_ms = int(time.time() * 1_000)
    return AddAction(file.path, file.size, json.loads(file.partitions), now_ms, True, file.stats)


def _has_delta() -> bool:
    # Spark gives no rows to a function of ours without pandas.
    return all(find_spec(name) for name in ("deltalake", "pandas"))


def need_delta() -> Any:
    """Return the module deltalake. Raises PipelineError with how to install it."""
    if not _has_delta():
        raise PipelineError("Delta tables need a library: pip install 'ottla-pipeline[delta]'")
    return import_module("deltalake")

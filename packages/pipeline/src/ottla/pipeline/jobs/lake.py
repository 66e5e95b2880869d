"""Where results go: Parquet files or a Delta table, each batch once over all replays."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs import delta_table
from ottla.pipeline.jobs.declaration import Mistake, Names, PathOrUrl, Table
from ottla.pipeline.jobs.state_files import BatchKey, StateFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

BATCH = "batch"
"""The column of Parquet tables that says which batch wrote a row; a folder, below all others."""


class Lake(Table):
    """A table of files."""

    path: PathOrUrl = Field(examples=["lake/orders"])
    format: Literal["parquet", "delta"] = "parquet"
    partition_by: Names = Field(default_factory=list, examples=[["day"]])

    def inspect(self) -> Iterator[Mistake]:
        """Yield what cannot be; paths are within this table."""
        if self.format == "parquet" and BATCH in (name.lower() for name in self.partition_by):
            yield Mistake(("partition_by",), f"{BATCH!r} is taken: it says which batch wrote a row")
        if self.format == "delta" and not delta_table.has_delta():
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
        if self.is_done(key) or (earlier is not None and earlier.is_done(key)):
            # What is counted on the way is counted again, even where nothing is written.
            batch.write.format("noop").mode("append").save()
            return
        if earlier is not None:
            earlier._remove(batch.sparkSession, key)
        begun.write({"batch": key.id, "lake": self.model_dump()})
        self._write(batch, key, before)

    def begun_in(self, key: BatchKey, begun: StateFile) -> Lake | None:
        """Return where a batch may have been begun before; most often nowhere."""
        found = begun.read()
        if not found:
            return self  # as with a checkpoint of which this was not kept
        is_again = found["batch"] >= key.id
        return Lake(**found["lake"]) if is_again else None

    def is_done(self, key: BatchKey) -> bool:
        """Whether a batch is here and stays as it is: in Delta. Parquet of it is written anew."""
        return self.format == "delta" and delta_table.has_batch(self.delta(), key)

    def delta(self) -> DeltaTable | None:
        """Return the Delta table; None before the first batch."""
        return delta_table.table_at(self.path)

    def _write(self, batch: DataFrame, key: BatchKey, before: Callable[[], None]) -> None:
        if self.format == "delta":
            table = delta_table.table_for(batch, self.path, self.partition_by)
            files = delta_table.written(batch, table, self.path)
            before()
            if files:
                delta_table.commit(table, files, key)
        else:
            self._write_parquet(batch, key)
            before()

    def _write_parquet(self, batch: DataFrame, key: BatchKey) -> None:
        from pyspark.sql import functions

        # The mode is named here too: with Spark's default, `overwrite` would remove all that is there.
        marked = batch.withColumn(BATCH, functions.lit(str(key)))
        writer = marked.write.partitionBy(*self.partition_by, BATCH).mode("overwrite")
        writer.option("partitionOverwriteMode", "dynamic").parquet(self.path)

    def _remove(self, spark: SparkSession, key: BatchKey) -> None:
        """Remove what a batch wrote in Parquet: its rows may belong into other folders by now.

        What it wrote for Delta nobody sees without a commit. Raises PipelineError for what stays.
        """
        if self.format == "parquet":
            partitions = ["*"] * len(self.partition_by)
            remove(spark, "/".join([_literal(self.path), *partitions, f"{BATCH}={key}"]))


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

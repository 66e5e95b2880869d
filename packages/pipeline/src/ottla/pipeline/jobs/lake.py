"""Where results go: Parquet files or a Delta table, each batch once over all replays."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.declaration import Mistake, Names, Place, Table
from ottla.pipeline.jobs.state import BatchKey

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame

BATCH = "batch"
"""The column of Parquet tables that says which batch wrote a row; a folder, below all others."""


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

    def append(self, batch: DataFrame, key: BatchKey) -> None:
        """Write the rows of a batch; doing it again with the same key and rows changes nothing."""
        if self.format == "parquet":
            self._write_parquet(batch, key)
        elif not self.is_done(key):
            self._write_delta(batch, key)
        else:
            # What is counted on the way is counted again, even where nothing is written.
            batch.write.format("noop").mode("append").save()

    def _write_parquet(self, batch: DataFrame, key: BatchKey) -> None:
        from pyspark.sql import functions

        # The mode is named here too: with Spark's default, `overwrite` would remove all that is there.
        marked = batch.withColumn(BATCH, functions.lit(str(key)))
        writer = marked.write.partitionBy(*self.partition_by, BATCH).mode("overwrite")
        writer.option("partitionOverwriteMode", "dynamic").parquet(self.path)

    def _write_delta(self, batch: DataFrame, key: BatchKey) -> None:
        rows = batch.toArrow()
        if rows.num_rows or self.delta() is None:
            need_delta().write_deltalake(
                self.path, rows, mode="append", partition_by=self.partition_by or None,
                commit_properties=self.commit_properties(key),
            )  # fmt: skip

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


def _has_delta() -> bool:
    return find_spec("deltalake") is not None


def need_delta() -> Any:
    """Return the module deltalake. Raises PipelineError with how to install it."""
    if not _has_delta():
        raise PipelineError("Delta tables need a library: pip install 'ottla-pipeline[delta]'")
    return import_module("deltalake")

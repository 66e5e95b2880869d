"""The data source `ottla`: the class that Spark registers.

Spark starts a Python worker for each step of planning, and each imports this module. So it imports readers
and writers only where they are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.pipeline.spark_workers import exclude_modules_from_collections, message_first

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.pipeline.sink.spark_writers import BatchWriter, StreamWriter
    from ottla.pipeline.source.readers import BatchReader, StreamReader


@message_first
class OttlaDataSource(DataSource):
    """Topics of Ottla or Apache Kafka: `format("ottla")`.

    Options, columns and meaning are those of Spark's own Kafka source; `value.format` adds decoded values.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "ottla"

    def schema(self) -> str:
        """Return the columns."""
        from ottla.pipeline.source.spark_rows import columns_of

        return columns_of(self.options)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the batch reader."""
        from ottla.pipeline.source.readers import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the stream reader."""
        from ottla.pipeline.source.readers import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the batch writer. Raises BrokersUnreachable, instead of each task."""
        from ottla.pipeline.sink.spark_writers import BatchWriter, require_brokers

        writer = BatchWriter(self.options, schema, overwrite=overwrite)
        require_brokers(writer.config)
        exclude_modules_from_collections()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the stream writer; `overwrite` stands for output mode complete, which appends all rows.

        Spark asks for one before the tasks of each batch. Raises BrokersUnreachable, instead of each task.
        """
        from ottla.pipeline.sink.spark_writers import StreamWriter, require_brokers

        writer = StreamWriter(self.options, schema)
        require_brokers(writer.config)
        exclude_modules_from_collections()
        return writer

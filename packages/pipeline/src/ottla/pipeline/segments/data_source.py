"""The data source `ottla-log`: the class that Spark registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from ottla.pipeline.errors import NotSupported
from ottla.pipeline.lazy import pa
from ottla.pipeline.segments.config import SegmentsConfig
from ottla.pipeline.segments.readable_logs import (
    WORTH_A_TASK,
    ByteRange,
    ReadableLogs,
    byte_ranges,
    max_task_bytes,
    pack_tasks,
    plan,
    split_range,
)
from ottla.pipeline.segments.segment_reading import read
from ottla.pipeline.source.spark_rows import Rows, arrow_schema, checked, columns_of
from ottla.pipeline.spark_workers import message_first

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class Task(InputPartition):
    """The byte ranges of one task."""

    byte_ranges: tuple[ByteRange, ...]


@message_first
class SegmentsReader(DataSourceReader):
    """Reads segments once, between the offsets that the options give; takes no filters, as `BatchReader`."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._config = SegmentsConfig.of(options)
        self._schema = checked(schema, self._config.value, include_headers=self._config.include_headers)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the read, one for each task."""
        return [Task(ranges) for ranges in tasks(self._config)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if not isinstance(partition, Task):
            return  # Spark's placeholder for an empty read
        rows = Rows(arrow_schema(self._schema), self._config.value)
        yield from read(partition.byte_ranges, rows, fail_on_data_loss=self._config.fail_on_data_loss)


def tasks(config: SegmentsConfig) -> list[tuple[ByteRange, ...]]:
    """Return the byte ranges of each task. Raises OptionError, DataLoss, CorruptSegment, SegmentsChanged."""
    logs = ReadableLogs(config)
    ranges = plan(logs, config)
    whole = [
        found for offset_range in ranges for found in byte_ranges(logs[offset_range.partition], offset_range)
    ]
    most = max_task_bytes(
        sum(len(byte_range) for byte_range, _ in whole), config.most_bytes, config.min_partitions
    )
    pieces = [piece for byte_range, segment in whole for piece in split_range(byte_range, segment, most)]
    return pack_tasks(pieces, min(most, WORTH_A_TASK))


@message_first
class OttlaLogDataSource(DataSource):
    """Log segments on disk, without a broker: `format("ottla-log")`.

    The columns are those of `ottla`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "ottla-log"

    def schema(self) -> str:
        """Return the columns."""
        return columns_of(self.options)

    def reader(self, schema: StructType) -> SegmentsReader:
        """Return the batch reader."""
        return SegmentsReader(self.options, schema)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802 - Spark's name
        """Raise NotSupported: closed segments do not grow."""
        raise NotSupported(
            "segments can only be read as a batch, with spark.read; for a stream use a broker: "
            'format("ottla")'
        )

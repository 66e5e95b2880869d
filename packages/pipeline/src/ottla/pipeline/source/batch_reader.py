"""Batch reads: topics as a table, `spark.read.format("ottla")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.client.errors import ClientError
from ottla.pipeline.errors import DataLoss, report_loss
from ottla.pipeline.lazy import pa
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge, ranges_of
from ottla.pipeline.source.offsets import (
    OffsetRange,
    Offsets,
    TopicIds,
    split,
)
from ottla.pipeline.source.range_reader import FetchTimedOut, consumer_for, forget_consumer
from ottla.pipeline.source.spark_rows import Rows, arrow_schema, checked
from ottla.pipeline.source.topic_offsets import BrokerTopicOffsets, TopicOffsets
from ottla.pipeline.spark_workers import message_first
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class ReadTask(InputPartition):
    """The offset range of one task, and the id of its topic where brokers have ids."""

    range: OffsetRange
    topic_id: str | None = None


@message_first
class BatchReader(DataSourceReader):
    """Reads topics once, between the offsets that the options give.

    It takes no filters: Spark 4.3 keeps one plan of partitions for a DataFrame and replaces it by that of the
    reader which took filters last, so that other queries of the DataFrame would read what these left.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._config = SourceConfig.of(options, streaming=False)
        self._schema = checked(schema, self._config.value, include_headers=self._config.include_headers)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the read, one for each task."""
        lookup = BrokerTopicOffsets(self._config)
        try:
            selected = lookup.selected()
            ranges = plan(lookup, self._config, selected.partitions)
        finally:
            lookup.close()
        return tasks(self._config, ranges, selected.ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_task(partition, self._config, self._schema)


def tasks(config: SourceConfig, ranges: Iterable[OffsetRange], ids: TopicIds) -> Sequence[InputPartition]:
    """Return the tasks that read ranges."""
    pieces = split(ranges, config.min_partitions, config.max_records_per_partition)
    return [ReadTask(piece, ids.get(piece.partition.topic)) for piece in pieces]


def read_task(
    partition: InputPartition, config: SourceConfig, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task."""
    if not isinstance(partition, ReadTask):
        return  # Spark's placeholder for an empty read
    rows = Rows(arrow_schema(schema), config.value)
    try:
        yield from consumer_for(config).read(partition.range, partition.topic_id, rows, config)
    except (ClientError, KafkaError, FetchTimedOut):
        forget_consumer(config)
        raise


def plan(lookup: TopicOffsets, config: SourceConfig, every: frozenset[TopicPartition]) -> list[OffsetRange]:
    """Return the offset ranges to read."""
    start = lookup.first_offsets(config.starting, every, config.when_no_offset)
    end = check_end_offsets(lookup, config, lookup.last_offsets(config.ending, every))
    return ranges_of(config.starting, config.ending, start, end)


def check_end_offsets(lookup: TopicOffsets, config: SourceConfig, end: Offsets) -> Offsets:
    """Check the ending offsets against the log. Raises DataLoss for one behind its partition's end."""
    asked = {partition: end[partition] for partition in config.ending.known()}
    there = lookup.offsets(Edge.LATEST, asked)
    for partition, offset in asked.items():
        if offset > there[partition]:
            report_loss(
                DataLoss(f"{partition} ends at {there[partition]}, and should be read up to {offset}"),
                fails=config.fail_on_data_loss,
            )
    return end | {partition: min(offset, there[partition]) for partition, offset in asked.items()}

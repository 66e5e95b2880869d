"""Batch reads: topics as a table, `spark.read.format("ottla")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.client.errors import ClientError
from ottla.pipeline.errors import DataLoss, OptionError, report_loss
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Bound, Edge
from ottla.pipeline.source.offset_json import Offsets, TopicIds, partition_names
from ottla.pipeline.source.offset_ranges import OffsetRange, ranges_between, split
from ottla.pipeline.source.range_reader import FetchTimedOut, consumer_for, forget_consumer
from ottla.pipeline.source.spark_rows import Rows, arrow_schema, checked
from ottla.pipeline.source.topic_offsets import BrokerTopicOffsets, TopicOffsets
from ottla.pipeline.spark_workers import message_first
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
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
    return [ReadTask(each, ids.get(each.partition.topic)) for each in pieces]


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
    start = first_offsets(lookup, config, every)
    end = check_end_offsets(lookup, config, last_offsets(lookup, config.ending, every))
    _refuse_backwards(config, start, end)
    return ranges_between(start, end)


def first_offsets(
    lookup: TopicOffsets, config: SourceConfig, partitions: Iterable[TopicPartition]
) -> Offsets:
    """Return the starting offsets. Raises OptionError for a timestamp after all records."""
    found = lookup.resolve(config.starting, partitions)
    without = [each for each, offset in found.items() if offset is None]
    if without and config.when_no_offset == "error":
        raise OptionError(
            f"option {config.starting.option!r}: {partition_names(without)} has no record at or after that "
            "time; with option startingOffsetsByTimestampStrategy=latest it starts at its end"
        )
    return _or_end(lookup, found, without)


def last_offsets(lookup: TopicOffsets, ending: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
    """Return the ending offsets; a timestamp after all records means the end of the partition."""
    found = lookup.resolve(ending, partitions)
    return _or_end(lookup, found, [each for each, offset in found.items() if offset is None])


def check_end_offsets(lookup: TopicOffsets, config: SourceConfig, end: Offsets) -> Offsets:
    """Check the ending offsets against the log. Raises DataLoss for one behind its partition's end."""
    asked = {each: end[each] for each in config.ending.known()}
    there = lookup.offsets(Edge.LATEST, asked)
    for partition, offset in asked.items():
        if offset > there[partition]:
            report_loss(
                DataLoss(f"{partition} ends at {there[partition]}, and should be read up to {offset}"),
                fails=config.fail_on_data_loss,
            )
    return end | {each: min(offset, there[each]) for each, offset in asked.items()}


def _refuse_backwards(config: SourceConfig, start: Offsets, end: Offsets) -> None:
    for partition in sorted(end):
        if start[partition] > end[partition]:
            raise OptionError(
                f"{partition} should be read from {start[partition]} (option "
                f"{config.starting.option!r}), which is behind its end {end[partition]} (option "
                f"{config.ending.option!r})"
            )


def _or_end(
    lookup: TopicOffsets, found: Mapping[TopicPartition, int | None], without: Iterable[TopicPartition]
) -> Offsets:
    ends = lookup.offsets(Edge.LATEST, without)
    return {each: ends[each] if offset is None else offset for each, offset in found.items()}

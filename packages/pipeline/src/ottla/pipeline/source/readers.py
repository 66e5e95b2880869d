"""Topics as tables and as streams: the readers behind `spark.read` and `spark.readStream`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.client.errors import ClientError
from ottla.pipeline.cost import worker_cost
from ottla.pipeline.errors import DataLoss, report_loss
from ottla.pipeline.lazy import pa
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.offset_bounds import Edge, ranges_of
from ottla.pipeline.source.offsets import (
    INITIAL,
    Nested,
    OffsetRange,
    Offsets,
    Position,
    TopicIds,
    end_with_starts,
    nested,
    position_in,
    ranges_between,
    split,
)
from ottla.pipeline.source.range_reader import FetchTimedOut, consumer_for, forget_consumer
from ottla.pipeline.source.spark_rows import Rows, arrow_schema, checked
from ottla.pipeline.source.stream_offsets import TO_READ, WAS_READ, Clock, EndOffsets, StartOffsets
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
    finally:
        if (cost := worker_cost()) is not None:
            cost.write()


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


def new_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Return the number of offsets between two sets of offsets."""
    return sum(max(0, offset - start.get(partition, 0)) for partition, offset in end.items())


def limit_batch(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int) -> Offsets:
    """Return the end of a batch of at most `most` offsets.

    Each partition gets a share in proportion to its lag, and at least one offset if it has any. So, as in
    Spark, the limit may be exceeded by less than one offset for each partition.
    """
    behind = {partition: max(0, offset - start.get(partition, 0)) for partition, offset in end.items()}
    total = sum(behind.values())
    if total <= most:
        return dict(end)
    return {
        partition: start.get(partition, 0) + max(1, most * size // total) if size else end[partition]
        for partition, size in behind.items()
    }


class TriggerDelay:
    """Delays a trigger until there are enough new offsets; the first one is never delayed."""

    def __init__(self, least: int | None, longest_ms: int) -> None:
        self._least = least
        self._longest_ms = longest_ms
        self._last_ms = -inf

    def is_too_early(self, new: int, now_ms: float) -> bool:
        """Whether the trigger should still wait, with `new` offsets available."""
        if self._least is None:
            return False
        if new >= self._least or now_ms - self._last_ms >= self._longest_ms:
            self._last_ms = now_ms
            return False
        return True


IDLE_S = 0.05
"""The pause after a lookup without new records, because Spark asks again at once."""


@message_first
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch; the checkpoint of the query stores its offsets."""

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        lookup: TopicOffsets | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = SourceConfig.of(options, streaming=True)
        self._schema = checked(schema, self._config.value, include_headers=self._config.include_headers)
        self._lookup = lookup or BrokerTopicOffsets(self._config)
        self._clock = clock or Clock()
        self._start_offsets = StartOffsets(self._lookup, self._config)
        self._end_offsets = EndOffsets(self._lookup, self._config, self._clock)
        self._newest: Offsets = {}
        self._has_target = False
        self._target: Position | None = None
        self._trigger_delay = TriggerDelay(
            self._config.min_offsets_per_trigger, self._config.max_trigger_delay_ms
        )

    # --- offsets of batches

    def initialOffset(self) -> Nested:  # noqa: N802 - Spark's name
        """Return a placeholder for the start of a new query.

        Spark calls this again when it repeats the first batch, and does not distinguish the two calls. So the
        start is resolved together with the first end, and the checkpoint stores both.
        """
        return INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the size limit of batches from the options."""
        if self._config.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._config.max_offsets_per_trigger)
        if self._config.min_offsets_per_trigger is not None:
            return ReadMinRows(self._config.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query when the first batch is planned, after its start is known."""
        self._has_target = True

    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:  # noqa: N802
        """Return the end of the next batch; return `start` if it should not begin yet. Raises DataLoss."""
        is_first = start == INITIAL
        starts = self._start_offsets.of_query() if is_first else position_in(start)
        end, ids = self._end_behind(starts, is_first=is_first)
        self._newest, kept = end, starts.kept(ids)
        all_starts = kept | self._start_offsets.of_new(kept, end)
        if self._is_too_early(all_starts, end, limit) and not is_first:
            return self._nothing(start)
        if isinstance(limit, ReadMaxRows):
            end = limit_batch(all_starts, end, limit.max_rows)
        until = Position(end, {**starts.ids, **ids})
        if is_first:
            return end_with_starts(all_starts, until)
        # Where a topic was created again, equal offsets are not the same records.
        return until.nested() if end != kept else self._nothing(start)

    def reportLatestOffset(self) -> Nested | None:  # noqa: N802
        """Return the end offsets of the topics, from which Spark computes the lag."""
        return nested(self._newest) if self._newest else None

    # --- reading

    def partitions(self, start: Nested, end: Nested) -> Sequence[InputPartition]:
        """Return the partitions of a batch, one for each task. Raises DataLoss."""
        starts, until = self._start_offsets.of_batch(start, end), position_in(end)
        self._end_offsets.report(starts, until, WAS_READ)
        kept = starts.kept(until.ids)
        new = self._start_offsets.of_new(kept, until.offsets)
        self._refuse_lost(new)
        return tasks(self._config, ranges_between(kept | new, until.offsets), until.ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_task(partition, self._config, self._schema)

    def stop(self) -> None:
        """Close the connections."""
        self._lookup.close()

    # --- private

    def _end_behind(self, starts: Position, *, is_first: bool) -> Position:
        """Return the end offsets; for Trigger.AvailableNow, those of the first call."""
        if self._target is not None:
            return self._target
        end = self._end_offsets.behind(starts, TO_READ if is_first else WAS_READ)
        if self._has_target:
            self._target = end
        return end

    def _is_too_early(self, starts: Offsets, end: Offsets, limit: ReadLimit) -> bool:
        if self._has_target or isinstance(limit, ReadAllAvailable):
            return False
        return self._trigger_delay.is_too_early(new_offsets(starts, end), self._clock.now_ms())

    def _nothing(self, start: Nested) -> Nested:
        self._clock.wait(IDLE_S)
        return start

    def _refuse_lost(self, new: Offsets) -> None:
        for partition, offset in new.items():
            if offset > 0:
                report_loss(
                    DataLoss(f"{partition} is new, and its first records, up to {offset}, are lost"),
                    fails=self._config.fail_on_data_loss,
                )

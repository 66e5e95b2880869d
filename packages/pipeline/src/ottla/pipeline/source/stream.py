"""Topics as a stream: `spark.readStream.format("ottla")`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.pipeline.source.batch import Piece, first_offsets, lost, read_piece
from ottla.pipeline.source.bounds import Edge
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.limits import Patience, new_offsets, shared
from ottla.pipeline.source.offsets import Nested, Offsets, flat, nested, written
from ottla.pipeline.source.ranges import ranges_between, split
from ottla.pipeline.source.rows import checked
from ottla.pipeline.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

IDLE_S = 0.05
"""How long the brokers are left alone when nothing was new: Spark asks again at once."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch; where a query stands is in its checkpoint."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._config = SourceConfig.of(options, streaming=True)
        self._schema = checked(schema, self._config.value, include_headers=self._config.include_headers)
        self._survey_made: Survey | None = None
        self._initial: Nested | None = None
        self._newest: Offsets = {}
        self._target: Offsets | None = None
        self._patience = Patience(self._config.min_offsets_per_trigger, self._config.max_trigger_delay_ms)

    # --- where to

    def initialOffset(self) -> Nested:  # noqa: N802 - Spark's name
        """Return where a new query begins; Spark asks twice and has to hear the same."""
        if self._initial is None:
            partitions = self._survey.partitions()
            self._initial = nested(first_offsets(self._survey, self._config, partitions))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say of the size of batches."""
        if self._config.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._config.max_offsets_per_trigger)
        if self._config.min_offsets_per_trigger is not None:
            return ReadMinRows(self._config.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where topics end now: the query stops there."""
        self._target = self._ends({})

    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:  # noqa: N802
        """Return up to where the next batch reads; `start` where it should not begin yet."""
        begun = flat(start)
        end = self._ends(begun) if self._target is None else self._target
        self._newest = end
        begun |= self._beginnings_of_new(begun, end)
        new = new_offsets(begun, end)
        is_limited = not isinstance(limit, ReadAllAvailable)
        if self._target is None and is_limited and self._patience.is_too_early(new, _now_ms()):
            return self._nothing(start)
        if isinstance(limit, ReadMaxRows):
            end = shared(begun, end, limit.max_rows)
        # A partition that is gone is missing here, and so reported as lost when the batch is planned.
        return nested(end) if end != flat(start) else self._nothing(start)

    def reportLatestOffset(self) -> Nested | None:  # noqa: N802
        """Return where topics end, for the progress of the query: its lag."""
        return nested(self._newest) if self._newest else None

    # --- reading

    def partitions(self, start: Nested, end: Nested) -> Sequence[InputPartition]:
        """Return what the tasks of a batch read. Raises DataLoss."""
        begun, until = flat(start), flat(end)
        self._check_deleted(begun, until)
        new = self._beginnings_of_new(begun, until)
        self._check_new(new)
        begun |= new
        self._check_shrunk(begun, until)
        ranges = ranges_between(begun, until)
        return [
            Piece(each)
            for each in split(ranges, self._config.min_partitions, self._config.max_records_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        return read_piece(partition, self._config, self._schema)

    def stop(self) -> None:
        """Close the connections."""
        if self._survey_made is not None:
            self._survey_made.close()

    # --- inside

    @property
    def _survey(self) -> Survey:
        if self._survey_made is None:
            self._survey_made = Survey(self._config)
        return self._survey_made

    def _ends(self, begun: Offsets) -> Offsets:
        """Return where topics end. Asks again while less is there than was read: a broker may be behind."""
        for _ in range(self._config.fetch_retries):
            ends = self._ends_now()
            if all(ends.get(partition, -1) >= offset for partition, offset in begun.items()):
                return ends
            time.sleep(self._config.fetch_retry_interval_ms / 1_000)
        return self._ends_now()

    def _ends_now(self) -> Offsets:
        return self._survey.offsets(Edge.LATEST, self._survey.partitions(all_there=False))

    def _nothing(self, start: Nested) -> Nested:
        time.sleep(IDLE_S)
        return start

    def _beginnings_of_new(self, begun: Offsets, end: Offsets) -> Offsets:
        """Return where partitions begin that were not there before: all of theirs is new."""
        return self._survey.offsets(Edge.EARLIEST, end.keys() - begun.keys())

    def _check_deleted(self, begun: Offsets, until: Offsets) -> None:
        if gone := begun.keys() - until.keys():
            lost(self._config, f"{written(gone)} is not there any more")

    def _check_new(self, new: Offsets) -> None:
        for partition, offset in new.items():
            if offset > 0:
                lost(self._config, f"{partition} is new, and its first records, up to {offset}, are gone")

    def _check_shrunk(self, begun: Offsets, until: Offsets) -> None:
        for partition, offset in until.items():
            if begun[partition] > offset:
                what = f"{partition} ends at {offset}, and was read up to {begun[partition]} before"
                lost(self._config, what)


def _now_ms() -> float:
    return time.monotonic() * 1_000

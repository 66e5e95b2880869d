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
from ottla.pipeline.source.offsets import (
    INITIAL,
    Nested,
    Offsets,
    beginnings,
    first_end,
    flat,
    nested,
    written,
)
from ottla.pipeline.source.ranges import ranges_between, split
from ottla.pipeline.source.rows import checked
from ottla.pipeline.source.survey import Places, Survey

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

IDLE_S = 0.05
"""How long the brokers are left alone when nothing was new: Spark asks again at once."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch; where a query stands is in its checkpoint."""

    def __init__(self, options: Mapping[str, str], schema: StructType, places: Places | None = None) -> None:
        self._config = SourceConfig.of(options, streaming=True)
        self._schema = checked(schema, self._config.value, include_headers=self._config.include_headers)
        self._survey_made = places
        self._initial: Offsets | None = None
        self._newest: Offsets = {}
        self._has_target = False
        self._target: Offsets | None = None
        self._patience = Patience(self._config.min_offsets_per_trigger, self._config.max_trigger_delay_ms)

    # --- where to

    def initialOffset(self) -> Nested:  # noqa: N802 - Spark's name
        """Return what stands for the beginning of a new query.

        Spark asks again when its first batch comes again, and does not tell the one from the other. So the
        brokers are asked when the first end is; the checkpoint has the answer from then on.
        """
        return INITIAL

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say of the size of batches."""
        if self._config.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._config.max_offsets_per_trigger)
        if self._config.min_offsets_per_trigger is not None:
            return ReadMinRows(self._config.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End where topics end when the first batch is asked for, and not before its beginning is known."""
        self._has_target = True

    def latestOffset(self, start: Nested, limit: ReadLimit) -> Nested:  # noqa: N802
        """Return up to where the next batch reads; `start` where it should not begin yet. Raises DataLoss."""
        is_first = start == INITIAL
        begun = self._first() if is_first else flat(start)
        end = self._newest = self._end_for(begun)
        if is_first:  # before it is in the checkpoint, for good
            self._check_first(begun, end)
        before = begun | self._beginnings_of_new(begun, end)
        if self._is_too_early(before, end, limit) and not is_first:
            return self._nothing(start)
        if isinstance(limit, ReadMaxRows):
            end = shared(before, end, limit.max_rows)
        if is_first:
            return first_end(before, end)
        # A partition that is gone is missing here, and so reported as lost when the batch is planned.
        return nested(end) if end != begun else self._nothing(start)

    def reportLatestOffset(self) -> Nested | None:  # noqa: N802
        """Return where topics end, for the progress of the query: its lag."""
        return nested(self._newest) if self._newest else None

    # --- reading

    def partitions(self, start: Nested, end: Nested) -> Sequence[InputPartition]:
        """Return what the tasks of a batch read. Raises DataLoss."""
        begun, until = self._begun(start, end), flat(end)
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
    def _survey(self) -> Places:
        if self._survey_made is None:
            self._survey_made = Survey(self._config)
        return self._survey_made

    def _first(self) -> Offsets:
        """Return where options say that a new query begins."""
        if self._initial is None:
            self._initial = first_offsets(self._survey, self._config, self._survey.partitions())
        return self._initial

    def _begun(self, start: Nested, end: Nested) -> Offsets:
        """Return where a batch begins."""
        if start != INITIAL:
            return flat(start)
        if (found := beginnings(end)) or not end:
            return found
        # A checkpoint of a release that did not keep the beginnings: options may mean the same as then.
        until = flat(end)
        return {each: offset for each, offset in self._first().items() if each in until}

    def _end_for(self, begun: Offsets) -> Offsets:
        """Return where topics end, or ended when a query of all that is available now asked first."""
        if not self._has_target:
            return self._ends(begun)
        if self._target is None:
            self._target = self._ends(begun)
        return self._target

    def _is_too_early(self, begun: Offsets, end: Offsets, limit: ReadLimit) -> bool:
        if self._has_target or isinstance(limit, ReadAllAvailable):
            return False
        return self._patience.is_too_early(new_offsets(begun, end), _now_ms())

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

    def _check_first(self, begun: Offsets, end: Offsets) -> None:
        self._check_deleted(begun, end)
        self._check_shrunk(begun, end, "is to be read from {}")

    def _check_deleted(self, begun: Offsets, until: Offsets) -> None:
        if gone := begun.keys() - until.keys():
            lost(self._config, f"{written(gone)} is not there any more")

    def _check_new(self, new: Offsets) -> None:
        for partition, offset in new.items():
            if offset > 0:
                lost(self._config, f"{partition} is new, and its first records, up to {offset}, are gone")

    def _check_shrunk(self, begun: Offsets, until: Offsets, how: str = "was read up to {} before") -> None:
        for partition, offset in until.items():
            first = begun.get(partition, offset)
            if first > offset:
                lost(self._config, f"{partition} ends at {offset}, and {how.format(first)}")


def _now_ms() -> float:
    return time.monotonic() * 1_000

"""Log pipelines: lines of text or JSON become partitioned Parquet; malformed ones become dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Literal

from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.declaration import Job, Mistake, Topics
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.jobs.lake import Lake
from ottla.pipeline.jobs.topic_sink import TopicSink, dead_letters_by, parses_for_dead_letters
from ottla.pipeline.jobs.value_parsing import REASON, ROW, Parse
from ottla.pipeline.lazy import functions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from ottla.pipeline.jobs.run import Run

PLACE = ("_topic", "_partition", "_offset")
"""Columns of each row that identify its record."""
_DERIVED = {"day": "yyyy-MM-dd", "hour": "HH"}
"""Partition columns that are derived from the timestamp of a line."""


class Logs(Job):
    """Lines of logs (JSON, regex, Apache, nginx) to partitioned Parquet; bad ones to a topic with reasons."""

    kind: Literal["logs"]
    source: Topics
    parse: Parse
    lake: Lake
    dead_letters: TopicSink

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values."""
        yield from within("source", self.source.inspect())
        yield from within("dead_letters", self.dead_letters.inspect(self.source))
        yield from within("lake", self.lake.inspect())
        yield from within("parse", self.parse.inspect())
        yield from self._inspect_columns()

    def _inspect_columns(self) -> Iterator[Mistake]:
        try:
            columns = self.parse.names()
        except OptionError:
            return  # reported already: the columns of an invalid pattern are unknown
        there = dict.fromkeys((*columns, *_DERIVED, *PLACE))
        yield from within("lake", self.lake.inspect_partitions(there))
        for name, why in self.lake.inspect_types(self.parse.types()):
            yield Mistake(("parse", "fields", name) if name in self.parse.fields else ("parse",), why)
        for name, why in self.lake.clashes(columns, (*PLACE, *self._derived(columns))):
            yield Mistake(("parse", "fields", name) if name in self.parse.fields else ("parse",), why)

    def _derived(self, columns: Collection[str]) -> list[str]:
        """Return the partition columns that are derived from the timestamp because no line has them."""
        return [name for name in _DERIVED if name in self.lake.partition_by and name not in columns]

    def run(self, run: Run) -> None:
        """Read lines, and write rows and dead letters, batch by batch."""
        frame = self.source.stream(run.spark, {"includeHeaders": "true"})

        def each(batch: DataFrame, batch_id: int) -> Mapping[str, int]:
            parsed = self.parse.add_to(batch)
            return self._write(run, parsed, batch_id)

        run.stream(frame, each)
        run.wait()

    def _write(self, run: Run, parsed: DataFrame, batch_id: int) -> dict[str, int]:
        """Write a batch.

        Good and malformed rows are counted in the same pass, so a few malformed ones cost little.
        """
        from pyspark.sql import Observation

        seen = Observation()
        is_good = functions.col(REASON).isNull()
        observed = parsed.observe(
            seen, functions.count_if(is_good).alias("good"), functions.count_if(~is_good).alias("dead")
        )

        def counts() -> dict[str, int]:
            return {name: int(count) for name, count in seen.get.items()}

        def bury() -> None:
            self._bury(run, parsed, batch_id, has_dead=counts()["dead"] > 0)

        # Dead letters first: once Delta has committed the rows, nothing of the batch is repeated.
        rows = self._rows(observed.where(is_good))
        self.lake.append(rows, run.batch_key("main", batch_id), run.state("main"), before=bury)
        return counts() | {"rows": sum(counts().values())}

    def _bury(self, run: Run, records: DataFrame, batch_id: int, *, has_dead: bool) -> None:
        """Send the dead letters of a batch; with exactly-once delivery, no one twice and none lost.

        A batch may be repeated after `parse` was corrected. If its dead letters followed the new declaration,
        the sink would find other rows than before in tasks that are already written. It rejects that at every
        start; told to ignore it, it would drop the dead letters that only the new declaration finds. So the
        earlier ones are repeated unchanged, and the new ones have a write of their own.
        """
        declared = [self.parse] if has_dead else []
        if self.dead_letters.is_exactly_once(self.source):
            declared = parses_for_dead_letters(
                run.state("dead-letters"), batch_id, self.parse, has_dead=has_dead
            )
        for at, letters in enumerate(dead_letters_by(declared, records, self.name)):
            self.dead_letters.write(letters, self.source, f"dead-letters-{at}" if at else "dead-letters")

    def _rows(self, good: DataFrame) -> DataFrame:
        time = self._time()
        derived = [
            functions.date_format(time, _DERIVED[name]).alias(name)
            for name in self._derived(self.parse.names())
        ]
        place = [functions.col(name.removeprefix("_")).alias(name) for name in PLACE]
        return good.select(f"{ROW}.*", *derived, *place)

    def _time(self) -> Column:
        """Return the timestamp of a line, or of its record if the line has none."""
        record = functions.col("timestamp")
        named = next((name for name in self.parse.names() if self.parse.is_time(name)), None)
        return record if named is None else functions.coalesce(functions.col(ROW)[named], record)

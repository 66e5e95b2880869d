"""Logs: lines of text or JSON become partitioned Parquet, and bad ones go to a topic with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Literal

from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.dead_letters import dead_letters_by, parses_for_dead_letters
from ottla.pipeline.jobs.declaration import Job, Mistake, Topics
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.jobs.lake import Lake
from ottla.pipeline.jobs.topic_sink import TopicSink
from ottla.pipeline.jobs.value_parsing import REASON, ROW, Parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from ottla.pipeline.jobs.run import Run

PLACE = ("_topic", "_partition", "_offset")
"""Columns of each row that say which record it was."""
_DERIVED = {"day": "yyyy-MM-dd", "hour": "HH"}
"""Columns that may be partitioned by although nothing in a line is called so: they are made of its time."""


class Logs(Job):
    """Lines of logs (JSON, regex, Apache, nginx) to partitioned Parquet; bad ones to a topic with reasons."""

    kind: Literal["logs"]
    source: Topics
    parse: Parse
    lake: Lake
    dead_letters: TopicSink

    def inspect(self) -> Iterator[Mistake]:
        """Yield what is wrong beyond the types of single values."""
        yield from within("source", self.source.inspect())
        yield from within("dead_letters", self.dead_letters.inspect(self.source))
        yield from within("lake", self.lake.inspect())
        yield from within("parse", self.parse.inspect())
        yield from self._inspect_columns()

    def _inspect_columns(self) -> Iterator[Mistake]:
        try:
            columns = self.parse.names()
        except OptionError:
            return  # said already: without a pattern it is not known which columns there are
        there = dict.fromkeys((*columns, *_DERIVED, *PLACE))
        yield from within("lake", self.lake.inspect_partitions(there))
        for name, why in self.lake.clashes(columns, (*PLACE, *self._derived(columns))):
            yield Mistake(("parse", "fields", name) if name in self.parse.fields else ("parse",), why)

    def _derived(self, columns: Collection[str]) -> list[str]:
        """Return the columns that are made of the time: those that are partitioned by, and no line has."""
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
        """Write a batch. Good and bad rows are counted on the way, so that few bad ones cost little."""
        from pyspark.sql import Observation, functions

        seen = Observation()
        is_good = functions.col(REASON).isNull()
        observed = parsed.observe(
            seen, functions.count_if(is_good).alias("good"), functions.count_if(~is_good).alias("dead")
        )

        def counts() -> dict[str, int]:
            return {name: int(count) for name, count in seen.get.items()}

        def bury() -> None:
            self._bury(run, parsed, batch_id, has_dead=counts()["dead"] > 0)

        # Bad lines go first: once Delta has the good ones, nothing of the batch is done again.
        rows = self._rows(observed.where(is_good))
        self.lake.append(rows, run.batch_key("main", batch_id), run.state("main"), before=bury)
        return counts() | {"rows": sum(counts().values())}

    def _bury(self, run: Run, records: DataFrame, batch_id: int, *, has_dead: bool) -> None:
        """Send the dead letters of a batch; where they are sent exactly once, none again and none less.

        A batch may be done again after `parse` was mended. Were its letters those of the new declaration, the
        sink would find other rows than before in tasks that had sent theirs: it refuses that, at each start;
        and were it told not to look, it would drop those that are bad only now. So the earlier ones come
        again as they were, and the new ones have a write of their own.
        """
        declared = [self.parse] if has_dead else []
        if self.dead_letters.is_exactly_once(self.source):
            declared = parses_for_dead_letters(
                run.state("dead-letters"), batch_id, self.parse, has_dead=has_dead
            )
        for at, letters in enumerate(dead_letters_by(declared, records, self.name)):
            self.dead_letters.write(letters, self.source, f"dead-letters-{at}" if at else "dead-letters")

    def _rows(self, good: DataFrame) -> DataFrame:
        from pyspark.sql import functions

        time = self._time()
        derived = [
            functions.date_format(time, _DERIVED[name]).alias(name)
            for name in self._derived(self.parse.names())
        ]
        place = [functions.col(name.removeprefix("_")).alias(name) for name in PLACE]
        return good.select(f"{ROW}.*", *derived, *place)

    def _time(self) -> Column:
        """Return the time of a line, or that of its record where it says none."""
        from pyspark.sql import functions

        record = functions.col("timestamp")
        named = next((name for name in self.parse.names() if self.parse.is_time(name)), None)
        return record if named is None else functions.coalesce(functions.col(ROW)[named], record)

"""Changelog pipelines: a change log becomes a table with the last state of each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from ottla.pipeline.errors import PipelineError
from ottla.pipeline.jobs.changes.change_reader import IGNORED, ChangeReader, Changes
from ottla.pipeline.jobs.changes.delta_merge import Merged, newest
from ottla.pipeline.jobs.dead_letters import dead_letters
from ottla.pipeline.jobs.declaration import Job, Mistake, Topics
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.jobs.topic_sink import TopicSink
from ottla.pipeline.jobs.value_parsing import REASON
from ottla.pipeline.lazy import functions, pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.pipeline.jobs.run import Run


class MalformedChange(PipelineError):
    """A malformed record of a change log, in a pipeline without dead letters."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"{where}: {reason}. Without this record the table would be silently wrong; declare "
            "[dead_letters] with a topic to send such records there and continue"
        )


class Changelog(Job):
    """Change log (compacted topic or CDC) → Delta table by merge; tombstones delete."""

    kind: Literal["changelog"] = "changelog"
    source: Topics
    changes: Changes
    table: Merged
    dead_letters: TopicSink | None = None

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values."""
        yield from within("source", self.source.inspect())
        yield from within("changes", self.changes.inspect())
        yield from within("table", self.table.inspect())
        if self.dead_letters is not None:
            yield from within("dead_letters", self.dead_letters.inspect(self.source))
        for where, types in (("key", self.changes.key), ("columns", self.changes.columns)):
            for name, why in self.table.inspect_types(types):
                yield Mistake(("changes", where, name), why)
        for name in self.table.partition_by:
            if name not in self.changes.names():
                there = ", ".join(self.changes.names())
                yield Mistake(
                    ("table", "partition_by"), (f"there is no column {name!r}; the columns are {there}")
                )

    def run(self, run: Run) -> None:
        """Merge changes into the table, batch by batch."""
        frame = self.source.stream(run.spark, {"includeHeaders": "true"})

        def each(batch: DataFrame, batch_id: int) -> Mapping[str, int]:
            return self._merge(run, ChangeReader(self.changes).add_to(batch), batch_id)

        run.stream(frame, each)
        run.wait()

    def _merge(self, run: Run, read: DataFrame, batch_id: int) -> dict[str, int]:
        rows, seen = self._newest(read)
        if seen["dead"]:
            self._put_away(read.where(f"{REASON} IS NOT NULL"))
        done = self.table.merge(rows, list(self.changes.key), run.batch_key("main", batch_id))
        return done | seen

    def _newest(self, read: DataFrame) -> tuple[pa.Table, dict[str, int]]:
        """Return the last change of each row and the number of malformed records, in one pass."""
        from pyspark.sql import Observation

        seen = Observation()
        is_dead = functions.col(REASON).isNotNull()
        # Spark counts the records of a batch with malformed ones twice, because it reads those again.
        observed = read.observe(
            seen, functions.count_if(is_dead).alias("dead"), functions.count("*").alias("rows")
        )
        good = observed.where(~is_dead & ~functions.col(IGNORED))
        rows: pa.Table = newest(good, list(self.changes.key)).toArrow()
        return rows, {name: int(count) for name, count in seen.get.items()}

    def _put_away(self, dead: DataFrame) -> None:
        if self.dead_letters is not None:
            self.dead_letters.write(dead_letters(dead, self.name), self.source, "dead-letters")
            return
        first = dead.select("topic", "partition", "offset", REASON).first()
        assert first is not None, "a batch with dead letters has a first one"
        raise MalformedChange(
            f"{first['topic']}-{first['partition']} at offset {first['offset']}", first[REASON]
        )

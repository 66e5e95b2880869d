"""Activity pipelines: user events become sessions and counts over time; late events are only counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.declaration import Job, Mistake, Names, Seconds, Table, Topics
from ottla.pipeline.jobs.declaration_errors import within
from ottla.pipeline.jobs.lake import Lake
from ottla.pipeline.jobs.topic_sink import TopicSink, dropped_by_watermark, send_dead_letters
from ottla.pipeline.jobs.value_parsing import REASON, ROW, Parse
from ottla.pipeline.lazy import functions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ottla.pipeline.jobs.run import EachBatch, Run

_USER, _TIME, _ID, _WINDOW = "_user", "_time", "_id", "_window"
_SESSIONS = ("user", "began", "ended", "seconds", "events")
_WINDOWS = ("began", "ended", "events", "users")
"""The columns of the tables, except those by which windows are grouped."""


class Events(Table):
    """The meaning of the columns of an event."""

    user: str = Field(examples=["user"])
    time: str = Field(examples=["time"])
    id: str | None = None
    """The column that identifies an event; repeated events count once. Default: topic, partition and offset.
    """
    late_after: Seconds = 600.0
    """An event that is older than the newest one by this much is late: it is counted, and otherwise ignored.
    """


class Sessions(Table):
    """Sessions: the events of a user without a longer pause."""

    gap: Seconds = 1_800.0
    lake: Lake

    def inspect_columns(self) -> Iterator[Mistake]:
        """Yield invalid columns; paths are within this table."""
        yield from within("lake", self.lake.inspect_partitions(_SESSIONS))


class Windows(Table):
    """Counts of events over time."""

    length: Seconds = 300.0
    slide: Seconds | None = None
    """The interval between the starts of windows; default: the length of a window."""
    by: Names = Field(default_factory=list, examples=[["action"]])
    lake: Lake

    def inspect_columns(self) -> Iterator[Mistake]:
        """Yield invalid columns; paths are within this table."""
        yield from within("lake", self.lake.inspect_partitions((*_WINDOWS, *self.by)))
        for _, why in self.lake.clashes(self.by, (*_WINDOWS, _USER, _TIME, _ID, _WINDOW)):
            yield Mistake(("by",), why)


class Activity(Job):
    """User events → sessions and counts over time in Delta or Parquet; late events are counted."""

    kind: Literal["activity"]
    source: Topics
    parse: Parse
    events: Events
    sessions: Sessions | None = None
    windows: Windows | None = None
    dead_letters: TopicSink

    def inspect(self) -> Iterator[Mistake]:
        """Yield mistakes beyond the types of single values."""
        yield from within("source", self.source.inspect())
        yield from within("parse", self.parse.inspect())
        yield from within("dead_letters", self.dead_letters.inspect(self.source))
        yield from self._inspect_columns()
        for name, table in (("sessions", self.sessions), ("windows", self.windows)):
            if table is not None:
                yield from within(name, within("lake", table.lake.inspect()))
                yield from within(name, table.inspect_columns())
        if self.sessions is None and self.windows is None:
            yield Mistake((), "needs [sessions], [windows] or both: without them the events have no result")
        if self.windows is not None and (self.windows.slide or 0) > self.windows.length:
            yield Mistake(
                ("windows", "slide"), "must not be above length: events between two windows would be in none"
            )

    def _inspect_columns(self) -> Iterator[Mistake]:
        try:
            columns = self.parse.names()
        except OptionError:
            return  # reported already: the columns of an invalid pattern are unknown
        for path, name in self._columns_meant():
            if name not in columns:
                yield Mistake(path, f"there is no column {name!r}; the columns are {', '.join(columns)}")
        if self.events.time in columns and not self.parse.is_time(self.events.time):
            yield Mistake(("events", "time"), f"{self.events.time!r} must be a TIMESTAMP: see [parse.fields]")

    def _columns_meant(self) -> Iterator[tuple[tuple[str, str], str]]:
        yield ("events", "user"), self.events.user
        yield ("events", "time"), self.events.time
        if self.events.id is not None:
            yield ("events", "id"), self.events.id
        for name in self.windows.by if self.windows else ():
            yield ("windows", "by"), name

    def run(self, run: Run) -> None:
        """Update the tables, batch by batch."""
        if self.sessions is not None:
            frame = self._sessions(self._events(run), self.sessions)
            run.stream(frame, self._append(run, self.sessions.lake, "sessions"), "sessions")
        if self.windows is not None:
            frame = self._windows(self._events(run), self.windows)
            run.stream(frame, self._append(run, self.windows.lake, "windows"), "windows")
        bad = self._parsed(run).where(f"{REASON} IS NOT NULL")
        run.stream(bad, self._send_dead, "dead-letters")
        run.wait()

    def _parsed(self, run: Run) -> DataFrame:
        parse = self.parse.model_copy(
            update={"required": [*dict.fromkeys((self.events.user, self.events.time, *self.parse.required))]}
        )
        return parse.add_to(self.source.stream(run.spark, {"includeHeaders": "true"}))

    def _events(self, run: Run) -> DataFrame:
        """Return each event once. The operator that drops repeated events also drops single late ones."""
        # This starts Spark; before that there are no columns.
        good = self._parsed(run).where(f"{REASON} IS NULL")
        columns = {name: functions.col(ROW)[name] for name in (self.windows.by if self.windows else ())}
        events = good.select(
            functions.col(ROW)[self.events.user].cast("string").alias(_USER),
            functions.col(ROW)[self.events.time].alias(_TIME),
            self._id().alias(_ID),
            *(column.alias(name) for name, column in columns.items()),
        )
        late = f"{int(self.events.late_after * 1_000)} milliseconds"
        return events.withWatermark(_TIME, late).dropDuplicatesWithinWatermark([_ID])

    def _id(self) -> Column:
        place = functions.concat_ws("-", "topic", "partition", "offset")
        if self.events.id is None:
            return place
        return functions.coalesce(functions.col(ROW)[self.events.id].cast("string"), place)

    def _sessions(self, events: DataFrame, wanted: Sessions) -> DataFrame:
        gap = f"{int(wanted.gap * 1_000)} milliseconds"
        found = events.groupBy(functions.session_window(_TIME, gap).alias(_WINDOW), _USER).agg(
            functions.max(_TIME).alias("ended"), functions.count("*").alias("events")
        )
        seconds = functions.col("ended").cast("double") - functions.col(f"{_WINDOW}.start").cast("double")
        return found.select(
            functions.col(_USER).alias("user"), functions.col(f"{_WINDOW}.start").alias("began"), "ended",
            seconds.alias("seconds"), "events",
        )  # fmt: skip

    def _windows(self, events: DataFrame, wanted: Windows) -> DataFrame:
        length, slide = (
            f"{int(length * 1_000)} milliseconds" for length in (wanted.length, wanted.slide or wanted.length)
        )
        window = functions.window(_TIME, length, slide).alias(_WINDOW)
        found = events.groupBy(window, *wanted.by).agg(
            functions.count("*").alias("events"), functions.approx_count_distinct(_USER).alias("users")
        )
        return found.select(
            functions.col(f"{_WINDOW}.start").alias("began"), functions.col(f"{_WINDOW}.end").alias("ended"),
            *wanted.by, "events", "users",
        )  # fmt: skip

    def _append(self, run: Run, lake: Lake, query: str) -> EachBatch:
        def each(batch: DataFrame, batch_id: int) -> Mapping[str, int]:
            lake.append(batch, run.batch_key(query, batch_id), run.state(query))
            return {"late": dropped_by_watermark(run.spark, run.query_name(query))}

        return each

    def _send_dead(self, batch: DataFrame, batch_id: int) -> Mapping[str, int]:
        return send_dead_letters(batch, self.dead_letters, self.source, self.name)

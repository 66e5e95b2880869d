"""Topics that a pipeline writes to: its results, and dead letters of the records that became no row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from ottla.pipeline.errors import OptionError, PipelineError
from ottla.pipeline.jobs.declaration import (
    CONNECTION,
    Mistake,
    Servers,
    Settings,
    Table,
    TopicName,
    Topics,
    option_text,
)
from ottla.pipeline.jobs.value_parsing import REASON, Parse
from ottla.pipeline.lazy import functions
from ottla.pipeline.options import PROFILE, checkable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.pipeline.jobs.state_files import StateFile


RECORD: Final = ("key", "value", "headers", "topic", "partition", "offset")
"""The columns of a record that a dead letter is made of."""
_SERVERS: Final = "kafka.bootstrap.servers"


class TopicSink(Table):
    """The target topic and its delivery guarantee."""

    bootstrap_servers: Servers | None = None
    """The default is the cluster that the pipeline reads from, with the same security settings."""
    profile: str | None = Field(default=None, min_length=1)
    """The profile with other brokers and their login."""
    topic: TopicName = Field(examples=["alerts"], min_length=1)
    delivery: Literal["at-least-once", "dedupe", "exactly-once"] = "dedupe"
    """After a crash records may be repeated, with headers that identify them; exactly-once needs
    transactions."""
    options: Settings = Field(default_factory=dict)
    """Any other option of the sink `ottla`, including `kafka.*` for the producer."""

    def inspect(self, source: Topics) -> Iterator[Mistake]:
        """Yield the mistakes that the sink would reject, and a topic that feeds its own source.

        Paths are within this table.
        """
        from ottla.pipeline.sink.config import SinkConfig

        if any(source.inspect()):
            # Mistakes in inherited settings are reported for the source; report only those of this table.
            servers = source.servers or "127.0.0.1:9092"
            update: dict[str, Any] = {"options": {}, "profile": None, "bootstrap_servers": servers}
            source = source.model_copy(update=update)
        try:
            options = checkable(self.sink_options(source))
        except OptionError as error:
            yield Mistake(("profile",), str(error))
            return
        yield from self._inspect_way(source, options.get(_SERVERS))
        try:
            SinkConfig.of(options)
        except ValueError as error:
            yield Mistake(("options",), str(error))

    def _inspect_way(self, source: Topics, servers: str | None) -> Iterator[Mistake]:
        """Yield a mistake if the source reads this topic: its records would circulate without end."""
        if servers == checkable(source.batch_options()).get(_SERVERS) and source.reads(self.topic):
            said = (
                f"{self.topic!r} is read by [source]: its records would be read and written again without end"
            )
            yield Mistake(("topic",), said)

    def is_exactly_once(self, source: Topics) -> bool:
        """Whether the brokers' transactions prevent repeated records."""
        from ottla.pipeline.sink.config import SinkConfig

        return SinkConfig.of(checkable(self.sink_options(source))).delivery == "exactly-once"

    def sink_options(self, source: Topics) -> dict[str, str]:
        """Return the options for `write` and `writeStream` in a pipeline with this source."""
        said = {"topic": self.topic, "delivery": self.delivery}
        if self.bootstrap_servers is not None:
            said[_SERVERS] = self.bootstrap_servers
        if self.profile is not None:
            said[PROFILE] = self.profile
        given = {name.lower(): option_text(value) for name, value in self.options.items()}
        own = said | given
        return own if _SERVERS in own or PROFILE in own else _connection(source) | own

    def write(self, batch: DataFrame, source: Topics, write_id: str) -> None:
        """Write the rows of a stream's batch; `write_id` distinguishes several writes of a batch."""
        options = self.sink_options(source) | {"write.id": write_id}
        batch.write.format("ottla").mode("append").options(**options).save()


def _connection(source: Topics) -> dict[str, str]:
    """Return the options that say how to connect to the brokers of a source."""
    return {
        name if name == PROFILE else f"kafka.{name}": value
        for name, value in source.properties().items()
        if name in ("bootstrap.servers", PROFILE) or name.startswith(CONNECTION)
    }


def dead_letters(bad: DataFrame, pipeline: str) -> DataFrame:
    """Return the records with headers for the reason and the original topic, partition and offset.

    The original position identifies a dead letter, so that readers can drop a second copy.
    """
    said = {
        "dead-reason": functions.col(REASON),
        "dead-pipeline": functions.lit(pipeline),
        "dead-topic": functions.col("topic"),
        "dead-partition": functions.col("partition"),
        "dead-offset": functions.col("offset"),
    }
    headers = [
        functions.struct(functions.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in said.items()
    ]
    none = functions.array().cast("array<struct<key:string,value:binary>>")
    before = functions.coalesce("headers", none)
    return bad.select("key", "value", functions.concat(before, functions.array(*headers)).alias("headers"))


def send_dead_letters(bad: DataFrame, target: TopicSink, source: Topics, pipeline: str) -> dict[str, int]:
    """Send the malformed records of a batch, and return their count."""
    from pyspark.sql import Observation

    seen = Observation()
    letters = dead_letters(bad.observe(seen, functions.count("*").alias("dead")), pipeline)
    target.write(letters, source, "dead-letters")
    return {"dead": int(seen.get["dead"])}


def parses_for_dead_letters(begun: StateFile, batch_id: int, parse: Parse, *, has_dead: bool) -> list[Parse]:
    """Return the declarations that find a batch's dead letters: those of its first run, then today's.

    `has_dead` says whether the current declaration finds any. `begun` stores the result durably before any
    dead letter is sent. With exactly-once delivery, the dead letters of a batch must be repeated unchanged,
    because the sink knows only for a task as a whole, by its number of rows, that they are sent.
    """
    found = begun.read()
    declared = (
        [Parse(**declared_parse) for declared_parse in found["parse"]]
        if found.get("batch") == batch_id
        else []
    )
    if has_dead and parse not in declared:
        declared.append(parse)
        begun.write({"batch": batch_id, "parse": [parse.model_dump() for parse in declared]})
    return declared


def dead_letters_by(declared: Sequence[Parse], records: DataFrame, pipeline: str) -> Iterator[DataFrame]:
    """Yield the dead letters that each declaration finds, without those of the declarations before it."""
    is_good = functions.col(REASON).isNull()
    left = records.select(*RECORD)
    for parse in declared:
        parsed = parse.add_to(left)
        yield dead_letters(parsed.where(~is_good), pipeline)
        left = parsed.where(is_good).select(*RECORD)


METRIC = "numRowsDroppedByWatermark"


def dropped_by_watermark(spark: SparkSession, query: str) -> int:
    """Return how many rows the current batch of a query dropped; call it once, when all rows are read.

    Spark reports the number too, but only after the batch, so a crash in between would lose it. Spark counts
    only rows that it drops one by one, not those of aggregated groups: the first stateful operator has to
    drop duplicates, or pass rows to a Python function.
    """
    for running in spark.streams.active:
        if running.name == query:
            plan = running._jsq.streamingQuery().lastExecution().executedPlan()
            return sum(_dropped(plan))
    raise PipelineError(f"Spark no longer has a query {query!r}")


def _dropped(plan: Any) -> Iterator[int]:
    """Yield the dropped rows of each operator of a plan."""
    metrics = plan.metrics()
    if metrics.contains(METRIC):
        yield int(metrics.apply(METRIC).value())
    children = plan.children()
    for at in range(children.size()):
        yield from _dropped(children.apply(at))

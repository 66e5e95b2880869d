"""A topic that a pipeline writes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TopicSink(Table):
    """The target topic and its delivery guarantee."""

    bootstrap_servers: Servers | None = None
    """The default is the cluster that the pipeline reads from, with the same security settings."""
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

        yield from self._inspect_way(source)
        if any(source.inspect()):
            # Mistakes in inherited settings are reported for the source; report only those of this table.
            source = source.model_copy(update={"options": {}})
        try:
            SinkConfig.of(self.sink_options(source))
        except ValueError as error:
            yield Mistake(("options",), str(error))

    def _inspect_way(self, source: Topics) -> Iterator[Mistake]:
        """Yield a mistake if the source reads this topic: its records would circulate without end."""
        same_brokers = (
            self.sink_options(source)["kafka.bootstrap.servers"] == source.properties()["bootstrap.servers"]
        )
        if same_brokers and source.reads(self.topic):
            said = (
                f"{self.topic!r} is read by [source]: its records would be read and written again without end"
            )
            yield Mistake(("topic",), said)

    def is_exactly_once(self, source: Topics) -> bool:
        """Whether the brokers' transactions prevent repeated records."""
        from ottla.pipeline.sink.config import SinkConfig

        return SinkConfig.of(self.sink_options(source)).delivery == "exactly-once"

    def sink_options(self, source: Topics) -> dict[str, str]:
        """Return the options for `write` and `writeStream` in a pipeline with this source."""
        said = {"topic": self.topic, "delivery": self.delivery}
        if self.bootstrap_servers is not None:
            said["kafka.bootstrap.servers"] = self.bootstrap_servers
        given = {name.lower(): option_text(value) for name, value in self.options.items()}
        own = said | given
        return own if "kafka.bootstrap.servers" in own else _connection(source) | own

    def write(self, batch: DataFrame, source: Topics, write_id: str) -> None:
        """Write the rows of a stream's batch; `write_id` distinguishes several writes of a batch."""
        options = self.sink_options(source) | {"write.id": write_id}
        batch.write.format("ottla").mode("append").options(**options).save()


def _connection(source: Topics) -> dict[str, str]:
    """Return the options that say how to connect to the brokers of a source."""
    return {
        f"kafka.{name}": value
        for name, value in source.properties().items()
        if name == "bootstrap.servers" or name.startswith(CONNECTION)
    }

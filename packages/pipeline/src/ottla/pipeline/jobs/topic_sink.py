"""A topic that a pipeline writes to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ottla.pipeline.errors import OptionError
from ottla.pipeline.jobs.declaration import Mistake, Settings, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TopicSink(Table):
    """Where records go, and what is promised about them."""

    bootstrap_servers: str | None = Field(None, examples=["127.0.0.1:9092"])
    """Without it, the brokers that the pipeline reads from."""
    topic: str = Field(examples=["alerts"], min_length=1)
    delivery: Literal["at-least-once", "dedupe", "exactly-once"] = "dedupe"
    """After a crash records may come twice, with headers to know them by; exactly-once needs transactions."""
    options: Settings = Field(default_factory=dict)
    """Any other option of the sink `ottla`, `kafka.*` for the producer among them."""

    def inspect(self) -> Iterator[Mistake]:
        """Yield what the sink would refuse; paths are within this table."""
        from ottla.pipeline.sink.config import SinkConfig

        try:
            SinkConfig.of(self.sink_options("127.0.0.1:9092"))
        except OptionError as error:
            yield Mistake(("options",), str(error))

    def sink_options(self, source_servers: str) -> dict[str, str]:
        """Return the options for `write` and `writeStream`."""
        own = {"kafka.bootstrap.servers": self.bootstrap_servers or source_servers}
        said = {"topic": self.topic, "delivery": self.delivery}
        return own | said | {name: str(value) for name, value in self.options.items()}

    def write(self, batch: DataFrame, source_servers: str, write_id: str) -> None:
        """Write the rows of a batch of a stream; `write_id` tells it from other writes of the same batch."""
        options = self.sink_options(source_servers) | {"write.id": write_id}
        batch.write.format("ottla").mode("append").options(**options).save()

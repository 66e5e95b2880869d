"""The cluster that a pipeline writes to with our clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import Field

from ottla.client.cluster import NoSuchTopic
from ottla.client.errors import ClientError
from ottla.pipeline.errors import OptionError, PipelineError
from ottla.pipeline.jobs.declaration import Mistake, Servers, Settings, Table
from ottla.pipeline.jobs.failure_messages import one_line
from ottla.producer import ProducerConfig
from ottla.protocol.errors import KafkaError


class Target(Table):
    """A cluster."""

    bootstrap_servers: Servers
    options: Settings = Field(default_factory=dict)
    """Settings of the client, under Kafka's names with the prefix `kafka.`."""

    def properties(self) -> dict[str, str]:
        """Return Kafka's settings for a client."""
        given = {name.lower().removeprefix("kafka."): _text(value) for name, value in self.options.items()}
        return {"bootstrap.servers": self.bootstrap_servers} | given

    def producer_config(self) -> ProducerConfig:
        """Return the settings of a producer. Raises OptionError."""
        try:
            return ProducerConfig.from_properties(self.properties())
        except ValueError as error:
            raise OptionError(str(error)) from None

    def inspect(self) -> Iterator[Mistake]:
        """Yield the mistakes that a producer would reject; paths are within this table."""
        for name in self.options:
            if not name.lower().startswith("kafka."):
                yield Mistake(("options", name), f"must begin with kafka.: kafka.{name}")
                return
        try:
            self.producer_config()
        except OptionError as error:
            yield Mistake(("options",), str(error))


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Within this context, errors of clients and brokers become a PipelineError of one line."""
    try:
        yield
    except NoSuchTopic as error:  # the cluster works; the declared topic does not exist
        raise PipelineError(one_line(error)) from error
    except (ClientError, KafkaError, TimeoutError) as error:
        raise PipelineError(f"a cluster failed: {one_line(error)} ({type(error).__name__})") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

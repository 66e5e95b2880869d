"""The options of the sink. Options of Spark's own Kafka sink keep its names, defaults and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from ottla.client.settings import SettingError
from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import REFUSED_BY_ALL, client_settings, given_options, option, required
from ottla.producer.config import ProducerConfig
from ottla.protocol.topics import why_illegal_topic_name

Delivery = Literal["at-least-once", "dedupe", "exactly-once"]

MARKERS_TOPIC = "ottla-spark-batches"

TRANSACTION_TIMEOUT_MS = 300_000
"""The transaction timeout of a task: more than a minute, less than the 15 minutes that brokers allow."""

WAITING_TIMEOUT_MS = 900_000
"""The transaction timeout where the transaction waits for all tasks of its batch: the brokers' default
maximum."""

_SHARE_OF_LATER_ATTEMPTS = 4

REFUSED = {
    **REFUSED_BY_ALL,
    "group.id": None,
    "key.serializer": "keys are written as raw bytes; convert them in a select",
    "value.serializer": "values are written as raw bytes; convert them in a select",
    "transactional.id": "delivery=exactly-once derives one for each task from transactional.id.prefix",
    "interceptor.classes": "interceptors work on single records, and rows are written as columns",
    "partitioner.class": "the column `partition` chooses the partition of a row",
    "partitioner.ignore.keys": "the column `partition` chooses the partition of a row",
    "partitioner": "the column `partition` chooses the partition of a row",
}

_CODECS_WITH_LEVELS = ("gzip", "lz4", "zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """The target topic and the delivery guarantee of a sink."""

    topic: str | None = option("topic", None, "the topic of all rows; it wins over the column `topic`")
    delivery: Delivery = option(
        "delivery", "at-least-once",
        "the guarantee when a batch is replayed: `at-least-once`; `dedupe`, which gives every row "
        "an id; or `exactly-once`, in transactions",
    )  # fmt: skip
    write_id: str | None = option(
        "write.id", None,
        "the name of a table write, or of a write inside `foreachBatch`, that identifies a "
        "repetition; random if not given",
        only="batch",
    )  # fmt: skip
    include_timestamps: bool = option(
        "includeTimestamps", False,
        "whether the column `timestamp` becomes the timestamp of records; otherwise they get the "
        "time of sending",
    )  # fmt: skip
    markers_topic: str = option(
        "markers.topic", MARKERS_TOPIC,
        "the topic in which `exactly-once` records the tasks that are done; it is created if missing",
    )  # fmt: skip
    transactional_id_prefix: str = option(
        "transactional.id.prefix", "ottla-spark", "the prefix of the transactional ids of `exactly-once`"
    )
    fail_on_changed_replay: bool = option(
        "failOnChangedReplay", True,
        "whether `exactly-once` fails a query whose replayed batch has other rows; with `false` the "
        "tasks of such a batch commit at once, and rows that are already written are not compared",
    )  # fmt: skip
    checkpoint_location: str | None = option(
        "checkpointLocation", None, "Spark's own: the folder with the progress of a query", only="stream"
    )
    query_name: str | None = option("queryName", None, "Spark's own: the name of a query", only="stream")
    path: str | None = option("path", None, "set by `save(...)`; has no effect")
    profile: str | None = option(
        "profile", None,
        "the profile with the brokers and the login, as `ottla profile add` makes it; options `kafka.*` win "
        "over it. Spark's driver reads it, and the secrets stand in no plan",
    )  # fmt: skip

    producer: Mapping[str, str] = field(repr=False)
    """Kafka's settings, by their dotted names."""

    without_effect: ClassVar[Mapping[str, str]] = {
        name.lower(): "it is an option of reads"
        for name in (
            "subscribe", "subscribePattern", "assign", "startingOffsets", "startingOffsetsByTimestamp",
            "startingTimestamp", "startingOffsetsByTimestampStrategy", "endingOffsets",
            "endingOffsetsByTimestamp", "endingTimestamp", "failOnDataLoss", "includeHeaders",
            "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
            "maxRecordsPerPartition", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
            "fetchOffset.retryIntervalMs", "groupIdPrefix",
        )
    }  # fmt: skip
    """Options of Spark's own source: one set of options often serves reads and writes."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkConfig:
        """Parse the options of a sink. Raises OptionError for the first invalid one."""
        options = given_options(cls, given, cls.without_effect)
        settings = _with_level(client_settings(given, REFUSED, ProducerConfig))
        found = cls(**options, producer=settings)
        found.producer_config(found.transactional_id_prefix if found.delivery == "exactly-once" else None)
        return found

    def __post_init__(self) -> None:
        examples = {
            "topic": (self.topic, "orders"),
            "write.id": (self.write_id, "bills-of-may"),
            "markers.topic": (self.markers_topic, MARKERS_TOPIC),
            "transactional.id.prefix": (self.transactional_id_prefix, "billing"),
        }
        for name, (text, example) in examples.items():
            if text is not None:
                required(name, text, example)
        for name, topic in (("topic", self.topic), ("markers.topic", self.markers_topic)):
            if topic is not None and (why := why_illegal_topic_name(topic)) is not None:
                raise OptionError(f"option {name!r}: {why}")

    def for_attempt(self, number: int) -> SinkConfig:
        """Return the configuration of an attempt at a task, counted from 0.

        Later attempts try to reach the brokers for a quarter of the time: with Spark's four attempts, a task
        without a broker fails within two times `bootstrap.timeout.ms` instead of four.
        """
        if number == 0:
            return self
        bound_ms = self.producer_config().client.bootstrap_timeout_ms
        shorter = {"bootstrap.timeout.ms": str(max(1, bound_ms // _SHARE_OF_LATER_ATTEMPTS))}
        return replace(self, producer={**self.producer, **shorter})

    def producer_config(
        self, transactional_id: str | None = None, *, timeout_ms: int = TRANSACTION_TIMEOUT_MS
    ) -> ProducerConfig:
        """Return the producer's configuration. Raises OptionError for an invalid setting.

        `timeout_ms` is the transaction timeout if the options set none.
        """
        settings = dict(self.producer)
        if transactional_id is not None:
            settings.setdefault("transaction.timeout.ms", str(timeout_ms))
        try:
            return ProducerConfig.from_properties(settings, transactional_id=transactional_id)
        except SettingError as error:
            raise OptionError(f"an option kafka.*: {error}") from None


def _with_level(settings: Mapping[str, str]) -> dict[str, str]:
    """Replace Kafka's levels of single codecs by that of the codec in use (KIP-390)."""
    names = {f"compression.{codec}.level": codec for codec in _CODECS_WITH_LEVELS}
    found = {name: text for name, text in settings.items() if name not in names}
    for name, codec in names.items():
        if name in settings and found.get("compression.type", "none").strip().lower() == codec:
            found.setdefault("compression.level", settings[name])
    return found

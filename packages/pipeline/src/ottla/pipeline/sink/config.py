"""Parsed options of the sink. Options of Spark's own Kafka sink keep its names, defaults and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ottla.client.settings import SettingError
from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import Options, client_settings
from ottla.pipeline.sink.options import MARKERS_TOPIC, OPTIONS, TRANSACTIONAL_ID_PREFIX
from ottla.producer.config import ProducerConfig

Delivery = Literal["at-least-once", "dedupe", "exactly-once"]

DELIVERIES: tuple[Delivery, ...] = ("at-least-once", "dedupe", "exactly-once")

TRANSACTION_TIMEOUT_MS = 300_000
"""The transaction timeout of a task: more than a minute, less than the 15 minutes that brokers allow."""

WAITING_TIMEOUT_MS = 900_000
"""The transaction timeout where the transaction waits for all tasks of its batch: the brokers' default
maximum."""

_SHARE_OF_LATER_ATTEMPTS = 4

REFUSED = {
    "group.id": None,
    "key.serializer": "keys are written as raw bytes; convert them in a select",
    "value.serializer": "values are written as raw bytes; convert them in a select",
    "transactional.id": "delivery=exactly-once derives one for each task from transactional.id.prefix",
    "interceptor.classes": "interceptors work on single records, and rows are written as columns",
    "partitioner.class": "the column `partition` chooses the partition of a row",
    "partitioner": "the column `partition` chooses the partition of a row",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """The target topic and the delivery guarantee of a sink."""

    producer: Mapping[str, str]
    """Kafka's settings, by their dotted names."""
    topic: str | None = None
    """The topic of all rows; without it, the column `topic` names it."""
    delivery: Delivery = "at-least-once"
    write_id: str | None = None
    """The name of a batch write, which identifies it when it is repeated."""
    include_timestamps: bool = False
    """Whether the column `timestamp` becomes the timestamp of the records."""
    markers_topic: str = MARKERS_TOPIC
    transactional_id_prefix: str = TRANSACTIONAL_ID_PREFIX
    fail_on_changed_replay: bool = True

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkConfig:
        """Parse the options of a sink. Raises OptionError for the first invalid one."""
        options = Options(given)
        options.refuse_unknown(OPTIONS)
        chosen = options.choice("delivery", DELIVERIES, "at-least-once")
        delivery = next(each for each in DELIVERIES if each == chosen)
        found = cls(
            producer=client_settings(options, REFUSED),
            topic=_named(options, "topic", "orders"),
            delivery=delivery,
            write_id=_named(options, "write.id", "bills-of-may"),
            include_timestamps=options.flag("includeTimestamps", default=False),
            markers_topic=_named(options, "markers.topic", MARKERS_TOPIC) or MARKERS_TOPIC,
            transactional_id_prefix=_named(options, "transactional.id.prefix", "billing")
            or TRANSACTIONAL_ID_PREFIX,
            fail_on_changed_replay=options.flag("failOnChangedReplay", default=True),
        )
        found.producer_config(found.transactional_id_prefix if delivery == "exactly-once" else None)
        return found

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


def _named(options: Options, name: str, example: str) -> str | None:
    return options.required(name, example) if name in options else None

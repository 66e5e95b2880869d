"""Parsed options of a source. Names, defaults and meaning are those of Spark's own Kafka source."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ottla.client.settings import SettingError
from ottla.consumer.config import ConsumerConfig
from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import Options, client_settings
from ottla.pipeline.source.offset_bounds import Bound, Edge, ending, starting
from ottla.pipeline.source.offset_json import parse_partitions
from ottla.pipeline.source.options import OPTIONS
from ottla.pipeline.values import ValueFormat, value_format
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

REFUSED = {
    "group.id": None,
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the checkpoint stores the offsets",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes; option value.format decodes them",
    "interceptor.classes": "interceptors could drop records",
}

_STREAM_ONLY = tuple(each.name for each in OPTIONS if each.only == "stream")
_BATCH_ONLY = tuple(each.name for each in OPTIONS if each.only == "batch")


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The topics to read: by name, by pattern, or as single partitions."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    def matches(self, topic: str) -> bool:
        """Whether a topic is selected; as in Spark, a pattern may match anywhere in its name."""
        if self.pattern is not None:
            return re.search(self.pattern, topic) is not None
        return topic in self.topics or any(topic == each.topic for each in self.partitions)

    def chooses(self, partition: TopicPartition) -> bool:
        """Whether a partition is selected."""
        return partition in self.partitions if self.partitions else self.matches(partition.topic)

    @property
    def option(self) -> str:
        """The option that selects."""
        return "assign" if self.partitions else "subscribe" if self.pattern is None else "subscribePattern"

    @property
    def names(self) -> frozenset[str] | None:
        """The selected topics by name; None for a pattern, which needs the list of all topics."""
        if self.pattern is not None:
            return None
        return self.topics or frozenset(each.topic for each in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """The cluster, topics, offsets and batch sizes of a source."""

    consumer: Mapping[str, str]
    """Kafka's settings, by their dotted names."""
    wanted: TopicSelection
    starting: Bound
    ending: Bound
    when_no_offset: Literal["error", "latest"] = "error"
    """The handling of a partition without a record at or after its starting timestamp."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    poll_timeout_ms: int = 120_000
    fetch_retries: int = 3
    fetch_retry_interval_ms: int = 10
    value: ValueFormat

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> SourceConfig:
        """Parse the options of a source. Raises OptionError for the first invalid one."""
        options = Options(given)
        options.refuse_unknown(OPTIONS)
        _look_at_kind(options, streaming=streaming)
        most, least = options.count("maxOffsetsPerTrigger"), options.count("minOffsetsPerTrigger")
        if most is not None and least is not None and least > most:
            raise OptionError(
                f"minOffsetsPerTrigger ({least}) must not be above maxOffsetsPerTrigger ({most})"
            )
        return cls(
            consumer=client_settings(options, REFUSED),
            wanted=_wanted(options),
            starting=starting(options, Edge.LATEST if streaming else Edge.EARLIEST, streaming=streaming),
            ending=ending(options),
            when_no_offset=_strategy(options),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            include_headers=options.flag("includeHeaders", default=False),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", "15m"),
            min_partitions=options.count("minPartitions"),
            max_records_per_partition=options.count("maxRecordsPerPartition"),
            poll_timeout_ms=options.count("kafkaConsumer.pollTimeoutMs", 120_000) or 0,
            fetch_retries=options.count("fetchOffset.numRetries", 3, at_least=0) or 0,
            fetch_retry_interval_ms=options.count("fetchOffset.retryIntervalMs", 10, at_least=0) or 0,
            value=value_format(options),
        )

    def consumer_config(self) -> ConsumerConfig:
        """Return the consumer's configuration. Raises OptionError for an invalid setting."""
        try:
            return ConsumerConfig.from_properties(
                self.consumer,
                # Lost records must be noticed, never skipped.
                auto_offset_reset="none",
                enable_auto_commit=False,
                allow_auto_create_topics=False,
            )
        except SettingError as error:
            raise OptionError(f"an option kafka.*: {error}") from None


def _wanted(options: Options) -> TopicSelection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(names) != 1:
        given = f"not {' and '.join(names)}" if names else "and there is none"
        raise OptionError(
            "exactly one of the options subscribe, subscribePattern and assign must choose what to "
            f"read, {given}"
        )
    text = options.required(names[0], "orders")
    if names[0] == "assign":
        return TopicSelection(partitions=parse_partitions("assign", text))
    if names[0] == "subscribePattern":
        return TopicSelection(pattern=_pattern(text))
    topics = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not topics:
        raise OptionError("option 'subscribe' names no topic")
    return TopicSelection(topics=topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(
            f"option 'subscribePattern' is not a regular expression: {text!r}: {error}"
        ) from None
    return text


def _strategy(options: Options) -> Literal["error", "latest"]:
    chosen = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return "latest" if chosen == "latest" else "error"


def _look_at_kind(options: Options, *, streaming: bool) -> None:
    """Reject an end for a stream; like Spark, ignore trigger limits in a batch."""
    for name in _BATCH_ONLY if streaming else _STREAM_ONLY:
        if name not in options:
            continue
        if streaming:
            raise OptionError(f"option {name!r} cannot be set here: a stream has no end")
        log.warning("option %s has no effect: a batch reads everything at once", name)

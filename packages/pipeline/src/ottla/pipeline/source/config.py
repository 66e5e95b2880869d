"""The options of a source. Names, defaults and meaning are those of Spark's own Kafka source."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ottla.client.settings import SettingError
from ottla.consumer.config import ConsumerConfig
from ottla.pipeline.errors import OptionError
from ottla.pipeline.options import REFUSED_BY_ALL, client_settings, given_options, option, options_of
from ottla.pipeline.source.offset_bounds import STARTING_OFFSETS, Bound, BoundOptions, Edge, ending, starting
from ottla.pipeline.source.offsets import parse_partitions
from ottla.pipeline.values import ValueFormat, value_format
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)

REFUSED = {
    **REFUSED_BY_ALL,
    "group.id": None,
    "group.instance.id": None,
    "group.protocol": None,
    "group.remote.assignor": None,
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "the checkpoint stores the offsets",
    "key.deserializer": "keys are bytes",
    "value.deserializer": "values are bytes; option value.format decodes them",
    "interceptor.classes": "interceptors could drop records",
}

_UNITS_MS = {
    "us": 0.001, "ms": 1, "": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)


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
        return topic in self.topics or any(topic == partition.topic for partition in self.partitions)

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
        return self.topics or frozenset(partition.topic for partition in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(BoundOptions):
    """The options of all reads, of topics and of files."""

    subscribe: str | None = option("subscribe", None, "the topics to read, separated by commas")
    subscribe_pattern: str | None = option(
        "subscribePattern", None,
        "a regular expression (Python's) that matches anywhere in the names of the topics to read",
    )  # fmt: skip
    assign: str | None = option("assign", None, 'single partitions, as JSON: `{"orders": [0, 1]}`')
    fail_on_data_loss: bool = option(
        "failOnDataLoss", True,
        "whether the query fails when records that it should read are lost: by retention, with their "
        "topic, or in a batch that cannot be read. With `false` it logs the loss and continues",
    )  # fmt: skip
    min_partitions: int | None = option(
        "minPartitions", None,
        "the minimum number of tasks, if there is enough to read; by default one for each partition",
        at_least=1,
    )  # fmt: skip


def _duration(text: str) -> str | None:
    found = _DURATION.fullmatch(text)
    is_known = found is not None and found[2].lower() in _UNITS_MS
    return None if is_known else "must be a time such as 15m, 30s or 200ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig(ReadOptions):
    """The cluster, topics, offsets and batch sizes of a source."""

    starting_offsets: str | None = option(
        "startingOffsets", None,
        STARTING_OFFSETS
        + ". The default is `earliest` for a batch and `latest` for a new stream; a restarted stream "
        "continues from its checkpoint",
    )  # fmt: skip
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger", None,
        "the maximum number of offsets in a micro-batch, divided among partitions by their lag",
        at_least=1, only="stream",
    )  # fmt: skip
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger", None,
        "the number of new offsets that a micro-batch waits for, up to `maxTriggerDelay`",
        at_least=1, only="stream",
    )  # fmt: skip
    max_trigger_delay: str = option(
        "maxTriggerDelay", "15m", "how long `minOffsetsPerTrigger` may wait: `30s`, `200ms`, `1h`",
        _duration, only="stream",
    )  # fmt: skip
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition", None, "the maximum offsets in a task; longer ranges are split", at_least=1
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs", 120_000,
        "how long a task waits for records before it fails, in milliseconds",
        at_least=1,
    )  # fmt: skip
    fetch_retries: int = option(
        "fetchOffset.numRetries", 3,
        "how often the driver retries a lookup of offsets after an error",
        at_least=0,
    )  # fmt: skip
    fetch_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs", 10, "how long it waits before a retry, in milliseconds", at_least=0
    )
    group_id_prefix: str | None = option("groupIdPrefix", None, "accepted without effect: no group is joined")
    path: str | None = option("path", None, "set by `load(...)`; has no effect")
    profile: str | None = option(
        "profile", None,
        "the profile with the brokers and the login, as `ottla profile add` makes it; options `kafka.*` win "
        "over it. Spark's driver reads it, and the secrets stand in no plan",
    )  # fmt: skip

    consumer: Mapping[str, str] = field(repr=False)
    """Kafka's settings, by their dotted names."""
    streaming: bool
    wanted: TopicSelection = field(init=False)
    starting: Bound = field(init=False)
    ending: Bound = field(init=False)
    value: ValueFormat = field(init=False)

    without_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("topic", "checkpointlocation", "queryname", "outputmode"), "it is an option of writes"
    )

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> SourceConfig:
        """Parse the options of a source. Raises OptionError for the first invalid one."""
        options = given_options(cls, given, cls.without_effect)
        _look_at_kind(options, streaming=streaming)
        settings = client_settings(given, REFUSED, ConsumerConfig)
        return cls(**options, consumer=settings, streaming=streaming)

    def __post_init__(self) -> None:
        most, least = self.max_offsets_per_trigger, self.min_offsets_per_trigger
        if most is not None and least is not None and least > most:
            raise OptionError(
                f"minOffsetsPerTrigger ({least}) must not be above maxOffsetsPerTrigger ({most})"
            )
        default = Edge.LATEST if self.streaming else Edge.EARLIEST
        object.__setattr__(self, "wanted", self._selection())
        object.__setattr__(self, "starting", starting(self, default, streaming=self.streaming))
        object.__setattr__(self, "ending", ending(self))
        object.__setattr__(self, "value", value_format(self, self.profile))

    @property
    def max_trigger_delay_ms(self) -> int:
        """The longest wait for `minOffsetsPerTrigger`; without a unit it is in milliseconds."""
        found = _DURATION.fullmatch(self.max_trigger_delay)
        assert found is not None, "checked"
        return int(int(found[1]) * _UNITS_MS[found[2].lower()])

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

    def _selection(self) -> TopicSelection:
        given = selecting(self)
        if len(given) != 1:
            named = f"not {' and '.join(given)}" if given else "and there is none"
            raise OptionError(
                "exactly one of the options subscribe, subscribePattern and assign must choose what to "
                f"read, {named}"
            )
        return selection(*next(iter(given.items())))


def selecting(options: ReadOptions) -> dict[str, str]:
    """Return the given options that select topics, by their names."""
    fields = {"topics": "topics", "subscribe": "subscribe", "subscribePattern": "subscribe_pattern"}
    found = {name: getattr(options, field, None) for name, field in {**fields, "assign": "assign"}.items()}
    return {name: text for name, text in found.items() if text is not None}


def selection(name: str, text: str) -> TopicSelection:
    """Parse an option that selects topics. Raises OptionError."""
    if name == "assign":
        return TopicSelection(partitions=parse_partitions(name, text))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"option {name!r} is not a regular expression: {text!r}: {error}") from None
        return TopicSelection(pattern=text)
    topics = frozenset(topic.strip() for topic in text.split(",") if topic.strip())
    if not topics:
        raise OptionError(f"option {name!r} names no topic")
    return TopicSelection(topics=topics)


def _look_at_kind(given: Mapping[str, object], *, streaming: bool) -> None:
    """Reject an end for a stream; like Spark, ignore trigger limits in a batch."""
    for declared in options_of(SourceConfig):
        if declared.only != ("batch" if streaming else "stream") or declared.field not in given:
            continue
        if streaming:
            raise OptionError(f"option {declared.name!r} cannot be set here: a stream has no end")
        log.warning(
            "option has no effect",
            extra={"option": declared.name, "reason": "a batch reads everything at once"},
        )

"""The configuration of stream processing, and what transactions require of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from ottla.client.settings import (
    SettingError,
    aliases,
    from_properties,
    read_properties,
    setting,
    settings_of,
    suggest_names,
    validate,
)
from ottla.consumer import ConsumerConfig, ConsumerRecord
from ottla.producer import ProducerConfig

Ordering = Literal["key", "partition", "none"]
OrderFunction = Callable[[ConsumerRecord], Hashable]
FailureAction = Literal["retry", "dead-letter", "skip", "stop"]
ProcessingGuarantee = Literal["at-least-once", "exactly-once"]

KAFKA_METADATA_BYTES = 4_096
"""The default of the broker's offset.metadata.max.bytes."""

_REASONS = {
    "enable_auto_commit": "enable_auto_commit is not for streams: finished offsets are always committed",
    "key_deserializer": "key_deserializer is not for streams: order and dead letters need bytes",
    "value_deserializer": "value_deserializer is not for streams: annotate the handler's first parameter",
    "key_type": "key_type is not for streams: annotate the handler's first parameter Record[K, V]",
    "value_type": "value_type is not for streams: annotate the handler's first parameter",
}


READING_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"auto_offset_reset": "earliest", "partition_assignment_strategy": "cooperative-sticky"}
)
"""Settings of the consumer that differ: a new group starts at the first record, and a rebalance leaves the
partitions alone that stay."""


_WRITING_DEFAULTS: Mapping[str, Any] = MappingProxyType({"transaction_timeout_ms": 10_000})
"""Settings of the producer that differ: the open transaction of a process that died holds up readers of
committed records, and the next owner of its partitions, for no longer than this."""


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    """Settings of a processor. Those of its consumer and producer are given beside them, by `of`."""

    order: Ordering | OrderFunction = "key"
    """Records that keep their order: those with the same key, all of a partition, none, or those for which a
    function of the record returns the same. Records without a key (or with the result None) have no order."""
    max_concurrency: int = setting(1_000, at_least=1)
    """The most handlers that run at once."""
    batch_size: int = setting(1, at_least=1)
    """The most records of one call of a handler that takes a list."""
    batch_of: Literal["key", "any"] = "key"
    """Whether a batch has records of one key only, or of any keys of a partition."""
    run_on: Literal["auto", "threads", "processes"] = "auto"
    """Where handlers run: auto runs async functions on the loop and plain functions on threads."""
    value_format: Literal["auto", "json", "msgpack"] = "auto"
    """How values become the annotated type; auto recognises JSON and msgpack by the first byte."""
    max_threads: int = setting(32, at_least=1)
    """The most threads of handlers that are plain functions; as many more may be lost to those that hang."""
    max_processes: int | None = setting(None, at_least=1)
    """The processes of handlers that run on processes; None: as many as there are processors."""
    max_buffered_records: int = setting(10_000, at_least=1)
    """The most records that wait or are handled; partitions are paused above their share of it."""
    max_buffered_bytes: int = setting(64 * 1024 * 1024, at_least=1)
    """The most bytes of keys and values that wait or are handled; partitions are paused as above."""
    max_parked_records: int = setting(10_000, at_least=1)
    """The most records that wait for a retry of their key. They do not count as buffered."""
    max_parked_bytes: int = setting(64 * 1024 * 1024, at_least=1)
    """The most bytes of records that wait for a retry of their key."""
    max_finished_ahead: int = setting(1_000_000, at_least=1)
    """The most offsets of a partition after its oldest unfinished record; 9 bytes of memory each."""
    handler_timeout_ms: int | None = setting(None, at_least=1)
    """After so long an attempt is cancelled and has failed; None: never. A thread cannot be cancelled: it
    goes on beside the retry, or the next record of its key, unless `on_error={HandlerTimedOut: "stop"}`."""
    commit_interval_ms: int = setting(1_000, at_least=1)
    """The time between two commits."""
    commit_timeout_ms: int = setting(15_000, at_least=1)
    """How long one commit may take; it is repeated at the next interval. With exactly-once it is at most 0.8
    of `transaction_timeout_ms`, so that a transaction ends before the coordinator ends it."""
    commit_metadata_max_bytes: int = setting(KAFKA_METADATA_BYTES, at_least=0)
    """The most bytes of commit metadata, at most the brokers' `offset.metadata.max.bytes`. 0: none, so that
    records finished out of order run again after a restart."""
    drain_timeout_ms: int = setting(30_000, at_least=0)
    """How long running handlers may take when their partition is revoked or the processor stops."""
    retries: int = setting(10, at_least=0)
    """How often a failed record is handled again."""
    retry_backoff_ms: int = setting(100, at_least=0)
    """The first wait before a retry; it doubles each time."""
    retry_backoff_max_ms: int = setting(60_000, at_least=0)
    """The longest wait before a retry."""
    retry_jitter: float = setting(0.2, at_least=0, at_most=1)
    """The share of a wait by which it is varied at random."""
    on_error: Mapping[type[BaseException], FailureAction] = field(default_factory=dict)
    """The action for each type of exception; the nearest base class counts. All others: retry."""
    dead_letter_topic: str | None = None
    """Where records go that failed for good; None: the processor stops at such a record."""
    poison_keys: Literal["set-aside"] | None = None
    """Whether later records of a key whose record failed for good go to the dead-letter topic too."""
    poison_key_ttl_ms: int = setting(3_600_000, at_least=1)
    """How long a key is set aside."""
    max_poison_keys: int = setting(10_000, at_least=1)
    """The most keys that are set aside; the oldest is forgotten first."""
    processing_guarantee: ProcessingGuarantee = "at-least-once"
    """Whether outputs and offsets are written in transactions (exactly-once)."""
    transaction_interval_ms: int = setting(100, at_least=1)
    """The time between two transactions, with exactly-once."""
    max_buffered_output_bytes: int = setting(64 * 1024 * 1024, at_least=1)
    """The most bytes of outputs that wait for a transaction, with exactly-once; above it handlers wait in
    `context.send`."""
    state_store: Literal["memory", "sqlite"] = "memory"
    """Where aggregates and tables of streams are kept, unless they say it themselves."""
    state_dir: str = "ottla-state"
    """The folder of SQLite stores, below it one with the app's name. Several processes may share it."""
    consumer: ConsumerConfig = field(default_factory=lambda: ConsumerConfig(**READING_DEFAULTS))
    """The settings of the consumer, with `group_id`."""
    producer: ProducerConfig = field(default_factory=lambda: ProducerConfig(**_WRITING_DEFAULTS))
    """The settings of the producer of outputs and dead letters. Its `transaction_timeout_ms` is 10,000 by
    default: so long readers of committed records wait after a crash, and coordinators may be out of reach."""

    def __post_init__(self) -> None:
        validate(self)
        if not (callable(self.order) or self.order in ("key", "partition", "none")):
            raise SettingError(
                f"order must be 'key', 'partition', 'none' or a function of a record, not {self.order!r}"
            )
        if self.drain_timeout_ms >= self.consumer.max_poll_interval_ms:
            raise SettingError(
                "drain_timeout_ms must be below max_poll_interval_ms: the group waits no longer"
            )
        if self.retry_backoff_max_ms < self.retry_backoff_ms:
            raise SettingError("retry_backoff_max_ms must be at least retry_backoff_ms")
        if self.poison_keys is not None and self.dead_letter_topic is None:
            raise SettingError("poison_keys needs a dead_letter_topic")
        self._check_actions()
        self._check_consumer()

    def _check_actions(self) -> None:
        if not isinstance(self.on_error, Mapping):
            raise SettingError(
                f"on_error maps types of exceptions to what follows, such as {{ValueError: 'skip'}}; "
                f"it is not {self.on_error!r}"
            )
        for kind, action in self.on_error.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise SettingError(f"on_error needs types of exceptions, not {kind!r}")
            if action not in ("retry", "dead-letter", "skip", "stop"):
                raise SettingError(
                    f"on_error[{kind.__name__}] must be 'retry', 'dead-letter', 'skip' or 'stop', "
                    f"not {action!r}"
                )
            if action == "dead-letter" and self.dead_letter_topic is None:
                raise SettingError(f"on_error[{kind.__name__}] is 'dead-letter': set dead_letter_topic")

    def _check_consumer(self) -> None:
        for name in ("key_deserializer", "value_deserializer", "key_type", "value_type"):
            if getattr(self.consumer, name) is not None:
                raise SettingError(_REASONS[name])

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Return a config of flat settings: its own, and those of ConsumerConfig and ProducerConfig.

        A name that both have, such as `bootstrap_servers`, is set for both; a name of StreamsConfig, such as
        `retries`, is set for it alone. Raises SettingError for unknown names.
        """
        return cls.from_properties({}, **settings)

    @classmethod
    def from_properties(cls, source: str | Path | Mapping[str, Any], **settings: Any) -> Self:
        """Read a properties file, or a mapping, with dotted names; `settings` win over it."""
        given = source if isinstance(source, Mapping) else read_properties(source)
        text, values = _Split(given), _Split(settings)
        _check_whole(values, "consumer", text.consumer | values.consumer)
        _check_whole(values, "producer", text.producer | values.producer)
        reading = _over_defaults(READING_DEFAULTS, text.consumer)
        if "consumer" not in values.own:
            values.own["consumer"] = from_properties(ConsumerConfig, reading, **values.consumer)
        if "producer" not in values.own:
            writing = _over_defaults(_WRITING_DEFAULTS, text.producer)
            values.own["producer"] = from_properties(ProducerConfig, writing, **values.producer)
        return from_properties(cls, text.own, **values.own)

    @property
    def group_id(self) -> str:
        """The group of the consumer. Raises SettingError without one."""
        if self.consumer.group_id is None:
            raise SettingError("group_id is needed: the group shares the partitions, and keeps the offsets")
        return self.consumer.group_id

    def reading(self) -> ConsumerConfig:
        """Return the consumer's config: the processor commits, and it drains partitions itself."""
        return replace(self.consumer, enable_auto_commit=False, handling_grace_ms=0)


class _Split:
    """Settings by the config class that has them. Raises SettingError for those that none has."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.own: dict[str, Any] = {}
        self.consumer: dict[str, Any] = {}
        self.producer: dict[str, Any] = {}
        own, reading, writing = (
            {field.name for field in fields(StreamsConfig)},
            _names(ConsumerConfig),
            _names(ProducerConfig),
        )
        for spelling, value in given.items():
            name = spelling.replace(".", "_")
            if name in _REASONS:
                raise SettingError(_REASONS[name])
            if name in own:
                self.own[spelling] = value
                continue
            if name not in reading | writing:
                raise SettingError(_unknown(spelling, own | reading | writing))
            if name in reading:
                self.consumer[spelling] = value
            if name in writing:
                self.producer[spelling] = value


def _unknown(spelling: str, known: Collection[str]) -> str:
    """Return the message about a name that is no setting, with the nearest one that is."""
    near = get_close_matches(spelling.replace(".", "_").lower(), sorted(known), 1, 0.7)
    if not near:
        return f"there is no setting {spelling!r}; the reference lists all settings"
    meant = near[0].replace("_", ".") if "." in spelling else near[0]
    return f"there is no setting {spelling!r}; did you mean {meant!r}?"


def _over_defaults(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return given settings, and the defaults of names that they do not spell in either way."""
    named = {name.replace(".", "_") for name in given}
    return {**{name: value for name, value in defaults.items() if name not in named}, **given}


def _names(cls: type[Any]) -> set[str]:
    return {*settings_of(cls), *aliases(cls), "client", "security"}


def _check_whole(values: _Split, whole: str, single: Mapping[str, Any]) -> None:
    if whole in values.own and single:
        raise SettingError(f"give {whole}, or single settings such as {next(iter(single))}, not both")


def transactional(config: StreamsConfig, unique_suffix: str) -> StreamsConfig:
    """Return a config for exactly once: read_committed, and a transactional id of this instance alone.

    With `group_instance_id` the id is that of the instance, so that a restart ends the transaction of the
    process before it at once; otherwise the coordinator ends it after `transaction_timeout_ms`. Commits are
    bounded below that, for a producer whose transaction the coordinator ended is fenced. Serializers are left
    out: outputs are serialized when handlers send them.
    """
    instance = config.consumer.group_instance_id or unique_suffix
    transactional_id = config.producer.transactional_id or f"{config.group_id}-{instance}"
    return replace(
        config,
        commit_timeout_ms=min(
            config.commit_timeout_ms, max(1, config.producer.transaction_timeout_ms * 4 // 5)
        ),
        consumer=replace(config.consumer, isolation_level="read_committed"),
        producer=replace(config.producer.of_bytes(), transactional_id=transactional_id),
    )


def check(config: StreamsConfig) -> None:
    """Raise SettingError for settings that rule out the processing guarantee."""
    if config.processing_guarantee != "exactly-once":
        if config.producer.transactional_id is not None:
            raise SettingError('transactional_id needs processing_guarantee="exactly-once"')
    elif not config.commit_metadata_max_bytes:
        raise SettingError(
            "exactly-once needs commit_metadata_max_bytes: records that finished out of order would run again"
        )

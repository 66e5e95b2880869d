"""The configuration of one topic's log: defaults from the broker, overrides from the topic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from ottla.broker.config.broker import (
    COMPRESSION_TYPES,
    DEFAULT_GZIP_LEVEL,
    DEFAULT_LZ4_LEVEL,
    DEFAULT_ZSTD_LEVEL,
    LZ4_LEVEL,
    ZSTD_LEVEL,
    BrokerConfig,
    gzip_level,
)
from ottla.broker.config.keys import keys_of
from ottla.client.config_definition import (
    MAX_LONG,
    ConfigError,
    Setting,
    at_least,
    between,
    each_of,
    one_of,
    setting,
)
from ottla.zookeeper.frozen_classes import frozen, replace

_HOUR_MS = 3_600_000


def _replicas_or_all(value: tuple[str, ...]) -> str | None:
    if value == ("*",) or all(re.fullmatch(r"[0-9]{1,10}:[0-9]{1,10}", replica) for replica in value):
        return None
    return "must be * or a list of partition:broker"


@frozen(kw_only=True)
class LogConfig:
    """The configuration of one log. Every field is a topic-level key of Kafka in snake case."""

    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "The treatment of old segments: `delete` deletes them; `compact` keeps the last record of each key; "
        "both together keep it only as long as `delete` does.",
        each_of("delete", "compact"),
    )
    compression_type: str = setting(
        "producer",
        "The codec of stored batches; `producer` keeps the producer's.",
        one_of(*COMPRESSION_TYPES),
    )
    compression_gzip_level: int = setting(
        DEFAULT_GZIP_LEVEL, "The level of gzip where the broker compresses; -1 is its default.", gzip_level
    )
    compression_lz4_level: int = setting(
        DEFAULT_LZ4_LEVEL, "The level of lz4 where the broker compresses.", LZ4_LEVEL
    )
    compression_zstd_level: int = setting(
        DEFAULT_ZSTD_LEVEL,
        "The level of zstd where the broker compresses; above 4 MiB of records, 19 at most.",
        ZSTD_LEVEL,
    )
    delete_retention_ms: int = setting(
        86_400_000, "How long a tombstone is kept after its compaction.", at_least(0), long=True
    )
    errors_deadletterqueue_group_enable: bool = setting(
        False, "Whether share groups may write dead letters to this topic."
    )
    file_delete_delay_ms: int = setting(
        60_000, "How long a deleted segment stays on disk, renamed.", at_least(0), long=True
    )
    flush_messages: int = setting(
        MAX_LONG, "Records after which the log is flushed to disk.", at_least(1), long=True
    )
    flush_ms: int = setting(
        MAX_LONG, "Time after which appended records are flushed to disk.", at_least(0), long=True
    )
    flush_before_acknowledge: bool = setting(
        False,
        "Whether a produce request is acknowledged only after its records are on disk. "
        "Appends that wait together share one fsync.",
        ottla_only=True,
    )
    record_validation: str = setting(
        "all",
        "The check of batches from clients before they are acknowledged: `all` reads every record, as Apache "
        "Kafka does; `headers` trusts the producers of batches with a right checksum.",
        one_of("all", "headers"),
        ottla_only=True,
    )
    index_interval_bytes: int = setting(
        4096, "Bytes of records between two entries of the offset index.", at_least(0)
    )
    max_compaction_lag_ms: int = setting(
        MAX_LONG, "Maximum age of a record until it is compacted.", at_least(1), long=True
    )
    max_message_bytes: int = setting(
        1_048_588, "The largest batch a producer may send, its overhead included.", at_least(0)
    )
    message_downconversion_enable: bool = setting(
        True, "Whether batches are converted for consumers that know only older formats."
    )
    message_format_version: str = setting(
        "3.0-IV1", "Accepted for compatibility; batches are always stored in format 2."
    )
    message_timestamp_difference_max_ms: int = setting(
        MAX_LONG,
        "Largest difference between a record's timestamp and the broker's clock, for CreateTime.",
        at_least(0),
        long=True,
    )
    message_timestamp_before_max_ms: int = setting(
        MAX_LONG, "How far a record's timestamp may be before the broker's clock.", at_least(0), long=True
    )
    message_timestamp_after_max_ms: int = setting(
        MAX_LONG, "How far a record's timestamp may be ahead of the broker's clock.", at_least(0), long=True
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whether a record keeps its producer's timestamp or gets the time of its append.",
        one_of("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, "Ratio of uncompacted bytes above which the log is compacted.", between(0, 1)
    )
    min_compaction_lag_ms: int = setting(
        0, "Minimum age of a record before it is compacted.", at_least(0), long=True
    )
    min_insync_replicas: int = setting(
        1, "In-sync replicas that must hold a record before acks=all is acknowledged.", at_least(1)
    )
    preallocate: bool = setting(False, "Whether a new segment's file is allocated in full at once.")
    retention_bytes: int = setting(
        -1, "Size of a partition above which its oldest segments are deleted; -1 means no limit.", long=True
    )
    retention_ms: int = setting(
        604_800_000, "Age at which a segment is deleted; -1 means never.", at_least(-1), long=True
    )
    segment_bytes: int = setting(1_073_741_824, "Size at which the log rolls to a new segment.", at_least(14))
    segment_index_bytes: int = setting(
        10_485_760, "Size of an index file; a full one rolls the log to a new segment.", at_least(4)
    )
    segment_jitter_ms: int = setting(
        0,
        "The maximum random amount subtracted from segment.ms, so that logs do not all roll at once.",
        at_least(0),
        long=True,
    )
    segment_ms: int = setting(
        604_800_000, "Age at which the log rolls to a new segment.", at_least(1), long=True
    )
    unclean_leader_election_enable: bool = setting(
        False, "Whether a replica outside the ISR, which may lack acknowledged records, can become leader."
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "Replicas (`partition:broker`, or `*` for all) that are throttled where they are copied to.",
        _replicas_or_all,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "Replicas (`partition:broker`, or `*` for all) that are throttled where they are copied from.",
        _replicas_or_all,
    )

    @property
    def compact(self) -> bool:
        """Whether records are compacted by key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether segments are deleted by age and size."""
        return "delete" in self.cleanup_policy

    @classmethod
    def from_broker(cls, broker: BrokerConfig, overrides: Mapping[str, str] | None = None) -> Self:
        """Return the broker's defaults with a topic's overrides applied.

        Raises `ConfigError` for an unknown key or an invalid value.
        """
        return cls(**log_defaults(broker)).with_overrides(overrides or {})

    def with_overrides(self, overrides: Mapping[str, str]) -> Self:
        """Return a copy with the given topic-level keys set from their texts."""
        return replace(self, **parse_topic_overrides(overrides)) if overrides else self


def log_defaults(broker: BrokerConfig) -> dict[str, Any]:
    """Return the fields of `LogConfig` with the values of a broker's own keys."""
    return {
        "cleanup_policy": broker.log_cleanup_policy,
        "compression_type": broker.compression_type,
        "compression_gzip_level": broker.compression_gzip_level,
        "compression_lz4_level": broker.compression_lz4_level,
        "compression_zstd_level": broker.compression_zstd_level,
        "delete_retention_ms": broker.log_cleaner_delete_retention_ms,
        "file_delete_delay_ms": broker.log_segment_delete_delay_ms,
        "flush_messages": broker.log_flush_interval_messages,
        "flush_ms": broker.log_flush_scheduler_interval_ms
        if broker.log_flush_interval_ms is None
        else broker.log_flush_interval_ms,
        "flush_before_acknowledge": broker.log_flush_before_acknowledge,
        "record_validation": broker.log_record_validation,
        "index_interval_bytes": broker.log_index_interval_bytes,
        "max_compaction_lag_ms": broker.log_cleaner_max_compaction_lag_ms,
        "max_message_bytes": broker.message_max_bytes,
        "message_downconversion_enable": broker.log_message_downconversion_enable,
        "message_format_version": broker.log_message_format_version,
        "message_timestamp_difference_max_ms": broker.log_message_timestamp_difference_max_ms,
        "message_timestamp_before_max_ms": broker.log_message_timestamp_before_max_ms,
        "message_timestamp_after_max_ms": broker.log_message_timestamp_after_max_ms,
        "message_timestamp_type": broker.log_message_timestamp_type,
        "min_cleanable_dirty_ratio": broker.log_cleaner_min_cleanable_ratio,
        "min_compaction_lag_ms": broker.log_cleaner_min_compaction_lag_ms,
        "min_insync_replicas": broker.min_insync_replicas,
        "preallocate": broker.log_preallocate,
        "retention_bytes": broker.log_retention_bytes,
        "retention_ms": broker.retention_ms,
        "segment_bytes": broker.log_segment_bytes,
        "segment_index_bytes": broker.log_index_size_max_bytes,
        "segment_jitter_ms": broker.log_roll_jitter_hours * _HOUR_MS
        if broker.log_roll_jitter_ms is None
        else broker.log_roll_jitter_ms,
        "segment_ms": broker.log_roll_hours * _HOUR_MS if broker.log_roll_ms is None else broker.log_roll_ms,
        "unclean_leader_election_enable": broker.unclean_leader_election_enable,
    }


def topic_keys() -> Mapping[str, Setting]:
    """List the topic-level keys by their dotted names."""
    return keys_of(LogConfig)


_NEWER: Final = frozenset({"errors.deadletterqueue.group.enable"})
"""Keys of Kafka 4: brokers of Apache Kafka with ZooKeeper do not know them."""


def is_own_topic_key(name: str) -> bool:
    """Whether Apache Kafka 3 does not know a topic key; such keys are stored apart from those it knows."""
    key = topic_keys().get(name)
    return key is not None and (key.ottla_only or name in _NEWER)


def parse_topic_overrides(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Check a topic's overrides and return them as fields of `LogConfig`."""
    known = keys_of(LogConfig)
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        if name not in known:
            raise ConfigError(name, f"is not a topic configuration{_advice(name, known)}")
        values[known[name].field] = known[name].parse(text)
    return values


def _advice(name: str, known: Iterable[str]) -> str:
    import difflib  # imported for a mistake only

    near = difflib.get_close_matches(name.strip().lower(), known, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else ""


TOPIC_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.type": ("compression.type",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.zstd.level": ("compression.zstd.level",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "flush.before.acknowledge": ("log.flush.before.acknowledge",),
    "record.validation": ("log.record.validation",),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "max.message.bytes": ("message.max.bytes",),
    "message.downconversion.enable": ("log.message.downconversion.enable",),
    "message.format.version": ("log.message.format.version",),
    "message.timestamp.difference.max.ms": ("log.message.timestamp.difference.max.ms",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "min.insync.replicas": ("min.insync.replicas",),
    "preallocate": ("log.preallocate",),
    "retention.bytes": ("log.retention.bytes",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.bytes": ("log.segment.bytes",),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
}
"""The broker keys that are a topic key's defaults, in order of precedence."""


def synonyms_of(topic_key: str) -> tuple[str, ...]:
    """Return the broker keys that are a topic key's defaults, in order of precedence."""
    return TOPIC_SYNONYMS.get(topic_key, ())

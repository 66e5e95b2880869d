"""The configuration of one topic's log: defaults from the broker, overrides from the topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ottla.broker.config.definition import (
    MAX_LONG,
    ConfigError,
    Key,
    at_least,
    between,
    each_of,
    field_names_of,
    key,
    keys_of,
    one_of,
)
from ottla.broker.values import frozen, replace

if TYPE_CHECKING:
    from ottla.broker.config.broker import BrokerConfig

COMPRESSION_TYPES = ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd")


@frozen(kw_only=True)
class LogConfig:
    """What governs one log. Every field is a topic-level key of Kafka in snake case."""

    cleanup_policy: tuple[str, ...] = key(
        ("delete",),
        "What happens to old segments: `delete` drops them; `compact` is to keep the last of each key, and "
        "keeps everything so far, as compaction is not there yet.",
        each_of("delete", "compact"),
    )
    compression_type: str = key(
        "producer",
        "The codec that batches are stored with; `producer` keeps what was sent.",
        one_of(*COMPRESSION_TYPES),
    )
    delete_retention_ms: int = key(
        86_400_000, "How long a tombstone outlives its compaction.", at_least(0), long=True
    )
    file_delete_delay_ms: int = key(
        60_000, "How long a deleted segment stays on disk under another name.", at_least(0), long=True
    )
    flush_messages: int = key(
        MAX_LONG, "Records after which the log is forced to disk.", at_least(1), long=True
    )
    flush_ms: int = key(
        MAX_LONG, "Time after which appended records are forced to disk.", at_least(0), long=True
    )
    flush_before_acknowledge: bool = key(
        False,
        "Whether a produce request is answered only once its records are on disk. "
        "Appends that wait together share one fsync.",
        ottla_only=True,
    )
    index_interval_bytes: int = key(
        4096, "Bytes appended between two entries of the offset index.", at_least(0)
    )
    max_compaction_lag_ms: int = key(
        MAX_LONG, "Longest time a record may stay out of compaction's reach.", at_least(1), long=True
    )
    max_message_bytes: int = key(
        1_048_588, "The largest batch a producer may send, its overhead included.", at_least(0)
    )
    message_downconversion_enable: bool = key(
        True, "Whether batches are rewritten for consumers that only know older formats."
    )
    message_format_version: str = key(
        "3.0-IV1", "Accepted for compatibility; batches are always stored in format 2.", None
    )
    message_timestamp_difference_max_ms: int = key(
        MAX_LONG,
        "How far a record's timestamp may be from the broker's clock when the type is CreateTime.",
        at_least(0),
        long=True,
    )
    message_timestamp_before_max_ms: int = key(
        MAX_LONG, "How far a record's timestamp may lie before the broker's clock.", at_least(0), long=True
    )
    message_timestamp_after_max_ms: int = key(
        MAX_LONG, "How far a record's timestamp may lie ahead of the broker's clock.", at_least(0), long=True
    )
    message_timestamp_type: str = key(
        "CreateTime",
        "Whether a record keeps the time its producer gave it, or gets the time of its append.",
        one_of("CreateTime", "LogAppendTime"),
    )
    min_cleanable_dirty_ratio: float = key(
        0.5, "Share of the log that must be uncompacted before compaction looks at it.", between(0, 1)
    )
    min_compaction_lag_ms: int = key(
        0, "Shortest time a record stays as it is before compaction may drop it.", at_least(0), long=True
    )
    min_insync_replicas: int = key(
        1, "In-sync replicas that must hold a record before acks=all is answered.", at_least(1)
    )
    preallocate: bool = key(False, "Whether a new segment's file is allocated whole at once.")
    retention_bytes: int = key(
        -1, "Size a partition may reach before its oldest segments go; -1 means no limit.", long=True
    )
    retention_ms: int = key(
        604_800_000, "Age at which a segment goes; -1 means never.", at_least(-1), long=True
    )
    segment_bytes: int = key(1_073_741_824, "Size at which a new segment is begun.", at_least(14))
    segment_index_bytes: int = key(
        10_485_760, "Size of an index file; a full one begins a new segment.", at_least(4)
    )
    segment_jitter_ms: int = key(
        0,
        "Most that is taken at random from segment.ms, so that segments do not all roll at once.",
        at_least(0),
        long=True,
    )
    segment_ms: int = key(604_800_000, "Age at which a new segment is begun.", at_least(1), long=True)
    unclean_leader_election_enable: bool = key(
        False, "Whether a replica that may lack acknowledged records can become leader as a last resort."
    )
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        (), "Replicas (`partition:broker`) whose replication is throttled on the follower."
    )
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        (), "Replicas (`partition:broker`) whose replication is throttled on the leader."
    )

    @property
    def compact(self) -> bool:
        """Whether records are compacted by key."""
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        """Whether segments are dropped by age and size."""
        return "delete" in self.cleanup_policy

    @classmethod
    def from_broker(cls, broker: BrokerConfig, overrides: Mapping[str, str] | None = None) -> Self:
        """Take the broker's defaults and put a topic's own settings over them.

        Raises `ConfigError` for an override that is unknown or cannot be used.
        """
        return cls(**broker.log_defaults()).with_overrides(overrides or {})

    def with_overrides(self, overrides: Mapping[str, str]) -> Self:
        """Return a copy with the given topic-level keys set from their texts."""
        return replace(self, **parse_topic_overrides(overrides)) if overrides else self


def topic_keys() -> Mapping[str, Key]:
    """List the topic-level keys by their dotted names."""
    return keys_of(LogConfig)


def parse_topic_overrides(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Check a topic's overrides and return them as fields of `LogConfig`."""
    known, fields = keys_of(LogConfig), field_names_of(LogConfig)
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        if name not in known:
            raise ConfigError(name, "is not a topic configuration")
        values[fields[name]] = known[name].parse(text)
    return values


TOPIC_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "cleanup.policy": ("log.cleanup.policy",),
    "compression.type": ("compression.type",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "flush.before.acknowledge": ("log.flush.before.acknowledge",),
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
"""Broker keys that stand behind a topic key, the strongest first."""

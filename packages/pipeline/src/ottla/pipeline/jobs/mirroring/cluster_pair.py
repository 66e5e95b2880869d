"""The source and the target of a mirror, for all engines and for Spark workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ottla.client.config import ClientConfig
from ottla.consumer import ConsumerConfig
from ottla.pipeline.jobs.mirroring.offset_mapping import client_of, reading
from ottla.producer import ProducerConfig
from ottla.protocol.topics import TopicPartition

_AT_MOST = str(16 * 1024 * 1024)
"""The maximum size of a record: the copy should accept any record of the original."""


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """The connections to both clusters, and the names in the target."""

    mirror: str
    source: Mapping[str, str]
    """Kafka's settings for a consumer."""
    target: Mapping[str, str]
    """Kafka's settings for a producer."""
    mapping_topic: str
    rename: str = "{topic}"
    transactional: bool = False
    """Whether records and their offset mapping are written in transactions."""
    ignored: frozenset[str] = field(default_factory=frozenset)
    """Topics that match, but are not copied."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "ignored": sorted(self.ignored)}

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> ClusterPair:
        """Undo `to_json`. Raises TypeError for other fields."""
        return ClusterPair(**{**found, "ignored": frozenset(found["ignored"])})

    def copy_name(self, topic: str) -> str:
        """Return the name of the copy of a topic."""
        return self.rename.replace("{topic}", topic)

    def copy_of(self, partition: TopicPartition) -> TopicPartition:
        """Return the partition that a partition is copied to."""
        return TopicPartition(self.copy_name(partition.topic), partition.partition)

    def source_config(self) -> ConsumerConfig:
        """Return the consumer configuration for the source: committed records, no group."""
        given = {"isolation.level": "read_committed"} | dict(self.source)
        return ConsumerConfig.from_properties(given, auto_offset_reset="none", group_id=None)

    def target_client(self) -> ClientConfig:
        """Return the connection settings of the target."""
        return client_of(self.target)

    def copies_config(self) -> ConsumerConfig:
        """Return the consumer configuration for copies."""
        return reading(self.target_client())

    def producer_config(self, part: str | None = None) -> ProducerConfig:
        """Return the producer configuration for copies: idempotent, maybe with transactions of one part."""
        own = {"enable.idempotence": "true", "acks": "all"}
        given = {"compression.type": "zstd", "max.request.size": _AT_MOST} | dict(self.target) | own
        name = f"ottla-mirror-{self.mirror}" if part is None else f"ottla-mirror-{self.mirror}-{part}"
        return ProducerConfig.from_properties(given, transactional_id=name if self.transactional else None)

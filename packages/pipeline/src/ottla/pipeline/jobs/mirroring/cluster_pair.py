"""The source and the target of a mirror, for all engines and for Spark workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ottla.client.config import ClientConfig
from ottla.consumer import ConsumerConfig
from ottla.pipeline.jobs.mirroring.offset_mapping import client_of, reading
from ottla.pipeline.options import PROFILE, over_profile
from ottla.producer import ProducerConfig
from ottla.protocol.topics import TopicPartition

_AT_MOST = str(16 * 1024 * 1024)
"""The maximum size of a record: the copy should accept any record of the original."""


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """The connections to both clusters, and the names in the target."""

    mirror: str
    source: Mapping[str, str] = field(repr=False)
    """Kafka's settings for a consumer, and `profile` for those below them."""
    target: Mapping[str, str] = field(repr=False)
    """Kafka's settings for a producer, and `profile` for those below them."""
    mapping_topic: str
    rename: str = "{topic}"
    transactional: bool = False
    """Whether records and their offset mapping are written in transactions."""
    ignored: frozenset[str] = field(default_factory=frozenset)
    """Topics that match, but are not copied."""
    profiles: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    """The settings of the profiles by their names, secrets included; `with_profiles` reads them."""

    def with_profiles(self) -> ClusterPair:
        """Read the profiles, whose secrets every connection needs. Raises OptionError."""
        names = {settings[PROFILE] for settings in (self.source, self.target) if PROFILE in settings}
        return replace(self, profiles={name: over_profile(name, {}) for name in sorted(names)})

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, of profiles only the names."""
        found = {**asdict(self), "ignored": sorted(self.ignored)}
        del found["profiles"]
        return found

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
        given = {"isolation.level": "read_committed"} | self._connected(self.source)
        return ConsumerConfig.from_properties(given, auto_offset_reset="none", group_id=None)

    def target_client(self) -> ClientConfig:
        """Return the connection settings of the target."""
        return client_of(self._connected(self.target))

    def copies_config(self) -> ConsumerConfig:
        """Return the consumer configuration for copies."""
        return reading(self.target_client())

    def producer_config(self, part: str | None = None) -> ProducerConfig:
        """Return the producer configuration for copies: idempotent, maybe with transactions of one part."""
        own = {"enable.idempotence": "true", "acks": "all"}
        given = (
            {"compression.type": "zstd", "max.request.size": _AT_MOST} | self._connected(self.target) | own
        )
        name = f"ottla-mirror-{self.mirror}" if part is None else f"ottla-mirror-{self.mirror}-{part}"
        return ProducerConfig.from_properties(given, transactional_id=name if self.transactional else None)

    def _connected(self, settings: Mapping[str, str]) -> dict[str, str]:
        own = {name: text for name, text in settings.items() if name != PROFILE}
        return dict(self.profiles[settings[PROFILE]]) | own if PROFILE in settings else own

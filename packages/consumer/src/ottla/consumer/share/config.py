"""The configuration of share consumers. Names are Kafka's, in snake case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from ottla.client.config import ClientConfig, ClientSettings
from ottla.client.field_types import check_deserializers
from ottla.client.interceptors import load
from ottla.client.serialization import DeserializerSpec
from ottla.client.settings import (
    Alias,
    SettingError,
    check_string,
    configure,
    from_properties,
    setting,
    suggest_names,
    validate,
)
from ottla.consumer.group.config import GroupConfig
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES

AcknowledgementMode = Literal["implicit", "explicit"]
AcquireMode = Literal["batch_optimized", "record_limit"]
FOREVER = -1

SHARE_ALIASES: Mapping[str, Alias] = {
    "share_acknowledgement_mode": Alias("acknowledgement_mode", "Kafka"),
    "interceptor_classes": Alias("interceptors", "Kafka"),
}


def _of_the_group(key: str, value: object) -> str:
    return f"it is {key} of the group, as in `ottla config alter --group NAME --set {key}={value}`"


_INSTEAD_OF: Mapping[str, str] = {
    "auto_offset_reset": _of_the_group("share.auto.offset.reset", "earliest"),
    "isolation_level": _of_the_group("share.isolation.level", "read_committed"),
    "session_timeout_ms": _of_the_group("share.session.timeout.ms", 45_000),
    "heartbeat_interval_ms": _of_the_group("share.heartbeat.interval.ms", 5_000),
    "enable_auto_commit": 'acknowledgement_mode="explicit" is there for applications that acknowledge alone',
    "group_protocol": "it has one protocol, that of share groups",
}
"""Settings that people bring from a Consumer, and what there is in their place."""


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerConfig:
    """Settings of a member of a share group. Where a group begins, and its locks, are settings of the group:
    `share.auto.offset.reset`, `share.isolation.level`, `share.record.lock.duration.ms`."""

    group_id: str | None = None
    """The share group, whose members share the records of its topics."""
    acknowledgement_mode: AcknowledgementMode = "implicit"
    """`implicit`: a record without an acknowledgement of its own is accepted when the next one is asked for.
    `explicit`: records are acknowledged by the application alone, in any order."""
    max_in_flight_records: int = setting(1_000, at_least=1)
    """With `explicit`, how many records may be without an acknowledgement when more are asked for."""
    share_acquire_mode: AcquireMode = "batch_optimized"
    """Whether whole batches are acquired, or no more than `max_poll_records` (KIP-1206, since Kafka 4.2)."""
    max_poll_records: int = setting(500, at_least=1)
    """About how many records are acquired from a broker at once."""
    max_poll_interval_ms: int = setting(300_000, at_least=1)
    """After so long without a poll, the consumer leaves its group until the application polls again."""
    close_timeout_ms: int = setting(30_000, at_least=1)
    """The bound of the last acknowledgements and of leaving the group together, on close."""
    consumer_timeout_ms: int = setting(FOREVER, at_least=FOREVER)
    """Iteration ends after so long without a record; -1: never."""
    fetch_min_bytes: int = setting(1, at_least=0)
    """The bytes that the broker waits for before it responds."""
    fetch_max_wait_ms: int = setting(500, at_least=0)
    """How long the broker waits for `fetch_min_bytes`."""
    fetch_max_bytes: int = setting(50 * 1024 * 1024, at_least=1)
    """The approximate maximum of bytes in a response."""
    check_crcs: bool = True
    """Whether checksums of batches are verified; if not, damage on the way from the disk is not detected."""
    max_decompressed_batch_bytes: int = setting(DEFAULT_MAX_DECOMPRESSED_BYTES, at_least=1)
    """The largest batch that is decompressed. A larger one raises OversizedBatch."""
    client_rack: str | None = None
    """The rack of the consumer."""
    allow_auto_create_topics: bool = True
    """Whether the broker may create a missing topic that is subscribed to."""
    exclude_internal_topics: bool = True
    """Whether patterns exclude internal topics of the brokers."""
    key_deserializer: DeserializerSpec = None
    """The deserializer of keys. None: keys are bytes."""
    value_deserializer: DeserializerSpec = None
    """The deserializer of values. None: values are bytes."""
    key_type: Any = None
    """The type of keys, instead of a deserializer."""
    value_type: Any = None
    """The type of values, instead of a deserializer."""
    interceptors: Sequence[object] = ()
    """Objects whose `on_consume` observes records before delivery."""
    client: ClientConfig = field(default_factory=ClientConfig)
    """Connections, timeouts and security."""

    aliases: ClassVar[Mapping[str, Alias]] = SHARE_ALIASES
    instead_of: ClassVar[Mapping[str, str]] = _INSTEAD_OF

    def __post_init__(self) -> None:
        validate(self)
        object.__setattr__(self, "interceptors", load(self.interceptors))
        check_deserializers(self)
        if not self.group_id:
            raise SettingError("a share consumer needs a group_id")
        check_string("group_id", self.group_id)

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """Make a configuration of flat settings, including those of ClientConfig and SecurityConfig."""
        return configure(cls, settings)

    @classmethod
    def from_properties(cls, source: str | Path | Mapping[str, Any], **settings: Any) -> Self:
        """Read a properties file, or a mapping, with dotted names; `settings` take precedence."""
        return from_properties(cls, source, **settings)

    @property
    def group(self) -> str:
        """The group's name."""
        assert self.group_id is not None
        return self.group_id

    def membership(self) -> GroupConfig:
        """Return the settings of the membership."""
        return GroupConfig(
            group_id=self.group,
            group_protocol="consumer",
            enable_auto_commit=False,
            handling_grace_ms=0,
            client_rack=self.client_rack,
            max_poll_interval_ms=self.max_poll_interval_ms,
            close_timeout_ms=self.close_timeout_ms,
            allow_auto_create_topics=self.allow_auto_create_topics,
            exclude_internal_topics=self.exclude_internal_topics,
            metadata_max_age_ms=self.client.metadata_max_age_ms,
        )


class UntypedShareConsumerSettings(ClientSettings, total=False):
    """The fields of ShareConsumerConfig as keywords, without those that give keys and values their types."""

    bootstrap_servers: str | Sequence[str] | None
    group_id: str | None
    acknowledgement_mode: AcknowledgementMode
    max_in_flight_records: int
    share_acquire_mode: AcquireMode
    max_poll_records: int
    max_poll_interval_ms: int
    close_timeout_ms: int
    consumer_timeout_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    check_crcs: bool
    max_decompressed_batch_bytes: int
    client_rack: str | None
    allow_auto_create_topics: bool
    exclude_internal_topics: bool
    interceptors: Sequence[object]

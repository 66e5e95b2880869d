"""The consumer's configuration. Names are Kafka's, in snake case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Unpack

from ottla.client.config import ClientConfig, ClientSettings
from ottla.client.interceptors import load
from ottla.client.serialization import DeserializerSpec, deserializer
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
from ottla.consumer.assignors import Assignor, assignors
from ottla.consumer.group.config import DEFAULT_ASSIGNORS, GroupConfig
from ottla.consumer.setting_aliases import CONSUMER_ALIASES, RESETS

OffsetReset = Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
Assignors = str | Assignor | Iterable[str | Assignor]

FOREVER = -1


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of fetching, of the group, and of the delivery of records."""

    group_id: str | None = None
    """The group that shares the partitions, and for which offsets are committed."""
    group_instance_id: str | None = None
    """The id of a static member: it keeps its partitions through a restart (KIP-345)."""
    auto_offset_reset: OffsetReset = setting("latest", synonyms=RESETS)
    """Where to start without a committed offset, or if the position is not in the log any more."""
    isolation_level: IsolationLevel = "read_uncommitted"
    """Whether records of open and aborted transactions are skipped."""
    enable_auto_commit: bool = True
    """Whether offsets of finished records are committed automatically: a record is finished when the next one
    is asked for."""
    auto_commit_interval_ms: int = setting(5_000, at_least=1)
    """The interval of automatic commits."""
    partition_assignment_strategy: Assignors = DEFAULT_ASSIGNORS
    """Assignors, preferred first: range, roundrobin, sticky, cooperative-sticky, or custom objects."""
    session_timeout_ms: int = setting(45_000, at_least=1)
    """After so long without a heartbeat the coordinator removes a member."""
    heartbeat_interval_ms: int = setting(3_000, at_least=1)
    """The interval of heartbeats; a rebalance is noticed within it."""
    max_poll_interval_ms: int = setting(300_000, at_least=1)
    """After so long without a poll, the consumer leaves its group until the application polls again."""
    handling_grace_ms: int = setting(3_000, at_least=0)
    """How long a rebalance waits for the application to finish delivered records of partitions to revoke.
    Records not finished by then are read again by the new owner."""
    close_timeout_ms: int = setting(30_000, at_least=1)
    """The bound of the final commit, the listener and leaving the group together, on close."""
    max_poll_records: int | None = setting(None, at_least=1)
    """The most records that `getmany` returns by default; None: about 256 KiB."""
    consumer_timeout_ms: int = setting(FOREVER, at_least=FOREVER)
    """Iteration ends after so long without a record; -1: never."""
    fetch_min_bytes: int = setting(1, at_least=0)
    """The bytes that the broker waits for before it responds."""
    fetch_max_wait_ms: int = setting(500, at_least=0)
    """How long the broker waits for `fetch_min_bytes`."""
    fetch_max_bytes: int = setting(50 * 1024 * 1024, at_least=1)
    """The approximate maximum of bytes in a response, and of buffered bytes."""
    max_partition_fetch_bytes: int = setting(1024 * 1024, at_least=1)
    """The approximate maximum of bytes of one partition in a response."""
    check_crcs: bool = True
    """Whether checksums of batches are verified; if not, damage on the way from the disk is not detected."""
    client_rack: str | None = None
    """The rack of the consumer: replicas there are read and preferred by assignors (KIP-392, KIP-881)."""
    allow_auto_create_topics: bool = True
    """Whether the broker may create a missing topic that is subscribed to."""
    exclude_internal_topics: bool = True
    """Whether patterns exclude internal topics of the brokers."""
    key_deserializer: DeserializerSpec = None
    """The deserializer of keys. None: keys are bytes."""
    value_deserializer: DeserializerSpec = None
    """The deserializer of values. None: values are bytes."""
    interceptors: Sequence[object] = ()
    """Objects that observe records before delivery, and commits."""
    client: ClientConfig = field(default_factory=ClientConfig)
    """Connections, timeouts and security."""

    aliases: ClassVar[Mapping[str, Alias]] = CONSUMER_ALIASES

    def __post_init__(self) -> None:
        validate(self)
        object.__setattr__(self, "interceptors", load(self.interceptors))
        deserializer(self.key_deserializer)
        deserializer(self.value_deserializer)
        self._check_group()

    def _check_group(self) -> None:
        if self.group_id == "":
            raise SettingError("group_id must not be empty; leave it out to read without a group")
        check_string("group_id", self.group_id)
        check_string("group_instance_id", self.group_instance_id)
        if self.group_instance_id is not None and self.group_id is None:
            raise SettingError("group_instance_id needs a group_id")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise SettingError("heartbeat_interval_ms must be below session_timeout_ms")
        assignors(self.partition_assignment_strategy)

    @classmethod
    def of(cls, **settings: Unpack[ConsumerSettings]) -> Self:
        """Make a configuration of flat settings, including those of ClientConfig and SecurityConfig."""
        return configure(cls, settings)

    @classmethod
    def from_properties(
        cls, source: str | Path | Mapping[str, Any], **settings: Unpack[ConsumerSettings]
    ) -> Self:
        """Read a properties file, or a mapping, with dotted names; `settings` take precedence."""
        return from_properties(cls, source, **settings)

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are skipped."""
        return self.isolation_level == "read_committed"

    def group(self) -> GroupConfig | None:
        """Return the settings of group membership; None without `group_id`."""
        if self.group_id is None:
            return None
        shared = {setting.name for setting in fields(GroupConfig)} & {
            setting.name for setting in fields(self)
        }
        return GroupConfig(
            **{name: getattr(self, name) for name in shared},
            require_stable=self.reads_committed,
            metadata_max_age_ms=self.client.metadata_max_age_ms,
        )


class ConsumerSettings(ClientSettings, total=False):
    """The fields of ConsumerConfig as keywords, for type checkers; `ConsumerConfig` documents them."""

    bootstrap_servers: str | Sequence[str] | None
    group_id: str | None
    group_instance_id: str | None
    auto_offset_reset: OffsetReset
    isolation_level: IsolationLevel
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    partition_assignment_strategy: Assignors
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    handling_grace_ms: int
    close_timeout_ms: int
    max_poll_records: int | None
    consumer_timeout_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    check_crcs: bool
    client_rack: str | None
    allow_auto_create_topics: bool
    exclude_internal_topics: bool
    key_deserializer: DeserializerSpec
    value_deserializer: DeserializerSpec
    interceptors: Sequence[object]

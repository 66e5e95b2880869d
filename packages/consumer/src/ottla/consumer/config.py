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
    configure,
    from_properties,
    setting,
    suggest_names,
    validate,
)
from ottla.consumer.aliases import CONSUMER_ALIASES, RESETS
from ottla.consumer.assignors import Assignor, assignors
from ottla.consumer.group.config import DEFAULT_ASSIGNORS, GroupConfig

OffsetReset = Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
Assignors = str | Assignor | Iterable[str | Assignor]

FOREVER = -1


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How records are fetched, and shared in a group."""

    group_id: str | None = None
    """The group that shares the partitions of topics, and under whose name offsets are committed."""
    group_instance_id: str | None = None
    """A name that outlives restarts: a member that comes back by it gets what it had (KIP-345)."""
    auto_offset_reset: OffsetReset = setting("latest", synonyms=RESETS)
    """Where to begin without a committed offset, or when it is not in the log any more."""
    isolation_level: IsolationLevel = "read_uncommitted"
    """Whether records of aborted transactions are left out."""
    enable_auto_commit: bool = True
    """Whether offsets of what the application is finished with are committed by themselves: a record is
    finished when the next one is asked for."""
    auto_commit_interval_ms: int = setting(5_000, at_least=1)
    """How often."""
    partition_assignment_strategy: Assignors = DEFAULT_ASSIGNORS
    """Assignors, best first: range, roundrobin, sticky, cooperative-sticky, or objects of one's own."""
    session_timeout_ms: int = setting(45_000, at_least=1)
    """After so long without a heartbeat the group takes a member for dead."""
    heartbeat_interval_ms: int = setting(3_000, at_least=1)
    """How often to send heartbeats, which is also how soon a rebalance is noticed."""
    max_poll_interval_ms: int = setting(300_000, at_least=1)
    """After so long without being asked for records, the consumer leaves until it is asked again."""
    handling_grace_ms: int = setting(3_000, at_least=0)
    """How long a rebalance waits for the application to finish with what it has in hand of partitions that
    are given up. What is not finished by then will be read again by their new owner."""
    close_timeout_ms: int = setting(30_000, at_least=1)
    """How long committing, the listener and leaving may take together as the consumer closes."""
    max_poll_records: int | None = setting(None, at_least=1)
    """The most records `getmany` returns unless it is told; None: all that are there."""
    consumer_timeout_ms: int = setting(FOREVER, at_least=FOREVER)
    """Iterating ends when there was no record for so long; -1: it waits on."""
    fetch_min_bytes: int = setting(1, at_least=0)
    """The broker waits until it has as much."""
    fetch_max_wait_ms: int = setting(500, at_least=0)
    """How long the broker may wait for that."""
    fetch_max_bytes: int = setting(50 * 1024 * 1024, at_least=1)
    """About how much one answer may hold."""
    max_partition_fetch_bytes: int = setting(1024 * 1024, at_least=1)
    """About how much of one partition an answer may hold."""
    check_crcs: bool = True
    """Whether checksums of batches are verified; without them damage between disk and here goes unnoticed."""
    client_rack: str | None = None
    """Where the consumer is: it reads from replicas there, and assignors prefer them (KIP-392, KIP-881)."""
    allow_auto_create_topics: bool = True
    """Whether the broker may create a topic that is subscribed to."""
    exclude_internal_topics: bool = True
    """Whether patterns leave out topics of the brokers themselves."""
    key_deserializer: DeserializerSpec = None
    """What bytes of keys become. None: they stay bytes."""
    value_deserializer: DeserializerSpec = None
    """What bytes of values become. None: they stay bytes."""
    interceptors: Sequence[object] = ()
    """Objects that are told of records as they are given out, and of commits."""
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
        if self.group_instance_id is not None and self.group_id is None:
            raise SettingError("group_instance_id needs a group_id")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise SettingError("heartbeat_interval_ms must be below session_timeout_ms")
        assignors(self.partition_assignment_strategy)

    @classmethod
    def of(cls, **settings: Unpack[ConsumerSettings]) -> Self:
        """Make a config of flat settings, those of ClientConfig and SecurityConfig among them."""
        return configure(cls, settings)

    @classmethod
    def from_properties(
        cls, source: str | Path | Mapping[str, Any], **settings: Unpack[ConsumerSettings]
    ) -> Self:
        """Read a properties file, or a mapping, with dotted names; `settings` win over it."""
        return from_properties(cls, source, **settings)

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out."""
        return self.isolation_level == "read_committed"

    def group(self) -> GroupConfig | None:
        """Return how the consumer takes part in its group; None without `group_id`."""
        if self.group_id is None:
            return None
        shared = {each.name for each in fields(GroupConfig)} & {each.name for each in fields(self)}
        return GroupConfig(
            **{name: getattr(self, name) for name in shared},
            require_stable=self.reads_committed,
            metadata_max_age_ms=self.client.metadata_max_age_ms,
        )


class ConsumerSettings(ClientSettings, total=False):
    """The fields of ConsumerConfig as keywords; `ConsumerConfig` says what they mean."""

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

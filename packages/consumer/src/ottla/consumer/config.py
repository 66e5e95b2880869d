"""The consumer's configuration. Names are Kafka's, in snake case; other clients' names are aliases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Unpack

from ottla.client.config import ClientConfig, ClientSettings
from ottla.client.field_types import check_deserializers
from ottla.client.interceptors import load
from ottla.client.serialization import DeserializerSpec
from ottla.client.setting_aliases import renamed, without_effect
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
from ottla.consumer.group.config import DEFAULT_ASSIGNORS, GroupConfig, GroupProtocol
from ottla.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_BYTES

OffsetReset = Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
Assignors = str | Assignor | Iterable[str | Assignor]

FOREVER = -1

RESETS: Mapping[Any, Any] = {
    "smallest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "end": "latest",
    "error": "none",
}
"""Values of `auto_offset_reset` in Kafka 0.8 and librdkafka."""

_PROTOCOLS: Mapping[Any, Any] = {"CLASSIC": "classic", "CONSUMER": "consumer"}
_INSTEAD_OF: Mapping[str, str] = {
    "partition_assignment_strategy": "group_remote_assignor",
    "session_timeout_ms": "consumer.session.timeout.ms of the group",
    "heartbeat_interval_ms": "consumer.heartbeat.interval.ms of the group",
}
"""Settings of classic groups alone, and what is there in their place."""

_ZOOKEEPER = "brokers are found through bootstrap_servers, and keep groups; see ZookeeperConsumerConnector"
_REBALANCES = "the group's coordinator brings members together, for as long as it takes"
_OFFSETS = "offsets are kept in Kafka; ZookeeperConsumerConnector keeps them in ZooKeeper too"


CONSUMER_ALIASES: Mapping[str, Alias] = {
    **renamed(
        "Kafka 0.8, librdkafka",
        {
            "fetch_message_max_bytes": "max_partition_fetch_bytes",
            "fetch_wait_max_ms": "fetch_max_wait_ms",
            "auto_commit_enable": "enable_auto_commit",
        },
    ),
    **renamed("Kafka 0.8", {"refresh_leader_backoff_ms": "retry_backoff_ms"}),
    **renamed(
        "Kafka 0.7",
        {
            "groupid": "group_id",
            "autocommit_enable": "enable_auto_commit",
            "autocommit_interval_ms": "auto_commit_interval_ms",
            "autooffset_reset": "auto_offset_reset",
            "fetch_size": "max_partition_fetch_bytes",
        },
    ),
    "interceptor_classes": Alias("interceptors", "Kafka"),
    "consumer_id": without_effect(
        "Kafka 0.8", "the coordinator names members; client_id and group_instance_id are yours"
    ),
    "consumerid": without_effect(
        "Kafka 0.7", "the coordinator names members; client_id and group_instance_id are yours"
    ),
    "zookeeper_connect": without_effect("Kafka 0.8", _ZOOKEEPER),
    "zk_connect": without_effect("Kafka 0.7", _ZOOKEEPER),
    "zookeeper_session_timeout_ms": without_effect("Kafka 0.8", "session_timeout_ms is the group's own"),
    "zookeeper_connection_timeout_ms": without_effect("Kafka 0.8", _ZOOKEEPER),
    "zookeeper_sync_time_ms": without_effect("Kafka 0.8", _ZOOKEEPER),
    "rebalance_max_retries": without_effect("Kafka 0.8", _REBALANCES),
    "rebalance_backoff_ms": without_effect("Kafka 0.8", _REBALANCES),
    "rebalance_timeout_ms": without_effect("aiokafka", "max_poll_interval_ms bounds a rebalance too"),
    "offsets_storage": without_effect("Kafka 0.8.2", _OFFSETS),
    "dual_commit_enabled": without_effect("Kafka 0.8.2", _OFFSETS),
    "offsets_channel_backoff_ms": without_effect(
        "Kafka 0.8.2", "retry_backoff_ms is waited before trying again"
    ),
    "offsets_channel_socket_timeout_ms": without_effect(
        "Kafka 0.8.2", "request_timeout_ms bounds commits too"
    ),
    "offsets_commit_max_retries": without_effect("Kafka 0.8.2", "default_api_timeout_ms bounds commits"),
    "queued_max_message_chunks": without_effect("Kafka 0.8", "fetch_max_bytes bounds what is fetched ahead"),
    "queuedchunks_max": without_effect("Kafka 0.7", "fetch_max_bytes bounds what is fetched ahead"),
    "queued_min_messages": without_effect("librdkafka", "fetch_max_bytes bounds what is fetched ahead"),
    "queued_max_messages_kbytes": without_effect(
        "librdkafka", "fetch_max_bytes bounds what is fetched ahead"
    ),
    "num_consumer_fetchers": without_effect("Kafka 0.8", "there is one fetch on its way to each broker"),
    "enable_auto_offset_store": without_effect(
        "librdkafka", "a record is finished when the next one is asked for"
    ),
    "enable_partition_eof": without_effect("librdkafka", "see lag() and end_offsets()"),
    "coordinator_query_interval_ms": without_effect(
        "librdkafka", "the coordinator is looked for when it does not answer"
    ),
}


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """Settings of fetching, of the group, and of the delivery of records."""

    group_id: str | None = None
    """The group that shares the partitions, and for which offsets are committed."""
    group_instance_id: str | None = None
    """The id of a static member: it keeps its partitions through a restart (KIP-345)."""
    group_protocol: GroupProtocol = setting("classic", synonyms=_PROTOCOLS)
    """The protocol of the group. `classic`: members assign the partitions. `consumer`: the coordinator does,
    and members read on during a rebalance (KIP-848; brokers since Kafka 4.0)."""
    group_remote_assignor: str | None = None
    """The assignor of the coordinator, with `group_protocol` `consumer`: uniform, range. None: its first."""
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
    max_decompressed_batch_bytes: int = setting(DEFAULT_MAX_DECOMPRESSED_BYTES, at_least=1)
    """The largest batch that is decompressed. A larger one raises OversizedBatch, before memory is taken for
    it; brokers store batches of any size without compression."""
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
    key_type: Any = None
    """The type of keys, instead of a deserializer: bytes, str, or another as JSON (`FieldType`: msgpack)."""
    value_type: Any = None
    """The type of values, instead of a deserializer: a dataclass, a msgspec struct, a pydantic model, a
    TypedDict or another type as JSON (`FieldType`: msgpack), bytes, or str. Records without a value fail
    unless it is `optional`."""
    interceptors: Sequence[object] = ()
    """Objects that observe records before delivery, and commits."""
    client: ClientConfig = field(default_factory=ClientConfig)
    """Connections, timeouts and security."""

    aliases: ClassVar[Mapping[str, Alias]] = CONSUMER_ALIASES

    def __post_init__(self) -> None:
        validate(self)
        object.__setattr__(self, "interceptors", load(self.interceptors))
        check_deserializers(self)
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
        self._check_protocol()

    def _check_protocol(self) -> None:
        if self.group_protocol == "classic":
            if self.group_remote_assignor is not None:
                raise SettingError('group_remote_assignor needs group_protocol="consumer"')
            return
        if self.group_id is None:
            raise SettingError('group_protocol="consumer" needs a group_id')
        defaults = {setting.name: setting.default for setting in fields(self)}
        for name, instead in _INSTEAD_OF.items():
            if getattr(self, name) != defaults[name]:
                raise SettingError(
                    f'{name} is a setting of the classic protocol; with group_protocol="consumer" the '
                    f"coordinator decides: see {instead}"
                )

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


class UntypedConsumerSettings(ClientSettings, total=False):
    """The fields of ConsumerConfig as keywords, without those that give keys and values their types."""

    bootstrap_servers: str | Sequence[str] | None
    group_id: str | None
    group_instance_id: str | None
    group_protocol: GroupProtocol
    group_remote_assignor: str | None
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
    max_decompressed_batch_bytes: int
    client_rack: str | None
    allow_auto_create_topics: bool
    exclude_internal_topics: bool
    interceptors: Sequence[object]


class ConsumerSettings(UntypedConsumerSettings, total=False):
    """The fields of ConsumerConfig as keywords, for type checkers; `ConsumerConfig` documents them."""

    key_deserializer: DeserializerSpec
    value_deserializer: DeserializerSpec
    key_type: Any
    value_type: Any

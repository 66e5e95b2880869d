"""The configuration of the consumer whose group uses ZooKeeper. Names are those of Kafka 0.8."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig
from ottla.client.setting_aliases import renamed, without_effect
from ottla.client.settings import Alias, SettingError, from_properties, setting, suggest_names, validate

if TYPE_CHECKING:
    from ottla.zookeeper.client_security import ClientSecurity

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")
_RESETS = {"latest": "largest", "earliest": "smallest"}

ALIASES: Mapping[str, Alias] = {
    **renamed(
        "Java",
        {
            "enable_auto_commit": "auto_commit_enable",
            "max_partition_fetch_bytes": "fetch_message_max_bytes",
            "fetch_max_wait_ms": "fetch_wait_max_ms",
        },
    ),
    **renamed(
        "Kafka 0.7",
        {
            "groupid": "group_id",
            "consumerid": "consumer_id",
            "zk_connect": "zookeeper_connect",
            "zk_sessiontimeout_ms": "zookeeper_session_timeout_ms",
            "zk_connectiontimeout_ms": "zookeeper_connection_timeout_ms",
            "zk_synctime_ms": "zookeeper_sync_time_ms",
            "autocommit_enable": "auto_commit_enable",
            "autocommit_interval_ms": "auto_commit_interval_ms",
            "autooffset_reset": "auto_offset_reset",
            "fetch_size": "fetch_message_max_bytes",
            "queuedchunks_max": "queued_max_message_chunks",
            "rebalance_retries_max": "rebalance_max_retries",
            "socket_buffersize": "socket_receive_buffer_bytes",
        },
    ),
    "offsets_commit_max_retries": without_effect(
        "Kafka 0.8", "commits are tried again for offsets.channel.socket.timeout.ms"
    ),
    "zookeeper_clientCnxnSocket": without_effect("Java", "the ZooKeeper client is not Java's"),
    "num_consumer_fetchers": without_effect("Kafka 0.8", "every stream fetches for itself"),
}


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperSecurityConfig:
    """Settings of the connection to ZooKeeper: its credentials and TLS. Names are those of brokers."""

    zookeeper_digest_file: str | None = None
    """File with `user:password`, the credentials of ZooKeeper's scheme digest."""
    zookeeper_sasl_jaas_file: str | None = None
    """JAAS file with the login by SASL (DigestLoginModule), as Java's clients have it."""
    zookeeper_sasl_clientconfig: str = "Client"
    """The section of that file."""
    zookeeper_ssl_client_enable: bool = False
    """Whether connections to ZooKeeper use TLS."""
    zookeeper_ssl_keystore_location: str | None = None
    """PEM or PKCS#12 file with a certificate and its key."""
    zookeeper_ssl_keystore_password: str | None = setting(None, is_secret=True)
    """The password of its key."""
    zookeeper_ssl_truststore_location: str | None = None
    """PEM or PKCS#12 file with the certificates that are trusted; without it those of the system."""
    zookeeper_ssl_truststore_password: str | None = setting(None, is_secret=True)
    """The password of that file."""
    zookeeper_ssl_enabled_protocols: str | None = None
    """The versions of TLS, of TLSv1.2 and TLSv1.3; by default both."""
    zookeeper_ssl_cipher_suites: str | None = None
    """The cipher suites of TLS 1.2; by default OpenSSL's."""
    zookeeper_ssl_endpoint_identification_algorithm: str = "HTTPS"
    """Whether a server's certificate must have the host's name: HTTPS, or empty for no."""

    def client_security(self) -> ClientSecurity:
        """Read the files of the settings. Raises ZooKeeperError for one that cannot be used."""
        from ottla.zookeeper.client_security import client_security_from

        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["zookeeper_ssl_client_enable"] = str(self.zookeeper_ssl_client_enable).lower()
        given["zookeeper_ssl_endpoint_identification_algorithm"] = (
            self.zookeeper_ssl_endpoint_identification_algorithm or "none"
        )
        texts = {name.replace("_", "."): text for name, text in given.items() if text is not None}
        return client_security_from(texts)


@suggest_names
@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperConsumerConfig:
    """Settings of the consumer. `from_properties` takes the dotted names of `consumer.properties`."""

    group_id: str = ""
    """The group that shares the partitions."""
    zookeeper_connect: str = ""
    """The ZooKeeper servers and the chroot of the brokers: `host:2181,host:2181/kafka`; or the directory of
    an embedded coordinator."""
    consumer_id: str | None = None
    """The part after `group_` in the member's id. Default: host, time and a random part."""
    client_id: str | None = None
    """The client id sent to brokers. Default: the group's name."""
    auto_offset_reset: Literal["smallest", "largest", "none"] = setting("largest", synonyms=_RESETS)
    """Where to start without an offset: `smallest` or `largest`; with `none` the stream raises NoOffset."""
    consumer_timeout_ms: int = -1
    """A stream raises ConsumerTimeout after so long without a record; -1: it waits forever."""
    auto_commit_enable: bool = True
    """Whether finished records are committed at an interval, before revocations, and at the end."""
    auto_commit_interval_ms: int = setting(60_000, at_least=1)
    """The interval of automatic commits."""
    offsets_storage: Literal["zookeeper", "kafka"] = "zookeeper"
    """Where offsets are stored."""
    dual_commit_enabled: bool | None = None
    """With offsets in Kafka: whether to write them to ZooKeeper too, and read the larger one. Default: true.
    Turn it off once all members of the group store them in Kafka."""
    offsets_channel_socket_timeout_ms: int = 10_000
    """How long reading or writing offsets in Kafka may take, retries included."""
    offsets_channel_backoff_ms: int = 1_000
    """The longest backoff between these retries."""
    rebalance_max_retries: int = setting(4, at_least=1)
    """The tries of a rebalance before streams raise ConsumerRebalanceFailed."""
    rebalance_backoff_ms: int | None = None
    """The backoff between tries. Default: `zookeeper_sync_time_ms`."""
    partition_assignment_strategy: Literal["range", "roundrobin"] = "range"
    """How partitions are assigned; it must be the same for all members."""
    exclude_internal_topics: bool = True
    """Whether wildcards exclude Kafka's internal topics."""
    fetch_message_max_bytes: int = setting(1024 * 1024, at_least=1)
    """The approximate maximum of bytes of one partition in a response."""
    fetch_max_bytes: int = 50 * 1024 * 1024
    """The approximate maximum of bytes in a response."""
    fetch_min_bytes: int = 1
    """The bytes that the broker waits for before it responds."""
    fetch_wait_max_ms: int = 100
    """How long the broker waits for `fetch_min_bytes`."""
    queued_max_message_chunks: int = setting(2, at_least=1)
    """The records that a stream buffers, in chunks of 500."""
    refresh_leader_backoff_ms: int = 200
    """The first backoff before a partition's leader is looked up again."""
    socket_timeout_ms: int = 30_000
    """How long to wait for a response, in addition to `fetch_wait_max_ms`."""
    socket_receive_buffer_bytes: int = setting(-1, at_least=-1)
    """The size of a connection's receive buffer in the system; -1: the system chooses it."""
    zookeeper_session_timeout_ms: int = 6_000
    """How long the other members wait for a member that disappeared."""
    zookeeper_connection_timeout_ms: int | None = None
    """The timeout of the first connection to ZooKeeper. Default: the session timeout."""
    zookeeper_sync_time_ms: int = 2_000
    """How far a ZooKeeper follower may lag behind its leader."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """Encryption and authentication for connections to brokers."""
    zookeeper_security: ZookeeperSecurityConfig = field(default_factory=ZookeeperSecurityConfig)
    """Encryption and authentication for the connection to ZooKeeper."""

    aliases: ClassVar[Mapping[str, Alias]] = ALIASES
    """Names that other clients have for these settings."""

    def __post_init__(self) -> None:
        validate(self)
        if not self.group_id:
            raise SettingError("group_id is missing; name the group that shares the partitions")
        for name in ("group_id", "client_id"):
            value = getattr(self, name)
            if value is not None and not _LEGAL.match(value):
                raise SettingError(f"{name} {value!r} may have ASCII letters, digits, '.', '_' and '-' only")
        if not self.zookeeper_connect:
            raise SettingError("zookeeper_connect names no server; give host:port")
        if self.fetch_wait_max_ms > self.socket_timeout_ms:
            raise SettingError("socket_timeout_ms must be at least fetch_wait_max_ms")

    @classmethod
    def from_properties(cls, source: str | Path | Mapping[str, Any], **settings: Any) -> Self:
        """Read a `consumer.properties`, or a mapping with its dotted names; `settings` win over it.

        Raises SettingError for an unknown name, with the nearest known one, and OSError for the file.
        """
        return from_properties(cls, source, **settings)

    @property
    def smallest(self) -> bool | None:
        """Whether to start at the first record without an offset; None: raise."""
        return None if self.auto_offset_reset == "none" else self.auto_offset_reset == "smallest"

    @property
    def backoff_s(self) -> float:
        """The backoff between tries of a rebalance, in seconds."""
        wait_ms = self.rebalance_backoff_ms
        return (self.zookeeper_sync_time_ms if wait_ms is None else wait_ms) / 1_000

    @property
    def commits_to_zookeeper(self) -> bool:
        """Whether offsets are written to ZooKeeper."""
        return self.offsets_storage == "zookeeper" or self.dual_commit_enabled is not False

    @property
    def commits_to_kafka(self) -> bool:
        """Whether offsets are written to Kafka."""
        return self.offsets_storage == "kafka"

    def client(self) -> ClientConfig:
        """Return the configuration of the connections to brokers."""
        return ClientConfig(
            client_id=self.client_id or self.group_id,
            request_timeout_ms=self.socket_timeout_ms,
            receive_buffer_bytes=self.socket_receive_buffer_bytes,
            retry_backoff_ms=self.refresh_leader_backoff_ms,
            retry_backoff_max_ms=max(self.refresh_leader_backoff_ms, self.offsets_channel_backoff_ms),
            default_api_timeout_ms=self.offsets_channel_socket_timeout_ms,
            security=self.security,
        )

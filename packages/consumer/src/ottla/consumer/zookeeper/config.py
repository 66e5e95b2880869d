"""The configuration of the consumer that shares its group through ZooKeeper. Names are those of Kafka 0.8."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+\Z")
_RESETS = {"largest": "latest", "latest": "latest", "smallest": "earliest", "earliest": "earliest"}
_RENAMED = {
    "enable_auto_commit": "auto_commit_enable",
    "max_partition_fetch_bytes": "fetch_message_max_bytes",
    "fetch_max_wait_ms": "fetch_wait_max_ms",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZookeeperConsumerConfig:
    """How a group is shared and read. `from_properties` takes the dotted names of `consumer.properties`."""

    group_id: str
    """The group that shares the partitions."""
    zookeeper_connect: str
    """Where ZooKeeper is, with the chroot of the brokers: `host:2181,host:2181/kafka`."""
    consumer_id: str | None = None
    """What follows `group_` in this member's name; host, time and a random part unless given."""
    client_id: str | None = None
    """The name brokers know this client by; the group's name unless given."""
    auto_offset_reset: str = "largest"
    """Where to begin without an offset: `smallest`, `largest`; `none` raises NoOffset from the stream."""
    consumer_timeout_ms: int = -1
    """A stream raises ConsumerTimeout when it has had no record for so long; -1 waits for ever."""
    auto_commit_enable: bool = True
    """Whether finished records are committed now and then, before partitions are given up, and at the end."""
    auto_commit_interval_ms: int = 60_000
    """How often."""
    offsets_storage: Literal["zookeeper", "kafka"] = "zookeeper"
    """Where offsets are kept."""
    dual_commit_enabled: bool | None = None
    """With offsets in Kafka: whether they are written to ZooKeeper too, and the larger one read. True unless
    given; turn it off once all members of the group keep them in Kafka."""
    offsets_channel_socket_timeout_ms: int = 10_000
    """How long reading or writing offsets in Kafka may take, retries included."""
    offsets_channel_backoff_ms: int = 1_000
    """The longest wait between such retries."""
    rebalance_max_retries: int = 4
    """After so many tries the streams raise ConsumerRebalanceFailed."""
    rebalance_backoff_ms: int | None = None
    """The wait between tries; `zookeeper_sync_time_ms` unless given."""
    partition_assignment_strategy: Literal["range", "roundrobin"] = "range"
    """How partitions are shared out; it must be the same for all members."""
    exclude_internal_topics: bool = True
    """Whether wildcards leave out Kafka's own topics."""
    fetch_message_max_bytes: int = 1024 * 1024
    """About how much of one partition an answer may hold."""
    fetch_max_bytes: int = 50 * 1024 * 1024
    """About how much one answer may hold."""
    fetch_min_bytes: int = 1
    """The broker waits until it has as much."""
    fetch_wait_max_ms: int = 100
    """How long the broker may wait for that."""
    queued_max_message_chunks: int = 2
    """How many records a stream keeps ready, in chunks of 500."""
    refresh_leader_backoff_ms: int = 200
    """The first wait before a partition's leader is looked for again."""
    socket_timeout_ms: int = 30_000
    """How long to wait for an answer, beyond `fetch_wait_max_ms`."""
    socket_receive_buffer_bytes: int = 64 * 1024
    """Read for the sake of old files; the system chooses the size."""
    num_consumer_fetchers: int = 1
    """Read for the sake of old files; every stream fetches for itself."""
    zookeeper_session_timeout_ms: int = 6_000
    """How long others wait for a member that is gone."""
    zookeeper_connection_timeout_ms: int | None = None
    """How long to try to reach ZooKeeper at first; the session timeout unless given."""
    zookeeper_sync_time_ms: int = 2_000
    """How far a ZooKeeper follower may lag."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """Encryption and authentication towards the brokers."""

    def __post_init__(self) -> None:
        for name in ("group_id", "client_id"):
            value = getattr(self, name)
            if value is not None and not _LEGAL.match(value):
                raise ValueError(f"{name} {value!r} may have ASCII letters, digits, '.', '_' and '-' only")
        _one_of(self, "auto_offset_reset", (*_RESETS, "none"))
        _one_of(self, "offsets_storage", ("zookeeper", "kafka"))
        _one_of(self, "partition_assignment_strategy", ("range", "roundrobin"))
        if not self.zookeeper_connect:
            raise ValueError("zookeeper_connect names no server; give host:port")
        for name in ("rebalance_max_retries", "queued_max_message_chunks", "fetch_message_max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.fetch_wait_max_ms > self.socket_timeout_ms:
            raise ValueError("socket_timeout_ms must be at least fetch_wait_max_ms")

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any], **more: Any) -> Self:
        """Read dotted names, as `consumer.properties` has them, with values as text or as what they are.

        Raises ValueError for a name that is not one, with the nearest that is.
        """
        kinds = {each.name: str(each.type) for each in fields(cls)}
        given: dict[str, Any] = {}
        for dotted, value in properties.items():
            name = dotted.replace(".", "_").replace("-", "_")
            name = _RENAMED.get(name, name)
            if name not in kinds or name == "security":
                near = difflib.get_close_matches(name, kinds, 1)
                hint = f"; did you mean {near[0].replace('_', '.')}?" if near else ""
                raise ValueError(f"{dotted} is not a setting of this consumer{hint}")
            given[name] = _read(dotted, value, kinds[name])
        return cls(**given, **more)

    @property
    def smallest(self) -> bool | None:
        """Whether to begin at the first record without an offset; None says to raise."""
        reset = _RESETS.get(self.auto_offset_reset)
        return None if reset is None else reset == "earliest"

    @property
    def backoff_s(self) -> float:
        """The wait between tries to rebalance."""
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
        """Return how brokers are talked to."""
        return ClientConfig(
            client_id=self.client_id or self.group_id,
            request_timeout_ms=self.socket_timeout_ms,
            retry_backoff_ms=self.refresh_leader_backoff_ms,
            retry_backoff_max_ms=max(self.refresh_leader_backoff_ms, self.offsets_channel_backoff_ms),
            default_api_timeout_ms=self.offsets_channel_socket_timeout_ms,
            security=self.security,
        )


def _one_of(config: ZookeeperConsumerConfig, name: str, allowed: tuple[str, ...]) -> None:
    if getattr(config, name) not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {getattr(config, name)!r}")


def _read(name: str, value: Any, kind: str) -> Any:
    """Turn the text of a properties file into what the field wants."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if kind.startswith("bool"):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return text.lower() == "true"
    if kind.startswith("int"):
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name} must be a number, not {value!r}") from None
    return text

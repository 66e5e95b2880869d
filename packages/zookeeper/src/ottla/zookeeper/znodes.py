"""The data of Kafka's znodes: one frozen dataclass per kind.

`path` says where it lives, `encode()` gives the bytes Kafka would write, `decode` reads what
Kafka or an older tool wrote and raises MalformedZnode for anything else.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ottla.zookeeper import paths
from ottla.zookeeper._json import (
    Fields,
    array,
    by_number,
    by_text,
    encode,
    integer,
    parse,
    text,
    text_or_number,
)
from ottla.zookeeper.errors import IllegalName, MalformedZnode

NO_LEADER = -1
RECOVERED = 0
RECOVERING = 1


def _number(path: str, data: bytes) -> int:
    try:
        return integer(data.decode("ascii"))
    except ValueError as error:
        raise MalformedZnode(path, str(error)) from error


def _legal_topic(value: object) -> str:
    try:
        return paths.topic_segment(text(value))
    except IllegalName as error:
        raise ValueError(error.detail) from error


# -- brokers


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one listener of a broker is reached. An IPv6 `host` has no brackets."""

    listener_name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"

    @classmethod
    def parse(cls, value: object) -> Endpoint:
        """Read `LISTENER://host:port`; raises ValueError."""
        listener_name, separator, address = text(value).partition("://")
        if not separator or not listener_name:
            raise ValueError(f"{value!r} is not an endpoint")
        where = urlsplit(f"//{address}")
        if where.port is None:
            raise ValueError(f"{value!r} has no port")
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        return cls(listener_name.upper(), host, where.port)


@dataclass(frozen=True, slots=True)
class BrokerFeature:
    """The range of versions of one feature that a broker supports."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """`/brokers/ids/[id]`, ephemeral: a live broker. Its czxid is the broker epoch.

    Written as version 5, or 4 when `features` is None; versions 1 to 5 are read.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    listener_security_protocol_map: Mapping[str, str]
    timestamp_ms: int
    jmx_port: int = -1
    rack: str | None = None
    features: Mapping[str, BrokerFeature] | None = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.broker(self.broker_id)

    @property
    def host(self) -> str | None:
        """The host of the plaintext endpoint, what clients before version 2 read; None without one."""
        plaintext = self._plaintext()
        return plaintext.host if plaintext else None

    @property
    def port(self) -> int:
        """The port of the plaintext endpoint, -1 without one."""
        plaintext = self._plaintext()
        return plaintext.port if plaintext else -1

    def _plaintext(self) -> Endpoint | None:
        for endpoint in self.endpoints:
            if self.security_protocol(endpoint.listener_name) == "PLAINTEXT":
                return endpoint
        return None

    def security_protocol(self, listener_name: str) -> str:
        """Return the security protocol of a listener; unnamed ones are called after their protocol."""
        return self.listener_security_protocol_map.get(listener_name, listener_name)

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """Return the endpoint of a listener, None when the broker has no such listener."""
        return next((e for e in self.endpoints if e.listener_name == listener_name), None)

    def encode(self) -> bytes:
        """Return the JSON of version 5 or 4."""
        value: dict[str, object] = {}
        if self.features is not None:
            value["features"] = {
                name: {"min_version": each.min_version, "max_version": each.max_version}
                for name, each in self.features.items()
            }
        value["listener_security_protocol_map"] = dict(self.listener_security_protocol_map)
        value["endpoints"] = [str(endpoint) for endpoint in self.endpoints]
        if self.rack is not None:
            value["rack"] = self.rack
        value["jmx_port"] = self.jmx_port
        value["port"] = self.port
        value["host"] = self.host
        value["version"] = 4 if self.features is None else 5
        value["timestamp"] = str(self.timestamp_ms)
        return encode(value)

    @classmethod
    def decode(cls, broker_id: int, data: bytes) -> BrokerRegistration:
        """Read any version from 1 to 5."""
        fields = Fields.of(paths.broker(broker_id), data)
        version = fields.version()
        if version < 1:
            raise MalformedZnode(paths.broker(broker_id), f"version {version} is below 1")
        if version == 1:
            host, port = fields.required("host", text), fields.required("port", integer)
            endpoints: tuple[Endpoint, ...] = (Endpoint("PLAINTEXT", host, port),)
        else:
            endpoints = fields.required("endpoints", array(Endpoint.parse))
        no_features: dict[str, BrokerFeature] = {}
        default = {endpoint.listener_name: endpoint.listener_name for endpoint in endpoints}
        return cls(
            broker_id,
            endpoints,
            fields.optional("listener_security_protocol_map", by_text(text), default),
            fields.optional("timestamp", integer, -1),
            fields.optional("jmx_port", integer, -1),
            fields.optional("rack", text, "") or None,
            fields.optional("features", by_text(_feature), no_features) if version >= 5 else None,
        )


def _feature(value: object) -> BrokerFeature:
    fields = Fields("", value)
    return BrokerFeature(fields.required("min_version", integer), fields.required("max_version", integer))


@dataclass(frozen=True, slots=True)
class ClusterId:
    """`/cluster/id`: the name of the cluster, 22 characters of URL-safe base64."""

    id: str

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.CLUSTER_ID

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode({"version": "1", "id": self.id})

    @classmethod
    def decode(cls, data: bytes) -> ClusterId:
        """Read the id."""
        return cls(Fields.of(paths.CLUSTER_ID, data).required("id", text))


@dataclass(frozen=True, slots=True)
class FeatureNode:
    """`/feature`: the feature versions the cluster has finalized (KIP-584); `status` 1 means enabled."""

    features: Mapping[str, int] = field(default_factory=dict)
    status: int = 1

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.FEATURE

    def encode(self) -> bytes:
        """Return the JSON of version 2."""
        return encode({"features": dict(self.features), "version": 2, "status": self.status})

    @classmethod
    def decode(cls, data: bytes) -> FeatureNode:
        """Read versions 1 (minimum and maximum per feature) and 2 (one level per feature)."""
        fields = Fields.of(paths.FEATURE, data)
        fields.version(1, 2)
        return cls(fields.required("features", by_text(_finalized_level)), fields.required("status", integer))


def _finalized_level(value: object) -> int:
    if isinstance(value, dict):
        return Fields("", value).required("max_version_level", integer)
    return integer(value)


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """`/latest_producer_id_block`: the last range of producer ids that was given out, both ends included."""

    broker_id: int
    first: int
    last: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.LATEST_PRODUCER_ID_BLOCK

    def encode(self) -> bytes:
        """Return the JSON; the ends are strings because they may pass 2^53."""
        return encode(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        """Read the block."""
        fields = Fields.of(paths.LATEST_PRODUCER_ID_BLOCK, data)
        return cls(
            fields.required("broker", integer),
            fields.required("block_start", integer),
            fields.required("block_end", integer),
        )


# -- topics


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Return a topic id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(value: object) -> uuid.UUID:
    """Read a topic id as Kafka prints it; raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.b64decode(text(value) + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{value!r} is not a topic id") from error


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/[topic]`: which brokers hold which partition, the preferred leader first.

    Written as version 3 with a topic id and as version 2 without; versions 1 to 3 are read.
    `adding_replicas` and `removing_replicas` name only partitions under reassignment (KIP-455).
    """

    topic: str
    partitions: Mapping[int, tuple[int, ...]]
    topic_id: uuid.UUID | None = None
    adding_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing_replicas: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.topic(self.topic)

    def encode(self) -> bytes:
        """Return the JSON of version 3, or 2 without a topic id."""
        value: dict[str, object] = {"partitions": _replicas_json(self.partitions)}
        if self.topic_id is not None:
            value["topic_id"] = encode_topic_id(self.topic_id)
        value["adding_replicas"] = _replicas_json(self.adding_replicas)
        value["removing_replicas"] = _replicas_json(self.removing_replicas)
        value["version"] = 2 if self.topic_id is None else 3
        return encode(value)

    @classmethod
    def decode(cls, topic: str, data: bytes) -> TopicAssignment:
        """Read any version from 1 to 3."""
        fields = Fields.of(paths.topic(topic), data)
        fields.version(1, 2, 3)
        replicas = by_number(array(integer))
        topic_id = fields.optional("topic_id", text, "")
        return cls(
            topic,
            fields.required("partitions", replicas),
            fields.required("topic_id", decode_topic_id) if topic_id else None,
            fields.optional("adding_replicas", replicas, {}),
            fields.optional("removing_replicas", replicas, {}),
        )


def _replicas_json(assignment: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(replicas) for partition, replicas in sorted(assignment.items())}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`/brokers/topics/[t]/partitions/[p]/state`: leader and ISR as the controller decided them.

    The znode's version is the partition epoch. `leader` is -1 when there is none.
    `leader_recovery_state` is 1 after an unclean election until the leader recovered (KIP-704).
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = RECOVERED

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.partition_state(self.topic, self.partition)

    def encode(self) -> bytes:
        """Return the JSON; the recovery state only while it says something."""
        value: dict[str, object] = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
        }
        if self.leader_recovery_state != RECOVERED:
            value["leader_recovery_state"] = self.leader_recovery_state
        return encode(value)

    @classmethod
    def decode(cls, topic: str, partition: int, data: bytes) -> PartitionState:
        """Read the state."""
        fields = Fields.of(paths.partition_state(topic, partition), data)
        return cls(
            topic,
            partition,
            fields.required("leader", integer),
            fields.required("leader_epoch", integer),
            fields.required("isr", array(integer)),
            fields.required("controller_epoch", integer),
            fields.optional("leader_recovery_state", integer, RECOVERED),
        )


# -- controller


@dataclass(frozen=True, slots=True)
class ControllerNode:
    """`/controller`, ephemeral: which broker is the controller. Versions 1 and 2 are read."""

    broker_id: int
    timestamp_ms: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.CONTROLLER

    def encode(self) -> bytes:
        """Return the JSON of version 1."""
        return encode({"version": 1, "brokerid": self.broker_id, "timestamp": str(self.timestamp_ms)})

    @classmethod
    def decode(cls, data: bytes) -> ControllerNode:
        """Read who it is."""
        fields = Fields.of(paths.CONTROLLER, data)
        return cls(fields.required("brokerid", integer), fields.optional("timestamp", integer, -1))


@dataclass(frozen=True, slots=True)
class ControllerEpoch:
    """`/controller_epoch`: counts the controllers; the znode's version fences every write of one."""

    epoch: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.CONTROLLER_EPOCH

    def encode(self) -> bytes:
        """Return the number as text."""
        return str(self.epoch).encode()

    @classmethod
    def decode(cls, data: bytes) -> ControllerEpoch:
        """Read the number."""
        return cls(_number(paths.CONTROLLER_EPOCH, data))


# -- configuration


@dataclass(frozen=True, slots=True)
class ConfigEntity:
    """`/config/[type]/[name]`: the overrides of one entity.

    `entity_path` is for example `topics/t` or `users/u/clients/c`.
    """

    entity_path: str
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.config_of(self.entity_path)

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode({"version": 1, "config": dict(self.config)})

    @classmethod
    def decode(cls, entity_path: str, data: bytes) -> ConfigEntity:
        """Read the overrides; an empty znode has none."""
        if not data:
            return cls(entity_path, {})
        fields = Fields.of(paths.config_of(entity_path), data)
        fields.version(1)
        return cls(entity_path, fields.required("config", by_text(text_or_number)))


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """`/config/changes/config_change_[seq]`, persistent sequential: tells brokers to re-read an entity."""

    entity_path: str

    @property
    def path(self) -> str:
        """The prefix to create it under, sequentially."""
        return paths.CONFIG_CHANGE_PREFIX

    def encode(self) -> bytes:
        """Return the JSON of version 2."""
        return encode({"version": 2, "entity_path": self.entity_path})

    @classmethod
    def decode(cls, data: bytes) -> ConfigChange:
        """Read version 2, version 1 (a type and a name) or what 0.8 wrote: the topic as a JSON string."""
        where = paths.CONFIG_CHANGES
        value = parse(where, data)
        if isinstance(value, str):
            return cls._checked(f"topics/{value}")
        fields = Fields(where, value)
        if fields.version(1, 2) == 2:
            return cls._checked(fields.required("entity_path", text))
        entity_type, name = fields.required("entity_type", text), fields.required("entity_name", text)
        if entity_type not in ("topics", "clients"):
            raise MalformedZnode(where, f"version 1 cannot speak of {entity_type!r}")
        return cls._checked(f"{entity_type}/{name}")

    @classmethod
    def _checked(cls, entity_path: str) -> ConfigChange:
        try:
            paths.config_of(entity_path)
        except IllegalName as error:
            raise MalformedZnode(paths.CONFIG_CHANGES, error.detail) from error
        return cls(entity_path)


# -- requests to the controller


def _topic_partition(value: object) -> tuple[str, int]:
    fields = Fields("", value)
    return fields.required("topic", _legal_topic), fields.required("partition", integer)


def _topic_partitions_json(partitions: Sequence[tuple[str, int]]) -> bytes:
    return encode(
        {"version": 1, "partitions": [{"topic": topic, "partition": number} for topic, number in partitions]}
    )


@dataclass(frozen=True, slots=True)
class ReassignPartitions:
    """`/admin/reassign_partitions`: written by a tool, deleted by the controller when empty."""

    replicas: Mapping[tuple[str, int], tuple[int, ...]]

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.REASSIGN_PARTITIONS

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode(
            {
                "version": 1,
                "partitions": [
                    {"topic": topic, "partition": number, "replicas": list(replicas)}
                    for (topic, number), replicas in self.replicas.items()
                ],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ReassignPartitions:
        """Read the request; `version` may be missing, as old tools left it out."""
        fields = Fields.of(paths.REASSIGN_PARTITIONS, data)

        def entry(value: object) -> tuple[tuple[str, int], tuple[int, ...]]:
            return _topic_partition(value), Fields("", value).required("replicas", array(integer))

        return cls(dict(fields.required("partitions", array(entry))))


@dataclass(frozen=True, slots=True)
class PreferredReplicaElection:
    """`/admin/preferred_replica_election`: written by a tool, deleted by the controller."""

    partitions: tuple[tuple[str, int], ...]

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.PREFERRED_REPLICA_ELECTION

    def encode(self) -> bytes:
        """Return the JSON."""
        return _topic_partitions_json(self.partitions)

    @classmethod
    def decode(cls, data: bytes) -> PreferredReplicaElection:
        """Read the request; partitions as strings and a missing version are taken too."""
        fields = Fields.of(paths.PREFERRED_REPLICA_ELECTION, data)
        return cls(fields.required("partitions", array(_topic_partition)))


@dataclass(frozen=True, slots=True)
class IsrChange:
    """`/isr_change_notification/isr_change_[seq]`: tells the controller to re-read partition states."""

    partitions: tuple[tuple[str, int], ...]

    @property
    def path(self) -> str:
        """The prefix to create it under, sequentially."""
        return paths.ISR_CHANGE_PREFIX

    def encode(self) -> bytes:
        """Return the JSON."""
        return _topic_partitions_json(self.partitions)

    @classmethod
    def decode(cls, data: bytes) -> IsrChange:
        """Read which partitions."""
        fields = Fields.of(paths.ISR_CHANGE_NOTIFICATION, data)
        return cls(fields.required("partitions", array(_topic_partition)))


@dataclass(frozen=True, slots=True)
class LogDirEvent:
    """`/log_dir_event_notification/log_dir_event_[seq]`: a broker lost a log directory (event 1)."""

    broker_id: int
    event: int = 1

    @property
    def path(self) -> str:
        """The prefix to create it under, sequentially."""
        return paths.LOG_DIR_EVENT_PREFIX

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode({"version": 1, "broker": self.broker_id, "event": self.event})

    @classmethod
    def decode(cls, data: bytes) -> LogDirEvent:
        """Read which broker."""
        fields = Fields.of(paths.LOG_DIR_EVENT_NOTIFICATION, data)
        return cls(fields.required("broker", integer), fields.optional("event", integer, 1))


# -- consumers of the ZooKeeper age


_PATTERNS = ("static", "white_list", "black_list")


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """`/consumers/[group]/ids/[id]`, ephemeral: a member, and how many streams it wants per topic.

    `pattern` is static, white_list or black_list; with the lists the one key of
    `subscription` is a regular expression.
    """

    group: str
    consumer_id: str
    subscription: Mapping[str, int]
    pattern: str
    timestamp_ms: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.consumer_id(self.group, self.consumer_id)

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode(
            {
                "version": 1,
                "subscription": dict(self.subscription),
                "pattern": self.pattern,
                "timestamp": str(self.timestamp_ms),
            }
        )

    @classmethod
    def decode(cls, group: str, consumer_id: str, data: bytes) -> ConsumerRegistration:
        """Read the subscription."""
        where = paths.consumer_id(group, consumer_id)
        fields = Fields.of(where, data)
        pattern = fields.optional("pattern", text, "static")
        if pattern not in _PATTERNS:
            raise MalformedZnode(where, f"pattern {pattern!r} is not one of {_PATTERNS}")
        subscription = fields.required("subscription", by_text(integer))
        return cls(group, consumer_id, subscription, pattern, fields.optional("timestamp", integer, -1))


@dataclass(frozen=True, slots=True)
class ConsumerOffset:
    """`/consumers/[group]/offsets/[topic]/[partition]`: the next offset to read, as text."""

    group: str
    topic: str
    partition: int
    offset: int

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.consumer_offset(self.group, self.topic, self.partition)

    def encode(self) -> bytes:
        """Return the number as text."""
        return str(self.offset).encode()

    @classmethod
    def decode(cls, group: str, topic: str, partition: int, data: bytes) -> ConsumerOffset:
        """Read the number."""
        return cls(group, topic, partition, _number(paths.consumer_offset(group, topic, partition), data))


@dataclass(frozen=True, slots=True)
class ConsumerOwner:
    """`/consumers/[group]/owners/[topic]/[partition]`, ephemeral: `consumerid-threadid` of the claim."""

    group: str
    topic: str
    partition: int
    owner: str

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.consumer_owner(self.group, self.topic, self.partition)

    def encode(self) -> bytes:
        """Return the owner as text."""
        return self.owner.encode()

    @classmethod
    def decode(cls, group: str, topic: str, partition: int, data: bytes) -> ConsumerOwner:
        """Read the owner."""
        where = paths.consumer_owner(group, topic, partition)
        try:
            return cls(group, topic, partition, data.decode())
        except UnicodeDecodeError as error:
            raise MalformedZnode(where, "not UTF-8") from error

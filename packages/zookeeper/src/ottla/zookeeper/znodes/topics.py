"""Znodes of topics and partitions, and of configuration overrides and their changes."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from urllib.parse import quote
from uuid import UUID

from ottla.zookeeper import paths
from ottla.zookeeper._json import (
    Fields,
    array,
    by_number,
    by_text,
    encode,
    integer,
    integer32,
    parse,
    text,
    text_or_number,
)
from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.frozen_classes import frozen

NO_LEADER = -1
RECOVERED = 0
RECOVERING = 1
SLICE = 1_000


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Return a topic id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(value: object) -> uuid.UUID:
    """Read a topic id as Kafka prints it; raises ValueError."""
    try:
        return uuid.UUID(bytes=base64.b64decode(text(value) + "==", altchars=b"-_", validate=True))
    except binascii.Error as error:
        raise ValueError(f"{value!r} is not a topic id") from error


@frozen
class TopicAssignment:
    """`/brokers/topics/[topic]`: the replicas of each partition, the preferred leader first.

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
        value: dict[str, object] = {}
        if self.topic_id is not None:
            value["topic_id"] = encode_topic_id(self.topic_id)
        value["adding_replicas"] = _replicas_json(self.adding_replicas)
        value["removing_replicas"] = _replicas_json(self.removing_replicas)
        value["version"] = 2 if self.topic_id is None else 3
        return b'{"partitions":%b,%b' % (_encode_in_slices(self.partitions), encode(value)[1:])

    @classmethod
    def decode(cls, topic: str, data: bytes) -> TopicAssignment:
        """Read any version from 1 to 3."""
        fields = Fields.of(paths.topic(topic), data)
        fields.version(1, 2, 3)
        replicas = by_number(array(integer32))
        topic_id = fields.optional("topic_id", text, "")
        return cls(
            topic,
            fields.required("partitions", replicas),
            fields.required("topic_id", decode_topic_id) if topic_id else None,
            fields.optional("adding_replicas", replicas, {}),
            fields.optional("removing_replicas", replicas, {}),
        )


def _encode_in_slices(assignment: Mapping[int, Sequence[int]]) -> bytes:
    """Encode many partitions without holding the interpreter throughout, which one call of `json` would."""
    replicas = sorted(assignment.items())
    slices = (dict(replicas[first : first + SLICE]) for first in range(0, len(replicas), SLICE))
    return b"{%b}" % b",".join(encode(_replicas_json(part))[1:-1] for part in slices)


def _replicas_json(assignment: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(replicas) for partition, replicas in sorted(assignment.items())}


@frozen
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
        """Return the JSON; the recovery state only if it is not 0."""
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
            fields.required("leader", integer32),
            fields.required("leader_epoch", integer32),
            fields.required("isr", array(integer32)),
            fields.required("controller_epoch", integer32),
            fields.optional("leader_recovery_state", integer, RECOVERED),
        )


@frozen
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


@frozen
class OttlaTopicSettings:
    """`/ottla/config/topics/[topic]`: the overrides of a topic's keys that Apache Kafka does not know.

    They stand apart from Kafka's: an Apache broker validates all of a topic's overrides when one is altered,
    and refuses unknown keys. `topic_id` tells a topic from a later one of its name.
    """

    topic: str
    topic_id: UUID | None
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.ottla_topic_settings(self.topic)

    def encode(self) -> bytes:
        """Return the JSON."""
        topic_id = None if self.topic_id is None else encode_topic_id(self.topic_id)
        return encode({"version": 1, "topic_id": topic_id, "config": dict(self.config)})

    @classmethod
    def decode(cls, topic: str, data: bytes) -> OttlaTopicSettings:
        """Read the overrides."""
        fields = Fields.of(paths.ottla_topic_settings(topic), data)
        fields.version(1)
        topic_id = fields.optional("topic_id", decode_topic_id, None)
        return cls(topic, topic_id, fields.required("config", by_text(text_or_number)))


@frozen
class OttlaGroupSettings:
    """`/ottla/config/groups/[group]`: the settings of a group; its id is URL-encoded in the path."""

    group: str
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lives."""
        return paths.ottla_group_settings(quote(self.group, safe=""))

    def encode(self) -> bytes:
        """Return the JSON."""
        return encode({"version": 1, "config": dict(self.config)})

    @classmethod
    def decode(cls, group: str, data: bytes) -> OttlaGroupSettings:
        """Read the settings."""
        fields = Fields.of(cls(group).path, data)
        fields.version(1)
        return cls(group, fields.required("config", by_text(text_or_number)))


@frozen
class ConfigChange:
    """`/config/changes/config_change_[seq]`, persistent sequential: makes brokers re-read an entity."""

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
        """Read version 2, version 1 (a type and a name) or the form of 0.8: the topic as a JSON string."""
        where = paths.CONFIG_CHANGES
        value = parse(where, data)
        if isinstance(value, str):
            return cls._checked(f"topics/{value}")
        fields = Fields(where, value)
        if fields.version(1, 2) == 2:
            return cls._checked(fields.required("entity_path", text))
        entity_type, name = fields.required("entity_type", text), fields.required("entity_name", text)
        if entity_type not in ("topics", "clients"):
            raise MalformedZnode(where, f"version 1 has no entities of type {entity_type!r}")
        return cls._checked(f"{entity_type}/{name}")

    @classmethod
    def _checked(cls, entity_path: str) -> ConfigChange:
        try:
            paths.config_of(entity_path)
        except IllegalName as error:
            raise MalformedZnode(paths.CONFIG_CHANGES, error.detail) from error
        return cls(entity_path)

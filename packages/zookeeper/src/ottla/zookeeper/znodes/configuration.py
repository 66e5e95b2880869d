"""Znodes of configuration overrides and their changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from ottla.zookeeper import paths
from ottla.zookeeper._json import Fields, by_text, encode, parse, text, text_or_number
from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.znodes.topics import decode_topic_id, encode_topic_id


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


@dataclass(frozen=True, slots=True)
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

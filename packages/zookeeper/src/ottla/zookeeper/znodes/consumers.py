"""Znodes of the consumers that use ZooKeeper (Kafka 0.8)."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.zookeeper import paths
from ottla.zookeeper._json import Fields, by_text, encode, integer, number_text, text
from ottla.zookeeper.errors import MalformedZnode
from ottla.zookeeper.frozen_classes import frozen

_PATTERNS = ("static", "white_list", "black_list")


@frozen
class ConsumerRegistration:
    """`/consumers/[group]/ids/[id]`, ephemeral: a member and its number of streams per topic.

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


@frozen
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
        return cls(group, topic, partition, number_text(paths.consumer_offset(group, topic, partition), data))


@frozen
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

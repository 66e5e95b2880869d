"""Subscriptions and assignments, which a group coordinator passes between consumers without reading them.

Subscriptions travel in JoinGroup, assignments in SyncGroup. Newer versions only append fields: an
unknown version is read as the newest known one, and the bytes after it are ignored. Names are Kafka's
`ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`.
"""

from __future__ import annotations

from typing import Self

from ottla.protocol.primitives import Buffer
from ottla.protocol.schema import Struct, array, int32, message, nullable_blob, nullable_string, string
from ottla.protocol.versioned import VersionedMessage, version_of


class TopicPartitions(Struct):
    """Some partitions of one topic; Kafka's name for it is TopicPartition."""

    topic: str = string()
    partitions: list[int] = array(int32)


class _GroupPayload(VersionedMessage):
    @classmethod
    def from_bytes(cls, buffer: Buffer, *, exact: bool = False) -> Self:
        """Read any version, the newest known one in place of newer ones. Raises MalformedMessage."""
        return cls._read(buffer, min(version_of(buffer), cls.MAX_VERSION), exact=exact)


@message(versions=(0, 3))
class ConsumerProtocolSubscription(_GroupPayload):
    """The topics a member reads, and the partitions it owns.

    Version 1 adds the partitions it owns (KIP-429), 2 the generation they are from, 3 its rack (KIP-881).
    """

    topics: list[str] = array(string)
    user_data: bytes | None = nullable_blob(None)
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, since=1, ignorable=True)
    generation_id: int = int32(-1, since=2, ignorable=True)
    rack_id: str | None = nullable_string(None, since=3, ignorable=True)


@message(versions=(0, 3))
class ConsumerProtocolAssignment(_GroupPayload):
    """The partitions a member reads; the versions are those of the subscription, without changes here."""

    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = nullable_blob(None)

"""What consumers tell each other through the group coordinator, which passes it on unread.

Subscriptions travel in JoinGroup, assignments in SyncGroup. Newer versions only ever append fields, so that a
version from the future is read as the newest known one, and what follows is ignored. Names are Kafka's
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
    """What a member wants to read, and what it has.

    Version 1 adds the partitions it owns (KIP-429), 2 the generation they are from, 3 its rack (KIP-881).
    """

    topics: list[str] = array(string)
    user_data: bytes | None = nullable_blob(None)
    owned_partitions: list[TopicPartitions] = array(TopicPartitions, since=1, ignorable=True)
    generation_id: int = int32(-1, since=2, ignorable=True)
    rack_id: str | None = nullable_string(None, since=3, ignorable=True)


@message(versions=(0, 3))
class ConsumerProtocolAssignment(_GroupPayload):
    """What a member shall read; the versions are those of the subscription, without changes here."""

    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    user_data: bytes | None = nullable_blob(None)

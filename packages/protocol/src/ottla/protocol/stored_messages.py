"""Messages that are stored or passed on with their version: of internal topics, and of consumer groups.

Each starts with a version of two bytes (`to_bytes`, `from_bytes`). In `__consumer_offsets` the version of a
key also says its kind: 0 and 1 are an OffsetCommitKey, 2 a GroupMetadataKey, and higher ones belong to the
newer kinds of groups (`ottla.protocol.stored_groups`). A record without a value takes back what its key
stands for.

Subscriptions travel in JoinGroup, assignments in SyncGroup, and coordinators do not read them. Newer versions
only append fields: an unknown version is read as the newest known one, and the bytes after it are ignored.
Names are Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Self
from uuid import UUID

from ottla.protocol.primitives import Buffer, MalformedMessage
from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    blob,
    int8,
    int16,
    int32,
    int64,
    message,
    nullable_array,
    nullable_blob,
    nullable_string,
    string,
    uuid,
)

_VERSION: Final = struct.Struct(">h")


class VersionedMessage(Message):
    """A message whose bytes start with its version, as two bytes."""

    def to_bytes(self, version: int) -> bytes:
        """Return the version and the body. Raises what `encode` raises."""
        return _VERSION.pack(version) + self.encode(version)

    def to_bytes_in_steps(self, version: int) -> Iterator[bytes]:
        """Yield what `to_bytes` returns in order, as `encode_in_steps` yields the body."""
        yield _VERSION.pack(version)
        yield from self.encode_in_steps(version)

    @classmethod
    def from_bytes(cls, buffer: Buffer, *, exact: bool = True) -> Self:
        """Read the version and the body it announces. Raises MalformedMessage, for unknown versions too."""
        return cls._read(buffer, version_of(buffer), exact=exact)

    @classmethod
    def _read(cls, buffer: Buffer, version: int, *, exact: bool) -> Self:
        if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
            raise MalformedMessage(cls.__name__, version, "version", 0, "there is no such version")
        return cls.decode(memoryview(buffer)[_VERSION.size :], version, exact=exact)


def version_of(buffer: Buffer) -> int:
    """Return the version a versioned message starts with. Raises MalformedMessage when there is none."""
    if len(buffer) < _VERSION.size:
        raise MalformedMessage("VersionedMessage", -1, "version", 0, "the message ends too early")
    version: int = _VERSION.unpack_from(buffer)[0]
    return version


@message(versions=(0, 1))
class OffsetCommitKey(VersionedMessage):
    """Names the partition an offset was committed for, and the group."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


@message(versions=(0, 4), flexible_from=4)
class OffsetCommitValue(VersionedMessage):
    """A committed offset.

    Version 1 has a time of expiry of its own, 3 adds the leader epoch (KIP-320). Kafka 2.1 to 3.x writes 3,
    or 1 where the committer asked for a retention time; 4 is flexible (KIP-915), with the topic id since 4.1
    (KIP-848).
    """

    offset: int = int64()
    leader_epoch: int = int32(-1, since=3, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(-1, since=1, until=1, ignorable=True)
    topic_id: UUID = uuid(since=4, tag=0, ignorable=True)


@message(versions=(2, 2))
class GroupMetadataKey(VersionedMessage):
    """Names a group."""

    group: str = string()


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = nullable_string(None, since=3, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(-1, since=1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = blob()
    assignment: bytes = blob()


@message(versions=(0, 4), flexible_from=4)
class GroupMetadataValue(VersionedMessage):
    """A group between two rebalances: its generation and what each member was assigned.

    Version 1 adds the time to rebalance (KIP-62), 2 since when the group is in its state (KIP-211), 3 static
    members (KIP-345); 4 is flexible (KIP-915).
    """

    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = nullable_string()
    leader: str | None = nullable_string()
    current_state_timestamp: int = int64(-1, since=2, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


@message(versions=(0, 0))
class TransactionLogKey(VersionedMessage):
    """Names a transactional id."""

    transactional_id: str = string()


class TransactionPartitions(Struct):
    topic: str = string()
    partition_ids: list[int] = array(int32)


@message(versions=(0, 1), flexible_from=1)
class TransactionLogValue(VersionedMessage):
    """The state of a transactional id (KIP-98).

    Version 1 is flexible (KIP-915); since Kafka 4.0 it has ids and epochs of transactions of version 2
    (KIP-890).
    """

    producer_id: int = int64()
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[TransactionPartitions] | None = nullable_array(TransactionPartitions)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    previous_producer_id: int = int64(-1, since=1, tag=0)
    next_producer_id: int = int64(-1, since=1, tag=1)
    client_transaction_version: int = int16(since=1, tag=2)
    next_producer_epoch: int = int16(-1, since=1, tag=3)


def decode_offsets_key(buffer: Buffer) -> OffsetCommitKey | GroupMetadataKey | None:
    """Read a key of `__consumer_offsets`; None for the kinds of newer group protocols.

    Raises MalformedMessage.
    """
    version = version_of(buffer)
    if version <= OffsetCommitKey.MAX_VERSION:
        return OffsetCommitKey.from_bytes(buffer)
    return GroupMetadataKey.from_bytes(buffer) if version == GroupMetadataKey.MAX_VERSION else None


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

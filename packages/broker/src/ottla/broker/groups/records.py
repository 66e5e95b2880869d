"""The records of `__consumer_offsets`, in the layouts that Kafka writes and its tools read.

The version of a key says what kind of record it is: OffsetCommitKey (0 and 1), GroupMetadataKey (2), or a key
of a group that is not classic (`KindRecord`). Records of offsets and classic groups are as Kafka 2.8 writes
them: an Apache broker that shares the cluster reads them. A record without value is a tombstone.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from ottla.broker.cluster.metadata import NO_ID
from ottla.broker.coordinators.coordinator_partitions import Headers, KeyValue
from ottla.broker.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.broker.groups.kinds import KindRecord, kind_of_key
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.broker.runtime.loop_budget import slices
from ottla.protocol.stored_messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offsets_key,
    version_of,
)
from ottla.protocol.topics import TopicPartition

_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_OFFSET_VALUE_VERSION: Final = 3
_EXPIRING_OFFSET_VALUE_VERSION: Final = 1
_GROUP_VALUE_VERSION: Final = 3
_ID_BYTES: Final = 16


class OffsetRecord(NamedTuple):
    """A committed offset; None deletes it."""

    group_id: str
    partition: TopicPartition
    committed: CommittedOffset | None


TOPIC_ID_HEADER: Final = "topic.id"
"""The header of an offset record with the id of the topic, 16 bytes.

Kafka's value has a field for it from version 4 on, which brokers before 4.1 cannot read: they stop at an
unknown version. They skip headers.
"""


class GroupRecord(NamedTuple):
    """A group's members and assignments; None deletes the group.

    `value` is the snapshot as the log stores it, if it was encoded before (`encode_in_steps`).
    """

    group_id: str
    snapshot: GroupSnapshot | None
    value: bytes | None = None


LogRecord: TypeAlias = OffsetRecord | GroupRecord | KindRecord


def encode_record(record: LogRecord) -> KeyValue:
    """Encode a record as the log stores it."""
    if isinstance(record, OffsetRecord):
        partition, committed = record.partition, record.committed
        offset_key = OffsetCommitKey(
            group=record.group_id, topic=partition.topic, partition=partition.partition
        )
        encoded_key = offset_key.to_bytes(_OFFSET_KEY_VERSION)
        if committed is None:
            return KeyValue(encoded_key, None)
        return KeyValue(encoded_key, _offset_value(committed), _offset_headers(committed))
    if isinstance(record, KindRecord):
        return _encode_kind(record)
    key = GroupMetadataKey(group=record.group_id).to_bytes(_GROUP_KEY_VERSION)
    if record.snapshot is None or record.value is not None:
        return KeyValue(key, record.value)
    value = _group_value(record.snapshot, [_member_value(member) for member in record.snapshot.members])
    return KeyValue(key, value.to_bytes(_GROUP_VALUE_VERSION))


def encode_in_steps(snapshot: GroupSnapshot) -> Generator[None, None, bytes]:
    """Encode the snapshot of a group with very many members; return the value of its record."""
    members: list[MemberMetadata] = []
    for some in slices(snapshot.members):
        members.extend(map(_member_value, some))
        yield
    parts: list[bytes] = []
    for part in _group_value(snapshot, members).to_bytes_in_steps(_GROUP_VALUE_VERSION):
        parts.append(part)
        yield
    return b"".join(parts)


def _offset_value(committed: CommittedOffset) -> bytes:
    expires = committed.expire_timestamp_ms
    version = _OFFSET_VALUE_VERSION if expires is None else _EXPIRING_OFFSET_VALUE_VERSION
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=-1 if expires is None else expires,
    )
    return value.to_bytes(version)


def _offset_headers(committed: CommittedOffset) -> Headers:
    return () if committed.topic_id == NO_ID else ((TOPIC_ID_HEADER, committed.topic_id.bytes),)


def _group_value(snapshot: GroupSnapshot, members: list[MemberMetadata]) -> GroupMetadataValue:
    return GroupMetadataValue(
        protocol_type=snapshot.protocol_type or "",
        generation=snapshot.generation,
        protocol=snapshot.protocol_name,
        leader=snapshot.leader_id,
        current_state_timestamp=snapshot.state_since_ms,
        members=members,
    )


def _member_value(member: MemberSnapshot) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.subscription,
        assignment=member.assignment,
    )


def decode_record(key: bytes, value: bytes | None, headers: Headers = ()) -> LogRecord | None:
    """Decode one record; None for one of a kind that Kafka wrote in previews only.

    Raises MalformedMessage and UnknownVersion for bytes that their version does not allow.
    """
    decoded = decode_offsets_key(key)
    if decoded is None:
        return _decode_kind(key, value)
    if isinstance(decoded, GroupMetadataKey):
        return GroupRecord(decoded.group, None if value is None else _read_group(decoded.group, value))
    partition = TopicPartition(decoded.topic, decoded.partition)
    return OffsetRecord(decoded.group, partition, None if value is None else _read_offset(value, headers))


def _encode_kind(record: KindRecord) -> KeyValue:
    value = record.value
    key = record.key.to_bytes(record.key.MIN_VERSION)
    return KeyValue(key, None if value is None else value.to_bytes(value.MAX_VERSION))


def _decode_kind(key: bytes, value: bytes | None) -> KindRecord | None:
    if kind_of_key(version_of(key)) is None:
        return None
    from ottla.protocol import stored_groups  # a broker that hosts classic groups only needs none of it

    if version_of(key) not in stored_groups.GROUP_RECORDS:
        return None
    decoded, content = stored_groups.decode_record(key, value)
    return KindRecord(cast(Any, decoded).group_id, decoded, content)


def _read_offset(encoded: bytes, headers: Headers) -> CommittedOffset:
    value = OffsetCommitValue.from_bytes(encoded)
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=None if value.expire_timestamp == -1 else value.expire_timestamp,
        topic_id=_read_topic_id(headers),
    )


def _read_topic_id(headers: Headers) -> UUID:
    for name, value in headers:
        if name == TOPIC_ID_HEADER and value is not None and len(encoded := bytes(value)) == _ID_BYTES:
            return _topic_id(encoded)
    return NO_ID


@lru_cache(maxsize=4096)
def _topic_id(encoded: bytes) -> UUID:
    """Return the id, one object for all offsets of a topic."""
    return UUID(bytes=encoded)


def _read_group(group_id: str, encoded: bytes) -> GroupSnapshot:
    value = GroupMetadataValue.from_bytes(encoded)
    return GroupSnapshot(
        group_id=group_id,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
        leader_id=value.leader,
        state_since_ms=value.current_state_timestamp,
        members=tuple(_read_member(member) for member in value.members),
    )


def _read_member(member: MemberMetadata) -> MemberSnapshot:
    # Version 0 has no rebalance timeout: the session timeout served as both.
    rebalance_ms = member.rebalance_timeout if member.rebalance_timeout != -1 else member.session_timeout
    return MemberSnapshot(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=rebalance_ms,
        session_timeout_ms=member.session_timeout,
        subscription=bytes(member.subscription),
        assignment=bytes(member.assignment),
    )


class GroupRecordCodec:
    """The `RecordCodec` of `__consumer_offsets`."""

    encode = staticmethod(encode_record)
    decode = staticmethod(decode_record)

"""Records of the internal topics, and what group members tell each other."""

from __future__ import annotations

from uuid import UUID

import pytest

from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_groups import (
    GROUP_RECORDS,
    SHARE_STATE_RECORDS,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ShareSnapshotKey,
    decode_record,
    key_bytes,
)
from ottla.protocol.stored_messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    TopicPartitions,
    TransactionLogValue,
    TransactionPartitions,
    decode_offsets_key,
)


def test_the_version_of_a_key_says_what_it_is() -> None:
    offset, group = OffsetCommitKey(group="g", topic="t", partition=3), GroupMetadataKey(group="g")

    assert decode_offsets_key(offset.to_bytes(0)) == offset
    assert decode_offsets_key(offset.to_bytes(1)) == offset
    assert decode_offsets_key(group.to_bytes(2)) == group
    assert decode_offsets_key(b"\x00\x03\x00\x01g") is None


def test_a_committed_offset_has_kafkas_bytes() -> None:
    value = OffsetCommitValue(offset=5, leader_epoch=1, metadata="m", commit_timestamp=9)

    assert value.to_bytes(3) == bytes.fromhex("0003 0000000000000005 00000001 0001 6d 0000000000000009")


def test_an_expiry_is_stored_in_version_1_alone() -> None:
    value = OffsetCommitValue(offset=5, commit_timestamp=9, expire_timestamp=99)

    assert OffsetCommitValue.from_bytes(value.to_bytes(1)).expire_timestamp == 99
    assert OffsetCommitValue.from_bytes(value.to_bytes(3)).expire_timestamp == -1


def test_a_transaction_without_partitions_is_not_one_with_none_left() -> None:
    choices: tuple[list[TransactionPartitions] | None, ...] = (None, [])
    for partitions in choices:
        value = TransactionLogValue(producer_id=1, transaction_partitions=partitions)
        assert TransactionLogValue.from_bytes(value.to_bytes(0)).transaction_partitions == partitions


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x63", b"\xff\xff", b"\x00\x03"])
def test_bytes_that_are_no_value_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        OffsetCommitValue.from_bytes(data)


def test_a_payload_from_the_future_is_read_as_the_newest_known_version() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], rack_id="r", generation_id=4)
    future = b"\x00\x63" + subscription.encode(3) + b"more"

    assert ConsumerProtocolSubscription.from_bytes(future) == subscription


def test_a_payload_of_a_negative_version_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="no such version"):
        ConsumerProtocolAssignment.from_bytes(b"\xff\xff")


def test_an_assignment_has_kafkas_bytes() -> None:
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(topic="t", partitions=[0, 2])], user_data=None
    )

    written = assignment.to_bytes(1)

    assert written == bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000002 ffffffff")
    assert ConsumerProtocolAssignment.from_bytes(written) == assignment


def test_the_kind_that_opens_a_key_of_a_newer_group_chooses_key_and_value() -> None:
    key = ConsumerGroupMemberMetadataKey(group_id="g", member_id="m")
    value = ConsumerGroupMemberMetadataValue(client_id="c", classic_member_metadata=None)

    written = key_bytes(key)

    assert written == bytes.fromhex("0005 0001 67 0001 6d")
    assert decode_record(written, value.to_bytes(0)) == (key, value)
    assert decode_record(written, None) == (key, None)


def test_a_member_without_classic_protocols_is_written_with_an_explicit_null() -> None:
    value = ConsumerGroupMemberMetadataValue(classic_member_metadata=None)

    assert value.encode(0)[-4:] == bytes.fromhex("01 00 01 00")


def test_kinds_of_one_topic_are_unknown_in_the_other() -> None:
    snapshot = key_bytes(ShareSnapshotKey(group_id="g", partition=1))

    assert decode_record(snapshot, None, SHARE_STATE_RECORDS)[0].partition == 1  # type: ignore[attr-defined]
    with pytest.raises(MalformedMessage, match="no such kind of record"):
        decode_record(snapshot, None)
    assert not {0, 1, 2, 9, 18} & GROUP_RECORDS.keys()


def test_a_topic_id_is_stored_where_the_version_has_a_place_for_it() -> None:
    topic_id = UUID(int=7)
    value = OffsetCommitValue(offset=5, topic_id=topic_id)

    assert OffsetCommitValue.from_bytes(value.to_bytes(4)).topic_id == topic_id
    assert OffsetCommitValue.from_bytes(value.to_bytes(3)).topic_id == UUID(int=0)

"""Records of the internal topics, and what group members tell each other."""

from __future__ import annotations

import pytest

from ottla.protocol.primitives import MalformedMessage
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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.groups.classic.events import GroupSnapshot, MemberSnapshot
from ottla.broker.groups.kinds import KindRecord
from ottla.broker.groups.offsets.committed_offsets import CommittedOffset
from ottla.broker.groups.records import (
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from ottla.protocol.primitives import MalformedMessage
from ottla.protocol.stored_groups import GROUP_RECORDS
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("topic", 3)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(0, 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)

offsets = st.builds(
    CommittedOffset,
    offset=int64,
    leader_epoch=int32,
    metadata=text,
    commit_timestamp_ms=int64,
)
members = st.builds(
    MemberSnapshot,
    member_id=text,
    instance_id=st.none() | text,
    client_id=text,
    client_host=text,
    rebalance_timeout_ms=st.integers(0, 2**31 - 1),
    session_timeout_ms=int32,
    subscription=st.binary(max_size=8),
    assignment=st.binary(max_size=8),
)
groups = st.builds(
    GroupSnapshot,
    group_id=text,
    generation=int32,
    protocol_type=st.none() | names,
    protocol_name=st.none() | text,
    leader_id=st.none() | text,
    state_since_ms=int64,
    members=st.lists(members, max_size=3).map(tuple),
)


@settings(deadline=None)
@given(text, offsets)
def test_offset_records_are_read_as_they_were_written(group_id: str, committed: CommittedOffset) -> None:
    key, value, _ = encode_record(OffsetRecord(group_id, PARTITION, committed))

    assert decode_record(key, value) == OffsetRecord(group_id, PARTITION, committed)


@settings(deadline=None)
@given(groups)
def test_group_records_are_read_as_they_were_written(snapshot: GroupSnapshot) -> None:
    key, value, _ = encode_record(GroupRecord(snapshot.group_id, snapshot))

    assert decode_record(key, value) == GroupRecord(snapshot.group_id, snapshot)


def test_an_offset_has_kafkas_bytes() -> None:
    committed = CommittedOffset(offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=9)

    key, value, _ = encode_record(OffsetRecord("g", PARTITION, committed))

    assert key == b"\0\1\0\1g\0\5topic\0\0\0\3"
    assert value == b"\0\3" + (5).to_bytes(8, "big") + b"\0\0\0\2\0\1m" + (9).to_bytes(8, "big")


def test_an_offset_with_an_expire_timestamp_is_written_in_version_1() -> None:
    committed = CommittedOffset(offset=5, metadata="m", commit_timestamp_ms=9, expire_timestamp_ms=20)

    key, value, _ = encode_record(OffsetRecord("g", PARTITION, committed))

    assert value == b"\0\1" + (5).to_bytes(8, "big") + b"\0\1m" + b"".join(
        number.to_bytes(8, "big") for number in (9, 20)
    )
    assert decode_record(key, value) == OffsetRecord("g", PARTITION, committed)


def test_tombstones_are_read_as_deletions() -> None:
    for record in (OffsetRecord("g", PARTITION, None), GroupRecord("g", None)):
        assert encode_record(record).value is None
        assert decode_record(*encode_record(record)) == record


@pytest.mark.parametrize("kind", [9, 18, 24, 99])
def test_records_of_unknown_kinds_are_skipped(kind: int) -> None:
    assert decode_record(kind.to_bytes(2, "big") + b"\0\1g", b"") is None


def test_a_record_of_a_newer_kind_of_group_is_read_and_written() -> None:
    for kind, (key_class, value_class) in GROUP_RECORDS.items():
        for value in (value_class(), None):
            record = KindRecord("", key_class(), value)
            encoded = encode_record(record)
            assert encoded.key[:2] == kind.to_bytes(2, "big")
            assert decode_record(encoded.key, encoded.value) == record


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\1", b"\0\2\0\5g"])
def test_a_truncated_key_is_malformed(key: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_record(key, None)


def test_a_member_written_before_rebalance_timeouts_has_one_timeout_for_both() -> None:
    value = b"\0\0\0\10consumer\0\0\0\1\0\5range\0\1m\0\0\0\1"
    value += b"\0\1m\0\1c\0\2/h\0\0\x27\x10\0\0\0\0\0\0\0\0"

    record = decode_record(encode_record(GroupRecord("g", None)).key, value)

    assert isinstance(record, GroupRecord)
    assert record.snapshot is not None
    (member,) = record.snapshot.members
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10_000, 10_000)

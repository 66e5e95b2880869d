"""Bytes that are no message: refused with a place, never with anything but MalformedMessage."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol.api import decode_request_header, decode_response_header
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.producer_ids import InitProducerIdRequest
from ottla.protocol.messages.sasl import SaslHandshakeResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.messages.transactions import AddOffsetsToTxnRequest
from ottla.protocol.primitives import MalformedMessage, encode_uvarint
from ottla.protocol.schema import Message
from ottla.protocol.testing import instances, message_versions, version_id

EACH_VERSION = pytest.mark.parametrize(("cls", "version"), message_versions(), ids=version_id)
PRODUCE = ProduceRequest(
    acks=1,
    topic_data=[
        TopicProduceData(name="topic", partition_data=[PartitionProduceData(index=1, records=b"abc")])
    ],
)


def read(cls: type[Message], data: bytes, version: int) -> None:
    """Decode what may be anything; only MalformedMessage, with a place inside it, may come of it."""
    refusal: MalformedMessage | None = None
    try:
        cls.decode(data, version)
    except MalformedMessage as error:
        refusal = error
    assert refusal is None or (refusal.message == cls.__name__ and 0 <= refusal.position <= len(data))


@EACH_VERSION
@given(data=st.data())
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_altered_bytes_are_read_or_refused(cls: type[Message], version: int, data: st.DataObject) -> None:
    written = bytearray(data.draw(instances(cls, version)).encode(version))
    places = st.integers(0, max(len(written) - 1, 0))
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), min_size=1, max_size=4)):
        if written:
            written[place] = value

    read(cls, bytes(written), version)
    read(cls, bytes(written[: data.draw(places)]), version)


@EACH_VERSION
@given(data=st.binary(max_size=64))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_arbitrary_bytes_are_read_or_refused(cls: type[Message], version: int, data: bytes) -> None:
    read(cls, data, version)
    read(cls, b"\xff" * len(data), version)


@pytest.mark.parametrize("version", [0, 8, 9, 11])
def test_a_message_cut_anywhere_is_refused(version: int) -> None:
    written = PRODUCE.encode(version)

    for length in range(len(written)):
        with pytest.raises(MalformedMessage):
            ProduceRequest.decode(written[:length], version)


@pytest.mark.parametrize("version", [0, 9])
def test_bytes_after_the_message_are_refused_unless_told_otherwise(version: int) -> None:
    written = PRODUCE.encode(version) + b"more"

    with pytest.raises(MalformedMessage, match="4 bytes follow the end of the message"):
        ProduceRequest.decode(written, version)
    assert ProduceRequest.decode(written, version, exact=False) == PRODUCE


def test_the_refusal_names_field_and_place() -> None:
    written = bytes.fromhex("ffff 000003e8 00000001 0001 74 00000001 00000007 00ffffff 616263")

    with pytest.raises(MalformedMessage) as caught:
        ProduceRequest.decode(written, 0)

    assert caught.value.field == "topic_data[].partition_data[].records"
    assert caught.value.position == 25
    assert caught.value.version == 0
    assert str(caught.value) == (
        "ProduceRequest.topic_data[].partition_data[].records (version 0), byte 25: "
        "16777215 bytes are announced, 3 are left"
    )


@pytest.mark.parametrize(
    ("cls", "version", "data", "reason"),
    [
        (MetadataRequest, 0, "7fffffff", "an array of 2147483647 elements cannot be in the 0 bytes left"),
        (MetadataRequest, 0, "ffffffff", "null, where null is not allowed"),
        (MetadataRequest, 0, "fffffffe", "the length -2 is negative"),
        (MetadataRequest, 1, "fffffffe", "the length -2 is negative"),
        (MetadataRequest, 0, "00000001 fffe", "the length -2 is negative"),
        (MetadataRequest, 0, "00000001 0002 c328", "text that is not UTF-8"),
        (MetadataRequest, 9, "ffffffff0f", "an array of 4294967294 elements cannot be in the 0 bytes left"),
        (MetadataRequest, 9, "ffffffffff7f", "a variable-length integer has more than 5 bytes"),
        (
            MetadataRequest,
            9,
            "00 01 00 00 01 05 ff7f",
            "a tagged field of 16383 bytes is longer than the message",
        ),
        (SaslHandshakeResponse, 0, "0000 7fffffff 0000", "an array of 2147483647 elements"),
        (
            JoinGroupRequest,
            0,
            "0000 00000000 0000 0000 00000001 0000 7fffffff",
            "bytes are announced, 0 are left",
        ),
        (ApiVersionsRequest, 3, "00", "null, where null is not allowed"),
    ],
)
def test_impossible_lengths_are_refused_before_anything_is_made_of_them(
    cls: type[Message], version: int, data: str, reason: str
) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        cls.decode(bytes.fromhex(data), version)


LONGEST = "x" * 32_767


@pytest.mark.parametrize(
    ("request_", "version", "field"),
    [
        (InitProducerIdRequest(transactional_id=LONGEST), 4, "transactional_id"),
        (AddOffsetsToTxnRequest(group_id=LONGEST), 3, "group_id"),
        (FindCoordinatorRequest(coordinator_keys=[LONGEST]), 4, "coordinator_keys"),
        (JoinGroupRequest(group_id=LONGEST), 6, "group_id"),
        (JoinGroupRequest(member_id=LONGEST), 6, "member_id"),
        (JoinGroupRequest(group_instance_id=LONGEST), 6, "group_instance_id"),
        (
            ProduceRequest(topic_data=[TopicProduceData(name=LONGEST)]),
            9,
            "topic_data[].name",
        ),
        (FetchRequest(cluster_id=LONGEST), 12, "cluster_id"),
    ],
)
def test_a_string_has_at_most_32767_bytes_in_flexible_versions_too(
    request_: Message, version: int, field: str
) -> None:
    cls, longest = type(request_), request_.encode(version)
    longer = longest.replace(b"\x80\x80\x02" + LONGEST.encode(), b"\x81\x80\x02x" + LONGEST.encode())
    longer = longer.replace(b"\x82\x80\x02\x80", b"\x83\x80\x02\x81")  # the size of a tagged field

    assert cls.decode(longest, version) == request_
    for read_it in (cls.decode, lambda *message: list(cls.decode_in_steps(*message))):
        with pytest.raises(MalformedMessage, match="a string of 32768 bytes; at most 32767") as caught:
            read_it(longer, version)
        assert caught.value.field == field


def test_a_string_is_refused_by_its_announced_length_alone() -> None:
    with pytest.raises(MalformedMessage, match="a string of 9999999 bytes; at most 32767"):
        InitProducerIdRequest.decode(encode_uvarint(10_000_000), 4)


def test_bytes_may_be_longer_than_a_string() -> None:
    assignment = SyncGroupRequestAssignment(member_id="m", assignment=b"a" * 40_000)
    request = SyncGroupRequest(group_id="g", assignments=[assignment])

    assert SyncGroupRequest.decode(request.encode(4), 4) == request


def test_a_known_tagged_field_that_is_longer_than_its_content_is_refused() -> None:
    # One tagged field, tag 0 (cluster_id), announced with five bytes, of which its text takes two.
    body = bytes.fromhex(
        "ffffffff 00000000 00000000 7fffffff 00 00000000 ffffffff 01 01 01 01 00 05 02 61 000000"
    )

    with pytest.raises(MalformedMessage, match="a tagged field of 5 bytes has 2 bytes of content"):
        FetchRequest.decode(body, 12)


def test_a_number_of_tagged_fields_beyond_the_message_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="4294967295 tagged fields; at most 128"):
        MetadataRequest.decode(bytes.fromhex("00 01 00 00 ffffffff0f"), 9)
    with pytest.raises(MalformedMessage, match="the message ends too early"):
        MetadataRequest.decode(bytes.fromhex("00 01 00 00 7f"), 9)


def test_a_frame_of_tagged_fields_does_not_keep_a_reader_busy() -> None:
    count = 129
    for cls, version in ((MetadataRequest, 9), (FetchResponse, 16)):
        body = cls().encode(version)[:-1] + bytes([count & 0x7F | 0x80, count >> 7]) + b"\x7e\x00" * count
        with pytest.raises(MalformedMessage, match="129 tagged fields; at most 128"):
            cls.decode(body, version)


@given(data=st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_are_a_header_or_refused(data: bytes) -> None:
    for read_header in (decode_request_header, lambda buffer: decode_response_header(buffer, 0, 9)):
        try:
            _, position = read_header(data)
        except MalformedMessage:
            continue
        assert position <= len(data)

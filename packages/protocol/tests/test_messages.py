"""Every message, in every version, against itself."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Generator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol.api import ApiKey, request_class, response_class
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResponse,
)
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.sasl import SaslAuthenticateRequest
from ottla.protocol.messages.transactions import AddPartitionsToTxnRequest
from ottla.protocol.primitives import UnencodableValue, UnknownVersion, UnsupportedField
from ottla.protocol.schema import Message
from ottla.protocol.testing import instances, message_versions, version_id

EACH_VERSION = pytest.mark.parametrize(("cls", "version"), message_versions(), ids=version_id)


@EACH_VERSION
@given(data=st.data())
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_written_is_read_again(cls: type[Message], version: int, data: st.DataObject) -> None:
    original = data.draw(instances(cls, version))

    written = original.encode(version)

    assert cls.decode(written, version) == original
    assert cls.decode(memoryview(bytearray(written)), version) == original
    assert b"".join(original.encode_in_steps(version)) == written
    assert run_to_the_end(cls.decode_in_steps(written, version)) == original


def run_to_the_end(steps: Generator[Any, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@EACH_VERSION
def test_the_default_of_every_message_can_be_written(cls: type[Message], version: int) -> None:
    assert cls.decode(cls().encode(version), version) == cls()


WITHOUT_EARLY_ACCESS = {
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
}
"""The APIs whose version 0 was an early access of Kafka 4.0, and is gone."""


@pytest.mark.parametrize("key", ApiKey, ids=lambda key: key.name)
def test_every_api_has_a_request_and_a_response_of_the_same_versions(key: ApiKey) -> None:
    request, response = request_class(key), response_class(key)

    assert request.API_KEY == response.API_KEY == key
    assert request.MIN_VERSION == response.MIN_VERSION == (1 if key in WITHOUT_EARLY_ACCESS else 0)
    assert request.MAX_VERSION == response.MAX_VERSION


def test_a_request_of_version_0_has_the_bytes_of_kafka_0_8() -> None:
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=7, records=b"abc")])

    written = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]).encode(0)

    assert written == bytes.fromhex("ffff000003e8 00000001 000174 00000001 00000007 00000003616263")


def test_a_flexible_request_has_compact_lengths_and_ends_with_its_tagged_fields() -> None:
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=7, records=b"abc")])

    written = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]).encode(9)

    assert written == bytes.fromhex("00 ffff000003e8 02 0274 02 00000007 04616263 00 00 00")


def test_lengths_from_127_on_take_two_bytes() -> None:
    name = "x" * 300

    written = ApiVersionsRequest(client_software_name=name).encode(3)

    assert written[:2] == b"\xad\x02"
    assert ApiVersionsRequest.decode(written, 3).client_software_name == name


def test_record_sets_are_read_without_a_copy() -> None:
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"abc")])
    buffer = bytearray(ProduceRequest(topic_data=[topic]).encode(9))

    records = ProduceRequest.decode(buffer, 9).topic_data[0].partition_data[0].records

    assert isinstance(records, memoryview)
    assert records.obj is buffer


def test_record_sets_are_among_the_parts_without_a_copy() -> None:
    records = b"a" * 1000
    topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(records=records)])

    parts = FetchResponse(responses=[topic]).encode_parts(12)

    assert any(part is records for part in parts)


def test_tagged_fields_are_left_out_at_their_default_and_else_in_the_order_of_tags() -> None:
    partition = PartitionData(diverging_epoch=EpochEndOffset(epoch=3, end_offset=9))

    plain, diverging = (
        FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[one])]).encode(12)
        for one in (PartitionData(), partition)
    )

    tagged = bytes.fromhex("01 00 0d 00000003 0000000000000009 00")
    assert len(diverging) == len(plain) + len(tagged) - 1
    assert tagged in diverging


def test_unknown_tagged_fields_are_skipped() -> None:
    plain = MetadataRequest(topics=None).encode(9)
    extended = plain[:-1] + bytes.fromhex("02 05 03 aabbcc 8001 00")

    assert MetadataRequest.decode(extended, 9) == MetadataRequest(topics=None)


def test_a_value_without_a_place_in_the_version_is_refused() -> None:
    with pytest.raises(UnsupportedField, match="version 2 cannot carry transactional_id"):
        ProduceRequest(transactional_id="t").encode(2)


def test_an_inner_value_without_a_place_in_the_version_is_refused_by_its_path() -> None:
    topic = FetchableTopicResponse(partitions=[PartitionData(preferred_read_replica=1)])

    with pytest.raises(UnsupportedField) as caught:
        FetchResponse(responses=[topic]).encode(10)

    assert caught.value.field == "responses[].partitions[].preferred_read_replica"
    assert caught.value.version == 10


def test_an_ignorable_value_without_a_place_in_the_version_is_dropped() -> None:
    request = FetchRequest(max_bytes=5, rack_id="r")

    assert FetchRequest.decode(request.encode(2), 2) == FetchRequest()


def test_a_list_that_moved_to_other_versions_is_refused_in_those_without_it() -> None:
    with pytest.raises(UnsupportedField, match="v3_and_below_transactional_id"):
        AddPartitionsToTxnRequest(v3_and_below_transactional_id="t").encode(4)


@pytest.mark.parametrize(
    ("request_", "version", "field"),
    [
        (ProduceRequest(acks=40000), 9, "acks"),
        (ProduceRequest(topic_data=[TopicProduceData(name=None)]), 9, "topic_data[].name"),  # type: ignore[arg-type]
        (ProduceRequest(topic_data=[TopicProduceData(name="x" * 40000)]), 3, "topic_data[].name"),
        (ProduceRequest(topic_data=[TopicProduceData(name="x" * 40000)]), 9, "topic_data[].name"),
        (FetchRequest(cluster_id="x" * 32768), 12, "cluster_id"),
        (ProduceRequest(topic_data=None), 3, "topic_data"),  # type: ignore[arg-type]
        (MetadataRequest(topics=None), 0, "topics"),
        (SaslAuthenticateRequest(auth_bytes="text"), 0, ""),  # type: ignore[arg-type]
        (FetchRequest(rack_id="\ud800"), 11, "rack_id"),
    ],
)
def test_a_value_the_wire_cannot_express_is_refused_by_its_field(
    request_: Message, version: int, field: str
) -> None:
    with pytest.raises(UnencodableValue) as caught:
        request_.encode(version)

    assert field in caught.value.field.split(", ")


@pytest.mark.parametrize("version", [-1, 99])
def test_a_version_that_does_not_exist_is_refused(version: int) -> None:
    with pytest.raises(UnknownVersion, match="ProduceRequest has versions 0 to 13"):
        ProduceRequest().encode(version)
    with pytest.raises(UnknownVersion):
        ProduceRequest.decode(b"", version)


def test_null_and_empty_lists_differ_where_a_version_knows_null() -> None:
    everything, nothing = MetadataRequest(topics=None), MetadataRequest(topics=[])

    assert MetadataRequest.decode(everything.encode(1), 1).topics is None
    assert MetadataRequest.decode(nothing.encode(1), 1).topics == []


def test_a_struct_can_be_absent() -> None:
    assigned = ConsumerGroupHeartbeatResponse(
        assignment=Assignment(
            topic_partitions=[TopicPartitionsResponse(topic_id=UUID(int=5), partitions=[1, 2])]
        )
    )

    assert ConsumerGroupHeartbeatResponse.decode(assigned.encode(0), 0) == assigned
    assert (
        ConsumerGroupHeartbeatResponse.decode(ConsumerGroupHeartbeatResponse().encode(0), 0).assignment
        is None
    )


def test_messages_do_not_share_mutable_defaults() -> None:
    one, other = MetadataResponse(), MetadataResponse()

    one.topics.append(MetadataResponseTopic(name="t"))
    partition = PartitionData()
    partition.diverging_epoch.epoch = 5

    assert other.topics == []
    assert PartitionData().diverging_epoch.epoch == -1


def test_messages_take_known_keywords_only() -> None:
    with pytest.raises(TypeError):
        ProduceRequest(ack=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        ProduceRequest(None)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        ProduceRequest().ack = 1  # type: ignore[attr-defined]


def test_messages_are_equal_by_value_and_cannot_be_hashed() -> None:
    assert ProduceRequest(acks=1) == ProduceRequest(acks=1)
    assert ProduceRequest(acks=1) != ProduceRequest(acks=0)
    assert ApiVersionsRequest() != ApiVersionsResponse()
    with pytest.raises(TypeError):
        hash(ProduceRequest())


def test_messages_can_be_copied_and_pickled() -> None:
    request = ProduceRequest(topic_data=[TopicProduceData(name="t")])

    assert pickle.loads(pickle.dumps(request)) == copy.deepcopy(request) == request


def test_a_message_shows_what_is_not_default_and_no_payload() -> None:
    assert repr(ProduceRequest(acks=-1, topic_data=[TopicProduceData(name="t")])) == (
        "ProduceRequest(acks=-1, topic_data=[TopicProduceData(name='t')])"
    )
    assert (
        repr(SaslAuthenticateRequest(auth_bytes=b"secret")) == "SaslAuthenticateRequest(auth_bytes=<6 bytes>)"
    )

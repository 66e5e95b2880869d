"""Every version of every API that the broker offers is answered in that version."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ottla.broker.routes import ROUTES
from ottla.broker.testing import BrokerThread
from ottla.protocol.api import ApiKey, request_class, response_class
from ottla.protocol.headers import RequestHeader, decode_response_header, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.schema import Message

OFFERED = [
    (route.api_key, version)
    for route in ROUTES
    for version in range(route.min_version, route.max_version + 1)
    if route.api_key is not ApiKey.PRODUCE  # its default, acks=0, has no answer
]


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    with (
        BrokerThread(tmp_path_factory.mktemp("data")) as broker,
        socket.create_connection((broker.host, broker.port), timeout=20) as wire,
    ):
        yield wire


def ask(wire: socket.socket, request: Message, version: int) -> Message:
    """Send a request and decode the answer strictly."""
    key = ApiKey(request.API_KEY)
    header = RequestHeader(api_key=key, api_version=version, correlation_id=7, client_id="test")
    frame = encode_request(header, request)
    wire.sendall(struct.pack(">i", len(frame)) + frame)
    size = struct.unpack(">i", receive(wire, 4))[0]
    body = receive(wire, size)
    correlation_id, offset = decode_response_header(body, key, version)
    assert correlation_id == 7
    return response_class(key).decode(body[offset:], version)


def receive(wire: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = wire.recv(size - len(received))
        assert part, "the broker closed the connection"
        received += part
    return received


@pytest.mark.parametrize(("key", "version"), OFFERED, ids=str)
def test_an_empty_request_is_answered(wire: socket.socket, key: ApiKey, version: int) -> None:
    ask(wire, request_class(key)(), version)


@pytest.mark.parametrize("version", range(8))
def test_topics_are_created_described_and_deleted_in_every_version(wire: socket.socket, version: int) -> None:
    name = f"topic-{version}"
    topic = CreatableTopic(
        name=name,
        num_partitions=2,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value="99")],
    )
    created = ask(wire, CreateTopicsRequest(topics=[topic], timeout_ms=5_000), version)
    assert created.topics[0].error_code == 0  # type: ignore[attr-defined]

    for metadata_version in range(12):
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        told = ask(wire, asked, metadata_version).topics[0]  # type: ignore[attr-defined]
        assert (told.error_code, len(told.partitions)) == (0, 2)

    for configs_version in range(5):
        resource = DescribeConfigsResource(
            resource_type=2, resource_name=name, configuration_keys=["retention.ms"]
        )
        described = ask(wire, DescribeConfigsRequest(resources=[resource]), configs_version).results[0]  # type: ignore[attr-defined]
        assert [(one.name, one.value) for one in described.configs] == [("retention.ms", "99")]

    for election_version in range(3):
        election = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=name, partitions=[0, 9])])
        results = ask(wire, election, election_version).replica_election_results  # type: ignore[attr-defined]
        assert [one.error_code for one in results[0].partition_result] == [84, 3]

    gone = DeleteTopicsRequest(timeout_ms=5_000)
    if version >= 6:
        gone.topics = [DeleteTopicState(name=name)]
    else:
        gone.topic_names = [name]
    deleted = ask(wire, gone, min(version, 6))
    assert deleted.responses[0].error_code == 0  # type: ignore[attr-defined]


UNSERVED = sorted(set(ApiKey) - {route.api_key for route in ROUTES})


@pytest.mark.parametrize("key", UNSERVED)
def test_an_api_that_is_not_offered_closes_the_connection_and_no_other(
    wire: socket.socket, key: ApiKey
) -> None:
    request = request_class(key)()
    version = request.MIN_VERSION
    header = RequestHeader(api_key=key, api_version=version, correlation_id=7, client_id="test")
    frame = encode_request(header, request)
    with socket.create_connection(wire.getpeername(), timeout=20) as other:
        other.sendall(struct.pack(">i", len(frame)) + frame)
        assert other.recv(1) == b""

    answer = ask(wire, ApiVersionsRequest(), 0)
    assert isinstance(answer, ApiVersionsResponse)
    assert key not in [one.api_key for one in answer.api_keys]


def test_a_client_says_that_the_broker_cannot_do_it(wire: socket.socket) -> None:
    host, port = wire.getpeername()
    admin = AdminClient({"bootstrap.servers": f"{host}:{port}"})
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )

    with pytest.raises(KafkaException) as caught:
        admin.describe_acls(every).result(20)

    assert caught.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE

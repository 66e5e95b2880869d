"""Every version of every API that the broker offers is answered in that version."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from ottla.broker.api.routes import ROUTES
from ottla.broker.cluster.features import NEWEST, SUPPORTED
from ottla.broker.testing import BrokerThread
from ottla.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_response_header,
    encode_request,
    request_class,
    response_class,
)
from ottla.protocol.messages.acls import DescribeAclsRequest
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.cluster import DescribeClusterRequest, FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    ListConfigResourcesRequest,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.topic_descriptions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from ottla.protocol.schema import Message

OFFERED = [
    (route.api_key, version)
    for route in ROUTES
    for version in range(route.min_version, route.max_version + 1)
    # The default of Produce, acks=0, has no answer; behind a refused login the connection closes.
    if route.api_key not in (ApiKey.PRODUCE, ApiKey.SASL_AUTHENTICATE)
]
ANYTHING = DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1)
"""A filter without values is of a type that Kafka does not know, and closes the connection."""


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
    ask(wire, ANYTHING if key is ApiKey.DESCRIBE_ACLS else request_class(key)(), version)


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

    for metadata_version in range(14):
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        told = ask(wire, asked, metadata_version).topics[0]  # type: ignore[attr-defined]
        assert (told.error_code, len(told.partitions)) == (0, 2)
    by_id = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=told.topic_id)])
    found = ask(wire, by_id, 12).topics[0]  # type: ignore[attr-defined]
    assert (found.error_code, found.name, len(found.partitions)) == (0, name, 2)

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


def test_a_topic_id_that_is_unknown_or_of_a_later_version_has_its_error(wire: socket.socket) -> None:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=UUID(int=5))])

    for version, error, name in ((10, 42, ""), (11, 42, ""), (12, 100, None)):
        told = ask(wire, asked, version).topics[0]  # type: ignore[attr-defined]
        assert (told.error_code, told.name, told.topic_id) == (error, name, UUID(int=5))


def test_features_that_do_not_exist_cannot_be_updated(wire: socket.socket) -> None:
    for feature, level in (("metadata.version", 20), ("metadata.version", 0), ("", 1)):
        for version in (0, 1, 2):
            update = FeatureUpdateKey(feature=feature, max_version_level=level)
            answer: Any = ask(wire, UpdateFeaturesRequest(feature_updates=[update]), version)
            assert (answer.error_code, answer.results) == (95, [])


def test_features_that_are_changed_are_listed_before_version_2(wire: socket.socket) -> None:
    for version in (0, 1, 2):
        update = FeatureUpdateKey(feature="group.version", max_version_level=1)
        answer: Any = ask(wire, UpdateFeaturesRequest(feature_updates=[update]), version)
        listed = [(one.feature, one.error_code) for one in answer.results]
        assert (answer.error_code, listed) == (0, [("group.version", 0)] if version < 2 else [])


def test_features_are_shown_from_version_3_on_and_those_that_may_be_0_from_4_on(wire: socket.socket) -> None:
    for version in range(5):
        asked = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
        answer: Any = ask(wire, asked, version)
        supported = {feature.name: feature.min_version for feature in answer.supported_features}
        finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        assert supported == (dict.fromkeys(SUPPORTED, 0) if version >= 4 else {})
        assert finalized == (dict(NEWEST.levels) if version >= 3 else {})
        assert answer.finalized_features_epoch == (0 if version >= 3 else -1)


@pytest.mark.parametrize(("endpoints", "error"), [(1, 0), (2, 114), (3, 115)])
def test_only_brokers_are_described_and_an_error_names_no_other_type(
    wire: socket.socket, endpoints: int, error: int
) -> None:
    answer: Any = ask(wire, DescribeClusterRequest(endpoint_type=endpoints), 1)

    assert (answer.error_code, answer.endpoint_type, len(answer.brokers)) == (error, 1, not error)


def test_pages_of_partitions_follow_one_another(wire: socket.socket) -> None:
    for name, count in (("page-a", 3), ("page-b", 2)):
        topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        ask(wire, CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
    topics = [TopicRequest(name=name) for name in ("page-c", "page-b", "page-a")]
    cursor = None
    pages: list[list[tuple[str, list[int], int]]] = []
    while cursor is not None or not pages:
        request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=2, cursor=cursor)
        answer: Any = ask(wire, request, 0)
        pages.append(
            [
                (topic.name, [one.partition_index for one in topic.partitions], topic.error_code)
                for topic in answer.topics
            ]
        )
        cursor = answer.next_cursor and Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )

    assert pages == [
        [("page-a", [0, 1], 0)],
        [("page-a", [2], 0), ("page-b", [0], 0)],
        [("page-b", [1], 0), ("page-c", [], 3)],
    ]


@pytest.mark.parametrize(("topic", "partition"), [("page-z", 0), ("t", -1)])
def test_a_cursor_outside_the_request_is_invalid(wire: socket.socket, topic: str, partition: int) -> None:
    cursor = Cursor(topic_name=topic, partition_index=partition)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")], cursor=cursor)

    answer: Any = ask(wire, request, 0)

    assert [(one.name, one.error_code) for one in answer.topics] == [("t", 42)]


def test_resources_with_settings_are_listed_by_type(wire: socket.socket) -> None:
    topic = CreatableTopic(name="listed", num_partitions=1, replication_factor=1)
    ask(wire, CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)

    def listed(version: int, *types: int) -> set[tuple[int, str]]:
        answer: Any = ask(wire, ListConfigResourcesRequest(resource_types=list(types)), version)
        assert answer.error_code == 0
        return {(one.resource_type, one.resource_name) for one in answer.config_resources}

    assert {(2, "listed"), (4, "1001"), (8, "1001")} <= listed(1)
    assert listed(1, 4) == {(4, "1001")}
    assert listed(0) == set()
    unknown: Any = ask(wire, ListConfigResourcesRequest(resource_types=[3]), 1)
    assert (unknown.error_code, unknown.config_resources) == (35, [])


@pytest.mark.parametrize(
    ("cluster", "node", "error"),
    [
        (None, -1, 0),
        ("own", 1001, 0),
        ("own", 5, 129),
        ("other", 1001, 129),
        ("own", -1, 42),
        (None, 1001, 42),
    ],
)
def test_a_client_that_means_another_broker_is_sent_back(
    wire: socket.socket, cluster: str | None, node: int, error: int
) -> None:
    described: Any = ask(wire, DescribeClusterRequest(), 2)
    cluster_id = described.cluster_id if cluster == "own" else cluster
    request = ApiVersionsRequest(
        client_software_name="a", client_software_version="1", cluster_id=cluster_id, node_id=node
    )

    answer: Any = ask(wire, request, 5)

    assert (answer.error_code, bool(answer.api_keys)) == (error, not error)


@pytest.mark.parametrize(("name", "error"), [("ottla", 0), ("", 42), ("-", 42), ("a b", 42), ("a.b-c", 0)])
def test_the_name_of_a_clients_software_is_checked(wire: socket.socket, name: str, error: int) -> None:
    for version in (3, 4):
        request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
        answer: Any = ask(wire, request, version)
        assert (answer.error_code, bool(answer.api_keys)) == (error, not error)


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


def test_a_client_says_that_there_is_no_authorizer(wire: socket.socket) -> None:
    host, port = wire.getpeername()
    admin = AdminClient({"bootstrap.servers": f"{host}:{port}"})
    binding = AclBinding(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.READ,
        AclPermissionType.ALLOW,
    )  # fmt: skip

    with pytest.raises(KafkaException) as caught:
        admin.create_acls([binding])[binding].result(20)

    assert caught.value.args[0].code() == KafkaError.SECURITY_DISABLED

"""The JSON of every znode, as Kafka writes it and as older tools wrote it."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.zookeeper import paths
from ottla.zookeeper.errors import MalformedZnode, ZooKeeperError
from ottla.zookeeper.znodes import (
    BrokerFeature,
    BrokerRegistration,
    ClusterId,
    ConfigChange,
    ConfigEntity,
    ConsumerOffset,
    ConsumerOwner,
    ConsumerRegistration,
    ControllerEpoch,
    ControllerNode,
    Endpoint,
    FeatureNode,
    IsrChange,
    LogDirEvent,
    PartitionState,
    PreferredReplicaElection,
    ProducerIdBlock,
    ReassignPartitions,
    TopicAssignment,
)

TOPIC_ID = uuid.UUID("c92ca7e8-0b1c-4f3a-9d5e-1a2b3c4d5e6f")


def test_consumer_registration_is_what_the_old_consumer_writes() -> None:
    node = ConsumerRegistration("g", "c1", {"topic1_1": 3}, "static", 1422585839563)

    data = node.encode()

    assert node.path == "/consumers/g/ids/c1"
    assert data == (
        b'{"version":1,"subscription":{"topic1_1":3},"pattern":"static","timestamp":"1422585839563"}'
    )
    assert ConsumerRegistration.decode("g", "c1", data) == node


def test_consumer_registration_refuses_an_unknown_pattern() -> None:
    with pytest.raises(MalformedZnode, match="Wildcard"):
        ConsumerRegistration.decode("g", "c", b'{"version":1,"subscription":{"t":1},"pattern":"Wildcard"}')


def test_consumer_offset_is_text() -> None:
    node = ConsumerOffset("g", "t", 3, 5943)

    assert (node.path, node.encode()) == ("/consumers/g/offsets/t/3", b"5943")
    assert ConsumerOffset.decode("g", "t", 3, b"5943") == node


def test_consumer_owner_is_the_consumer_and_its_thread() -> None:
    node = ConsumerOwner("g", "t", 3, "g_host-1-abc-0")

    assert (node.path, node.encode()) == ("/consumers/g/owners/t/3", b"g_host-1-abc-0")
    assert ConsumerOwner.decode("g", "t", 3, node.encode()) == node


def test_broker_registration_is_written_as_version_5() -> None:
    node = BrokerRegistration(
        1, (Endpoint("PLAINTEXT", "b1", 9092),), {"PLAINTEXT": "PLAINTEXT"}, 1422585839563
    )

    data = node.encode()

    assert data == (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://b1:9092"],"jmx_port":-1,"port":9092,"host":"b1","version":5,'
        b'"timestamp":"1422585839563"}'
    )
    assert BrokerRegistration.decode(1, data) == node


def test_what_apache_kafka_3_9_wrote_comes_out_the_same() -> None:
    broker = (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://127.0.0.1:29093"],"rack":"r1","jmx_port":-1,"port":29093,'
        b'"host":"127.0.0.1","version":5,"timestamp":"1795230101574"}'
    )
    topic = (
        b'{"partitions":{"0":[0],"1":[0]},"topic_id":"6eCQvDICQQ61-Jfm7weDEQ","adding_replicas":{},'
        b'"removing_replicas":{},"version":3}'
    )
    state = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}'
    config = b'{"version":1,"config":{"retention.ms":"1000"}}'

    assert BrokerRegistration.decode(0, broker).encode() == broker
    assert TopicAssignment.decode("t1", topic).encode() == topic
    assert PartitionState.decode("t1", 0, state).encode() == state
    assert ConfigEntity.decode("topics/t1", config).encode() == config


def test_broker_registration_version_4_has_a_rack_and_no_features() -> None:
    node = BrokerRegistration(
        7, (Endpoint("CLIENT", "::1", 9092),), {"CLIENT": "SSL"}, 5, jmx_port=9, rack="dc1", features=None
    )

    data = node.encode()

    assert b'"version":4' in data
    assert b'"rack":"dc1"' in data
    assert b"features" not in data
    assert b'"port":-1,"host":null' in data
    assert BrokerRegistration.decode(7, data) == node
    assert node.security_protocol("CLIENT") == "SSL"


def test_broker_registration_keeps_its_features() -> None:
    node = BrokerRegistration(
        1, (Endpoint("A", "h", 1),), {"A": "PLAINTEXT"}, 1, features={"group.version": BrokerFeature(1, 3)}
    )

    assert BrokerRegistration.decode(1, node.encode()) == node


@pytest.mark.parametrize(
    ("data", "endpoint"),
    [
        (
            b'{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}',
            Endpoint("PLAINTEXT", "h", 9092),
        ),
        (
            b'{"version":2,"host":"h","port":9092,"jmx_port":9,"timestamp":"1","endpoints":["SSL://h:9093"]}',
            Endpoint("SSL", "h", 9093),
        ),
        (
            b'{"version":3,"host":"h","port":9092,"timestamp":"1","endpoints":["SSL://[fe80::1]:1"],"rack":"r"}',
            Endpoint("SSL", "fe80::1", 1),
        ),
    ],
)
def test_broker_registrations_of_older_versions_are_read(data: bytes, endpoint: Endpoint) -> None:
    node = BrokerRegistration.decode(3, data)

    assert node.endpoints == (endpoint,)
    assert node.security_protocol(endpoint.listener_name) == endpoint.listener_name


def test_topic_assignment_version_1_is_read() -> None:
    node = TopicAssignment.decode("t", b'{"version":1,"partitions":{"1":[0,1],"0":[1,0]}}')

    assert node.partitions == {0: (1, 0), 1: (0, 1)}
    assert node.topic_id is None


def test_topic_assignment_is_written_as_version_3() -> None:
    node = TopicAssignment("t", {0: (1, 2)}, TOPIC_ID, {0: (2,)}, {0: (3,)})

    data = node.encode()

    assert data == (
        b'{"partitions":{"0":[1,2]},"topic_id":"ySyn6AscTzqdXhorPE1ebw",'
        b'"adding_replicas":{"0":[2]},"removing_replicas":{"0":[3]},"version":3}'
    )
    assert TopicAssignment.decode("t", data) == node


def test_partition_state_is_what_the_controller_writes() -> None:
    node = PartitionState("t", 0, leader=1, leader_epoch=0, isr=(1,), controller_epoch=1)

    assert node.path == "/brokers/topics/t/partitions/0/state"
    assert node.encode() == b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
    assert PartitionState.decode("t", 0, node.encode()) == node


def test_partition_state_tells_of_a_recovery_only_while_there_is_one() -> None:
    node = PartitionState("t", 0, -1, 4, (), 9, leader_recovery_state=1)

    assert node.encode().endswith(b'"isr":[],"leader_recovery_state":1}')
    assert PartitionState.decode("t", 0, node.encode()) == node


def test_controller_is_read_in_both_versions() -> None:
    node = ControllerNode(1, 1418110043222)

    written = b'{"version":2,"brokerid":1,"timestamp":"1418110043222","kraftControllerEpoch":-1}'
    assert node.encode() == written
    assert ControllerNode.decode(written) == node
    assert ControllerNode.decode(b'{"version":1,"brokerid":1,"timestamp":"1418110043222"}') == node


def test_controller_epoch_is_text() -> None:
    assert ControllerEpoch.decode(b"12") == ControllerEpoch(12)
    assert ControllerEpoch(12).encode() == b"12"


def test_config_entity_round_trips() -> None:
    node = ConfigEntity("topics/t", {"k": "v"})

    assert (node.path, node.encode()) == ("/config/topics/t", b'{"version":1,"config":{"k":"v"}}')
    assert ConfigEntity.decode("topics/t", node.encode()) == node
    assert ConfigEntity("users/u/clients/c").path == "/config/users/u/clients/c"


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":2,"entity_path":"topics/topic1"}',
        b'{"version":1,"entity_type":"topics","entity_name":"topic1"}',
        b'"topic1"',
    ],
)
def test_config_changes_of_every_age_name_the_entity(data: bytes) -> None:
    assert ConfigChange.decode(data) == ConfigChange("topics/topic1")


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":2,"entity_path":"topics/../../controller"}',
        b'{"version":2,"entity_path":"topics"}',
        b'{"version":2,"entity_path":"things/a"}',
        b'{"version":3,"entity_path":"topics/a"}',
        b'{"version":1,"entity_type":"users","entity_name":"u"}',
        b'".."',
        b"7",
    ],
)
def test_config_changes_that_name_no_entity_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedZnode):
        ConfigChange.decode(data)


def test_reassignment_round_trips() -> None:
    node = ReassignPartitions({("foo1", 2): (1, 2), ("foo2", 0): (3,)})

    assert node.encode() == (
        b'{"version":1,"partitions":[{"topic":"foo1","partition":2,"replicas":[1,2]},'
        b'{"topic":"foo2","partition":0,"replicas":[3]}]}'
    )
    assert ReassignPartitions.decode(node.encode()) == node


def test_preferred_election_takes_strings_and_no_version() -> None:
    node = PreferredReplicaElection((("t", 0),))

    assert node.encode() == b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    assert PreferredReplicaElection.decode(b'{"partitions":[{"topic":"t","partition":"0"}]}') == node


def test_a_topic_name_with_dots_for_a_parent_is_rejected_when_read() -> None:
    with pytest.raises(MalformedZnode, match="partitions"):
        IsrChange.decode(b'{"version":1,"partitions":[{"topic":"../x","partition":0}]}')


def test_notifications_round_trip() -> None:
    assert IsrChange.decode(IsrChange((("t", 1),)).encode()) == IsrChange((("t", 1),))
    assert LogDirEvent(0).encode() == b'{"version":1,"broker":0,"event":1}'
    assert LogDirEvent.decode(LogDirEvent(0).encode()) == LogDirEvent(0)


def test_cluster_id_and_producer_ids_round_trip() -> None:
    block = ProducerIdBlock(0, 0, 999)

    assert ClusterId("abc").encode() == b'{"version":"1","id":"abc"}'
    assert ClusterId.decode(b'{"version":"1","id":"abc"}') == ClusterId("abc")
    assert block.encode() == b'{"version":1,"broker":0,"block_start":"0","block_end":"999"}'
    assert ProducerIdBlock.decode(block.encode()) == block


def test_finalized_features_are_read_in_both_versions() -> None:
    assert FeatureNode().encode() == b'{"features":{},"version":1,"status":1}'
    new = b'{"features":{"a":3},"version":2,"status":1}'
    assert FeatureNode.decode(new) == FeatureNode({"a": 3}, version=2)
    assert FeatureNode.decode(new).encode() == new
    old = b'{"features":{"a":{"max_version_level":3,"min_version_level":3}},"version":1,"status":1}'
    assert FeatureNode.decode(old) == FeatureNode({"a": 3})
    assert FeatureNode.decode(old).encode() == old


DECODERS: list[Callable[[bytes], object]] = [
    lambda data: BrokerRegistration.decode(1, data),
    lambda data: TopicAssignment.decode("t", data),
    lambda data: PartitionState.decode("t", 0, data),
    lambda data: ConsumerRegistration.decode("g", "c", data),
    lambda data: ConfigEntity.decode("topics/t", data),
    ConfigChange.decode,
    ControllerNode.decode,
    ControllerEpoch.decode,
    ClusterId.decode,
    ProducerIdBlock.decode,
    ReassignPartitions.decode,
    PreferredReplicaElection.decode,
    IsrChange.decode,
    LogDirEvent.decode,
    FeatureNode.decode,
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["version", "partitions", "config", "endpoints", "isr", "leader", "brokerid", "topic_id"]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, JSON).map(lambda value: json.dumps(value).encode()) | st.binary())
def test_bad_data_is_always_a_typed_error(data: bytes) -> None:
    for decode in DECODERS:
        # Whatever else escapes fails the test.
        with contextlib.suppress(MalformedZnode):
            decode(data)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "a\x1fb", "\ud800"])
def test_names_that_cannot_be_a_component_never_become_a_path(name: str) -> None:
    builds: list[Callable[[], str]] = [
        lambda: paths.consumer_ids(name),
        lambda: paths.topic(name),
        lambda: paths.config_entity("clients", name),
        lambda: paths.partition_state(name, 0),
    ]
    for build in builds:
        with pytest.raises(ZooKeeperError):
            build()


def test_topic_names_are_held_to_kafkas_rule() -> None:
    assert paths.topic("a" * 249) == "/brokers/topics/" + "a" * 249
    for name in ("a" * 250, "a b", "ä", "a\n"):
        with pytest.raises(ZooKeeperError):
            paths.topic(name)


def test_users_are_encoded_like_kafka_does() -> None:
    assert paths.sanitized("CN=a/b *+~") == "CN%3Da%2Fb%20%2A%2B~"
    assert paths.desanitized("CN%3Da%2Fb%20%2A%2B~") == "CN=a/b *+~"


def test_a_sequential_name_gives_its_number() -> None:
    assert paths.sequence_of("/config/changes/config_change_0000000012") == 12


def _state(**changed: object) -> Callable[[], object]:
    fields = {"controller_epoch": 1, "leader": 0, "version": 1, "leader_epoch": 0, "isr": [0]}
    return lambda: PartitionState.decode("t", 0, json.dumps(fields | changed).encode())


def _assignment(**changed: object) -> Callable[[], object]:
    fields = {"version": 2, "partitions": {"0": [0]}}
    return lambda: TopicAssignment.decode("t", json.dumps(fields | changed).encode())


def _registration(broker_id: int, port: int) -> Callable[[], object]:
    data = json.dumps({"version": 1, "host": "b", "port": port}).encode()
    return lambda: BrokerRegistration.decode(broker_id, data)


NUMBERS_THAT_BROKERS_SEND_ON: dict[str, Callable[[int], Callable[[], object]]] = {
    "leader": lambda number: _state(leader=number),
    "leader_epoch": lambda number: _state(leader_epoch=number),
    "leader_epoch as a string": lambda number: _state(leader_epoch=str(number)),
    "isr": lambda number: _state(isr=[0, number]),
    "the controller epoch of a state": lambda number: _state(controller_epoch=number),
    "partition": lambda number: _assignment(partitions={str(number): [0]}),
    "replica": lambda number: _assignment(partitions={"0": [number]}),
    "adding replica": lambda number: _assignment(adding_replicas={"0": [number]}),
    "removing replica": lambda number: _assignment(removing_replicas={"0": [number]}),
    "broker id": lambda number: _registration(number, 9092),
    "port": lambda number: _registration(1, number),
    "the controller epoch": lambda number: lambda: ControllerEpoch.decode(str(number).encode()),
}


@pytest.mark.parametrize("kind", NUMBERS_THAT_BROKERS_SEND_ON)
@pytest.mark.parametrize("number", [2**31 - 1, 2**31, 1_099_511_627_776])
def test_a_number_that_no_request_could_carry_one_later_is_malformed(kind: str, number: int) -> None:
    decode = NUMBERS_THAT_BROKERS_SEND_ON[kind]
    decode(2**31 - 2)()

    with pytest.raises(MalformedZnode, match="32 bits"):
        decode(number)()


@pytest.mark.parametrize("kind", ["leader", "leader_epoch", "isr", "replica"])
def test_a_number_below_32_bits_is_malformed(kind: str) -> None:
    NUMBERS_THAT_BROKERS_SEND_ON[kind](-(2**31))()

    with pytest.raises(MalformedZnode, match="32 bits"):
        NUMBERS_THAT_BROKERS_SEND_ON[kind](-(2**31) - 1)()

"""The APIs and versions that a broker advertises: those of Apache Kafka 3.9.1 and 4.4.0, used by clients."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ottla.broker.network.request_metrics import request_name
from ottla.broker.testing import BrokerProcess
from ottla.protocol.api import ApiKey, RequestHeader, decode_response_header, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from peers.apache_kafka import ApacheKafka
from peers.fetched_programs import go_program, node_modules
from peers.java import run_program
from peers.kraft_kafka import KraftKafka
from peers.maven import KAFKA_3, kafka_clients
from peers.processes import free_port
from peers.request_counts import used_versions

pytestmark = pytest.mark.timeout(600)

HERE: Final = Path(__file__).parent

ENVELOPE: Final = 58
"""Carries a client's request from a broker to a controller of KRaft (KIP-590)."""
OF_THE_QUORUM: Final = frozenset(
    {
        55,  # DescribeQuorum
        64,  # UnregisterBroker
        80,  # AddRaftVoter
        81,  # RemoveRaftVoter
        94,  # UnregisterController
    }
)
"""APIs about the controllers of KRaft."""
OF_ZOOKEEPER: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION, ApiKey.ALLOCATE_PRODUCER_IDS,
    }
)  # fmt: skip
"""APIs between brokers with ZooKeeper."""
NOT_YET: Final = frozenset({ApiKey.ALTER_PARTITION_REASSIGNMENTS})
"""The APIs of which Kafka 4.4 serves versions that this broker does not."""
TELEMETRY: Final = frozenset({ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY})
"""Served by Apache Kafka where a reporter of metrics takes what clients push."""

CANNOT_BE_SENT: Final = {("ControlledShutdown", 0)}
"""Of brokers before 0.9; franz-go writes no request of it, and no other client has it."""

NEWEST_OF_JAVA: Final = {
    ("Produce", 11), ("Fetch", 17), ("ListOffsets", 9), ("Metadata", 12), ("OffsetCommit", 9),
    ("OffsetFetch", 9), ("FindCoordinator", 6), ("JoinGroup", 9), ("LeaveGroup", 5), ("ListGroups", 5),
    ("ApiVersions", 4), ("DescribeLogDirs", 4), ("UpdateFeatures", 1), ("DescribeCluster", 1),
    ("AlterPartitionReassignments", 0), ("ListPartitionReassignments", 0),
}  # fmt: skip
NEWEST_OF_PLATFORMATIC: Final = {("Produce", 11), ("Fetch", 17), ("Metadata", 12), ("JoinGroup", 9)}


class CountedBroker:
    """A broker of its own that counts the requests of each version of each API."""

    def __init__(self, folder: Path) -> None:
        self._metrics_port = free_port()
        settings = {"metrics.port": str(self._metrics_port), "offsets.topic.num.partitions": "4"}
        self.process = BrokerProcess(folder, settings)

    @property
    def servers(self) -> str:
        return self.process.bootstrap_servers

    def used(self) -> set[tuple[str, int]]:
        """The versions that were asked for since the broker was started."""
        return used_versions(f"127.0.0.1:{self._metrics_port}")


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[CountedBroker]:
    made = CountedBroker(tmp_path / "broker")
    with made.process:
        yield made


def advertised(servers: str) -> dict[int, tuple[int, int]]:
    """The APIs of a broker by key, with the first and the last version."""
    host, port = servers.split(":")
    header = RequestHeader(api_key=ApiKey.API_VERSIONS, api_version=0, correlation_id=1, client_id="test")
    frame = encode_request(header, ApiVersionsRequest())
    with socket.create_connection((host, int(port)), timeout=60) as wire, wire.makefile("rb") as received:
        wire.sendall(struct.pack(">i", len(frame)) + frame)
        body = received.read(struct.unpack(">i", received.read(4))[0])
    _, offset = decode_response_header(body, ApiKey.API_VERSIONS, 0)
    answer = ApiVersionsResponse.decode(body[offset:], 0)
    return {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


@pytest.mark.java
def test_every_api_and_version_of_apache_kafka_3_9_is_there(tmp_path: Path, counted: CountedBroker) -> None:
    with ApacheKafka(tmp_path / "kafka", heap="384m") as kafka:
        wanted = advertised(kafka.bootstrap_servers)
    assert ENVELOPE in wanted, "an API is left out that Apache Kafka does not have"
    served = advertised(counted.servers)

    lacking = {
        key: (versions, served.get(key))
        for key, versions in wanted.items()
        if key != ENVELOPE and not includes(served.get(key), versions)
    }

    assert lacking == {}


@pytest.mark.java
def test_every_api_and_version_of_apache_kafka_4_4_is_there_and_none_other(
    tmp_path: Path, counted: CountedBroker
) -> None:
    with KraftKafka(tmp_path / "kafka", heap="384m") as kafka:
        wanted = advertised(kafka.bootstrap_servers)
    served = advertised(counted.servers)

    lacking = {
        key: (versions, served.get(key))
        for key, versions in wanted.items()
        if key not in OF_THE_QUORUM and not includes(served.get(key), versions)
    }
    beyond = {
        key: versions
        for key, versions in served.items()
        if key not in OF_ZOOKEEPER | TELEMETRY and versions[1] > wanted.get(key, (0, -1))[1]
    }

    assert lacking.keys() == NOT_YET, lacking
    assert beyond == {}
    assert not OF_THE_QUORUM & served.keys()
    assert served.keys() >= TELEMETRY


def includes(served: tuple[int, int] | None, wanted: tuple[int, int]) -> bool:
    """Return whether every wanted version is served."""
    return served is not None and served[0] <= wanted[0] and served[1] >= wanted[1]


def test_franz_go_uses_every_version_that_is_advertised(counted: CountedBroker) -> None:
    program = go_program(HERE / "go" / "every_version.go", "github.com/twmb/franz-go@v1.22.2")

    done = subprocess.run(
        [program, counted.servers], capture_output=True, text=True, timeout=400, check=False
    )

    said = [line for line in done.stdout.splitlines() if not line.startswith("walked")]
    refused = [line for line in said if "ControlledShutdown 0" not in line]
    assert (done.returncode, refused) == (0, []), done.stderr
    every = {
        (request_name(key), version)
        for key, (first, last) in advertised(counted.servers).items()
        for version in range(first, last + 1)
    }
    assert every - counted.used() == CANNOT_BE_SENT


def _without_features(printed: str) -> list[str]:
    """Leave out the lines about features: brokers of Apache Kafka with ZooKeeper have none."""
    return [line for line in printed.splitlines() if not line.startswith(("features ", "update "))]


@pytest.mark.java
def test_the_java_client_gets_the_same_answers_as_from_apache_kafka_in_the_newest_versions(
    tmp_path: Path, counted: CountedBroker
) -> None:
    program = HERE / "java" / "TodaysWire.java"
    with ApacheKafka(tmp_path / "kafka", heap="384m") as kafka:
        expected = run_program(program, kafka_clients(KAFKA_3), kafka.bootstrap_servers)

    printed = run_program(program, kafka_clients(KAFKA_3), counted.servers)

    assert _without_features(printed) == _without_features(expected)
    assert "update InvalidUpdateVersionException" in printed.splitlines()
    assert "offset max 0 1 9000 Optional[0]" in printed.splitlines()
    assert NEWEST_OF_JAVA - counted.used() == set()


def test_the_client_of_platformatic_writes_reads_and_administers(counted: CountedBroker) -> None:
    environment = os.environ | {"NODE_PATH": str(node_modules("@platformatic/kafka@2.12.1"))}
    command = ["node", str(HERE / "javascript" / "platformatic.js"), counted.servers, "platformatic"]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert sorted(lines[:-1]) == sorted(f"read {one} value {one} v" for one in range(100))
    assert lines[-1] == "groups true"
    assert NEWEST_OF_PLATFORMATIC - counted.used() == set()

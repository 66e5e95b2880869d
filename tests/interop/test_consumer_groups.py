"""Consumer groups (KIP-848) with the unmodified clients and tools of Apache Kafka 4.4, and with franz-go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewTopic

from ottla.broker.testing import BrokerProcess
from peers.apache_kafka import run_tool
from peers.fetched_programs import go_program
from peers.groups import MixedGroup, mixed_group
from peers.maven import kafka_4_tools
from peers.riding_program import RidingProgram

pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent
PARTITIONS, RECORDS, BOUND_S = 6, 600, 180.0
UNIFORM, STATIC = "group.remote.assignor=uniform", "group.instance.id=till-1"
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running


def create(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def produce(broker: BrokerProcess, topic: str, first: int, count: int) -> set[tuple[int, int]]:
    """Produce in turns to all partitions; return partition and offset of each record."""
    written: set[tuple[int, int]] = set()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(first, first + count):
        producer.produce(
            topic, b"%d" % number, partition=number % PARTITIONS,
            on_delivery=lambda _error, record: written.add((record.partition(), record.offset())),
        )  # fmt: skip
    assert producer.flush(60) == 0
    return written


def described(broker: BrokerProcess, group: str) -> ConsumerGroupDescription:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    return admin.describe_consumer_groups([group])[group].result(60)


def wait_until(condition: Callable[[], bool], complaint: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, complaint()
        time.sleep(0.1)


def consumer_groups(broker: BrokerProcess, *arguments: str) -> str:
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    servers = ("--bootstrap-server", broker.bootstrap_servers)
    return run_tool(tool, *servers, *arguments, class_path=kafka_4_tools())


def rows(printed: str, group: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if line.startswith(f"{group} ")]


@pytest.mark.java
def test_members_of_java_leave_die_return_and_read_on_after_a_restart(broker: BrokerProcess) -> None:
    create(broker, "orders")
    written = produce(broker, "orders", 0, RECORDS)
    with mixed_group(broker.bootstrap_servers, "java", "orders", PARTITIONS, UNIFORM) as group:
        static, dynamic = group.start("java-4", STATIC), group.start("java-4")
        group.settle(BOUND_S)
        group.wait_for(written, BOUND_S)
        assert described(broker, "java").type.name == "CONSUMER"

        _returns(broker, group)
        group.stop(dynamic)
        group.settle(BOUND_S)
        killed = group.start("java-4")
        group.settle(BOUND_S)
        group.kill(killed)
        group.settle(BOUND_S)
        assert [member.group_instance_id for member in described(broker, "java").members] == ["till-1"]
        for member in list(group.members):
            group.stop(member)
    assert static in group.gone

    broker.restart()
    new = produce(broker, "orders", RECORDS, 60)
    with mixed_group(broker.bootstrap_servers, "java", "orders", PARTITIONS, UNIFORM) as group:
        member = group.start("java-4", STATIC)
        group.wait_for(new, BOUND_S)
        group.stop(member)
    assert member.read == new


def _returns(broker: BrokerProcess, group: MixedGroup) -> None:
    """Stop and start the static member: nobody takes its partitions meanwhile."""
    static, dynamic = group.members
    before = static.owned, dynamic.owned
    group.stop(static)
    again = group.start("java-4", STATIC)
    group.settle(BOUND_S)
    assert (again.owned, dynamic.owned) == before
    assert len(described(broker, "java").members) == 2
    group.members.reverse()


@pytest.mark.java
def test_an_expression_of_java_follows_the_topics_it_matches(broker: BrokerProcess) -> None:
    create(broker, "match-1", 2)
    create(broker, "other", 2)

    def topics() -> set[str]:
        members = described(broker, "expression").members
        return {found.topic for member in members for found in member.assignment.topic_partitions}

    with mixed_group(broker.bootstrap_servers, "expression", "^match-[0-9]$", 2, UNIFORM) as group:
        group.start("java-4")
        group.settle(BOUND_S)
        create(broker, "match-2", 2)
        wait_until(lambda: topics() == {"match-1", "match-2"}, topics)


@pytest.mark.java
def test_the_tool_of_kafka_lists_describes_resets_and_deletes_a_group(broker: BrokerProcess) -> None:
    create(broker, "sales")
    written = produce(broker, "sales", 0, RECORDS)
    with mixed_group(broker.bootstrap_servers, "shown", "sales", PARTITIONS, UNIFORM) as group:
        member = group.start("java-4", "client.id=cashier")
        group.settle(BOUND_S)
        group.wait_for(written, BOUND_S)
        listed = consumer_groups(broker, "--list", "--type", "consumer", "--state")
        members = consumer_groups(broker, "--describe", "--group", "shown", "--members", "--verbose")
        state = consumer_groups(broker, "--describe", "--group", "shown", "--state")
        offsets = consumer_groups(broker, "--describe", "--group", "shown", "--offsets")
        group.stop(member)

    assert ["shown", "Consumer", "Stable"] in [line.split() for line in listed.splitlines()]
    assert "shown" not in consumer_groups(broker, "--list", "--type", "classic").split()
    (shown,) = rows(members, "shown")
    assert "cashier" in shown
    assert "sales:0,1,2,3,4,5" in members.replace(" ", "").replace("(", ":").replace(")", "")
    assert {"uniform", "Stable"} <= set(state.split())
    assert [row[:3] for row in rows(offsets, "shown")] == [
        ["shown", "sales", f"{n}"] for n in range(PARTITIONS)
    ]

    each = ("--group", "shown", "--topic", "sales")
    reset = consumer_groups(broker, "--reset-offsets", *each, "--to-offset", "7", "--execute")
    assert sorted(row[2:4] for row in rows(reset, "shown")) == [[f"{n}", "7"] for n in range(PARTITIONS)]
    empty = consumer_groups(broker, "--describe", "--group", "shown", "--offsets")
    assert {(row[3], row[4], row[5]) for row in rows(empty, "shown")} == {("7", "100", "93")}
    consumer_groups(broker, "--delete-offsets", "--group", "shown", "--topic", "sales:0")
    left = consumer_groups(broker, "--describe", "--group", "shown", "--offsets")
    assert len(rows(left, "shown")) == PARTITIONS - 1
    consumer_groups(broker, "--delete", "--group", "shown")
    assert "shown" not in consumer_groups(broker, "--list").split()


def test_franz_go_reads_by_the_consumer_protocol(broker: BrokerProcess) -> None:
    create(broker, "go", 3)
    program = go_program(HERE / "go" / "franz_go.go", "github.com/twmb/franz-go@v1.22.2")
    with RidingProgram([str(program)], broker.bootstrap_servers, "go", "go", "consumer") as riding:
        riding.wait_until_read(50)
        found = described(broker, "go")
        riding.finish()

    assert (found.type.name, found.state.name, len(found.members)) == ("CONSUMER", "STABLE", 1)
    assert riding.written_count >= 50
    assert riding.read == riding.wrote

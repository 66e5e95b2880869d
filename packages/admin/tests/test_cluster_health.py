"""Problems that `problems` and `ottla cluster health` find in the state of a cluster."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from ottla.admin import Broker, ClusterState, PartitionHealth, problems
from ottla.client.cli import main
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from ottla.protocol.topics import TopicPartition


def partition(index: int, *, leader: int | None = 1, isr: tuple[int, ...] = (1, 2, 3)) -> PartitionHealth:
    return PartitionHealth(TopicPartition("orders", index), leader, (1, 2, 3), isr)


BROKERS = tuple(Broker(node, "host", 9092, None, node == 1) for node in (1, 2, 3))
HEALTHY = ClusterState("cluster", 1, BROKERS, (partition(0), partition(1, leader=2)))


def test_a_healthy_cluster_has_no_problems() -> None:
    assert problems(HEALTHY) == []
    assert HEALTHY.under_replicated == []


def test_a_cluster_without_controller_and_with_a_broker_away_names_both() -> None:
    state = replace(HEALTHY, controller=None, brokers=BROKERS[:2])

    assert [each.text for each in problems(state)] == [
        "no broker is the controller: leaders cannot change",
        "broker 3 is away, with 2 replicas",
    ]


def test_partitions_are_named_with_the_worst_first() -> None:
    partitions = (
        partition(0, isr=(2, 1)),
        partition(1, isr=(1,)),
        partition(2, leader=None, isr=(3,)),
        partition(3, isr=(3, 2, 1)),
    )
    state = replace(HEALTHY, partitions=partitions, min_insync_replicas={"orders": 2})

    found = problems(state)

    assert [(each.kind, each.what) for each in found] == [
        ("no leader", "orders-2"),
        ("under min ISR", "orders-1"),
        ("under-replicated", "orders-0"),
    ]
    assert found[1].text == "orders-1 has 1 in-sync replicas of min.insync.replicas=2: acks=all is refused"
    assert found[2].text == "orders-0 has 2 of 3 replicas in sync: 3 lags or is away"


def health(broker: ScriptedBroker, *options: str) -> Result:
    return CliRunner().invoke(main, ["cluster", "health", "-b", broker.bootstrap_servers, *options])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir="/data/a"),
            "broker 1 cannot use its log directory /data/a: /data/a is offline",
        ),
        (
            DescribeLogDirsResult(log_dir="/data/a", total_bytes=1 << 30, usable_bytes=4_096),
            "broker 1 has 4096 bytes left in /data/a: 0 replicas cannot be written",
        ),
    ],
)
def test_health_names_log_directories_that_cannot_be_written(
    answer: DescribeLogDirsResult, problem: str, broker: ScriptedBroker
) -> None:
    healthy = DescribeLogDirsResult(log_dir="/data/b", total_bytes=1 << 30, usable_bytes=1 << 29)
    broker.on(DescribeLogDirsRequest, lambda _: DescribeLogDirsResponse(results=[answer, healthy]))

    done = health(broker)

    assert done.exit_code == 1
    assert done.output.startswith(problem)
    assert len(done.output.splitlines()) == 1


def test_health_names_a_broker_that_does_not_describe_its_log_directories(broker: ScriptedBroker) -> None:
    refused = DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    broker.on(DescribeLogDirsRequest, lambda _: refused)

    done = health(broker, "--json")

    (problem,) = json.loads(done.output)
    assert (problem["kind"], problem["what"]) == ("log directories unknown", "1")
    assert done.exit_code == 1


def test_health_of_brokers_before_kafka_1_0_does_without_log_directories(broker: ScriptedBroker) -> None:
    assert health(broker).output == "The cluster is healthy.\n"

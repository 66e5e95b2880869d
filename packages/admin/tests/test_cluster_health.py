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
    assert found[1].text == "orders-1 has 1 in-sync replica of min.insync.replicas=2: acks=all is refused"
    assert found[2].text == "broker 3 lags: orders-0 has 2 of 3 replicas in sync"


def test_partitions_with_one_cause_are_one_line_with_the_partitions_behind_it() -> None:
    def lacking(topic: str, index: int, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionHealth:
        return PartitionHealth(TopicPartition(topic, index), isr[0] if isr else None, replicas, isr)

    partitions = (
        *(lacking("audit", index, (3, 1), (1,)) for index in range(2)),
        *(lacking("orders", index, (1, 2, 3), (1, 2)) for index in range(12)),
        *(lacking("payments", index, (2, 1, 3), (2, 1)) for index in range(6)),
        *(lacking("late", index, (1, 2), (1,)) for index in range(3)),
        lacking("late", 3, (1, 2, 3), (1,)),
        *(lacking("only", index, (3,), ()) for index in range(2)),
    )
    state = replace(HEALTHY, brokers=BROKERS[:2], partitions=partitions)

    found = problems(state)

    assert [problem.text for problem in found] == [
        "broker 3 is away: 2 partitions of audit have 1 of 2 replicas in sync, "
        "18 partitions of 2 topics have 2 of 3 replicas in sync",
        "2 partitions of only have no leader: they can be neither read nor written",
        "broker 2 lags: 3 partitions of late have 1 of 2 replicas in sync",
        "broker 3 is away and broker 2 lags: late-3 has 1 of 3 replicas in sync",
    ]
    assert len(found[0].partitions) == 20
    assert [problem.what for problem in found] == ["3", "only", "late", "late-3"]


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

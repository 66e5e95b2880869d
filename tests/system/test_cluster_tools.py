"""The tools of a cluster against three of our brokers, of which some are killed and come back."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.broker.testing import BrokerCluster
from peers.cluster_commands import Command, command_for, filled, shown, until


@pytest.fixture
def ottla(cluster: BrokerCluster) -> Command:
    return command_for(cluster.bootstrap_servers)


@pytest.fixture
def topic() -> str:
    return f"orders-{secrets.token_hex(4)}"


def test_a_topic_moves_by_plan_and_is_equal_on_its_new_replicas(
    ottla: Command, topic: str, tmp_path: Path
) -> None:
    filled(ottla, topic, "--partitions", "4", "--replication-factor", "1")
    plan, back = tmp_path / "move.json", tmp_path / "back.json"
    made = ottla("reassign", "generate", "--topic", topic, "--brokers", "2,3", "--replication-factor", "2")
    plan.write_text(made.stdout)

    done = ottla("reassign", "execute", str(plan), "--rollback-file", str(back))

    assert done.exit_code == 0, done.output
    until(lambda: ottla("reassign", "verify", str(plan)).exit_code == 0)
    compared = shown(ottla("replica", "verify", "--topic", topic, "--json"))
    assert {(each["result"], tuple(sorted(each["replicas"]))) for each in compared} == {("equal", (2, 3))}
    assert sum(each["to"] for each in compared) == 1_500
    assert shown(ottla("reassign", "list", "--json")) == []
    assert ottla("reassign", "execute", str(back)).exit_code == 0
    until(lambda: ottla("reassign", "verify", str(back)).exit_code == 0)


def test_a_killed_broker_is_a_problem_until_it_is_back_and_leads_again(
    ottla: Command, cluster: BrokerCluster, topic: str
) -> None:
    filled(ottla, topic, "--partitions", "3", "--replication-factor", "3", "-c", "min.insync.replicas=3")
    cluster.brokers[3].kill()
    until(lambda: "broker 3 is away" in ottla("cluster", "health").output)
    lacking = f"3 partitions of {topic} have 2 in-sync replicas of min.insync.replicas=3"
    until(lambda: lacking in ottla("cluster", "health").output)

    lagging = shown(ottla("replica", "lag", "--topic", topic, "--lagging", "--json"))

    assert {(each["broker"], each["log_end"]) for each in lagging} == {(3, None)}
    cluster.brokers[3].restart()
    until(lambda: ottla("cluster", "health").exit_code == 0)
    elected = shown(ottla("leader", "elect", "--preferred", "--topic", topic, "--json"))
    assert {each["outcome"] for each in elected} == {"elected"}
    until(lambda: [each["leaders"] > 0 for each in described(ottla)["brokers"]] == [True] * 3)
    assert described(ottla)["under_replicated"] == []
    compared = shown(ottla("replica", "verify", "--topic", topic, "--json"))
    assert {each["result"] for each in compared} == {"equal"}


def described(ottla: Command) -> Any:
    return shown(ottla("cluster", "describe", "--json"))


def test_a_damaged_replica_is_found(ottla: Command, cluster: BrokerCluster, topic: str) -> None:
    filled(ottla, topic, "--partitions", "1", "--replication-factor", "3")
    follower = next(
        each["broker"]
        for each in shown(ottla("replica", "lag", "--topic", topic, "--json"))
        if each["role"] == "follower"
    )
    segment = cluster.brokers[follower].data_dir / f"{topic}-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)

    done = ottla("replica", "verify", "--topic", topic, "--json")

    assert done.exit_code == 1
    assert "has checksum" in json.loads(done.stdout)[0]["result"]


def test_the_others_are_compared_when_a_replica_is_away(
    ottla: Command, cluster: BrokerCluster, topic: str
) -> None:
    filled(ottla, topic, "--partitions", "1", "--replication-factor", "3")
    cluster.brokers[3].kill()
    until(lambda: "broker 3 is away" in ottla("cluster", "health").output)

    def compared() -> Any:
        done = ottla("replica", "verify", "--topic", topic, "--json")
        (found,) = json.loads(done.stdout)
        assert (done.exit_code, found["result"]) == (1, "replica 3 does not answer")
        return found

    until(lambda: (compared()["from"], compared()["to"]) == (0, 1_500))  # once all is committed


# ---- by size, cancelled, unclean


def sized(cluster: BrokerCluster, topic: str, *records: int) -> None:
    """Write this many records of 1 KB into each partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "none"})
    for partition, count in enumerate(records):
        for _ in range(count):
            producer.produce(topic, b"x" * 1_000, partition=partition)
    assert producer.flush(60) == 0


def test_a_plan_by_size_gives_brokers_equal_bytes_not_equal_numbers(
    ottla: Command, cluster: BrokerCluster, topic: str, tmp_path: Path
) -> None:
    made = ottla("topic", "create", topic, "--partitions", "4", "--replication-factor", "1")
    assert made.exit_code == 0, made.output
    weights = (900, 300, 300, 300)
    sized(cluster, topic, *weights)
    plan = tmp_path / "move.json"

    made = ottla("reassign", "generate", "--topic", topic, "--brokers", "1,2", "--by", "size")

    plan.write_text(made.stdout)
    assert ottla("reassign", "execute", str(plan)).exit_code == 0
    until(lambda: ottla("reassign", "verify", str(plan)).exit_code == 0)
    described = shown(ottla("topic", "describe", topic, "--json"))["partitions"]
    held: dict[int, list[int]] = {}
    for each, weight in zip(described, weights, strict=True):
        (broker,) = each["replicas"]
        held.setdefault(broker, []).append(weight)
    assert sorted(sorted(each) for each in held.values()) == [[300, 300, 300], [900]]


def test_a_move_is_cancelled_and_leaves_no_replica_and_no_throttle(
    ottla: Command, cluster: BrokerCluster, topic: str, tmp_path: Path
) -> None:
    made = ottla("topic", "create", topic, "--partitions", "1", "--replication-factor", "1")
    assert made.exit_code == 0, made.output
    sized(cluster, topic, 3_000)
    (partition,) = shown(ottla("topic", "describe", topic, "--json"))["partitions"]
    old = partition["leader"]
    new = old % 3 + 1
    plan = tmp_path / "move.json"
    moves = [{"topic": topic, "partition": 0, "replicas": [new]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    begun = ottla("reassign", "execute", str(plan), "--throttle", "1000")  # it would take 50 minutes
    assert begun.exit_code == 0, begun.output
    (moving,) = shown(ottla("reassign", "list", "--json"))
    assert (moving["adding"], moving["removing"]) == ([new], [old])
    copy = cluster.brokers[new].data_dir / f"{topic}-0"
    until(copy.exists)

    done = ottla("reassign", "cancel", str(plan))

    assert done.exit_code == 0, done.output
    said = done.output.splitlines()
    assert said[0] == "Cancelled the moves of 1 partition."
    assert said[1].startswith(f"Removed the throttles of topic {topic}, broker ")
    assert shown(ottla("reassign", "list", "--json")) == []
    until(lambda: not copy.exists())
    (partition,) = shown(ottla("topic", "describe", topic, "--json"))["partitions"]
    assert (partition["leader"], partition["replicas"], partition["isr"]) == (old, [old], [old])
    assert "throttled" not in ottla("config", "describe", "--topic", topic, "--changed").output
    assert ottla("reassign", "cancel", str(plan)).output == "Cancelled the moves of 0 partitions.\n"


def test_an_unclean_election_gives_a_partition_back_at_the_price_of_records(
    ottla: Command, cluster: BrokerCluster, topic: str
) -> None:
    filled(ottla, topic, "--partitions", "1", "--replication-factor", "2")

    def partition() -> Any:
        return shown(ottla("topic", "describe", topic, "--json"))["partitions"][0]

    leader, follower = partition()["replicas"]
    until(lambda: sorted(partition()["isr"]) == sorted((leader, follower)))
    cluster.brokers[follower].kill()
    until(lambda: partition()["isr"] == [leader])
    assert ottla("produce", topic, given="only the leader has this\n").exit_code == 0
    cluster.brokers[leader].kill()
    until(lambda: partition()["leader"] == -1)
    cluster.brokers[follower].start()
    assert ottla("leader", "elect", "--preferred", "--topic", f"{topic}:0", "--json").exit_code == 1

    def elected() -> bool:
        return ottla("leader", "elect", "--unclean", "--topic", f"{topic}:0", "--json").exit_code == 0

    until(elected)  # the controller may not know yet that the follower is back

    until(lambda: partition()["leader"] == follower)
    cluster.brokers[leader].start()
    until(lambda: sorted(partition()["isr"]) == sorted((leader, follower)))

    def compared() -> tuple[str, int]:
        (one,) = shown(ottla("replica", "verify", "--topic", topic, "--json"))
        return one["result"], one["to"]

    until(lambda: compared() == ("equal", 1_500))  # a follower hears of the high watermark after the records

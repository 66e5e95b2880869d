"""The tools of a cluster against three of our brokers, of which one is killed and comes back."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pytest

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
    until(lambda: f"{topic}-2 has 2 in-sync replicas" in ottla("cluster", "health").output)

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

"""The tools of a cluster against three of our brokers, of which one is killed and comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.broker.testing import BrokerCluster
from ottla.client.cli import main

BOUND_S = 60
Command = Callable[..., Result]


@pytest.fixture
def ottla(ottla_cluster: BrokerCluster) -> Command:
    """Run a command against the cluster."""

    def run(*arguments: str, given: str | None = None) -> Result:
        environment = {"OTTLA_BOOTSTRAP_SERVER": ottla_cluster.bootstrap_servers}
        return CliRunner().invoke(main, arguments, given, env=environment)

    return run


def shown(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def filled(ottla: Command, topic: str, *options: str) -> None:
    done = ottla("topic", "create", topic, *options)
    assert done.exit_code == 0, done.output
    for _ in range(3):
        done = ottla("produce", topic, given="".join(f"record {number}\n" for number in range(500)))
        assert done.exit_code == 0, done.output


def test_a_topic_moves_by_plan_and_is_equal_on_its_new_replicas(ottla: Command, tmp_path: Path) -> None:
    filled(ottla, "orders", "--partitions", "4", "--replication-factor", "1")
    plan, back = tmp_path / "move.json", tmp_path / "back.json"
    made = ottla("reassign", "generate", "--topic", "orders", "--brokers", "2,3", "--replication-factor", "2")
    plan.write_text(made.stdout)

    done = ottla("reassign", "execute", str(plan), "--rollback-file", str(back))

    assert done.exit_code == 0, done.output
    until(lambda: ottla("reassign", "verify", str(plan)).exit_code == 0)
    compared = shown(ottla("replica", "verify", "--topic", "orders", "--json"))
    assert {(each["result"], tuple(sorted(each["replicas"]))) for each in compared} == {("equal", (2, 3))}
    assert sum(each["to"] for each in compared) == 1_500
    assert shown(ottla("reassign", "list", "--json")) == []
    assert ottla("reassign", "execute", str(back)).exit_code == 0
    until(lambda: ottla("reassign", "verify", str(back)).exit_code == 0)


def test_a_killed_broker_is_a_problem_until_it_is_back_and_leads_again(
    ottla: Command, ottla_cluster: BrokerCluster
) -> None:
    filled(ottla, "orders", "--partitions", "3", "--replication-factor", "3", "-c", "min.insync.replicas=3")
    ottla_cluster.brokers[3].kill()
    until(lambda: "broker 3 is away" in ottla("cluster", "health").output)
    until(lambda: "orders-2 has 2 in-sync replicas" in ottla("cluster", "health").output)

    lagging = shown(ottla("replica", "lag", "--topic", "orders", "--lagging", "--json"))

    assert {(each["broker"], each["log_end"]) for each in lagging} == {(3, None)}
    ottla_cluster.brokers[3].restart()
    until(lambda: ottla("cluster", "health").exit_code == 0)
    elected = shown(ottla("leader", "elect", "--preferred", "--topic", "orders", "--json"))
    assert {each["outcome"] for each in elected} == {"elected"}
    until(lambda: [each["leaders"] > 0 for each in described(ottla)["brokers"]] == [True] * 3)
    assert described(ottla)["under_replicated"] == []
    compared = shown(ottla("replica", "verify", "--topic", "orders", "--json"))
    assert {each["result"] for each in compared} == {"equal"}


def described(ottla: Command) -> Any:
    return shown(ottla("cluster", "describe", "--json"))


def test_a_damaged_replica_is_found(ottla: Command, ottla_cluster: BrokerCluster) -> None:
    filled(ottla, "orders", "--partitions", "1", "--replication-factor", "3")
    follower = next(
        each["broker"]
        for each in shown(ottla("replica", "lag", "--topic", "orders", "--json"))
        if each["role"] == "follower"
    )
    segment = ottla_cluster.brokers[follower].data_dir / "orders-0" / f"{0:020}.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)

    done = ottla("replica", "verify", "--topic", "orders", "--json")

    assert done.exit_code == 1
    assert "has checksum" in json.loads(done.stdout)[0]["result"]


def test_the_others_are_compared_when_a_replica_is_away(ottla: Command, ottla_cluster: BrokerCluster) -> None:
    filled(ottla, "orders", "--partitions", "1", "--replication-factor", "3")
    ottla_cluster.brokers[3].kill()
    until(lambda: "broker 3 is away" in ottla("cluster", "health").output)

    def compared() -> Any:
        done = ottla("replica", "verify", "--topic", "orders", "--json")
        (found,) = json.loads(done.stdout)
        assert (done.exit_code, found["result"]) == (1, "replica 3 does not answer")
        return found

    until(lambda: (compared()["from"], compared()["to"]) == (0, 1_500))  # once all is committed

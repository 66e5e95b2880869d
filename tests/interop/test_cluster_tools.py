"""The tools of a cluster against three brokers of Apache Kafka."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from peers.apache_kafka import run_tool
from peers.cluster_commands import Command, command_for, filled, shown, until
from peers.three_brokers import ThreeBrokers

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture
def ottla(three_brokers: ThreeBrokers) -> Command:
    return command_for(three_brokers.bootstrap_servers)


def created(ottla: Command, *options: str) -> str:
    return filled(ottla, f"moved-{secrets.token_hex(4)}", *options)


def test_a_topic_moves_by_plan_and_is_equal_on_its_new_replicas(
    ottla: Command, three_brokers: ThreeBrokers, tmp_path: Path
) -> None:
    topic = created(ottla, "--partitions", "4", "--replication-factor", "1")
    plan, back = tmp_path / "move.json", tmp_path / "back.json"
    made = ottla("reassign", "generate", "--topic", topic, "--brokers", "2,3", "--replication-factor", "2")
    plan.write_text(made.stdout)
    assert {tuple(sorted(each["replicas"])) for each in json.loads(made.stdout)["partitions"]} == {(2, 3)}

    done = ottla("reassign", "execute", str(plan), "--throttle", "100000000", "--rollback-file", str(back))

    assert done.exit_code == 0, done.output
    until(lambda: ottla("reassign", "verify", str(plan), "--preserve-throttles").exit_code == 0)
    throttled = ottla("config", "describe", "--topic", topic, "--changed").output
    assert "leader.replication.throttled.replicas" in throttled
    removed = ottla("reassign", "verify", str(plan)).output.splitlines()[-1]
    assert removed == f"Removed the throttles of topic {topic}, broker 1, broker 2, broker 3."
    assert "throttled" not in ottla("config", "describe", "--topic", topic, "--changed").output
    compared = shown(ottla("replica", "verify", "--topic", topic, "--json"))
    assert {(each["result"], len(each["replicas"])) for each in compared} == {("equal", 2)}
    assert sum(each["to"] for each in compared) == 1_500
    lags = shown(ottla("replica", "lag", "--topic", topic, "--json"))
    assert [(each["lag"], each["in_sync"]) for each in lags] == [(0, True)] * 8
    assert shown(ottla("reassign", "list", "--json")) == []
    verified = run_tool(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        "--bootstrap-server", three_brokers.bootstrap_servers,
        "--reassignment-json-file", str(back), "--verify",
    )  # fmt: skip
    assert f"There is no active reassignment of partition {topic}-0" in verified


def test_leaders_are_elected_and_the_cluster_is_described(ottla: Command) -> None:
    topic = created(ottla, "--partitions", "3", "--replication-factor", "3")

    elected = shown(ottla("leader", "elect", "--preferred", "--topic", topic, "--json"))

    assert [each["outcome"] for each in elected] == ["elected"] * 3
    until(lambda: ottla("cluster", "health").exit_code == 0)
    state = shown(ottla("cluster", "describe", "--json"))
    assert [each["broker"] for each in state["brokers"]] == [1, 2, 3]
    assert state["controller"] in (1, 2, 3)
    assert state["under_replicated"] == []


def test_a_stopped_broker_is_a_problem_of_the_cluster(ottla: Command, three_brokers: ThreeBrokers) -> None:
    topic = created(
        ottla, "--partitions", "1", "--replication-factor", "3", "--config", "min.insync.replicas=3"
    )
    three_brokers.kill(3)
    try:
        below = "has 2 in-sync replicas of min.insync.replicas=3: acks=all is refused"

        def is_told() -> bool:
            said = ottla("cluster", "health").output
            return "broker 3 is away" in said and f"{topic}-0 {below}" in said.splitlines()

        # The controller takes the broker off the list before it takes it out of each ISR.
        until(is_told)
        lagging = shown(ottla("replica", "lag", "--topic", topic, "--lagging", "--json"))
        assert [(each["broker"], each["log_end"]) for each in lagging] == [(3, None)]
    finally:
        three_brokers.brokers[3].start()
    until(lambda: ottla("cluster", "health").exit_code == 0)


@pytest.mark.parametrize(
    ("partitions", "advice"),
    [
        ('[{"topic": "{topic}", "partition": 0, "replicas": [1, 7]}]', "broker 7 is down, or not in"),
        ('[{"topic": "{topic}", "partition": 9, "replicas": [1]}]', "-9 does not exist"),
        ('[{"topic": "{topic}", "partition": 0, "replicas": [1, 1]}]', "a broker is named twice"),
        ('[{"topic": "missing", "partition": 0, "replicas": [1]}]', "topic 'missing' does not exist"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(
    partitions: str, advice: str, ottla: Command, tmp_path: Path
) -> None:
    topic = created(ottla, "--partitions", "1", "--replication-factor", "1")
    plan = tmp_path / "move.json"
    plan.write_text(f'{{"version": 1, "partitions": {partitions.replace("{topic}", topic)}}}')

    done = ottla("reassign", "execute", str(plan))

    assert done.exit_code != 0
    assert advice in done.output
    assert shown(ottla("reassign", "list", "--json")) == []

"""Apache Kafka's own tools, of 3.9 and 4.4, manage a secured cluster of Ottla, with `--command-config`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer as LibrdkafkaProducer

from peers.apache_kafka import run_tool
from peers.maven import kafka_3_server, kafka_4_tools
from peers.processes import ports_in_a_row
from peers.secured_kafka import printed_section, printed_settings, started_secure

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

BOUND_S: Final = 120.0
OLD_NAMES: Final = {
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
}
"""The classes of 3.9 that are written in Scala."""
NAMES: Final = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
}
OPTIONS_OF_3: Final = {
    "kafka-console-consumer": "--consumer.config",
    "kafka-console-producer": "--producer.config",
    "kafka-leader-election": "--admin.config",
}
"""The names of `--command-config` in tools of 3.9."""


@dataclass(frozen=True)
class Tools:
    """The tools of a version, in the folder of a test, with the properties of the administrator."""

    version: int
    folder: Path
    properties: dict[str, str]

    def __call__(self, name: str, *arguments: str, login: str = "", text: str | None = None) -> str:
        """Run a tool as the administrator, or with another JAAS line; return its output."""
        main_class = (OLD_NAMES if self.version == 3 else {}).get(name, NAMES[name])
        config = self.folder / "command.properties"
        changed = {"sasl.jaas.config": login} if login else {}
        if "tokenauth" in login:
            changed["sasl.mechanism"] = "SCRAM-SHA-256"
        lines = {**self.properties, **changed}
        servers = lines.pop("bootstrap.servers")
        config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        option = (OPTIONS_OF_3 if self.version == 3 else {}).get(name, "--command-config")
        class_path = kafka_3_server() if self.version == 3 else kafka_4_tools()
        return run_tool(
            main_class, "--bootstrap-server", servers, option, str(config), *arguments,
            class_path=class_path, stdin=text,
        )  # fmt: skip

    def login(self, user: str, password: str, more: str = "") -> str:
        """Return the JAAS line of another user."""
        module = self.properties["sasl.jaas.config"].split()[0]
        return f'{module} required username="{user}" password="{password}"{more};'

    def name(self, stem: str) -> str:
        """Return a name that is this version's."""
        return f"{stem}-{self.version}"


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster of two brokers, made by one option; yields its printed properties for Java."""
    folder = tmp_path_factory.mktemp("cluster")
    command = [str(Path(sys.executable).with_name("ottla")), "cluster"]
    base_port = str(ports_in_a_row(3))
    start = [
        "start", "--data-dir", str(folder / "data"), "--brokers", "2", "--base-port", base_port, "--secure",
        "--detach", "--set", "delegation.token.secret.key=a key of all brokers",
    ]  # fmt: skip

    def run(*arguments: str) -> str:
        environment = {"OTTLA_PROFILES": str(folder / "profiles.toml")}
        return subprocess.run(
            ["env", *(f"{key}={value}" for key, value in environment.items()), *command, *arguments],
            capture_output=True, text=True, timeout=BOUND_S, check=True,
        ).stdout  # fmt: skip

    said = run(*start)
    try:
        yield printed_settings(said, "Java")
    finally:
        run("stop", "--data-dir", str(folder / "data"))


@pytest.fixture(params=[3, 4], ids=["kafka-3.9", "kafka-4.4"])
def tools(request: pytest.FixtureRequest, properties: dict[str, str], tmp_path: Path) -> Tools:
    return Tools(request.param, tmp_path, properties)


def until(call: Callable[[], str], words: str) -> str:
    """Call until the output has the words; return it."""
    deadline_s, printed = time.monotonic() + BOUND_S, call()
    while words not in printed:
        assert time.monotonic() < deadline_s, printed
        printed = call()
    return printed


def create_topic(tools: Tools, topic: str, *, login: str = "", assignment: str = "1:2") -> None:
    tools("kafka-topics", "--create", "--topic", topic, "--replica-assignment", assignment, login=login)


def add_user(tools: Tools, user: str, password: str) -> None:
    credential = f"SCRAM-SHA-512=[iterations=8192,password={password}],SCRAM-SHA-256=[password={password}]"
    tools(
        "kafka-configs",
        "--entity-type",
        "users",
        "--entity-name",
        user,
        "--alter",
        "--add-config",
        credential,
    )


def test_users_and_rules_are_managed_and_hold_for_the_next_command(tools: Tools) -> None:
    user, topic = tools.name("carol"), tools.name("ledger")
    credentials = ("kafka-configs", "--entity-type", "users", "--entity-name", user)
    add_user(tools, user, "of carol")
    login = tools.login(user, "of carol")
    described = tools(*credentials, "--describe")
    assert "SCRAM-SHA-512=iterations=8192" in described
    assert "SCRAM-SHA-256=iterations=4096" in described

    with pytest.raises(RuntimeError, match="not permitted for the topic"):
        create_topic(tools, topic, login=login)
    by_rule = ("--allow-principal", f"User:{user}", "--operation", "Create", "--operation", "Describe")
    tools("kafka-acls", "--add", *by_rule, "--topic", topic, "--resource-pattern-type", "prefixed")
    create_topic(tools, topic, login=login)
    listed = tools("kafka-acls", "--list", "--topic", topic, "--resource-pattern-type", "match")
    assert f"principal=User:{user}, host=*, operation=CREATE, permissionType=ALLOW" in listed
    assert tools("kafka-topics", "--list", login=login).split() == [topic]
    tools(
        "kafka-acls", "--remove", "--force", *by_rule, "--topic", topic, "--resource-pattern-type", "prefixed"
    )
    assert topic not in tools("kafka-topics", "--list", login=login)

    tools(*credentials, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM-SHA-512" not in tools(*credentials, "--describe")
    with pytest.raises(RuntimeError, match="invalid credentials with SASL mechanism SCRAM-SHA-512"):
        tools("kafka-topics", "--list", login=login)


def test_delegation_tokens_are_managed_and_log_their_owner_in(tools: Tools) -> None:
    renewer, topic = tools.name("erin"), tools.name("by-token")
    made = tools(
        "kafka-delegation-tokens", "--create", "--max-life-time-period", "-1", "--renewer-principal",
        f"User:{renewer}",
    )  # fmt: skip
    found = re.search(r"^(\S{22})\s+(\S{88})\s+User:admin\s+User:admin", made, re.MULTILINE)
    assert found is not None, made
    token_id, secret = found.groups()
    by_token = tools.login(token_id, secret, ' tokenauth="true"')
    create_topic(tools, topic, login=by_token)
    assert topic in tools("kafka-topics", "--list", login=by_token).split()
    with pytest.raises(RuntimeError, match="not allowed"):
        tools("kafka-delegation-tokens", "--create", "--max-life-time-period", "-1", login=by_token)

    described = tools("kafka-delegation-tokens", "--describe", "--owner-principal", "User:admin")
    assert token_id in described
    assert f"User:{renewer}" in described
    renewed = tools("kafka-delegation-tokens", "--renew", "--renew-time-period", "1000000", "--hmac", secret)
    assert "Completed renew operation" in renewed
    ended = tools("kafka-delegation-tokens", "--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert "Completed expire operation" in ended
    with pytest.raises(RuntimeError, match="invalid credentials"):
        tools("kafka-topics", "--list", login=by_token)


def test_partitions_move_and_leaders_are_elected(tools: Tools) -> None:
    topic, plan = tools.name("moved"), tools.folder / "plan.json"
    create_topic(tools, topic, assignment="1:2,1:2")
    moves = [
        {"topic": topic, "partition": 0, "replicas": [2, 1]},
        {"topic": topic, "partition": 1, "replicas": [2]},
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    described = ("kafka-topics", "--describe", "--topic", topic)

    begun = tools("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute")

    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in begun
    verify = ("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--verify")
    until(lambda: tools(*verify), f"Reassignment of partition {topic}-1 is completed")
    assert re.search(r"Partition: 0\s+Leader: 1\s+Replicas: 2,1", tools(*described))
    elected = tools(
        "kafka-leader-election", "--election-type", "preferred", "--topic", topic, "--partition", "0"
    )
    assert "Successfully completed leader election (PREFERRED)" in elected
    assert re.search(r"Partition: 0\s+Leader: 2\s+Replicas: 2,1", tools(*described))


def test_a_user_with_the_rules_of_a_consumer_reads_in_a_group_that_the_administrator_manages(
    tools: Tools,
) -> None:
    user, topic, group = tools.name("dave"), tools.name("console"), tools.name("readers")
    add_user(tools, user, "of dave")
    login = tools.login(user, "of dave")
    create_topic(tools, topic)
    tools("kafka-console-producer", "--topic", topic, text="one\ntwo\n")
    reads = (
        "kafka-console-consumer", "--topic", topic, "--group", group, "--from-beginning",
        "--max-messages", "2",
    )  # fmt: skip
    assert tools(*reads, login=login) == ""  # it prints the error, and ends well
    tools(
        "kafka-acls", "--add", "--allow-principal", f"User:{user}", "--consumer", "--topic", topic,
        "--group", group,
    )  # fmt: skip

    assert tools(*reads, login=login).split() == ["one", "two"]

    # Its own limit is 5 seconds, the start of a JVM on a busy machine included.
    groups = ("kafka-consumer-groups", "--timeout", "60000", "--group", group)
    assert re.search(rf"{topic}\s+0\s+2\s+2\s+0", tools(*groups, "--describe"))
    reset = tools(*groups, "--reset-offsets", "--to-earliest", "--topic", topic, "--execute")
    assert re.search(rf"{topic}\s+0\s+0", reset)
    assert "was successful" in tools(*groups, "--delete")


def test_what_the_start_of_a_secured_broker_prints_works_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv("OTTLA_PROFILES", str(profiles))
    with started_secure(tmp_path / "data", profiles) as said:
        for version in (3, 4):
            tools = Tools(version, tmp_path, printed_settings(said, "Java"))
            tools("kafka-topics", "--create", "--topic", tools.name("orders"), "--partitions", "1")
            tools("kafka-console-producer", "--topic", tools.name("orders"), text="hello\n")
            read = ("--topic", tools.name("orders"), "--from-beginning", "--max-messages", "1")
            assert tools("kafka-console-consumer", *read) == "hello\n"

        errors: list[object] = []
        producer = LibrdkafkaProducer(printed_settings(said, "librdkafka"))
        producer.produce("orders-3", b"x", on_delivery=lambda error, _: errors.append(error))
        assert (producer.flush(60), errors) == (0, [None])

        program = "\n".join(printed_section(said, "Python"))
        subprocess.run([sys.executable, "-c", program], timeout=BOUND_S, check=True)

"""Kafka Streams and Kafka Connect work with the ACLs of their recipes, and a login, on a secured broker."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from docs.test_secured_pages import recipes
from interop.test_kafka_connect import append
from interop.test_kafka_streams import Counting, wait_until
from ottla.broker.testing import SecureBroker
from ottla.client.cli import main
from peers.connect_worker import Worker
from peers.connect_worker import wait_until as wait_for
from peers.processes import Process

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

SECURED = pytest.mark.ottla_secure_broker(users={"app": "a secret"})
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def properties_of_java(broker: SecureBroker, user: str) -> dict[str, str]:
    """Return the properties of the page about connections, for a user."""
    settings = broker.client_settings(user)
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(broker.cafile),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{MODULE} required username="{user}" password="{settings["sasl_password"]}";',
    }


def ottla(broker: SecureBroker, folder: Path, *arguments: str) -> None:
    file = folder / "admin.properties"
    lines = {"bootstrap.servers": broker.bootstrap_servers} | properties_of_java(broker, "admin")
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    done = CliRunner().invoke(main, [*arguments, "--command-config", str(file)])
    assert done.exit_code == 0, done.output


def follow(broker: SecureBroker, folder: Path, kind: str, names: dict[str, str]) -> None:
    """Run the commands of a recipe, with names of this test in place of those of the page."""
    (commands,) = [commands for found, commands in recipes() if found.startswith(kind)]
    for command in commands:
        for printed, name in names.items():
            command = re.sub(rf"\b{printed}\b", name, command)
        ottla(broker, folder, *shlex.split(command)[1:])


def produce(broker: SecureBroker, topic: str, values: list[bytes]) -> None:
    producer = Producer(broker.librdkafka_settings())
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def read(broker: SecureBroker, topic: str, count: int) -> list[bytes]:
    settings = broker.librdkafka_settings() | {"group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        while len(found) < count:
            message = consumer.poll(120)
            assert message is not None, f"{len(found)} of {count} records came"
            assert message.error() is None, message.error()
            found.append(message.value() or b"")
    finally:
        consumer.close()
    return found


@SECURED
def test_kafka_streams_counts_with_the_rules_of_its_recipe(
    ottla_secure_broker: SecureBroker, tmp_path: Path
) -> None:
    broker, names = ottla_secure_broker, {"orders": "words", "bills": "counts", "billing": "counting"}
    for topic in ("words", "counts"):
        ottla(broker, tmp_path, "topic", "create", topic)
    follow(broker, tmp_path, "Kafka Streams", names)
    login = tmp_path / "app.properties"
    login.write_text("".join(f"{key}={value}\n" for key, value in properties_of_java(broker, "app").items()))
    produce(broker, "words", [b"a", b"b", b"a"])

    with Counting(broker.bootstrap_servers, tmp_path, str(login)).process() as process:
        wait_until(lambda: b"state RUNNING" in (tmp_path / "streams.out").read_bytes(), process)
        found = counted(broker, process)

    assert sorted(found) == [b"1", b"1", b"2"]


def counted(broker: SecureBroker, process: Process) -> list[bytes]:
    try:
        return read(broker, "counts", 3)
    except AssertionError as error:
        raise AssertionError(process.last_words(30)) from error


@SECURED
def test_a_worker_of_kafka_connect_moves_lines_with_the_rules_of_its_recipe(
    ottla_secure_broker: SecureBroker, tmp_path: Path
) -> None:
    broker, given, taken = ottla_secure_broker, tmp_path / "given.txt", tmp_path / "taken.txt"
    ottla(broker, tmp_path, "topic", "create", "lines")
    follow(broker, tmp_path, "... with sources exactly-once", {})
    ottla(
        broker,
        tmp_path,
        "acl",
        "add",
        "--principal",
        "User:app",
        "-o",
        "READ",
        "-o",
        "WRITE",
        "--topic",
        "lines",
    )
    login = properties_of_java(broker, "app")
    thrice = {
        f"{prefix}{key}": value for prefix in ("", "producer.", "consumer.") for key, value in login.items()
    }
    worker = Worker(broker.bootstrap_servers, tmp_path, thrice)
    append(given, range(20))

    with worker.process() as process:
        try:
            worker.put("reads", {
                "connector.class": "FileStreamSource", "tasks.max": "1", "file": str(given), "topic": "lines",
                "exactly.once.support": "required",
            })  # fmt: skip
            worker.put("writes", {
                "connector.class": "FileStreamSink", "tasks.max": "1", "file": str(taken), "topics": "lines",
            })  # fmt: skip
            wait_for(lambda: taken.exists() and taken.read_text().endswith("line 19\n"))
        except AssertionError as error:
            raise AssertionError(process.last_words(30)) from error

    assert taken.read_text() == "".join(f"line {number}\n" for number in range(20))

"""A whole broker: state that survives restarts, and configurations that it rejects."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla.broker.peers.active_controller import ActiveController
from ottla.broker.testing import BrokerFailed, BrokerProcess, BrokerThread

TIMEOUT_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "data", {"max.partitions.per.topic": "5000"}) as broker:
        yield broker


def admin_of(broker: BrokerThread | BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    dotted = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(TIMEOUT_S)


def delete(admin: AdminClient, name: str) -> None:
    admin.delete_topics([name], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)


def produce(broker: BrokerThread | BrokerProcess, topic: str, *values: bytes) -> None:
    """Produce and wait until every record is acknowledged by all replicas."""
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def consume(broker: BrokerThread | BrokerProcess, topic: str, count: int) -> list[bytes]:
    """Read the first records of partition 0."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(count, TIMEOUT_S)
        return [message.value() for message in messages if not message.error()]
    finally:
        consumer.close()


def settings_of(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(kind, name)
    return dict(admin.describe_configs([resource])[resource].result(TIMEOUT_S))


def test_topics_records_and_settings_survive_a_restart(broker: BrokerThread) -> None:
    create(admin_of(broker), "orders", 3, retention_ms="1000000")
    produce(broker, "orders", b"one")

    broker.restart()

    admin = admin_of(broker)
    assert len(admin.list_topics("orders", TIMEOUT_S).topics["orders"].partitions) == 3
    assert settings_of(admin, ResourceType.TOPIC, "orders")["retention.ms"].value == "1000000"


def test_records_acknowledged_before_a_kill_are_there_after_it(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(500)]
    with BrokerProcess(tmp_path / "data") as broker:
        create(admin_of(broker), "orders")
        produce(broker, "orders", *values)

        broker.kill()
        broker.start()

        assert consume(broker, "orders", 500) == values


def test_a_killed_broker_is_controller_again_at_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        broker.kill()
        broker.start()

        create(admin_of(broker), "orders")
        assert admin_of(broker).list_topics(timeout=TIMEOUT_S).controller_id >= 0


def test_a_deleted_topic_can_be_created_again_and_is_empty(broker: BrokerThread) -> None:
    admin = admin_of(broker)
    create(admin, "orders", 2)
    produce(broker, "orders", b"old")
    delete(admin, "orders")
    assert "orders" not in admin.list_topics(timeout=TIMEOUT_S).topics
    assert not [path for path in broker.data_dir.iterdir() if path.name in ("orders-0", "orders-1")]

    create(admin, "orders")
    produce(broker, "orders", b"new")

    assert consume(broker, "orders", 1) == [b"new"]


def test_a_topic_is_created_by_the_first_produce_to_it(broker: BrokerThread) -> None:
    produce(broker, "unheard-of", b"first")

    assert consume(broker, "unheard-of", 1) == [b"first"]


def test_a_topic_gets_more_partitions(broker: BrokerThread) -> None:
    admin = admin_of(broker)
    create(admin, "orders", 1)

    admin.create_partitions([NewPartitions("orders", 4)])["orders"].result(TIMEOUT_S)

    topic = admin.list_topics("orders", TIMEOUT_S).topics["orders"]
    assert {number: part.leader for number, part in topic.partitions.items()} == dict.fromkeys(
        range(4), topic.partitions[0].leader
    )


def test_settings_change_while_the_broker_runs(broker: BrokerThread) -> None:
    admin = admin_of(broker)
    create(admin, "orders")
    resource = ConfigResource(
        ResourceType.TOPIC,
        "orders",
        incremental_configs=[
            ConfigEntry("max.message.bytes", "200", incremental_operation=AlterConfigOpType.SET)
        ],
    )

    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    assert settings_of(admin, ResourceType.TOPIC, "orders")["max.message.bytes"].value == "200"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0})
    outcome: list[KafkaError | None] = []
    producer.produce("orders", b"x" * 1000, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(TIMEOUT_S)
    assert [error.code() for error in outcome if error] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("taken", 1, 1), KafkaError.TOPIC_ALREADY_EXISTS),
        (NewTopic("a/b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("much", 90_000, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("many", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("odd", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: str(value),
)
def test_a_topic_that_cannot_be_created_gets_kafkas_error(
    broker: BrokerThread, topic: NewTopic, code: int
) -> None:
    admin = admin_of(broker)
    create(admin, "taken")

    with pytest.raises(KafkaException) as raised:
        admin.create_topics([topic])[topic.topic].result(TIMEOUT_S)

    assert raised.value.args[0].code() == code


def test_the_broker_describes_its_settings(broker: BrokerThread) -> None:
    admin = admin_of(broker)
    number = admin.list_topics(timeout=TIMEOUT_S).controller_id

    settings = settings_of(admin, ResourceType.BROKER, str(number))

    assert settings["log.segment.bytes"].value == "1073741824"
    assert settings["broker.id"].is_read_only


def test_a_second_broker_on_the_same_directory_is_refused_in_one_line(broker: BrokerThread) -> None:
    with pytest.raises(BrokerFailed) as refused, BrokerThread(broker.data_dir):
        pass

    assert "\n" not in str(refused.value)
    assert str(broker.data_dir) in str(refused.value)


def test_a_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, {"broker.id": "1"}):
        pass

    with pytest.raises(BrokerFailed, match="belongs to broker 1"), BrokerThread(tmp_path, {"broker.id": "2"}):
        pass


def test_nothing_asks_the_controller_once_the_connection_to_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[list[str]] = []
    close = ActiveController.close

    async def observed(self: ActiveController) -> None:
        running.append([task.get_name() for task in asyncio.all_tasks()])
        await close(self)

    monkeypatch.setattr(ActiveController, "close", observed)

    with BrokerThread(tmp_path):
        pass

    assert len(running) == 1
    assert "isr-proposals" not in running[0]


def test_the_command_starts_a_daemon_and_stops_it(tmp_path: Path) -> None:
    def ottla(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ottla.broker", *arguments, "--data-dir", str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    started = ottla("start", "--listen", "127.0.0.1:0", "--daemon")
    try:
        assert (started.returncode, started.stderr) == (0, "")
        assert "is ready on 127.0.0.1:" in started.stdout
        again = ottla("start", "--listen", "127.0.0.1:0")
        assert again.returncode == 1
        assert again.stderr.startswith("Error: another broker runs on")
        assert again.stderr.count("\n") == 1
    finally:
        stopped = ottla("stop")
    assert "stopped" in stopped.stdout
    advice = "name its directory with --data-dir"
    assert ottla("stop").stderr == f"Error: no broker runs on {tmp_path}; {advice}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "log.segment.bytes=huge"], "log.segment.bytes must be"),
        (["--set", "listeners=nonsense"], "listeners must look like"),
        (["--set", "nonsense"], "KEY=VALUE"),
        (["--listen", "nowhere"], "HOST:PORT"),
    ],
)
def test_errors_of_the_configuration_are_printed_without_a_traceback(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    command = [sys.executable, "-m", "ottla.broker", "start", "--data-dir", str(tmp_path), *arguments]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode != 0
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr

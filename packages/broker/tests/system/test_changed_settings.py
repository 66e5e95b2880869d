"""Settings of a whole broker: changes while it runs, and the environment."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ottla.admin import Admin
from ottla.admin.configs import BROKER
from ottla.broker.network import open_connections
from ottla.broker.testing import BrokerThread
from ottla.protocol.errors import InvalidConfig

TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def reserved_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the connection beyond the limits for its first holder, however slow the machine is."""
    monkeypatch.setattr(open_connections, "RESERVED_MS", 600_000.0)


def alter(broker: BrokerThread, kind: ResourceType, name: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def test_a_lower_limit_of_connections_holds_for_those_that_come_later(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        assert broker.broker is not None
        alter(broker, ResourceType.BROKER, str(broker.broker.broker_id), "max.connections", "0")

        with (
            socket.create_connection(
                (broker.host, broker.port), TIMEOUT_S
            ),  # one from this machine is admitted
            socket.create_connection((broker.host, broker.port), TIMEOUT_S) as late,
        ):
            late.settimeout(TIMEOUT_S)
            assert late.recv(1) == b""


def test_a_limit_that_was_set_earlier_holds_after_a_restart(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        assert broker.broker is not None
        alter(broker, ResourceType.BROKER, str(broker.broker.broker_id), "max.connections", "0")

        broker.restart()

        with (
            socket.create_connection((broker.host, broker.port), TIMEOUT_S),
            socket.create_connection((broker.host, broker.port), TIMEOUT_S) as late,
        ):
            late.settimeout(TIMEOUT_S)
            assert late.recv(1) == b""


def test_a_limit_that_shuts_out_everybody_is_taken_back_from_this_machine(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        assert broker.broker is not None
        broker_id = str(broker.broker.broker_id)
        alter(broker, ResourceType.BROKER, broker_id, "max.connections", "0")
        broker.restart()

        asyncio.run(set_on_broker(broker.bootstrap_servers, broker_id, {"max.connections": "1000"}))

        with socket.create_connection((broker.host, broker.port), TIMEOUT_S) as late:
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.recv(1)


async def set_on_broker(servers: str, broker_id: str, values: dict[str, str | None]) -> None:
    async with asyncio.timeout(TIMEOUT_S), Admin(servers) as admin:
        await admin.configs.alter(BROKER, broker_id, values)


def test_no_address_may_be_shut_out_without_overrides(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        assert broker.broker is not None
        broker_id = str(broker.broker.broker_id)

        with pytest.raises(InvalidConfig, match=r"only with max\.connections\.per\.ip\.overrides"):
            asyncio.run(set_on_broker(broker.bootstrap_servers, broker_id, {"max.connections.per.ip": "0"}))


def test_flushing_before_acknowledging_holds_for_producers_that_are_there_already(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        assert broker.broker is not None
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "linger.ms": 0})
        produce_one(producer)
        log = broker.broker.services.logs.of_topic("orders")[0]
        assert log.recovery_point == 0

        alter(broker, ResourceType.TOPIC, "orders", "flush.before.acknowledge", "true")
        produce_one(producer)

        assert log.recovery_point == 2


def produce_one(producer: Producer) -> None:
    producer.produce("orders", b"value")
    assert producer.flush(TIMEOUT_S) == 0


def test_the_environment_stands_between_the_file_and_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.retention.hours=2\nmessage.max.bytes=2000\n")
    environment = {**os.environ, "OTTLA_LOG_RETENTION_HOURS": "3", "OTTLA_MESSAGE_MAX_BYTES": "3000"}
    with subprocess.Popen(
        [sys.executable, "-m", "ottla.broker", "start", "--config", str(file), "--listen", "127.0.0.1:0",
         "--data-dir", str(tmp_path / "data"), "--set", "message.max.bytes=4000"],
        env=environment, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            broker_id, address = words[2], words[-1]
            resource = ConfigResource(ResourceType.BROKER, broker_id)
            admin = AdminClient({"bootstrap.servers": address})
            entries = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)

    names = ("num.partitions", "log.retention.hours", "message.max.bytes")
    assert [entries[name].value for name in names] == ["2", "3", "4000"]


def test_a_broker_in_somebody_elses_process_never_ends_that_process(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data", {"event.loop.watchdog.enable": "true"}):
        names = [thread.name for thread in threading.enumerate()]

    assert "ottla-broker" in names
    assert "ottla-loop-watchdog" not in names

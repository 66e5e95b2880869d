"""Dynamic listeners and passwords of Apache Kafka 3.9 and Ottla, as the same broker on one ZooKeeper."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ottla.broker.config.password_encoder import CBC, GCM
from ottla.broker.security.sasl.testing import Wire
from ottla.broker.testing import BrokerThread
from peers.apache_kafka import ApacheKafka, ZooKeeper, run_tool
from peers.processes import free_port

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

BOUND_S = 60.0
LEVEL = {"inter.broker.protocol.version": "2.8"}
JAAS = "listener.name.login.plain.sasl.jaas.config"


def line_of(user: str, password: str) -> str:
    return f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";'


def alter(tmp_path: Path, servers: str, settings: dict[str, str]) -> str:
    """Change settings of broker 1 by kafka-configs."""
    file = tmp_path / "changes.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return run_tool(
        "kafka.admin.ConfigCommand", "--bootstrap-server", servers, "--entity-type", "brokers",
        "--entity-name", "1", "--alter", "--add-config-file", str(file),
    )  # fmt: skip


def logs_in(port: int, user: str, password: str) -> bool:
    with Wire(port) as wire:
        return wire.log_in(f"\0{user}\0{password}".encode(), version=1).error_code == 0


def opens(port: int) -> None:
    """Wait until a port that was announced takes connections."""
    end_s = time.monotonic() + BOUND_S
    while True:
        try:
            Wire(port).__exit__()
            return
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.1)


@pytest.mark.parametrize("cipher", [CBC, GCM], ids=["cbc", "gcm"])  # Kafka reads those of its own setting
def test_each_broker_opens_the_listeners_and_reads_the_passwords_that_the_other_was_given(
    tmp_path: Path, cipher: str
) -> None:
    login = free_port()
    secret = {"password.encoder.secret": "for znodes", "password.encoder.cipher.algorithm": cipher}
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        apache = ApacheKafka(tmp_path / "apache", secret | LEVEL, zookeeper=zookeeper, heap="384m")
        own = f"127.0.0.1:{apache.port}"
        added = {
            "listeners": f"PLAINTEXT://{own},LOGIN://127.0.0.1:{login}",
            "advertised.listeners": f"PLAINTEXT://{own},LOGIN://127.0.0.1:{login}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            JAAS: line_of("anna", "of apache"),
        }
        with apache:
            alter(tmp_path, own, added)
            opens(login)
            assert logs_in(login, "anna", "of apache")

        settings = {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://{own}",
            "zookeeper.connect": zookeeper.connect_string,
            **secret,
        }
        with BrokerThread(tmp_path / "ottla", settings):
            assert logs_in(login, "anna", "of apache")
            assert not logs_in(login, "anna", "of ottla")
            alter(tmp_path, own, {JAAS: line_of("anna", "of ottla")})
            assert logs_in(login, "anna", "of ottla")
            described = run_tool(
                "kafka.admin.ConfigCommand", "--bootstrap-server", own, "--entity-type", "brokers",
                "--entity-name", "1", "--describe",
            )  # fmt: skip
            assert f"{JAAS}=null sensitive=true" in described
            with pytest.raises(RuntimeError, match="Cannot update these configs dynamically"):
                refused = {JAAS: line_of("anna", "of ottla"), "connections.max.reauth.ms": "1"}
                alter(tmp_path, own, refused)  # the tool wants all secrets again

        with apache:
            opens(login)
            assert logs_in(login, "anna", "of ottla")
            assert not logs_in(login, "anna", "of apache")

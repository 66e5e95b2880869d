"""Logins of Java's clients, and Kafka's tools that manage users and delegation tokens of an Ottla broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.testing import BrokerThread
from peers.apache_kafka import run_tool

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{LOGIN_MODULES["PLAIN"]} required username="admin" password="a" user_admin="a";'
    ),
    "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
        f'{LOGIN_MODULES["OAUTHBEARER"]} required unsecuredValidatorPrincipalClaimName="sub";'
    ),
    "delegation.token.secret.key": "a key of all brokers",
    "connections.max.reauth.ms": "3600000",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running


def login(folder: Path, mechanism: str, options: str) -> str:
    """Write the properties of a client and return their file."""
    path = folder / f"{mechanism}.properties"
    lines = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{LOGIN_MODULES[mechanism]} required {options};",
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return str(path)


def topics(broker: BrokerThread, properties: str) -> str:
    return run_tool(
        "org.apache.kafka.tools.TopicCommand",
        "--bootstrap-server", broker.bootstrap_servers, "--command-config", properties,
        "--create", "--if-not-exists", "--topic", "made-by-java", "--partitions", "1",
    )  # fmt: skip


def users(broker: BrokerThread, admin: str, *arguments: str) -> str:
    return run_tool(
        "kafka.admin.ConfigCommand",
        "--bootstrap-server", broker.bootstrap_servers, "--command-config", admin,
        "--entity-type", "users", *arguments,
    )  # fmt: skip


def test_kafka_configs_manages_users_that_log_in_by_scram(broker: BrokerThread, tmp_path: Path) -> None:
    admin = login(tmp_path, "PLAIN", 'username="admin" password="a"')
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        added = f"{mechanism}=[iterations=8192,password=of alice]"
        users(broker, admin, "--alter", "--entity-name", "alice", "--add-config", added)
        topics(broker, login(tmp_path, mechanism, 'username="alice" password="of alice"'))

    described = users(broker, admin, "--describe", "--entity-name", "alice")
    assert "SCRAM-SHA-256=iterations=8192" in described
    assert "SCRAM-SHA-512=iterations=8192" in described
    users(broker, admin, "--alter", "--entity-name", "alice", "--delete-config", "SCRAM-SHA-256")
    with pytest.raises(RuntimeError, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
        topics(broker, login(tmp_path, "SCRAM-SHA-256", 'username="alice" password="of alice"'))


def test_java_logs_in_with_a_token_without_a_signature(broker: BrokerThread, tmp_path: Path) -> None:
    topics(broker, login(tmp_path, "OAUTHBEARER", 'unsecuredLoginStringClaim_sub="alice"'))


def test_kafka_delegation_tokens_manages_tokens_and_java_logs_in_by_them(
    broker: BrokerThread, tmp_path: Path
) -> None:
    admin = login(tmp_path, "PLAIN", 'username="admin" password="a"')

    def tool(*arguments: str) -> str:
        return run_tool(
            "org.apache.kafka.tools.DelegationTokenCommand",
            "--bootstrap-server", broker.bootstrap_servers, "--command-config", admin, *arguments,
        )  # fmt: skip

    made = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    found = re.search(r"^(\S{22})\s+(\S{88})\s+User:admin\s+User:admin", made, re.MULTILINE)
    assert found is not None, made
    token_id, secret = found.groups()
    options = f'username="{token_id}" password="{secret}" tokenauth="true"'
    by_token = login(tmp_path, "SCRAM-SHA-256", options)
    topics(broker, by_token)

    assert token_id in tool("--describe", "--owner-principal", "User:admin")
    assert "Completed renew operation" in tool("--renew", "--renew-time-period", "1000000", "--hmac", secret)
    assert "Completed expire operation" in tool("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    with pytest.raises(RuntimeError, match="invalid credentials"):
        topics(broker, by_token)

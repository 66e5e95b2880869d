"""Apache Kafka's tools with a coordinator that asks for a secret, and with closed trees of znodes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerFailed, BrokerProcess, BrokerThread
from ottla.producer import Producer
from ottla.zookeeper.acl_migration import identities_of_brokers, migrate, own_identities, plan
from ottla.zookeeper.apache_server import RealZooKeeper
from ottla.zookeeper.client_security import ClientSecurity, SaslLogin
from ottla.zookeeper.embedded.access import access_to
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.session import OPEN_ACL
from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.maven import kafka_3_server

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

MIGRATOR: Final = "kafka.admin.ZkSecurityMigrator"
PASSWORD: Final = "open-sesame"
LEVEL: Final = {"inter.broker.protocol.version": "2.8"}


def java(main_class: str, *arguments: str, jaas: Path) -> str:
    command = [
        "java", "-Xmx256m", "-cp", kafka_3_server(), f"-Djava.security.auth.login.config={jaas}",
        main_class, *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def migrated_by_kafka(connect: str, how: str, jaas: Path) -> str:
    arguments = (f"--zookeeper.acl={how}", f"--zookeeper.connect={connect}")
    return await asyncio.to_thread(java, MIGRATOR, *arguments, jaas=jaas)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    """Apache's ZooKeeper with a user."""
    (tmp_path / "server.jaas").write_text(
        "Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  user_kafka="{PASSWORD}";\n}};\n'
    )
    settings = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    properties = {"java.security.auth.login.config": str(tmp_path / "server.jaas")}
    async with RealZooKeeper(tmp_path / "zk", settings=settings, properties=properties) as running:
        yield running.connect_string


@pytest.fixture
def jaas(tmp_path: Path) -> Path:
    path = tmp_path / "client.jaas"
    path.write_text(
        "Client {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n"
        f'  username="kafka"\n  password="{PASSWORD}";\n}};\n'
    )
    path.chmod(0o600)
    return path


async def test_either_tool_goes_on_where_the_other_stopped(server: str, jaas: Path, tmp_path: Path) -> None:
    connect = f"{server}/kafka"
    settings = {"zookeeper.connect": connect, "zookeeper.sasl.jaas.file": str(jaas)}
    security = ClientSecurity(login=SaslLogin("kafka", PASSWORD))
    with BrokerThread(tmp_path / "data", settings):
        async with KazooSession(connect, security=security) as session:
            own = await own_identities(session)
            assert own == {("sasl", "kafka")}

            await migrated_by_kafka(connect, "secure", jaas)
            left = {change.path for change in (await plan(session, own, close=True)).changes}
            # Kafka's tool does not know Ottla's own znodes.
            assert left
            assert all(path.startswith("/ottla") for path in left)

            await migrate(session, own, close=True)
            assert not (await plan(session, own, close=True)).changes
            await migrated_by_kafka(connect, "unsecure", jaas)
            opened = (await plan(session, own, close=False)).changes
            assert all(change.path.startswith("/ottla") for change in opened)
            assert (await session.get_acl("/brokers/topics"))[0] == OPEN_ACL

            await migrate(session, own, close=True)
            acl = (await session.get_acl("/config/users"))[0]
            await migrated_by_kafka(connect, "secure", jaas)
            assert (await session.get_acl("/config/users"))[0] == acl
            assert not (await plan(session, own, close=True)).changes


async def test_tools_of_the_same_user_log_in_to_the_coordinator_of_a_broker(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data"):
        access = access_to(tmp_path / "data")
        await migrated_by_kafka(
            access.connect_string, "secure", tmp_path / "data" / "coordinator" / "jaas.conf"
        )
        async with KazooSession(access.connect_string, credentials=access.credentials) as session:
            acl, _ = await session.get_acl("/config/users")
    assert [tuple(entry) for entry in acl] == [(31, "sasl", "ottla")]


async def test_brokers_of_both_kinds_share_a_closed_tree(
    server: str, jaas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes what the other has created, and neither starts beside one without the credentials."""
    connect = f"{server}/kafka"
    closed = {"zookeeper.connect": connect, "zookeeper.set.acl": "true", **LEVEL}
    ours = {**closed, "broker.id": "2", "zookeeper.sasl.jaas.file": str(jaas)}
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.auth.login.config={jaas}")
    apache = ApacheKafka(
        tmp_path / "1", {**closed, "broker.id": "1"}, zookeeper=ZooKeeper(tmp_path), heap="384m"
    )
    await asyncio.to_thread(apache.start)
    try:
        with BrokerThread(tmp_path / "2", ours) as broker:
            async with Admin(broker.bootstrap_servers) as admin:
                for name in ("theirs", "ours"):
                    await admin.topics.create(name, partitions=4, replication_factor=2)
            async with Producer(bootstrap_servers=apache.bootstrap_servers) as producer:
                for partition in range(4):
                    await producer.send("ours", b"x", partition=partition)
                await producer.flush()
            security = ClientSecurity(login=SaslLogin("kafka", PASSWORD))
            async with KazooSession(connect, security=security) as session:
                own = await own_identities(session)
                assert await identities_of_brokers(session) == {1: own, 2: own}
                # Apache Kafka closes /consumers/* by its own rule, and the rest as Ottla does.
                assert not (await plan(session, own, close=True)).changes
        without = {"zookeeper.connect": connect, "broker.id": "3"}
        with pytest.raises(BrokerFailed, match="closed to all but sasl:kafka"):
            await asyncio.to_thread(BrokerProcess(tmp_path / "3", without).start)
    finally:
        await asyncio.to_thread(apache.stop)

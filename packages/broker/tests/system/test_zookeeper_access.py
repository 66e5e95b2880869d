"""Brokers with credentials for a ZooKeeper whose znodes only they may change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla.broker.config import ConfigError, load_broker_config
from ottla.broker.testing import BrokerFailed, BrokerProcess, BrokerThread
from ottla.zookeeper import paths
from ottla.zookeeper.acl_migration import own_identities, plan
from ottla.zookeeper.apache_server import NoZooKeeper, RealZooKeeper, find_installation, free_port
from ottla.zookeeper.cli import zookeeper
from ottla.zookeeper.embedded.access import access_to
from ottla.zookeeper.errors import NoAuth
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.testing import Background
from peers.certificates import Authority, missing_openssl

TIMEOUT_S = 30.0
_numbers = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        find_installation()
    except NoZooKeeper as error:
        pytest.skip(str(error))
    with Background(RealZooKeeper(tmp_path_factory.mktemp("zookeeper") / "zk", tick_ms=500)) as running:
        yield running.value.connect_string


@pytest.fixture
def connect(server: str) -> str:
    return f"{server}/closed-{next(_numbers)}"


def digest_file(folder: Path, credentials: str = "broker:secret") -> Path:
    path = folder / f"digest-{credentials.replace(':', '-')}"
    path.write_text(credentials)
    path.chmod(0o600)
    return path


def settings_of(
    connect: str, digest: Path | None = None, *, sets_acls: bool = True, broker_id: int | None = None
) -> dict[str, str]:
    settings = {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": "6000"}
    if broker_id is not None:
        settings["broker.id"] = str(broker_id)
    if digest is not None:
        settings |= {"zookeeper.digest.file": str(digest), "zookeeper.set.acl": str(sets_acls).lower()}
    return settings


def session_of(connect: str, *credentials: str) -> KazooSession:
    return KazooSession(
        connect, credentials=[("digest", text) for text in credentials], connection_timeout_ms=60_000
    )


def use(servers: str) -> None:
    """Take every way in which brokers create znodes for clients."""
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic("a", 2, 1), NewTopic("b", 1, 1)]).values():
        done.result(TIMEOUT_S)
    (broker_id,) = map(str, admin.list_topics(timeout=TIMEOUT_S).brokers)
    changed = ConfigEntry("retention.ms", "1000000", incremental_operation=AlterConfigOpType.SET)
    ours = ConfigEntry("log.cleaner.threads", "2", incremental_operation=AlterConfigOpType.SET)
    for resource in (
        ConfigResource(ResourceType.TOPIC, "a", incremental_configs=[changed]),
        ConfigResource(ResourceType.BROKER, broker_id, incremental_configs=[ours]),
    ):
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    admin.create_partitions([NewPartitions("b", 3)])["b"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "t"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("a", b"x", partition=0)
    producer.commit_transaction(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("a", 0, 1)], asynchronous=False)
    consumer.close()
    admin.delete_topics(["b"])["b"].result(TIMEOUT_S)


@pytest.mark.java
async def test_every_znode_of_a_broker_is_closed_with_set_acl(connect: str, tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data", settings_of(connect, digest_file(tmp_path))) as broker:
        await asyncio.to_thread(use, broker.bootstrap_servers)
        async with session_of(connect, "broker:secret") as session, session_of(connect) as stranger:
            found = await plan(session, await own_identities(session), close=True)
            assert [change.path for change in found.changes] == []
            assert found.unchanged > 30
            assert (await session.children(paths.CREDENTIALS)) == (await session.children(paths.BROKER_IDS))
            with pytest.raises(NoAuth):
                await stranger.create("/admin/delete_topics/a")
            with pytest.raises(NoAuth):
                await stranger.children("/config/brokers")
            assert await stranger.exists("/brokers/topics/a") is not None


@pytest.mark.java
def test_a_broker_without_the_credentials_of_a_closed_cluster_does_not_start(
    connect: str, tmp_path: Path
) -> None:
    with BrokerThread(tmp_path / "data", settings_of(connect, digest_file(tmp_path))):
        for other in (None, digest_file(tmp_path, "broker:guessed")):
            with pytest.raises(BrokerFailed) as refused:
                BrokerProcess(tmp_path / "other", settings_of(connect, other)).start()
            said = str(refused.value)
            assert "closed to all but digest:broker:" in said
            assert "Traceback" not in said
            assert "guessed" not in said


@pytest.mark.java
async def test_a_broker_that_would_lock_out_another_one_does_not_start(connect: str, tmp_path: Path) -> None:
    digest = digest_file(tmp_path)
    second = settings_of(connect, digest, broker_id=2)
    with BrokerThread(tmp_path / "1", settings_of(connect, broker_id=1)):
        with pytest.raises(BrokerFailed) as refused:
            await asyncio.to_thread(BrokerProcess(tmp_path / "2", second).start)
        assert "zookeeper.set.acl=true: broker 1 runs without the credentials of digest:broker:" in str(
            refused.value
        )
        async with session_of(connect) as session:
            assert await session.children(paths.BROKER_IDS) == ["1"]

    # The first rolling restart gives credentials to each broker, the second one sets ACLs.
    ready = settings_of(connect, digest, sets_acls=False, broker_id=1)
    with BrokerThread(tmp_path / "1", ready), BrokerThread(tmp_path / "2", second):
        async with session_of(connect) as session:
            assert await session.children(paths.CREDENTIALS) == ["1", "2"]


@pytest.mark.java
async def test_a_running_cluster_is_closed_and_opened_again(connect: str, tmp_path: Path) -> None:
    digest = digest_file(tmp_path)
    config = tmp_path / "server.properties"
    config.write_text(f"zookeeper.digest.file={digest}\n")

    def ran(*arguments: str) -> str:
        done = CliRunner().invoke(
            zookeeper, [*arguments, connect, "--command-config", str(config), "--apply"]
        )
        assert done.exit_code == 0, done.output
        return done.output

    with BrokerThread(tmp_path / "data", settings_of(connect, digest, sets_acls=False)) as broker:
        async with session_of(connect, "broker:secret") as session:
            before = await plan(session, await own_identities(session), close=True)
            assert len(before.changes) > 10
            await asyncio.to_thread(ran, "secure")
            await asyncio.to_thread(use, broker.bootstrap_servers)
            # This broker does not close new ones yet: the next run does.
            assert (await plan(session, await own_identities(session), close=True)).changes
            await asyncio.to_thread(ran, "secure")
            assert not (await plan(session, await own_identities(session), close=True)).changes
            await asyncio.to_thread(ran, "open")
    with BrokerThread(tmp_path / "data", settings_of(connect)) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        (done,) = (await asyncio.to_thread(admin.create_topics, [NewTopic("c", 1, 1)])).values()
        await asyncio.to_thread(done.result, TIMEOUT_S)


async def test_acls_on_the_coordinator_of_a_broker_are_those_of_its_secret(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data", {"zookeeper.set.acl": "true"}):
        access = access_to(tmp_path / "data")
        async with KazooSession(access.connect_string, credentials=access.credentials) as session:
            acl, _ = await session.get_acl("/config/users")
            done = await asyncio.to_thread(CliRunner().invoke, zookeeper, ["secure", str(tmp_path / "data")])
    assert [(entry.permissions, entry.scheme) for entry in acl] == [(31, "digest")]
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl"),
        ({"zookeeper.set.acl": "true", "zookeeper.ssl.keystore.location": "/k"}, "zookeeper.set.acl"),
        ({"zookeeper.connect": "./zk", "zookeeper.ssl.client.enable": "true"}, "zookeeper.ssl.client.enable"),
    ],
)
def test_settings_that_would_lock_the_broker_out_are_refused(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_broker_config({"zookeeper.connect": "zk:2181", **settings}, {}, {})
    assert str(refused.value).startswith(key)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.chmod(0o644), "mode 0644): chmod 600 it"),
        (lambda path: path.write_text("nothing"), "zookeeper.digest.file: "),
        (lambda path: path.unlink(), "zookeeper.digest.file: "),
    ],
)
def test_a_file_of_credentials_that_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, spoil: Callable[[Path], object], said: str
) -> None:
    path = digest_file(tmp_path)
    spoil(path)
    with pytest.raises(BrokerFailed) as refused:
        BrokerProcess(tmp_path / "data", {"zookeeper.digest.file": str(path)}).start()
    assert said in str(refused.value)
    assert "Traceback" not in str(refused.value)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """Apache's server with a TLS port that wants certificates, and a broker's settings for it."""
    if missing := missing_openssl():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    stores = {}
    for name in ("zookeeper", "broker"):
        certificate, key = authority.sign(name)
        stores[name] = folder / f"{name}.pem"
        stores[name].write_text(key.read_text() + certificate.read_text())
    trusted = folder / "trusted.pem"
    trusted.write_bytes(authority.cafile.read_bytes())
    port = free_port()
    server_settings = {
        "secureClientPort": str(port),
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(stores["zookeeper"]),
        "ssl.trustStore.location": str(trusted),
        "authProvider.1": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
    }
    settings = {
        "zookeeper.connect": f"localhost:{port}/kafka",
        "zookeeper.session.timeout.ms": "6000",
        "zookeeper.set.acl": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": str(stores["broker"]),
        "zookeeper.ssl.truststore.location": str(trusted),
    }
    try:
        with Background(RealZooKeeper(folder / "zk", tick_ms=500, settings=server_settings)) as running:
            yield running.value.connect_string, settings
    except NoZooKeeper as error:
        pytest.skip(str(error))


@pytest.mark.java
async def test_a_broker_with_a_certificate_closes_its_znodes_over_tls(
    secured: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    plain, settings = secured
    with BrokerThread(tmp_path / "data", settings) as broker:
        await asyncio.to_thread(use, broker.bootstrap_servers)
        async with session_of(f"{plain}/kafka") as stranger:
            acl, _ = await stranger.get_acl("/brokers/topics/a")
            with pytest.raises(NoAuth):
                await stranger.set("/controller_epoch", b"9")
    assert [tuple(entry) for entry in acl] == [(31, "x509", "CN=broker"), (1, "world", "anyone")]

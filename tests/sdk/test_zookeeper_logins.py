"""Members and commands of groups in a ZooKeeper that asks for a login."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.cli import main
from ottla.client.settings import SettingError
from ottla.consumer.zookeeper import (
    ConsumerRebalanceFailed,
    ZookeeperConsumerConfig,
    ZookeeperConsumerConnector,
)
from ottla.producer import Producer
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.embedded.access import read_or_make_secret, write_address
from ottla.zookeeper.errors import ZooKeeperError
from ottla.zookeeper.testing import Background

BOUND_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a coordinator with a secret, and a broker on it."""
    folder = tmp_path_factory.mktemp("zookeeper-logins")
    directory = folder / "zookeeper"
    with Background(EmbeddedCoordinator(directory, secret=read_or_make_secret(directory))) as server:
        write_address(directory, server.value.connect_string)
        with BrokerProcess(folder / "broker", {"zookeeper.connect": str(directory)}) as broker:
            (folder / "bootstrap").write_text(broker.bootstrap_servers)
            yield folder


def configs(folder: Path) -> dict[str, ZookeeperConsumerConfig]:
    """A member by the coordinator's directory, by a properties file with a JAAS file, and by digest."""
    directory = folder / "zookeeper"
    address = (directory / "address").read_text().strip()
    (folder / "consumer.properties").write_text(
        f"group.id=jaas\nzookeeper.connect={address}\nauto.offset.reset=smallest\n"
        f"zookeeper.sasl.jaas.file={directory / 'jaas.conf'}\n"
        "zookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty\n"
    )
    digest = folder / "digest"
    digest.touch(0o600)
    digest.write_text(f"ottla:{(directory / 'secret').read_text()}")
    first = {"auto_offset_reset": "smallest"}
    return {
        "directory": ZookeeperConsumerConfig(group_id="directory", zookeeper_connect=str(directory), **first),  # type: ignore[arg-type]
        "jaas": ZookeeperConsumerConfig.from_properties(folder / "consumer.properties"),
        "digest": ZookeeperConsumerConfig.from_properties(
            {"group.id": "digest", "zookeeper.connect": address}, zookeeper_digest_file=str(digest), **first
        ),
    }


async def test_members_log_in_and_read(folder: Path) -> None:
    bootstrap = (folder / "bootstrap").read_text()
    async with asyncio.timeout(BOUND_S):
        async with Admin(bootstrap) as admin:
            await admin.topics.create("letters", partitions=1, replication_factor=1)
        async with Producer(bootstrap_servers=bootstrap) as producer:
            await producer.send("letters", b"hello")
            await producer.flush()
        for name, config in configs(folder).items():
            async with ZookeeperConsumerConnector(config) as connector:
                streams = await connector.create_message_streams({"letters": 1})
                assert (await anext(streams["letters"][0])).value == b"hello", name
    address = configs(folder)["jaas"].zookeeper_connect
    stranger = ZookeeperConsumerConfig(group_id="stranger", zookeeper_connect=address)
    with pytest.raises(ConsumerRebalanceFailed, match="NoAuth"):
        async with asyncio.timeout(BOUND_S), ZookeeperConsumerConnector(stranger) as connector:
            await connector.create_message_streams({"letters": 1})


def test_commands_log_in(folder: Path) -> None:
    address = configs(folder)["jaas"].zookeeper_connect
    config = str(folder / "consumer.properties")

    def ran(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, list(arguments))
        return done.exit_code, done.output

    assert ran("zookeeper-group", "list", "--zookeeper", str(folder / "zookeeper"))[0] == 0
    assert ran("zookeeper-group", "list", "--zookeeper", address, "--zookeeper-config", config)[0] == 0
    assert ran("group", "offsets", "--zookeeper", address, "--zookeeper-config", config)[0] == 0
    status, output = ran("zookeeper-group", "list", "--zookeeper", address)
    assert (status, output.count("\n")) == (1, 1)
    assert "NoAuth" in output


def test_settings_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    given = {"group.id": "g", "zookeeper.connect": "h:2181"}
    with pytest.raises(SettingError, match=r"did you mean .zookeeper\.ssl\.keystore\.location"):
        ZookeeperConsumerConfig.from_properties({**given, "zookeeper.ssl.keystore.locatoin": "x"})
    config = ZookeeperConsumerConfig.from_properties(
        {
            **given,
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(tmp_path / "no"),
        }
    )
    with pytest.raises(ZooKeeperError, match=r"^zookeeper\.ssl\.truststore\.location: "):
        config.zookeeper_security.client_security()
    secret = ZookeeperConsumerConfig.from_properties({**given, "zookeeper.ssl.keystore.password": "hunter2"})
    assert "hunter2" not in repr(secret)

"""The pages about security do what they show: a cluster by its keys, and the ACLs of each kind of client."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.admin import (
    TOPIC,
    Acl,
    AclFilter,
    Admin,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)  # fmt: skip
from ottla.broker.testing import BrokerProcess, SecureBroker, free_port
from ottla.client.cli import main
from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig
from ottla.client.settings import read_properties
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams import App, Context
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.testing import Background
from peers.certificates import missing_openssl
from peers.secured_kafka import started_secure
from peers.snippets import ROOT, blocks, run_console, run_page

HOWTO = ROOT / "docs" / "howto"
CLUSTER, ACLS = HOWTO / "secure-a-cluster.md", HOWTO / "allow-and-deny.md"
BROKER = HOWTO / "secure-a-broker.md"

_HOST = "localhost"


class Printed:
    """The page of a cluster, with hosts, ports and paths of a test in place of its own."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        self._folder = folder
        self._zookeeper = zookeeper
        self.ports = {"kafka1": (free_port(), free_port()), "kafka2": (free_port(), free_port())}

    def consoles(self, mark: str) -> list[str]:
        return [self._here(block.code) for block in blocks(CLUSTER, mark)]

    def broker(self, name: str) -> BrokerProcess:
        """Return a broker with the page's first properties file."""
        found = re.search(
            r"^```properties\n(broker\.id=1\n.*?)^```$", CLUSTER.read_text(), re.MULTILINE | re.DOTALL
        )
        assert found is not None
        text = (
            found[1]
            .replace("broker.id=1", f"broker.id={name[-1]}")
            .replace("kafka1.example", f"{name}.example")
        )
        clients, brokers = self.ports[name]
        text = text.replace("0.0.0.0:9092", f"0.0.0.0:{clients}").replace(
            "0.0.0.0:9093", f"0.0.0.0:{brokers}"
        )
        settings = dict(line.split("=", 1) for line in self._here(text).splitlines() if line)
        settings |= {"zookeeper.connect": self._zookeeper, "log.dirs": str(self._folder / name)}
        broker = BrokerProcess(self._folder / name, settings)
        broker.port = clients
        return broker

    def _here(self, text: str) -> str:
        for name, ports in self.ports.items():
            for printed, port in zip((9092, 9093), ports, strict=True):
                text = text.replace(f"{name}.example:{printed}", f"{_HOST}:{port}")
        text = text.replace("kafka1.example kafka2.example kafka3.example", _HOST)
        text = text.replace("/etc/ottla/broker.pem", str(self._folder / f"{_HOST}.pem"))
        text = text.replace("/etc/ottla/ca.pem", str(self._folder / "ca.pem"))
        return re.sub(r"kafka\d\.example", _HOST, text)


@pytest.mark.skipif(missing_openssl() is not None, reason="needs openssl (Debian: openssl)")
def test_a_cluster_is_secured_by_the_keys_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    monkeypatch.delenv("OTTLA_PROFILE", raising=False)
    (tmp_path / "zookeeper").mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(Background(EmbeddedCoordinator(tmp_path / "zookeeper")))
        page = Printed(tmp_path, server.value.connect_string)
        for code in page.consoles("needs openssl"):
            run_console(code, "", tmp_path)
        for name in page.ports:
            stack.enter_context(page.broker(name))
        for code in page.consoles("needs brokers"):
            run_console(code, "", tmp_path)
        state = CliRunner().invoke(main, ["cluster", "health", "--profile", "admin"])
        assert state.output == "The cluster is healthy.\n"


def test_a_broker_that_one_option_secures_is_connected_to_as_the_page_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / "profiles.toml"
    monkeypatch.setenv("OTTLA_PROFILES", str(profiles))
    monkeypatch.delenv("OTTLA_PROFILE", raising=False)
    files = tmp_path / "data" / "secure"
    with started_secure(tmp_path / "data", profiles) as said:
        assert f"the password is in {files / 'admin.password'}\n" in said
        run_page(BROKER, "", tmp_path, "needs login")
    shown = re.findall(r"^```properties\n(.*?)^```$", BROKER.read_text(), re.MULTILINE | re.DOTALL)
    keys = [[line.partition("=")[0] for line in block.splitlines()] for block in shown]
    assert keys == [list(read_properties(files / f"{name}.properties")) for name in ("java", "librdkafka")]


# --- the ACLs of each kind of client


class Client:
    """A client of each kind in the table of recipes, which does what such a client does.

    All names end with a number of its own, so that one broker serves all kinds.
    """

    def __init__(self, settings: dict[str, Any], number: int) -> None:
        self.orders, self.bills, self.billing, self.shop = (f"{name}{number}" for name in NAMES)
        self._settings = settings
        self._servers = settings["bootstrap_servers"]
        security = {name: value for name, value in settings.items() if name != "bootstrap_servers"}
        self._config = ClientConfig(security=SecurityConfig(**security))

    async def prepares(self) -> None:
        """As the administrator, make what the clients find."""
        async with Admin(self._servers, self._config) as admin:
            await admin.topics.create(self.orders)
            await admin.topics.create(self.bills)
            await self.produces()
            await admin.groups.commit(self.billing, {TopicPartition(self.orders, 0): 0})

    async def deletes(self) -> None:
        """As the administrator, delete the topic of orders."""
        async with Admin(self._servers, self._config) as admin:
            await admin.topics.delete(self.orders)

    async def produces(self) -> None:
        for is_idempotent in (True, False):
            async with Producer(**self._settings, enable_idempotence=is_idempotent) as producer:
                await producer.send_and_wait(self.orders, b"x")

    async def produces_in_transactions(self) -> None:
        async with Producer(**self._settings, transactional_id=self.shop) as producer:
            async with producer.transaction():
                await producer.send(self.orders, b"x")

    async def consumes_in_a_group(self) -> None:
        reading = self._settings | {"group_id": self.billing, "auto_offset_reset": "earliest"}
        async with Consumer(self.orders, **reading) as consumer:
            await anext(consumer)
            await consumer.commit()

    async def reads_without_a_group(self) -> None:
        async with Consumer(self.orders, **self._settings, auto_offset_reset="earliest") as consumer:
            await anext(consumer)

    async def reads_and_writes_in_transactions(self) -> None:
        reading: dict[str, Any] = {
            "group_id": self.billing,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with (
            Consumer(self.orders, **self._settings, **reading) as consumer,
            Producer(**self._settings, transactional_id=self.billing) as producer,
        ):
            record = await anext(consumer)
            async with producer.transaction():
                await producer.send(self.bills, record.value)
                offsets = {TopicPartition(record.topic, record.partition): record.offset + 1}
                await producer.send_offsets_to_transaction(offsets, consumer.group_metadata())

    async def streams(self, **more: Any) -> None:
        app, billed = (
            App(self.billing, **self._settings, auto_offset_reset="earliest", **more),
            asyncio.Event(),
        )

        @app.handle(self.orders)
        async def bill(value: bytes, context: Context) -> None:
            await context.send(self.bills, value)
            billed.set()

        async with app:
            await billed.wait()

    async def streams_exactly_once(self) -> None:
        await self.streams(processing_guarantee="exactly-once")

    async def shows_lag(self) -> None:
        async with Admin(self._servers, self._config) as admin:
            for group in await admin.groups.list():
                progress = await admin.group_progress(group.name)
                assert all(partition.lag is not None for partition in progress.partitions)
            assert (await admin.groups.describe(self.billing)).name == self.billing

    async def resets_a_group(self) -> None:
        async with Admin(self._servers, self._config) as admin:
            await admin.groups.commit(self.billing, {TopicPartition(self.orders, 0): 0})

    async def manages_topics(self) -> None:
        async with Admin(self._servers, self._config) as admin:
            await admin.topics.create("pay-out")
            await admin.topics.add_partitions("pay-out", 2)
            await admin.configs.alter(TOPIC, "pay-out", {"retention.ms": "1000"})
            await admin.topics.delete("pay-out")

    async def manages_access(self) -> None:
        async with Admin(self._servers, self._config) as admin:
            await admin.users.set_password("guest", "a secret", "SCRAM-SHA-512")
            await admin.quotas.alter({"user": "guest"}, {"producer_byte_rate": 1024.0})
            assert await admin.quotas.describe({"user": "guest"})
            rule = Acl(
                ResourceType.TOPIC, "cups", PatternType.LITERAL, "User:guest", "*", Operation.READ,
                PermissionType.ALLOW,
            )  # fmt: skip
            await admin.acls.create([rule])
            assert await admin.acls.delete([AclFilter.of(rule)]) == [rule]

    async def elects_leaders(self) -> None:
        async with Admin(self._servers, self._config) as admin:
            assert await admin.partitions.reassignments() == []


NAMES = ("orders", "bills", "billing", "shop")
Doing = Callable[[Client], Awaitable[None]]
KINDS: dict[str, Doing] = {
    "producer, idempotent or not, of a topic that exists": Client.produces,
    "producer whose topic is created when it first writes": Client.produces,
    "transactional producer": Client.produces_in_transactions,
    "consumer in a group": Client.consumes_in_a_group,
    "reader without a group, Spark's reads": Client.reads_without_a_group,
    "program that reads and writes in transactions": Client.reads_and_writes_in_transactions,
    "Ottla streams, the app `billing`": Client.streams,
    "... with exactly-once": Client.streams_exactly_once,
    "tool that shows the lag of groups": Client.shows_lag,
    "tool that resets a group": Client.resets_a_group,
    "team that manages topics of its own": Client.manages_topics,
    "administrator of rules, users, quotas and tokens": Client.manages_access,
    "administrator of partitions: reassignment, leader elections": Client.elects_leaders,
}
ELSEWHERE = {
    "Kafka Streams, the application `billing`",
    "Kafka Connect, the worker `connect` with its topics `connect-…`",
    "... with sources exactly-once",
    "Spark's writes and pipelines with `delivery = \"exactly-once\"`", "broker",
}  # fmt: skip
"""Tests with Java, with Spark, and of whole clusters run these."""


def recipes() -> Iterator[tuple[str, list[str]]]:
    """Yield the kinds of clients of the page, each with its commands; "also" adds to the row above."""
    before: list[str] = []
    for kind, cell in re.findall(r"^\| (.+?) \| (.*`ottla acl add .*) \|$", ACLS.read_text(), re.MULTILINE):
        commands = re.findall(r"`(ottla acl add [^`]+)`", cell)
        before = [*before, *commands] if cell.startswith("also") else commands
        yield kind, before


def test_each_kind_of_client_has_a_recipe() -> None:
    assert {kind for kind, _ in recipes()} == KINDS.keys() | ELSEWHERE


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    users = {f"app{number}": "a secret" for number in range(len(KINDS))}
    with SecureBroker(tmp_path_factory.mktemp("recipes"), users=users) as running:
        yield running


@pytest.mark.parametrize(("number", "kind"), list(enumerate(KINDS)))
async def test_a_client_works_with_the_rules_of_its_recipe_and_not_without(
    broker: SecureBroker, tmp_path: Path, number: int, kind: str
) -> None:
    admin = Client(broker.client_settings(), number)
    client = Client(broker.client_settings(f"app{number}"), number)
    properties = tmp_path / "admin.properties"
    lines = (f"{name.replace('_', '.')}={value}" for name, value in broker.client_settings().items())
    properties.write_text("\n".join(lines))
    await admin.prepares()
    if "created" in kind:
        await admin.deletes()

    async with asyncio.timeout(120):
        with pytest.raises(Exception, match=r"not permitted to [A-Z_]+ [A-Z_]+ '"):
            await KINDS[kind](client)
        for command in dict(recipes())[kind]:
            mine = re.sub(r"\b(app|orders|bills|billing|shop)\b", rf"\g<1>{number}", command)
            arguments = [*shlex.split(mine)[1:], "--command-config", str(properties)]
            done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
            assert done.exit_code == 0, done.output
        await KINDS[kind](client)

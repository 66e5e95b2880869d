"""Pages of a secured broker: users, rules, quotas, settings, transactions, and no secret on any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from ottla.admin import Acl, Admin, ConfigEntry, Operation, PatternType, PermissionType, ResourceType
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.console.clusters.setting_rows import setting_rows
from ottla.console.pages.access import Question, question
from ottla.console.settings import ClusterSettings
from ottla.console.testing import serving
from ottla.console.web.formats import entity
from ottla.producer import Producer

SECRET = "correct horse battery"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.password": SECRET,
    }
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings) as started:
        yield started


@pytest.fixture
async def console(broker: BrokerProcess) -> AsyncIterator[httpx.AsyncClient]:
    address = f"127.0.0.1:{broker.port}"
    async with Admin(address) as admin:
        if not await admin.acls.describe():
            await admin.acls.create(
                [
                    Acl(
                        ResourceType.TOPIC,
                        "orders",
                        PatternType.PREFIXED,
                        "User:anna",
                        "*",
                        Operation.READ,
                        PermissionType.ALLOW,
                    )
                ]
            )
            await admin.users.set_password("anna", SECRET)
            await admin.quotas.alter({"user": "anna"}, {"producer_byte_rate": 1024.0})
    async with serving(ClusterSettings("local", address, ClientConfig)) as client:
        yield client


async def page(console: httpx.AsyncClient, path: str) -> str:
    answer = await console.get(path)
    assert answer.status_code == 200, answer.text
    assert SECRET not in answer.text
    return answer.text


async def test_access_shows_users_rules_and_quotas(console: httpx.AsyncClient) -> None:
    text = await page(console, "/c/local/access")

    assert "SCRAM-SHA-512" in text
    assert "User:anna" in text
    assert "producer_byte_rate = 1024.0" in text
    assert "No rule." in await page(console, "/c/local/access?q=nothing")


@pytest.mark.parametrize(
    ("query", "answer"),
    [("principal=anna&name=orders-1", "Yes."), ("principal=User:anna&name=payments", "No."),
     ("principal=bob&name=orders", "No."), ("principal=User:ANONYMOUS&operation=ALTER&kind=CLUSTER", "Yes.")],
)  # fmt: skip
async def test_the_question_whether_a_principal_may_is_answered(
    console: httpx.AsyncClient, query: str, answer: str
) -> None:
    assert f">{answer}</b>" in await page(console, f"/c/local/access?{query}")


def test_a_question_in_an_address_that_makes_no_sense_is_none() -> None:
    assert question({}) == Question()
    assert not question({"principal": "anna"}).is_asked
    assert question({"principal": "anna", "operation": "DROP", "kind": "TABLE"}) == Question("User:anna")


async def test_a_broker_without_an_authorizer_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("open")) as broker:
        async with serving(ClusterSettings("local", f"127.0.0.1:{broker.port}", ClientConfig)) as console:
            text = await page(console, "/c/local/access")

    assert "authorizer" in text.lower()


async def test_settings_show_those_that_were_set_and_hide_secrets(console: httpx.AsyncClient) -> None:
    text = await page(console, "/c/local/settings")

    assert "super.users" in text
    assert "num.io.threads" not in text
    assert "auto.create.topics.enable" in await page(console, "/c/local/settings?all=1")
    assert "hidden" in await page(console, "/c/local/settings?q=ssl.keystore.password")


async def test_an_open_transaction_says_which_partitions_wait_for_it(
    console: httpx.AsyncClient, broker: BrokerProcess
) -> None:
    async with Producer(bootstrap_servers=f"127.0.0.1:{broker.port}", transactional_id="slow<1>") as producer:
        async with producer.transaction():
            await producer.send_and_wait("events", b"to come")
            text = await page(console, "/c/local/transactions")

    assert "slow&lt;1&gt;" in text
    assert "events-0" in text
    assert "Ongoing" in text


def entry(name: str, value: str, source: str = "default", *, sensitive: bool = False) -> ConfigEntry:
    return ConfigEntry(name, value, source, read_only=False, sensitive=sensitive)


def test_keys_that_differ_between_brokers_stand_first() -> None:
    rows = setting_rows(
        {
            1: [
                entry("a", "1"),
                entry("b", "1", "static"),
                entry("broker.id", "1", "static"),
                entry("z", "1", "static"),
            ],
            2: [
                entry("a", "1"),
                entry("b", "2", "static"),
                entry("broker.id", "2", "static"),
                entry("z", "1", "static"),
            ],
        }
    )

    assert [row.name for row in rows] == ["b", "broker.id", "z", "a"]
    assert [row.differs for row in rows] == [True, False, False, False]
    assert (
        setting_rows({1: [entry("p", "x", sensitive=True)], 2: [entry("p", "y", sensitive=True)]})[0].differs
        is False
    )


def test_the_entity_of_a_quota_is_said_in_words() -> None:
    assert entity({"client-id": None, "user": "anna"}) == "user anna, client-id <default>"

"""Access to brokers, managed by our admin client and commands, and how our clients meet its limits."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ottla.admin import USER as USERS
from ottla.admin import Acl, AclFilter, Admin, Operation, PatternType, PermissionType, ResourceType
from ottla.client.cli import main
from ottla.client.config import ClientConfig
from ottla.client.errors import AuthenticationFailed, ClientError
from ottla.client.security import SecurityConfig
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from peers.certificates import missing_openssl
from peers.maven import missing_tools
from peers.secured_kafka import PASSWORD, STRANGER, USER, SecuredKafka, secured_kafka
from sdk.conftest import chosen_kinds

PRINCIPAL = f"User:{STRANGER}"
LOGIN: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": STRANGER,
    "sasl_password": PASSWORD,
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kafka" in metafunc.fixturenames:
        metafunc.parametrize("kafka", chosen_kinds(metafunc.config), indirect=True, scope="module")


@pytest.fixture(scope="module")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    if missing := (request.param != "ottla" and missing_tools()) or missing_openssl():
        pytest.skip(missing)
    with secured_kafka(tmp_path_factory.mktemp("access"), request.param) as running:
        yield running


@pytest.fixture
async def admin(kafka: SecuredKafka) -> AsyncIterator[Admin]:
    async with Admin(kafka.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def fresh() -> Callable[[str], str]:
    return lambda stem: f"{stem}-{secrets.token_hex(4)}"


def allow(operation: Operation, kind: ResourceType, name: str) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, PRINCIPAL, "*", operation, PermissionType.ALLOW)


async def ottla(kafka: SecuredKafka, *arguments: str, text: str | None = None) -> Result:
    call = [*arguments, "-b", kafka.bootstrap_servers]
    return await asyncio.to_thread(CliRunner().invoke, main, call, input=text)


async def eventually(call: Callable[[], Any]) -> Any:
    """Await a call again until it raises no authorization error: rules reach brokers after their answer."""
    ends_s = time.monotonic() + 30
    while True:
        try:
            return await call()
        except KafkaError:
            if time.monotonic() > ends_s:
                raise
            await asyncio.sleep(0.1)


async def test_clients_name_the_permission_that_they_lack(
    kafka: SecuredKafka, admin: Admin, fresh: Callable[[str], str]
) -> None:
    topic, group = fresh("orders"), fresh("billing")
    await admin.topics.create(topic)
    describe = allow(Operation.DESCRIBE, ResourceType.TOPIC, topic)

    async def produce(**more: Any) -> None:
        async with Producer(kafka.at("LOGIN"), **LOGIN, **more) as producer:
            await producer.send_and_wait(topic, b"x")

    async def consume() -> None:
        async with Consumer(
            topic, bootstrap_servers=kafka.at("LOGIN"), group_id=group, auto_offset_reset="earliest", **LOGIN
        ) as consumer:
            async with asyncio.timeout(30):
                await anext(consumer)

    with pytest.raises(TopicAuthorizationFailed, match=f"not permitted to DESCRIBE TOPIC '{topic}'"):
        await produce()
    await admin.acls.create([describe])
    with pytest.raises(ClusterAuthorizationFailed, match="not permitted to IDEMPOTENT_WRITE CLUSTER"):
        await _past("DESCRIBE TOPIC", produce)
    with pytest.raises(TopicAuthorizationFailed, match=f"not permitted to WRITE TOPIC '{topic}'"):
        await _past("DESCRIBE TOPIC", partial(produce, enable_idempotence=False))
    with pytest.raises(TransactionalIdAuthorizationFailed, match=f"TRANSACTIONAL_ID 'id-{topic}'"):
        await produce(transactional_id=f"id-{topic}")
    with pytest.raises(GroupAuthorizationFailed, match=f"not permitted to (DESCRIBE|READ) GROUP '{group}'"):
        await consume()
    await admin.acls.create([allow(Operation.READ, ResourceType.GROUP, group)])
    await admin.acls.create([allow(Operation.WRITE, ResourceType.TOPIC, topic)])
    await eventually(produce)
    with pytest.raises(TopicAuthorizationFailed, match=f"not permitted to READ TOPIC '{topic}'"):
        await _past("GROUP", consume)
    await admin.acls.create([allow(Operation.READ, ResourceType.TOPIC, topic)])
    await eventually(consume)


async def _past(permission: str, call: Callable[[], Any]) -> None:
    """Await a call until it no longer fails for a permission that was given: brokers learn of it soon."""
    ends_s = time.monotonic() + 30
    while True:
        try:
            return await call()  # type: ignore[no-any-return]
        except KafkaError as error:
            if permission not in str(error) or time.monotonic() > ends_s:
                raise
            await asyncio.sleep(0.1)


async def _once_known(log_in: Callable[[], Any]) -> None:
    """Await a login until brokers have learned of its user."""
    ends_s = time.monotonic() + 30
    while True:
        try:
            return await log_in()  # type: ignore[no-any-return]
        except AuthenticationFailed:
            if time.monotonic() > ends_s:
                raise
            await asyncio.sleep(0.1)


async def _until_refused(log_in: Callable[[], Any]) -> None:
    ends_s = time.monotonic() + 30
    with pytest.raises(AuthenticationFailed, match="refused the login"):
        while time.monotonic() < ends_s:
            await log_in()
            await asyncio.sleep(0.1)


async def test_rules_are_added_listed_checked_and_removed_by_the_command(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    topic = fresh("orders")
    check = ("acl", "check", "--principal", PRINCIPAL, "-o", "DESCRIBE", "--topic", topic)

    added = await ottla(kafka, "acl", "add", "--principal", PRINCIPAL, "--producer", "--topic", topic)
    denied = await ottla(
        kafka, "acl", "add", "--principal", "User:*", "-o", "ALL", "--topic", topic[:8], "--prefixed",
        "--host", "10.1.2.3", "--deny",
    )  # fmt: skip
    listed = await ottla(kafka, "acl", "list", "--topic", topic, "--affecting", "--json")
    allowed, refused = await ottla(kafka, *check), await ottla(kafka, *check, "--host", "10.1.2.3")
    removed = await ottla(kafka, "acl", "remove", "--topic", topic, "--affecting", "--yes")
    afterwards = await ottla(kafka, "acl", "list", "--topic", topic)

    assert (added.exit_code, denied.exit_code, removed.exit_code) == (0, 0, 0), added.output + removed.output
    assert {(rule["operation"], rule["permission"]) for rule in json.loads(listed.output)} == {
        ("WRITE", "ALLOW"), ("CREATE", "ALLOW"), ("ALL", "DENY"),
    }  # fmt: skip
    assert (allowed.exit_code, refused.exit_code) == (0, 1)
    assert f"allow {PRINCIPAL} from * to WRITE TOPIC {topic}" in allowed.output
    assert f"deny User:* from 10.1.2.3 to ALL TOPIC prefix {topic[:8]}" in refused.output
    assert len(removed.output.splitlines()) == 4
    assert afterwards.output == "There is no such rule.\n"


async def test_an_invalid_rule_is_refused_by_name(admin: Admin) -> None:
    with pytest.raises(KafkaError, match=r"to READ CLUSTER another: .*kafka-cluster"):
        await admin.acls.create([allow(Operation.READ, ResourceType.CLUSTER, "another")])
    assert await admin.acls.delete([AclFilter(principal="User:nobody-has-this")]) == []


async def test_a_user_logs_in_with_the_password_it_was_given_until_it_is_removed(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    user = fresh("user")

    async def log_in(mechanism: str) -> None:
        config = ClientConfig(
            security=SecurityConfig(
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism=mechanism,
                sasl_username=user,
                sasl_password="pässword=,",
            )
        )
        async with Admin(kafka.at("LOGIN"), config):
            pass

    added = await ottla(
        kafka, "user", "add", user, "--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-512",
        text="pässword=,\npässword=,\n",
    )  # fmt: skip
    listed = await ottla(kafka, "user", "list", user, "--json")
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        await _once_known(partial(log_in, mechanism))
    removed = await ottla(kafka, "user", "remove", user)

    assert (added.exit_code, removed.exit_code) == (0, 0), added.output + removed.output
    assert [found["iterations"] for found in json.loads(listed.output)] == [4_096, 4_096]
    await _until_refused(partial(log_in, "SCRAM-SHA-512"))
    assert (await ottla(kafka, "user", "list", user)).exit_code == 1


async def test_quotas_are_set_listed_and_removed_by_the_command(
    kafka: SecuredKafka, admin: Admin, fresh: Callable[[str], str]
) -> None:
    user = fresh("user")

    done = await ottla(kafka, "quota", "set", "--user", user, "--producer-byte-rate", "1024")
    assert done.exit_code == 0, done.output
    async with asyncio.timeout(30):
        while not (found := await admin.quotas.describe({USERS: user})):  # noqa: ASYNC110 - no event comes
            await asyncio.sleep(0.1)
    removed = await ottla(kafka, "quota", "remove", "--user", user)

    assert found[0].limits == {"producer_byte_rate": 1024.0}
    assert removed.output == f"Removed producer_byte_rate of user {user}.\n"


async def test_a_delegation_token_is_a_login_until_it_ends(
    kafka: SecuredKafka, tmp_path: Path, fresh: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", PASSWORD)
    properties = tmp_path / "profiles.toml"
    monkeypatch.setenv("OTTLA_PROFILES", str(properties))
    properties.write_text(
        f'[anna]\nbootstrap_servers = "{kafka.at("LOGIN")}"\nsecurity_protocol = "SASL_PLAINTEXT"\n'
        f'sasl_mechanism = "SCRAM-SHA-256"\nsasl_username = "{USER}"\nsasl_password = {{ env = "SECRET" }}\n'
    )

    async def token(*arguments: str) -> Result:
        verb, *given = arguments
        call = ["token", verb, "--profile", "anna", *given]
        return await asyncio.to_thread(CliRunner().invoke, main, call)

    made = await token("create", "--renewer", PRINCIPAL, "--max-lifetime-ms", "600000", "--json")
    assert made.exit_code == 0, made.output
    facts = json.loads(made.output)
    login: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": facts["token_id"], "sasl_password": facts["password"], "sasl_token_auth": True,
    }  # fmt: skip

    async def log_in() -> None:
        async with Admin(kafka.at("LOGIN"), ClientConfig(security=SecurityConfig(**login))):
            pass

    await _once_known(log_in)
    async with Producer(kafka.at("LOGIN"), **login) as producer:
        await producer.send_and_wait(fresh("token"), b"x")
    async with Admin(kafka.at("LOGIN"), ClientConfig(security=SecurityConfig(**login))) as by_token:
        with pytest.raises(KafkaError, match="delegation tokens cannot be asked for"):
            await by_token.tokens.create()
    listed, renewed = await token("list", "--json"), await token("renew", "--", facts["token_id"])
    expired = await token("expire", "--", facts["token_id"])  # an id of Apache Kafka may begin with a dash

    assert facts["token_id"] in [found["token_id"] for found in json.loads(listed.output)]
    assert facts["password"] not in listed.output
    assert (renewed.exit_code, expired.exit_code) == (0, 0), renewed.output + expired.output
    await _until_refused(log_in)


def test_threads_log_in_and_a_refused_login_ends_them_at_once(
    kafka: SecuredKafka, fresh: Callable[[str], str]
) -> None:
    from ottla.producer import SyncProducer

    login = LOGIN | {"sasl_username": USER}
    with SyncProducer(kafka.at("LOGIN"), **login) as producer:
        producer.send(fresh("threads"), b"x").result(30)
    began_s = time.monotonic()
    with pytest.raises(ClientError, match="refused the login"):
        with SyncProducer(kafka.at("LOGIN"), **(login | {"sasl_password": "wrong"})):
            pass
    assert time.monotonic() - began_s < 60

"""Users and delegation tokens of Ottla and Apache Kafka 3.9 on one ZooKeeper: each logs in the other's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from confluent_kafka.admin import AdminClient

from ottla.admin import Acl, Admin, Operation, PatternType, PermissionType, ResourceType
from ottla.admin.tokens import DelegationToken
from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.testing import BrokerProcess
from ottla.client.config import ClientConfig
from ottla.client.errors import AuthenticationFailed
from ottla.client.security import SecurityConfig
from ottla.producer import Producer
from ottla.protocol.errors import DelegationTokenNotFound, ResourceNotFound, TopicAuthorizationFailed
from peers.apache_kafka import ApacheKafka, Listener, ZooKeeper, listener_settings, run_tool
from peers.processes import free_port

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

BOUND_S: Final = 30.0
KINDS: Final = ("apache", "ottla")
MECHANISMS: Final[tuple[Literal["SCRAM-SHA-256", "SCRAM-SHA-512"], ...]] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ADMIN: Final = {"sasl_mechanism": "PLAIN", "sasl_username": "admin", "sasl_password": "of admin"}
TOKEN_KEY: Final = {"apache": "delegation.token.secret.key", "ottla": "delegation.token.master.key"}
"""Both names are Kafka's."""
SETTINGS: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
    "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.login.plain.sasl.jaas.config": f'{LOGIN_MODULES["PLAIN"]} required user_admin="of admin";',
    **{
        f"listener.name.login.{name.lower()}.sasl.jaas.config": f"{LOGIN_MODULES[name]} required;"
        for name in MECHANISMS
    },
}


@dataclass(frozen=True)
class Pair:
    """A broker of each kind in one cluster: their addresses without a login, and with one."""

    controller: str
    zookeeper: str
    plain: dict[str, str]
    login: dict[str, str]

    def other(self, kind: str) -> str:
        return KINDS[1 - KINDS.index(kind)]

    def settings(self, kind: str, login: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a client that logs in at a broker."""
        return {"bootstrap_servers": self.login[kind], "security_protocol": "SASL_PLAINTEXT", **login}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both brokers; the one that starts first is the controller, which alone writes users."""
    folder, first = tmp_path_factory.mktemp("pair"), str(request.param)
    ports = {kind: free_port() for kind in KINDS}
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper(folder / "zookeeper"))
        plain = {}
        for kind in sorted(KINDS, key=lambda kind: kind != first):
            made = broker(kind, folder / kind, zookeeper, ports[kind])
            stack.enter_context(made)
            plain[kind] = made.bootstrap_servers
        seen = AdminClient({"bootstrap.servers": plain[first]}).list_topics(timeout=BOUND_S)
        assert seen.controller_id == {"apache": 1, "ottla": 2}[first]
        yield Pair(
            first, zookeeper.connect_string, plain, {kind: f"127.0.0.1:{ports[kind]}" for kind in KINDS}
        )


def broker(kind: str, folder: Path, zookeeper: ZooKeeper, port: int) -> ApacheKafka | BrokerProcess:
    settings = {**SETTINGS, TOKEN_KEY[kind]: "a key of both"}
    login = {"LOGIN": Listener("SASL_PLAINTEXT", port)}
    if kind == "apache":
        settings["inter.broker.protocol.version"] = "2.8"
        return ApacheKafka(folder, settings, zookeeper=zookeeper, heap="384m", listeners=login)
    plain = Listener("PLAINTEXT", free_port())
    own = {"broker.id": "2", "zookeeper.connect": zookeeper.connect_string}
    made = BrokerProcess(folder, {**settings, **own, **listener_settings({"PLAINTEXT": plain, **login})})
    made.port = plain.port
    return made


def admin_of(pair: Pair, kind: str, login: dict[str, Any]) -> Admin:
    security = SecurityConfig(security_protocol="SASL_PLAINTEXT", **login)
    return Admin(pair.login[kind], ClientConfig(security=security))


def scram(mechanism: str, user: str, password: str, **more: bool) -> dict[str, Any]:
    return {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password": password, **more}


def by_token(token: DelegationToken, mechanism: str) -> dict[str, Any]:
    return scram(mechanism, token.token_id, token.password, sasl_token_auth=True)


async def logs_in(pair: Pair, kind: str, login: dict[str, Any]) -> bool:
    try:
        async with Producer(**pair.settings(kind, login)):
            return True
    except AuthenticationFailed:
        return False


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until it is so: brokers read changes soon after they are made."""
    deadline = time.monotonic() + BOUND_S
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def until_known(pair: Pair, login: dict[str, Any], *, known: bool = True) -> None:
    for kind in KINDS:

        async def is_so(kind: str = kind) -> bool:
            return await logs_in(pair, kind, login) is known

        await eventually(is_so, f"{kind}: {login}")


async def test_users_that_either_made_log_in_at_both(pair: Pair) -> None:
    user = f"of-{pair.controller}"
    for mechanism in MECHANISMS:
        async with Admin(pair.plain[pair.controller]) as admin:
            await admin.users.set_password(user, "first", mechanism, iterations=8_192)
        await until_known(pair, scram(mechanism, user, "first"))
        assert not await logs_in(pair, "ottla", scram(mechanism, user, "second"))

    described = []
    for kind in KINDS:
        async with Admin(pair.plain[kind]) as admin:
            described.append(await admin.users.describe([user]))
    assert described[0] == described[1]
    assert [(one.mechanism, one.iterations) for one in described[0]] == [(name, 8_192) for name in MECHANISMS]

    async with Admin(pair.plain[pair.controller]) as admin:
        await admin.users.set_password(user, "second", "SCRAM-SHA-256")
        await admin.users.delete(user, ["SCRAM-SHA-512"])
    await until_known(pair, scram("SCRAM-SHA-256", user, "second"))
    await until_known(pair, scram("SCRAM-SHA-256", user, "first"), known=False)
    await until_known(pair, scram("SCRAM-SHA-512", user, "first"), known=False)

    async with Admin(pair.plain[pair.controller]) as admin:
        await admin.users.delete(user, ["SCRAM-SHA-256"])
        with pytest.raises(ResourceNotFound):
            await admin.users.describe([user])
    await until_known(pair, scram("SCRAM-SHA-256", user, "second"), known=False)


async def test_a_user_that_kafkas_tool_wrote_to_zookeeper_logs_in_at_both(pair: Pair) -> None:
    """Kafka's tool adds users without a broker, for brokers that log in by SCRAM themselves."""
    await asyncio.to_thread(
        run_tool, "kafka.admin.ConfigCommand", "--zookeeper", pair.zookeeper, "--alter", "--entity-type",
        "users", "--entity-name", "first", "--add-config", "SCRAM-SHA-512=[password=of the first]",
    )  # fmt: skip

    await until_known(pair, scram("SCRAM-SHA-512", "first", "of the first"))


@pytest.mark.parametrize("maker", KINDS)
async def test_tokens_that_either_made_log_in_at_both(pair: Pair, maker: str) -> None:
    other = pair.other(maker)
    owner = f"owner-{maker}"
    async with Admin(pair.plain[pair.controller]) as admin:
        await admin.users.set_password(owner, "of the owner", "SCRAM-SHA-512")
    await until_known(pair, scram("SCRAM-SHA-512", owner, "of the owner"))
    login = scram("SCRAM-SHA-512", owner, "of the owner")

    async with admin_of(pair, maker, login) as admin:
        token = await admin.tokens.create(renewers=["User:helper"])
    for mechanism in MECHANISMS:
        await until_known(pair, by_token(token, mechanism))
        assert not await logs_in(pair, other, by_token(token, mechanism) | {"sasl_token_auth": False})

    async def shown(kind: str) -> DelegationToken:
        async with admin_of(pair, kind, login) as admin:
            (found,) = await admin.tokens.describe([f"User:{owner}"])
        return found

    assert await shown(maker) == await shown(other) == token
    async with admin_of(pair, other, login) as admin:
        ends_ms = await admin.tokens.renew(token.hmac, period_ms=3_600_000)

    async def is_renewed() -> bool:
        return (await shown(maker)).expires_at_ms == ends_ms

    await eventually(is_renewed, f"not renewed at {maker}")
    async with admin_of(pair, other, login) as admin:
        await admin.tokens.expire(token.hmac)
    await until_known(pair, by_token(token, "SCRAM-SHA-256"), known=False)
    async with admin_of(pair, maker, login) as admin:
        with pytest.raises(DelegationTokenNotFound):
            await admin.tokens.renew(token.hmac)


@pytest.mark.parametrize("maker", KINDS)
async def test_a_token_has_the_rights_of_its_owner_at_both(pair: Pair, maker: str) -> None:
    owner, topic = f"writer-{maker}", f"ledger-{maker}"
    principal = f"User:{owner}"
    async with Admin(pair.plain[maker]) as admin:
        await admin.topics.create(topic, assignments={0: [1], 1: [2]})
    async with admin_of(pair, maker, ADMIN) as admin:
        token = await admin.tokens.create(owner=principal)
    login = by_token(token, "SCRAM-SHA-512")
    await until_known(pair, login)
    assert (token.owner, token.requester) == (principal, "User:admin")

    async def writes() -> bool:
        async with Producer(**pair.settings(maker, login), enable_idempotence=False) as producer:
            try:
                for partition in (0, 1):
                    await producer.send_and_wait(topic, b"x", partition=partition)
            except TopicAuthorizationFailed:
                return False
        return True

    assert not await writes()
    async with Admin(pair.plain[pair.other(maker)]) as admin:
        rule = (PatternType.LITERAL, principal, "*", Operation.WRITE, PermissionType.ALLOW)
        await admin.acls.create([Acl(ResourceType.TOPIC, topic, *rule)])
    await eventually(writes, "the rule does not hold")

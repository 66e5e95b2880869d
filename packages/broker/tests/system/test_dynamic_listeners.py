"""Listeners of a running broker: added, moved, removed and refused, with their certificates and logins."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.admin import Admin
from ottla.admin.configs import BROKER
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.config import broker_config_from
from ottla.broker.security.sasl.testing import Wire, logs_in
from ottla.broker.security.tls.testing import Authority
from ottla.broker.server.broker import Broker
from ottla.broker.server.broker_listeners import BrokerListeners
from ottla.broker.server.listener_logins import BrokerLogins
from ottla.broker.testing import free_port
from ottla.client.config import Address
from ottla.client.connection import Connection
from ottla.protocol.errors import InvalidConfig
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.znodes import BrokerRegistration

BOUND_S = 60.0
PROTOCOLS = "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,MORE:PLAINTEXT,LOGIN:SASL_PLAINTEXT"
OF_BROKERS = {"inter.broker.listener.name": "PLAINTEXT"}
JAAS = "listener.name.login.plain.sasl.jaas.config"


@pytest.fixture
async def coordinator() -> AsyncIterator[EmbeddedCoordinator]:
    async with EmbeddedCoordinator() as coordinator:
        yield coordinator


@asynccontextmanager
async def broker_on(
    coordinator: EmbeddedCoordinator, directory: Path, port: int, **more: str
) -> AsyncIterator[Broker]:
    settings = {
        "broker.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(directory / "data"),
        "zookeeper.connect": coordinator.connect_string,
        "listener.security.protocol.map": PROTOCOLS,
        "password.encoder.secret": "for znodes",
        **more,
    }
    async with asyncio.timeout(BOUND_S), Broker(broker_config_from(settings)) as broker:
        yield broker


async def alter(broker: Broker, **values: str | None) -> None:
    async with Admin(broker.address) as admin:
        await admin.configs.alter(BROKER, "1", {key.replace("_", "."): text for key, text in values.items()})


def at(*ports: int) -> str:
    """Return listeners: the broker's own, and MORE on the second port."""
    named = zip(("PLAINTEXT", "MORE"), ports, strict=False)
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in named)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), BOUND_S).close()
    except ConnectionRefusedError:
        return False
    return True


async def registered(broker: Broker) -> dict[str, tuple[int, str]]:
    data, _ = await broker.services.zookeeper.get("/brokers/ids/1")
    node = BrokerRegistration.decode(1, data)
    protocols = node.listener_security_protocol_map
    return {each.listener_name: (each.port, protocols[each.listener_name]) for each in node.endpoints}


async def test_a_listener_is_added_registered_and_there_after_a_restart(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, more = free_port(), free_port()
    async with broker_on(coordinator, tmp_path, port) as broker:
        epoch = broker.services.replicas.broker_epoch
        await alter(broker, listeners=at(port, more))

        await until(lambda: is_open(more))
        await until(lambda: "MORE" in known_listeners(broker))
        assert await registered(broker) == {"PLAINTEXT": (port, "PLAINTEXT"), "MORE": (more, "PLAINTEXT")}
        assert broker.services.replicas.broker_epoch == epoch
        async with Connection(Address("127.0.0.1", more)) as client:
            answer = await client.send(MetadataRequest(topics=None), MetadataResponse)
        assert [found.port for found in answer.brokers] == [more]

    async with broker_on(coordinator, tmp_path, port) as again:
        assert again.listeners.port_of("MORE") == more
        assert set(await registered(again)) == {"PLAINTEXT", "MORE"}


def known_listeners(broker: Broker) -> set[str]:
    found = broker.services.metadata.broker(1)
    return set(found.endpoints) if found else set()


async def test_a_listener_whose_logins_cannot_begin_stays_closed(
    coordinator: EmbeddedCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def no_logins() -> BrokerLogins:
        raise StartupRefused("no users can be read")

    port, more = free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{more}",
        "listener.security.protocol.map": PROTOCOLS,
        "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    async with broker_on(coordinator, tmp_path, port) as broker:
        listeners = BrokerListeners(broker._server, broker.tls, no_logins)
        await listeners.change(broker_config_from(settings))

        assert not is_open(more)
    assert "listener not opened" in caplog.text


async def test_a_removed_listener_takes_its_connections_with_it(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, more = free_port(), free_port()
    async with broker_on(coordinator, tmp_path, port) as broker:
        await alter(broker, listeners=at(port, more))
        await until(lambda: is_open(more) and "MORE" in known_listeners(broker))
        stays, goes = [await asyncio.open_connection("127.0.0.1", there) for there in (port, more)]

        await alter(broker, listeners=None)

        assert await goes[0].read() == b""
        await until(lambda: not is_open(more))
        await until(lambda: known_listeners(broker) == {"PLAINTEXT"})
        assert set(await registered(broker)) == {"PLAINTEXT"}
        assert not stays[0].at_eof()
        for _, writer in (stays, goes):
            writer.close()


async def test_one_listener_may_take_the_port_of_another_in_one_change(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, more = free_port(), free_port()
    async with broker_on(coordinator, tmp_path, port) as broker:
        await alter(broker, listeners=at(port, more))
        await until(lambda: is_open(more) and "MORE" in known_listeners(broker))

        await alter(broker, listeners=f"PLAINTEXT://127.0.0.1:{port},OTHER://127.0.0.1:{more}",
                    listener_security_protocol_map=f"{PROTOCOLS},OTHER:PLAINTEXT")  # fmt: skip

        await until(lambda: known_listeners(broker) == {"PLAINTEXT", "OTHER"})
        assert is_open(more)


async def test_the_listener_of_brokers_may_move_and_its_connections_stay(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, other = free_port(), free_port()
    async with broker_on(coordinator, tmp_path, port) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        await alter(broker, listeners=at(other))

        await until(lambda: is_open(other) and not is_open(port))
        assert broker.port == other
        assert not reader.at_eof()
        writer.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"listeners": "MORE://127.0.0.1:0"}, r"inter\.broker\.listener\.name must be one of MORE"),
        ({"listeners": "MORE://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"}, "PLAINTEXT"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0,NOBODY://127.0.0.1:0"}, "which protocol the listener NOBODY"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:SSL"},
            "Security protocol cannot be updated for existing listener PLAINTEXT",
        ),
        ({"listeners": "PLAINTEXT://127.0.0.1:0,MORE://203.0.113.7:9099"}, "cannot be used"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"}, r"ssl\.keystore\.location"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0"}, r"gssapi\.sasl\.jaas\.config"),
        ({"listeners": "PLAINTEXT"}, "must look like"),
        ({"listeners": ""}, "must name at least one listener"),
        ({"connections.max.reauth.ms": "5"}, "Cannot update these configs dynamically"),
        ({"ssl.keystore.password": "x"}, "only per-listener using the listener prefix"),
    ],
)
async def test_a_change_that_kafka_refuses_is_refused(
    coordinator: EmbeddedCoordinator, tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    async with broker_on(coordinator, tmp_path, free_port(), **OF_BROKERS) as broker:
        before = await registered(broker)
        with pytest.raises(InvalidConfig, match=reason):
            await alter(broker, **change)
        assert await registered(broker) == before


async def test_the_listener_of_the_controller_stays(coordinator: EmbeddedCoordinator, tmp_path: Path) -> None:
    port = free_port()
    control = {"listeners": at(port, 0), "control.plane.listener.name": "MORE", **OF_BROKERS}
    async with broker_on(coordinator, tmp_path, port, **control) as broker:
        with pytest.raises(InvalidConfig, match=r"control\.plane\.listener\.name must be one of PLAINTEXT"):
            await alter(broker, listeners=at(port))

        assert set(await registered(broker)) == {"PLAINTEXT", "MORE"}


async def test_a_port_that_is_taken_is_refused(coordinator: EmbeddedCoordinator, tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as other:
        async with broker_on(coordinator, tmp_path, port) as broker:
            with pytest.raises(InvalidConfig, match=r"has an address that cannot be used: .* in use"):
                await alter(broker, listeners=at(port, other.getsockname()[1]))


def line_of(**passwords: str) -> str:
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"


def logs_in_by_plain(port: int, user: str, password: str) -> bool:
    with Wire(port) as wire:
        return wire.log_in(f"\0{user}\0{password}".encode()).error_code == 0


async def test_a_listener_with_logins_is_added_and_changed_users_hold_for_later_logins(
    coordinator: EmbeddedCoordinator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    port, login = free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login}"
    async with broker_on(coordinator, tmp_path, port) as broker:
        first = {JAAS: line_of(anna="correct horse"), "listener.name.login.sasl.enabled.mechanisms": "PLAIN"}
        await alter(broker, listeners=listeners, **first)
        await until(lambda: is_open(login))
        assert await asyncio.to_thread(logs_in_by_plain, login, "anna", "correct horse")

        with Wire(login) as open_before:
            await asyncio.to_thread(open_before.log_in, b"\0anna\0correct horse")
            await alter(broker, **{JAAS: line_of(anna="another horse")})

            async def holds() -> bool:
                return await asyncio.to_thread(logs_in_by_plain, login, "anna", "another horse")

            while not await holds():
                pass
            assert not await asyncio.to_thread(logs_in_by_plain, login, "anna", "correct horse")
            assert await asyncio.to_thread(open_before.serves)

        await alter(broker, **{"listener.name.login.plain.connections.max.reauth.ms": "60000"})
        await until_equal(lambda: lifetime_of(login), 60_000)
    for secret in ("correct horse", "another horse", "for znodes"):
        assert secret not in "\n".join(str(vars(record)) for record in caplog.records)

    async with broker_on(coordinator, tmp_path, port):
        assert await asyncio.to_thread(logs_in_by_plain, login, "anna", "another horse")


def lifetime_of(port: int) -> int:
    with Wire(port) as wire:
        return wire.log_in(b"\0anna\0another horse").session_lifetime_ms


async def until_equal(ask: Callable[[], int], expected: int) -> None:
    while await asyncio.to_thread(ask) != expected:
        pass


async def test_users_in_zookeeper_log_in_at_a_listener_that_was_added(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, login = free_port(), free_port()
    async with broker_on(coordinator, tmp_path, port) as broker:
        with Wire(port) as wire:
            await asyncio.to_thread(wire.set_password, "anna", "correct horse")
        await alter(
            broker,
            listeners=f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login}",
            **{"listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512"},
        )
        await until(lambda: is_open(login))

        assert await asyncio.to_thread(logs_in, login, "anna", "correct horse")
        assert not await asyncio.to_thread(logs_in, login, "anna", "another horse")
        with Wire(port) as wire:
            await asyncio.to_thread(wire.set_password, "berta", "later")
        assert await asyncio.to_thread(logs_in, login, "berta", "later")


async def test_settings_of_a_listener_do_not_change_together_with_the_listeners(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, login, more = free_port(), free_port(), free_port()
    both = f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login}"
    async with broker_on(coordinator, tmp_path, port) as broker:
        first = {JAAS: line_of(anna="a"), "listener.name.login.sasl.enabled.mechanisms": "PLAIN"}
        await alter(broker, listeners=both, **first)

        with pytest.raises(InvalidConfig, match="be updated dynamically for existing listener LOGIN"):
            await alter(broker, listeners=f"{both},MORE://127.0.0.1:{more}", **{JAAS: line_of(anna="b")})
        await alter(
            broker,
            listeners=f"{both},MORE://127.0.0.1:{more}",
            **{"listener.name.login.max.connections": "5"},
        )
        await until(lambda: is_open(more))


async def test_a_listener_with_tls_is_added_with_its_certificate(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, secure = free_port(), free_port()
    authority = Authority()
    keys = authority.sign("broker")
    async with broker_on(coordinator, tmp_path, port) as broker:
        await alter(
            broker,
            listeners=f"PLAINTEXT://127.0.0.1:{port},SSL://127.0.0.1:{secure}",
            **{
                "listener.name.ssl.ssl.keystore.type": "PEM",
                "listener.name.ssl.ssl.keystore.certificate.chain": keys.chain_pem,
                "listener.name.ssl.ssl.keystore.key": keys.key_pem(),
            },
        )
        await until(lambda: is_open(secure))
        context = ssl.create_default_context(cadata=authority.pem)
        _, writer = await asyncio.open_connection("127.0.0.1", secure, ssl=context)
        assert writer.get_extra_info("ssl_object").getpeercert(binary_form=True) == keys.der
        writer.close()

        silent = await asyncio.open_connection("127.0.0.1", secure)
        await alter(broker, listeners=None)
        assert await silent[0].read() == b""  # a handshake that was not finished
        silent[1].close()
        await until(lambda: not is_open(secure))


async def test_a_listener_has_its_limits_when_it_is_added(
    coordinator: EmbeddedCoordinator, tmp_path: Path
) -> None:
    port, more = free_port(), free_port()
    async with broker_on(coordinator, tmp_path, port, **OF_BROKERS) as broker:
        await alter(broker, listeners=at(port, more), **{"listener.name.more.max.connections": "2"})
        await until(lambda: is_open(more))
        await until(lambda: len(broker._server.connections) == 0)

        # One from this machine is admitted beyond the limit.
        held = [await asyncio.open_connection("127.0.0.1", more) for _ in range(4)]

        assert await held[-1][0].read() == b""
        for _, writer in held:
            writer.close()

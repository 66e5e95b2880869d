"""Inter-broker requests are admitted by listener and by address."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass

import pytest

from ottla.broker.cluster.inter_broker_access import (
    FRESH_MS,
    Addresses,
    InterBrokerAccess,
    OtherBrokers,
    UnknownBrokers,
)
from ottla.broker.cluster.registration import make_roots
from ottla.broker.config import BrokerConfig, broker_config_from
from ottla.broker.security.authorizer import CLUSTER, AllowAll, Operation, Resource, plain_address
from ottla.broker.security.principal import ANONYMOUS, Principal
from ottla.client.config_definition import ConfigError
from ottla.protocol.errors import ClusterAuthorizationFailed, InvalidConfig
from ottla.zookeeper import paths
from ottla.zookeeper.errors import ConnectionLoss
from ottla.zookeeper.testing import MemoryEnsemble
from ottla.zookeeper.znodes import BrokerRegistration, Endpoint

TWO_LISTENERS = {
    "zookeeper.connect": "elsewhere:2181",
    "listeners": "CLIENTS://127.0.0.1:9092,BROKERS://127.0.0.1:9093",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
}


@dataclass
class From:
    client_host: str = "10.0.0.1"
    listener_name: str = "PLAINTEXT"
    connection_id: str = "it"
    principal: Principal = ANONYMOUS
    is_authenticated: bool = True


class Registrations:
    """The addresses of other brokers, counted how often they are read, with a clock."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = set(addresses)
        self.reads = 0
        self.now_ms = 1_000_000.0
        self.failure: Exception | None = None
        self.are_complete = True

    async def read(self) -> Addresses:
        self.reads += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return Addresses(set(self.addresses), self.are_complete)

    def access(self, config: BrokerConfig | None = None) -> InterBrokerAccess:
        config = config or broker_config_from({"zookeeper.connect": "elsewhere:2181"})
        return InterBrokerAccess(config, self.read, lambda: self.now_ms, between_looks_ms=1)


async def test_a_lone_broker_serves_them_to_nobody() -> None:
    registrations = Registrations("10.0.0.1")
    access = registrations.access(broker_config_from({"broker.id": "1"}))

    assert not await access.admits(From())
    assert registrations.reads == 0


async def test_a_listener_of_their_own_is_the_only_place_for_brokers() -> None:
    registrations = Registrations("10.0.0.1")
    config = broker_config_from({**TWO_LISTENERS, "inter.broker.listener.name": "BROKERS"})
    access = registrations.access(config)

    assert await access.admits(From("10.9.9.9", "BROKERS"))
    assert not await access.admits(From("10.0.0.1", "CLIENTS"))
    assert registrations.reads == 0


async def test_while_brokers_move_to_their_own_listener_the_others_admit_them_from_listed_networks() -> None:
    moving = {"inter.broker.listener.name": "BROKERS", "inter.broker.networks": "10.0.0.0/24"}
    registrations = Registrations("10.9.9.9")
    access = registrations.access(broker_config_from({**TWO_LISTENERS, **moving}))

    assert await access.admits(From("10.9.9.9", "BROKERS"))
    assert await access.admits(From("10.0.0.1", "CLIENTS"))
    assert not await access.admits(From("10.9.9.9", "CLIENTS"))
    assert registrations.reads == 0


async def test_a_listener_that_was_not_set_apart_is_shared() -> None:
    names = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT"}
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:9092,BROKERS://127.0.0.1:9093"}
    access = Registrations("10.0.0.1").access(broker_config_from({**TWO_LISTENERS, **names, **listeners}))

    assert await access.admits(From("10.0.0.1", "BROKERS"))
    assert not await access.admits(From("10.9.9.9", "PLAINTEXT"))


async def test_on_a_shared_listener_only_addresses_of_registered_brokers_are_served() -> None:
    registrations = Registrations("10.0.0.1")
    access = registrations.access()

    assert await access.admits(From("10.0.0.1"))
    assert await access.admits(From("::ffff:10.0.0.1"))
    assert registrations.reads == 1
    assert not await access.admits(From("10.9.9.9"))


async def test_the_first_request_of_a_new_broker_is_served() -> None:
    registrations = Registrations("10.0.0.1")
    access = registrations.access()
    assert await access.admits(From("10.0.0.1"))
    registrations.addresses.add("10.0.0.2")

    assert access.admits_now(From("10.0.0.2")) is None
    assert await access.admits(From("10.0.0.2"))
    assert access.admits_now(From("10.0.0.2"))


async def test_a_broker_that_has_left_is_a_stranger_after_a_while() -> None:
    registrations = Registrations("10.0.0.1")
    access = registrations.access()
    assert await access.admits(From("10.0.0.1"))
    registrations.addresses.clear()
    registrations.now_ms += FRESH_MS

    assert not await access.admits(From("10.0.0.1"))


async def test_many_strangers_cause_few_looks() -> None:
    registrations = Registrations()
    access = registrations.access()

    answers = await asyncio.gather(*(access.admits(From(f"10.1.1.{number}")) for number in range(200)))

    assert not any(answers)
    assert registrations.reads <= 2


async def test_while_zookeeper_is_away_known_brokers_stay_known() -> None:
    registrations = Registrations("10.0.0.1")
    access = registrations.access()
    assert await access.admits(From("10.0.0.1"))
    registrations.failure = ConnectionLoss()
    registrations.now_ms += FRESH_MS

    assert await access.admits(From("10.0.0.1"))
    with pytest.raises(UnknownBrokers):
        await access.admits(From("10.9.9.9"))


async def test_nobody_is_a_stranger_as_long_as_the_registrations_cannot_be_read() -> None:
    """A controller that is refused does not send its request again: the broker would never hear of a role."""
    registrations = Registrations("10.0.0.1")
    registrations.failure = ConnectionLoss()
    access = registrations.access()

    with pytest.raises(UnknownBrokers):
        await access.admits(From("10.0.0.1"))

    registrations.failure = None
    assert await access.admits(From("10.0.0.1"))
    assert not await access.admits(From("10.9.9.9"))


async def test_nobody_is_a_stranger_as_long_as_the_address_of_a_broker_is_not_known() -> None:
    registrations = Registrations("10.0.0.1")
    registrations.are_complete = False
    access = registrations.access()

    assert await access.admits(From("10.0.0.1"))
    with pytest.raises(UnknownBrokers):
        await access.admits(From("10.0.0.2"))


async def test_addresses_of_the_listed_networks_are_served_without_a_look() -> None:
    registrations = Registrations("10.0.0.1")
    listed = {"zookeeper.connect": "elsewhere:2181", "inter.broker.networks": "172.17.0.0/16, fd00::7"}
    access = registrations.access(broker_config_from(listed))

    assert access.admits_now(From("172.17.3.4"))
    assert access.admits_now(From("::ffff:172.17.3.4"))
    assert access.admits_now(From("fd00:0::7"))
    assert registrations.reads == 0
    assert not await access.admits(From("172.18.0.1"))
    assert not await access.admits(From("fd00::8"))
    assert not await access.admits(From(""))


async def test_a_lone_broker_admits_no_network() -> None:
    everywhere = {"inter.broker.networks": "0.0.0.0/0"}
    alone = Registrations().access(broker_config_from({"broker.id": "1", **everywhere}))

    assert not await alone.admits(From())


@pytest.mark.parametrize("networks", ["10.0.0.1/24", "kafka1.example", "10.0.0.0/33"])
def test_what_is_no_network_is_refused_by_name(networks: str) -> None:
    with pytest.raises(ConfigError, match=r"inter\.broker\.networks.*must be a list of networks"):
        broker_config_from({"inter.broker.networks": networks})


async def test_a_refusal_names_the_addresses_of_the_registered_brokers() -> None:
    access = Registrations("10.0.0.1", "10.0.0.2").access()
    assert not await access.admits(From("10.9.9.9"))

    access.refused(From("10.9.9.9"), "UPDATE_METADATA v7")

    assert access.last_refusal is not None
    assert access.last_refusal.startswith("UPDATE_METADATA v7 from 10.9.9.9: ")
    assert "10.0.0.1, 10.0.0.2" in access.last_refusal
    assert "inter.broker.networks" in access.last_refusal


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"broker.id": "1"}, "zookeeper.connect"),
        ({"zookeeper.connect": "elsewhere:2181"}, "inter.broker.networks"),
        ({**TWO_LISTENERS, "inter.broker.listener.name": "BROKERS"}, "inter.broker.listener.name"),
    ],
)
def test_a_refusal_names_address_and_setting_at_a_limited_rate(
    caplog: pytest.LogCaptureFixture, settings: dict[str, str], words: str
) -> None:
    access = Registrations().access(broker_config_from(settings))
    caplog.set_level(logging.WARNING, "request")

    for _ in range(1000):
        access.refused(From("10.9.9.9"), "UPDATE_METADATA v7")

    [facts] = [record.__dict__ for record in caplog.records]
    assert (facts["request"], facts["client"]) == ("UPDATE_METADATA v7", "10.9.9.9")
    assert words in facts["reason"]


SHARED = {"zookeeper.connect": "elsewhere:2181", "advertised.listeners": "PLAINTEXT://127.0.0.1:9092"}
"""Strangers come from 240.0.0.0/4, which is reserved: no machine that runs this has such an address."""


def moved_to(host: str, **settings: str) -> BrokerConfig:
    return broker_config_from({**SHARED, **settings, "advertised.listeners": f"PLAINTEXT://{host}:9092"})


@pytest.mark.parametrize("stranger", ["240.0.0.9", "::ffff:240.0.0.9", "2001:db8:ffff::9", ""])
@pytest.mark.parametrize("host", ["240.0.0.9", "127.0.0.2"])
async def test_a_client_that_is_no_broker_does_not_move_one(
    stranger: str, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others would admit it from the address that it chose."""
    caplog.set_level(logging.WARNING, "request")
    before = broker_config_from(SHARED)

    with pytest.raises(
        ClusterAuthorizationFailed, match=r"machine of a broker.*inter\.broker\.listener\.name"
    ):
        await Registrations("10.0.0.1").access(before).check_move(From(stranger), before, moved_to(host))

    [facts] = [record.__dict__ for record in caplog.records]
    assert facts["client"] == stranger


async def test_a_client_that_is_no_broker_does_not_advertise_its_address_for_clients_either() -> None:
    names = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT"}
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:9092,CLIENTS://127.0.0.1:9093"}
    before = broker_config_from({**TWO_LISTENERS, **names, **listeners})
    text = "PLAINTEXT://127.0.0.1:9092,CLIENTS://240.0.0.9:9093"
    after = broker_config_from({**TWO_LISTENERS, **names, **listeners, "advertised.listeners": text})

    with pytest.raises(ClusterAuthorizationFailed):
        await Registrations("10.0.0.1").access(before).check_move(From("240.0.0.9"), before, after)


async def test_while_brokers_are_unknown_no_client_moves_one() -> None:
    registrations = Registrations("10.0.0.1")
    registrations.failure = ConnectionLoss()
    before = broker_config_from(SHARED)

    with pytest.raises(ClusterAuthorizationFailed):
        await registrations.access(before).check_move(From("10.0.0.1"), before, moved_to("127.0.0.2"))


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1"])
async def test_a_broker_is_moved_from_its_machine_and_from_those_of_other_brokers(client: str) -> None:
    before = broker_config_from(SHARED)

    await Registrations("10.0.0.1").access(before).check_move(From(client), before, moved_to("127.0.0.2"))


async def test_a_broker_moves_to_no_host_that_its_requests_cannot_come_from() -> None:
    before = broker_config_from(SHARED)
    access = Registrations().access(before)

    with pytest.raises(
        InvalidConfig, match=r"240\.0\.0\.7 is no address of this machine.*inter\.broker\.networks"
    ):
        await access.check_move(From("127.0.0.1"), before, moved_to("240.0.0.7"))


async def test_behind_nat_a_broker_moves_to_any_host() -> None:
    networks = {"inter.broker.networks": "172.17.0.0/16"}
    before = broker_config_from({**SHARED, **networks})
    access = Registrations().access(before)

    await access.check_move(From("172.17.0.1"), before, moved_to("240.0.0.7", **networks))


async def test_any_client_changes_settings_that_leave_the_hosts() -> None:
    before = broker_config_from(SHARED)
    after = broker_config_from(
        {**SHARED, "num.io.threads": "9", "advertised.listeners": "PLAINTEXT://127.0.0.1:9999"}
    )
    registrations = Registrations()

    await registrations.access(before).check_move(From("240.0.0.9"), before, after)

    assert registrations.reads == 0


async def test_where_addresses_admit_nobody_any_client_changes_them() -> None:
    own = {**TWO_LISTENERS, "inter.broker.listener.name": "BROKERS"}
    text = "CLIENTS://240.0.0.9:9092,BROKERS://240.0.0.9:9093"
    apart, alone = broker_config_from(own), broker_config_from({"broker.id": "1"})
    apart_moved = broker_config_from({**own, "advertised.listeners": text})
    alone_moved = broker_config_from({"broker.id": "1", "advertised.listeners": "PLAINTEXT://240.0.0.9:9092"})

    await Registrations().access(apart).check_move(From("240.0.0.9", "CLIENTS"), apart, apart_moved)
    await Registrations().access(alone).check_move(From("240.0.0.9"), alone, alone_moved)


async def test_the_other_brokers_addresses_come_from_their_registrations() -> None:
    async with MemoryEnsemble().session() as session:
        await make_roots(session)
        for broker_id, host in (
            (1, "10.0.0.1"),
            (2, "10.0.0.2"),
            (3, "localhost"),
            (4, "nowhere.invalid"),
        ):
            node = BrokerRegistration(broker_id, (Endpoint("PLAINTEXT", host, 9092),), {}, 0)
            await session.create(node.path, node.encode())

        found, are_complete = await OtherBrokers(session, lambda: 1).addresses()

    assert "10.0.0.2" in found
    assert "127.0.0.1" in found
    assert "10.0.0.1" not in found
    assert not are_complete  # nobody knows where broker 4 connects from


async def test_a_registration_that_cannot_be_read_leaves_the_addresses_incomplete() -> None:
    async with MemoryEnsemble().session() as session:
        await make_roots(session)
        await session.create(paths.broker(2), b"{")
        others = OtherBrokers(session, lambda: 1)
        assert not (await others.addresses()).are_complete

        node = BrokerRegistration(2, (Endpoint("PLAINTEXT", "10.0.0.2", 9092),), {}, 0)
        await session.set(node.path, node.encode(), -1)
        assert await others.addresses() == ({"10.0.0.2"}, True)


@pytest.mark.parametrize(
    ("address", "compared"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("", ""),
    ],
)
def test_addresses_are_compared_in_one_form(address: str, compared: str) -> None:
    assert plain_address(address) == compared


async def test_a_name_that_cannot_be_resolved_for_a_while_keeps_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MemoryEnsemble().session() as session:
        await make_roots(session)
        node = BrokerRegistration(2, (Endpoint("PLAINTEXT", "localhost", 9092),), {}, 0)
        await session.create(node.path, node.encode())
        others = OtherBrokers(session, lambda: 1)
        assert "127.0.0.1" in (await others.addresses()).found

        async def failing(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", failing)
        assert "127.0.0.1" in (await others.addresses()).found


OWN_LISTENER = {**TWO_LISTENERS, "inter.broker.listener.name": "BROKERS"}


class OneMayAct(AllowAll):
    """An authorizer that allows one host CLUSTER_ACTION, and nothing else."""

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        return (host, operation, resource) == ("10.0.0.1", Operation.CLUSTER_ACTION, CLUSTER)


@pytest.mark.parametrize("settings", [{}, {"zookeeper.connect": "elsewhere:2181"}, OWN_LISTENER])
async def test_with_an_authorizer_a_broker_is_who_may_perform_cluster_action(
    settings: dict[str, str],
) -> None:
    registrations = Registrations("10.0.0.2")
    config = broker_config_from(settings)
    access = InterBrokerAccess(config, registrations.read, lambda: 0.0, authorizer=OneMayAct())

    assert access.admits_now(From("10.0.0.1"))
    assert await access.admits(From("10.0.0.1", "BROKERS"))
    assert access.admits_now(From("10.0.0.2")) is False, "a registered address is no permission"
    assert access.admits_now(From("10.0.0.2", "BROKERS")) is False, "and neither is the listener of brokers"
    assert registrations.reads == 0


def test_with_an_authorizer_a_client_that_has_not_logged_in_is_no_broker() -> None:
    access = InterBrokerAccess(BrokerConfig(), Registrations().read, lambda: 0.0, authorizer=OneMayAct())

    assert access.admits_now(From("10.0.0.1", is_authenticated=False)) is False


async def test_with_an_authorizer_no_address_is_a_permission_to_change_addresses() -> None:
    """ALTER_CONFIGS is asked for; advertised hosts make nobody a broker."""
    config = broker_config_from({"zookeeper.connect": "elsewhere:2181"})
    moved = broker_config_from(
        {"zookeeper.connect": "elsewhere:2181", "advertised.listeners": "PLAINTEXT://h:1"}
    )
    access = InterBrokerAccess(config, Registrations().read, lambda: 0.0, authorizer=OneMayAct())

    await access.check_move(From("10.0.0.9"), config, moved)


def test_with_an_authorizer_a_refusal_names_the_permission(caplog: pytest.LogCaptureFixture) -> None:
    access = InterBrokerAccess(BrokerConfig(), Registrations().read, lambda: 0.0, authorizer=OneMayAct())

    access.refused(From("10.0.0.9"), "UPDATE_METADATA v7")

    assert "User:ANONYMOUS may not perform CLUSTER_ACTION; add it to super.users" in (
        access.last_refusal or ""
    )
    assert not caplog.records, "the authorizer has logged it for audit"

"""Limits on connections, in all and from one address."""

import asyncio
from typing import Any, cast

import pytest

from ottla.broker.config import BrokerConfig, broker_config_from
from ottla.broker.coordinators.testing import in_virtual_time
from ottla.broker.network.open_connections import OpenConnections
from ottla.broker.network.session import Session
from ottla.broker.quotas import connections as connections_module
from ottla.broker.quotas.connections import (
    CONNECTION_RATE,
    RESOLVE_WITHIN_S,
    AddressRates,
    ConnectionQuotas,
    CreationRates,
    parse_overrides,
)
from ottla.broker.runtime.threads import NAME_THREADS


def test_an_override_stands_above_the_limit_for_all() -> None:
    limits = ConnectionQuotas(100, 1, parse_overrides("10.0.0.1:3, [::1]:2"))

    assert [limits.take("10.0.0.1") is None for _ in range(4)] == [True, True, True, False]
    assert [limits.take("::1") is None for _ in range(3)] == [True, True, False]
    assert [limits.take("10.0.0.2") is None for _ in range(2)] == [True, False]


async def test_a_broker_takes_the_place_of_the_least_recently_used_connection() -> None:
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0"}
    inside = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "max.connections": "2",
    }
    config = broker_config_from({**listeners, **inside})
    opened: OpenConnections[FakeConnection] = OpenConnections(config, lambda: 0.0)
    clients = [FakeConnection("PLAINTEXT", "10.0.0.1", last_active_s) for last_active_s in (2.0, 1.0)]
    assert [opened.admit(client) for client in clients] == [True, True]
    assert not opened.admit(FakeConnection("PLAINTEXT", "10.0.0.1", 3.0))

    assert opened.admit(FakeConnection("INSIDE", "10.0.0.2", 3.0))

    assert [client.is_closed for client in clients] == [False, True]


class FakeConnection:
    """A connection as its limits see it."""

    socket_descriptor = -1
    looked_at_s = 0.0
    idle = True
    waits_unseen = False

    def __init__(self, listener_name: str, host: str, last_active_s: float) -> None:
        self.session = Session(listener_name=listener_name, client_host=host, connection_id="")
        self.last_active_s = last_active_s
        self.is_closed = False

    def end_wait(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def test_a_connection_beyond_the_limits_gives_way_to_a_later_one() -> None:
    now_ms = [0.0]
    opened: OpenConnections[FakeConnection] = OpenConnections(
        broker_config_from({"max.connections": "0"}), lambda: now_ms[0]
    )
    first, second, stranger = (
        FakeConnection("PLAINTEXT", host, 0.0) for host in ("::1", "127.0.0.1", "10.0.0.1")
    )
    assert opened.admit(first)
    assert not opened.admit(second)

    now_ms[0] = 2_000.0

    assert not opened.admit(stranger)
    assert opened.admit(second)
    assert first.is_closed
    opened.forget(first)
    assert not opened.admit(first)


def test_an_ipv6_network_has_one_share_of_the_connections_before_a_login() -> None:
    config = broker_config_from({"max.connections.before.login.per.ip": "2"})
    opened: OpenConnections[FakeConnection] = OpenConnections(config, lambda: 0.0)
    hosts = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "2001:db8::3"]
    connections = [FakeConnection("PLAINTEXT", host, 0.0) for host in hosts]
    for connection in connections:
        connection.session.login = cast(Any, object())
        assert opened.admit(connection)

    assert [connection.is_closed for connection in connections] == [True, False, False, False]


# ---- rates


LISTENERS = {
    "listeners": "A://127.0.0.1:1,B://127.0.0.1:2,BROKERS://127.0.0.1:3",
    "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


def accepted_within(rates: CreationRates, listener: str, seconds: int) -> int:
    """Count the connections that a listener accepts, when as many come as it takes."""
    now_ms, count = 0.0, 0
    while now_ms < seconds * 1000:
        count += 1
        now_ms += max(rates.accepted(listener, now_ms), 0.1)
    return count


@pytest.mark.parametrize(
    ("settings", "listener", "per_s"),
    [
        ({"max.connection.creation.rate": "20"}, "A", 20),
        ({"max.connection.creation.rate": "20", "listener.name.b.max.connection.creation.rate": "5"}, "B", 5),
        (
            {"max.connection.creation.rate": "20", "listener.name.b.max.connection.creation.rate": "5"},
            "A",
            20,
        ),
        ({"listener.name.brokers.max.connection.creation.rate": "7"}, "BROKERS", 7),
    ],
)
def test_connections_are_accepted_at_the_rate_of_the_settings(
    settings: dict[str, str], listener: str, per_s: int
) -> None:
    rates = CreationRates(broker_config_from({**LISTENERS, **settings}))

    # Kafka's windows: those of the first ten seconds may come at once.
    assert accepted_within(rates, listener, 600) == pytest.approx(per_s * 600, rel=0.05)


def test_the_brokers_rate_is_not_for_the_listener_of_brokers() -> None:
    rates = CreationRates(broker_config_from({**LISTENERS, "max.connection.creation.rate": "1"}))

    assert accepted_within(rates, "BROKERS", 10) == 100_000


def test_a_rate_of_zero_accepts_one_connection_and_waits_longer_than_a_day() -> None:
    rates = CreationRates(broker_config_from({**LISTENERS, "max.connection.creation.rate": "0"}))

    assert rates.accepted("A", 0.0) > 86_400_000


def test_a_changed_rate_is_measured_from_now_on() -> None:
    rates = CreationRates(broker_config_from({**LISTENERS, "max.connection.creation.rate": "1"}))
    assert accepted_within(rates, "A", 60) < 75

    rates.configure(broker_config_from({**LISTENERS, "max.connection.creation.rate": "1000"}))

    assert accepted_within(rates, "A", 60) == pytest.approx(60_000, rel=0.05)


class Open:
    """A connection of some client."""

    socket_descriptor, idle, waits_unseen = -1, True, False
    last_active_s = looked_at_s = 0.0

    def __init__(self, listener: str) -> None:
        self.session = Session(listener_name=listener, client_host="10.0.0.7", connection_id=listener)

    def end_wait(self) -> None:
        """Has no wait."""

    def close(self) -> None:
        """Is closed by the test."""


async def test_a_listener_may_have_fewer_connections_than_the_broker() -> None:
    config = broker_config_from(
        {**LISTENERS, "listener.name.b.max.connections": "2", "listener.name.brokers.max.connections": "1"}
    )
    connections: OpenConnections[Open] = OpenConnections(config, lambda: 0.0)
    first = Open("B")

    assert [connections.admit(first), connections.admit(Open("B")), connections.admit(Open("B"))] == [
        True, True, False,
    ]  # fmt: skip
    assert all(connections.admit(Open("A")) for _ in range(10))
    assert [connections.admit(Open("BROKERS")), connections.admit(Open("BROKERS"))] == [True, False]
    connections.forget(first)
    assert connections.admit(Open("B"))


class Time:
    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> float:
        return self.ms


def test_an_address_opens_as_many_connections_as_its_quota_allows_and_others_as_many_as_they_like() -> None:
    time = Time()
    rates = AddressRates(BrokerConfig(), time.now_ms)
    rates.entity_changed("ips/10.0.0.1", {CONNECTION_RATE: "2"})

    opened = [rates.take("10.0.0.1") for _ in range(21)]
    assert opened[:20] == [None] * 20, "ten seconds' worth"
    assert opened[20] == "connection_creation_rate of 2 is reached"
    assert rates.take("10.0.0.2") is None
    time.ms += 11_000
    assert rates.take("::ffff:10.0.0.1") is None


def test_what_is_refused_does_not_count() -> None:
    time = Time()
    rates = AddressRates(BrokerConfig(), time.now_ms)
    rates.entity_changed("ips/<default>", {CONNECTION_RATE: "1"})

    refused = sum(rates.take("10.0.0.1") is not None for _ in range(1_000))
    time.ms += 11_000

    assert refused == 990
    assert rates.take("10.0.0.1") is None


def test_an_address_is_shut_out_by_zero_and_let_in_again_without_its_quota() -> None:
    rates = AddressRates(BrokerConfig(), Time().now_ms)
    rates.entity_changed("ips/2001%3Adb8%3A%3A1", {CONNECTION_RATE: "0"})
    assert rates.take("2001:db8:0::1") is not None

    rates.entity_changed("ips/2001%3Adb8%3A%3A1", {})

    assert rates.take("2001:db8:0::1") is None


async def test_a_host_name_stands_for_its_address_until_its_quota_is_removed() -> None:
    rates = AddressRates(BrokerConfig(), Time().now_ms)
    address = (await rates.addresses_of(["localhost"]))["localhost"]
    assert address in ("127.0.0.1", "::1")

    await rates.follow("ips/localhost", {CONNECTION_RATE: "0"})
    assert rates.take(address) is not None
    await rates.follow("ips/localhost", {})

    assert rates.take(address) is None


async def test_an_address_keeps_its_own_quota_when_that_of_its_host_name_goes() -> None:
    async def look_up(_: str) -> list[str]:
        return ["10.0.0.1"]

    rates = AddressRates(BrokerConfig(), Time().now_ms, look_up)
    await rates.follow("ips/10.0.0.1", {CONNECTION_RATE: "0"})
    await rates.follow("ips/a.example.com", {CONNECTION_RATE: "1000"})
    assert rates.take("10.0.0.1") is not None, "an address decides before its names"

    await rates.follow("ips/a.example.com", {})
    assert rates.take("10.0.0.1") is not None
    await rates.follow("ips/10.0.0.1", {})

    assert rates.take("10.0.0.1") is None


class SlowNames:
    """A resolver that answers for a name once it is asked for as many as there are threads."""

    def __init__(self) -> None:
        self.at_once = self.most_at_once = 0
        self._are_enough = asyncio.Event()

    async def look_up(self, host: str) -> list[str]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once == NAME_THREADS:
            self._are_enough.set()
        await self._are_enough.wait()
        self.at_once -= 1
        return ["10.0.0.1"]


@in_virtual_time
async def test_host_names_are_looked_up_together_but_only_a_few_at_a_time() -> None:
    names = SlowNames()
    rates = AddressRates(BrokerConfig(), Time().now_ms, names.look_up)

    found = await rates.addresses_of(f"h{number}" for number in range(50))

    assert set(found.values()) == {"10.0.0.1"}
    assert names.most_at_once == NAME_THREADS


@in_virtual_time
async def test_a_resolver_that_hangs_takes_five_seconds_of_a_request_and_not_of_each_name() -> None:
    async def look_up(host: str) -> list[str]:
        await asyncio.sleep(0 if host == "quick" else 1_000_000)
        return ["10.0.0.1"]

    rates = AddressRates(BrokerConfig(), Time().now_ms, look_up)
    began_s = asyncio.get_running_loop().time()

    found = await rates.addresses_of(["quick", *(f"h{number}" for number in range(50))])

    assert asyncio.get_running_loop().time() - began_s == pytest.approx(RESOLVE_WITHIN_S)
    assert [host for host, address in found.items() if address] == ["quick"]


@in_virtual_time
async def test_of_two_changes_of_a_name_the_later_holds_though_the_earlier_is_looked_up_longer() -> None:
    async def look_up(_: str) -> list[str]:
        await asyncio.sleep(1)
        return ["10.0.0.1"]

    rates = AddressRates(BrokerConfig(), Time().now_ms, look_up)

    async def remove_soon() -> None:
        await asyncio.sleep(0.5)
        await rates.follow("ips/a.example.com", {})

    await asyncio.gather(rates.follow("ips/a.example.com", {CONNECTION_RATE: "0"}), remove_soon())

    assert rates.take("10.0.0.1") is None


@pytest.mark.parametrize("name", ["no.such.host.invalid", "a%00b", "%ED%A0%80", "x" * 300, "..", "a b"])
async def test_a_name_without_an_address_has_no_quota(name: str, caplog: pytest.LogCaptureFixture) -> None:
    rates = AddressRates(BrokerConfig(), Time().now_ms)

    await rates.follow(f"ips/{name}", {CONNECTION_RATE: "0"})

    assert rates.take("127.0.0.1") is None
    assert [record.reason for record in caplog.records] == ["the host has no address"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["NaN", "-1", "1.5", "", "\u00b2"])
def test_a_text_that_is_no_number_is_no_quota_of_connections(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    rates = AddressRates(BrokerConfig(), Time().now_ms)

    rates.entity_changed("ips/10.0.0.1", {CONNECTION_RATE: text})

    assert rates.take("10.0.0.1") is None
    assert len(caplog.records) == 1


def test_addresses_without_number_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "MOST_ADDRESSES", 3)
    rates = AddressRates(BrokerConfig(), Time().now_ms)
    rates.entity_changed("ips/<default>", {CONNECTION_RATE: "1"})

    for number in range(100):
        rates.take(f"10.0.0.{number}")

    assert len(rates._buckets) == 3

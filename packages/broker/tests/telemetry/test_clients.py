"""Clients that push metrics: their subscriptions, the times at which they may push, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest

from ottla.broker.metrics.registry import MetricName
from ottla.broker.runtime.loop_budget import at_once
from ottla.broker.telemetry import clients as module
from ottla.broker.telemetry.clients import MOST_OF_CLIENT, Client, Clients, Push
from ottla.broker.telemetry.payloads import Measured
from ottla.broker.telemetry.subscriptions import parsed
from ottla.protocol.errors import (
    InvalidConfig,
    InvalidRequest,
    KafkaError,
    TelemetryTooLarge,
    ThrottlingQuotaExceeded,
    UnknownSubscriptionId,
    UnsupportedCompressionType,
)

ID = UUID(int=7)
FACTS = {
    "client_id": "orders-1",
    "client_instance_id": str(ID),
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.4.0",
    "client_source_address": "10.0.0.1",
    "client_source_port": "4711",
}
MAX_BYTES = 1000


@dataclass
class Connection:
    is_gone: bool = False


class World:
    """Clients with one subscription for all, every second."""

    def __init__(self, **config: str) -> None:
        self.clients = Clients(MAX_BYTES)
        self.connection = Connection()
        self.subscribe(config or {"metrics": "*", "interval.ms": "1000"})

    def subscribe(self, config: dict[str, str]) -> None:
        self.clients.subscriptions = {"s": parsed("s", config)}
        self.clients.version += 1

    def get(self, now_ms: float) -> Client:
        return self.clients.get(ID, FACTS, self.connection, now_ms)

    def push(
        self,
        now_ms: float,
        subscription_id: int,
        *,
        terminating: bool = False,
        compression: int = 0,
        size: int = 1,
    ) -> Client:
        push = Push(subscription_id, terminating, compression, size)
        return self.clients.push(ID, FACTS, self.connection, push, now_ms)


def test_a_client_gets_the_metrics_of_all_subscriptions_that_match_and_the_shortest_interval() -> None:
    clients = Clients(MAX_BYTES)
    clients.subscriptions = {
        "a": parsed("a", {"metrics": "org.a,org.b", "interval.ms": "5000"}),
        "b": parsed("b", {"metrics": "org.b,org.c", "interval.ms": "9000", "match": "client_id=orders-.*"}),
        "c": parsed("c", {"metrics": "*", "interval.ms": "100", "match": "client_id=orders"}),
        "d": parsed("d", {"metrics": "*", "match": "client_id=.*,client_software_version=3[.].*"}),
    }

    client = clients.get(ID, FACTS, Connection(), 0)

    assert (client.metrics, client.interval_ms) == (("org.a", "org.b", "org.c"), 5000)


def test_without_a_subscription_a_client_has_no_metrics_and_kafkas_interval() -> None:
    client = Clients(MAX_BYTES).get(ID, FACTS, Connection(), 0)

    assert (client.metrics, client.interval_ms) == ((), 300_000)


def test_all_metrics_take_the_place_of_some() -> None:
    assert World(metrics="org.a,*").get(0).metrics == ("*",)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"interval.ms": "99"}, InvalidRequest),
        ({"interval.ms": "3600001"}, InvalidRequest),
        ({"interval.ms": "soon"}, InvalidConfig),
        ({"metric": "*"}, InvalidRequest),
        ({"match": "client_id"}, InvalidConfig),
        ({"match": "client=a"}, InvalidConfig),
        ({"match": "client_id=a=b"}, InvalidConfig),
        ({"match": "client_id=("}, InvalidConfig),
        ({"match": r"client_id=(a)\1"}, InvalidConfig),
    ],
)
def test_a_configuration_that_is_not_valid_is_refused(
    config: dict[str, str], error: type[KafkaError]
) -> None:
    with pytest.raises(error):
        parsed("s", config)


def test_a_client_pushes_at_once_after_it_asked_and_then_once_in_an_interval() -> None:
    world = World()
    subscription_id = world.get(0).subscription_id

    world.push(10, subscription_id)
    with pytest.raises(ThrottlingQuotaExceeded):
        world.push(1000, subscription_id)
    world.push(1010, subscription_id)
    world.push(1011, subscription_id, terminating=True)  # the last one comes at any time
    with pytest.raises(InvalidRequest):
        world.push(9000, subscription_id)


def test_a_client_asks_again_after_an_interval_or_after_an_error_that_it_can_mend() -> None:
    world = World()
    subscription_id = world.get(0).subscription_id
    with pytest.raises(ThrottlingQuotaExceeded):
        world.get(999)

    with pytest.raises(UnknownSubscriptionId):
        world.push(999, subscription_id + 1)
    world.get(1000)
    with pytest.raises(UnsupportedCompressionType):
        world.push(1999, subscription_id, compression=5)
    world.get(2000)
    with pytest.raises(TelemetryTooLarge):
        world.push(2999, subscription_id, size=MAX_BYTES + 1)
    with pytest.raises(ThrottlingQuotaExceeded):
        world.get(3000)


def test_a_changed_subscription_is_there_for_the_next_question() -> None:
    world = World()
    before = world.get(0).subscription_id
    world.subscribe({"metrics": "org.a", "interval.ms": "2000"})

    client = world.get(1)

    assert client.subscription_id != before
    assert (client.metrics, client.interval_ms) == (("org.a",), 2000)


def test_brokers_give_one_client_one_subscription_id() -> None:
    assert World().get(0).subscription_id == World().get(5).subscription_id


@pytest.mark.parametrize("client_id", [UUID(int=0), UUID(int=1)])
def test_a_reserved_id_pushes_nothing(client_id: UUID) -> None:
    with pytest.raises(InvalidRequest):
        World().clients.push(client_id, FACTS, Connection(), Push(0, False, 0, 1), 0)


def test_values_are_shown_with_the_client_until_it_leaves() -> None:
    world = World()
    client = world.get(0)
    rate, total = (
        MetricName("kafka.client", "producer", "rate"),
        MetricName("kafka.client", "producer", "total"),
    )

    at_once(world.clients.measured(client, [Measured(rate, 5.0, False), Measured(total, 3.0, True)]))
    at_once(world.clients.measured(client, [Measured(rate, 6.0, False), Measured(total, 4.0, True)]))
    shown = {name.name: (value, dict(name.tags)) for name, value in filter(None, world.clients.samples(1))}

    labels = {key: value for key, value in FACTS.items() if key != "client_source_port"}
    assert shown == {"rate": (6.0, labels), "total": (7.0, labels)}
    world.connection.is_gone = True
    assert list(filter(None, world.clients.samples(2))) == []
    at_once(world.clients.measured(client, [Measured(rate, 7.0, False)]))
    assert list(filter(None, world.clients.samples(3))) == []
    assert len(world.clients) == 0


def test_a_client_that_is_not_heard_of_is_forgotten() -> None:
    world = World()
    at_once(world.clients.measured(world.get(0), [Measured(MetricName("g", "t", "n"), 1.0, False)]))

    assert len(list(filter(None, world.clients.samples(59_999)))) == 1
    assert list(filter(None, world.clients.samples(60_000))) == []


def test_names_that_are_new_with_every_push_take_the_place_of_those_pushed_before() -> None:
    world = World()
    client = world.get(0)
    always = MetricName("g", "t", "always")

    for push in range(5):
        names = [always, *(MetricName("g", "t", f"{push}-{number}") for number in range(MOST_OF_CLIENT - 1))]
        steps = list(world.clients.measured(client, [Measured(name, 1.0, True) for name in names]))

    shown = {name.name: value for name, value in filter(None, world.clients.samples(1))}
    assert shown["always"] == 5
    assert shown.keys() == {name.name for name in names}
    assert len(steps) == MOST_OF_CLIENT // 500, "the loop goes on between them"


def test_a_client_that_leaves_while_its_values_are_noted_leaves_none() -> None:
    world = World()
    client = world.get(0)
    values = [Measured(MetricName("g", "t", str(number)), 1.0, False) for number in range(2_000)]
    steps = world.clients.measured(client, values)

    next(steps)
    world.connection.is_gone = True
    assert list(filter(None, world.clients.samples(1))) == []

    assert list(steps) == []
    assert len(world.clients) == 0


def test_clients_and_values_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLIENTS", 3)
    monkeypatch.setattr(module, "MOST_SAMPLES", 4)
    clients = Clients(MAX_BYTES)
    for number in range(10):
        client = clients.get(UUID(int=100 + number), FACTS, Connection(), number)
        names = [MetricName("g", "t", str(index)) for index in range(2)]
        at_once(clients.measured(client, [Measured(name, 1.0, False) for name in names]))

    assert len(clients) == 3
    assert len(list(filter(None, clients.samples(11)))) == 4
    assert clients.dropped_samples > 0


def test_the_text_of_all_names_is_bounded_until_clients_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CHARACTERS", 10_000)
    clients, connection = Clients(MAX_BYTES), Connection()

    def push(number: int) -> Client:
        client = clients.get(UUID(int=100 + number), FACTS, connection, number)
        names = [MetricName("g", "t", "n", ((str(index), "x" * 200),)) for index in range(10)]
        at_once(clients.measured(client, [Measured(name, 1.0, False) for name in names]))
        return client

    for number in range(10):
        client = push(number)

    assert not client.values, "nothing more has room"
    kept = [name for name, _ in filter(None, clients.samples(11))]
    assert sum(len(text) == 200 for name in kept for _, text in name.tags) == 49
    assert clients.dropped_samples == 51

    connection.is_gone = True
    assert list(filter(None, clients.samples(12))) == []
    connection.is_gone = False

    assert len(push(11).values) == 10


def test_names_that_a_client_pushes_no_more_give_their_room_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OF_CLIENT", 10)
    monkeypatch.setattr(module, "MOST_CHARACTERS", 10_000)
    world = World()
    client = world.get(0)

    for push in range(20):
        names = [MetricName("g", "t", f"{push}-{number}", (("a", "x" * 400),)) for number in range(10)]
        at_once(world.clients.measured(client, [Measured(name, 1.0, False) for name in names]))

        assert [*client.values] == names

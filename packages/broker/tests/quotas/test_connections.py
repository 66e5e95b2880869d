"""Limits on connections, in all and from one address."""

from ottla.broker.config import broker_config_from
from ottla.broker.network.open_connections import OpenConnections
from ottla.broker.network.session import Session
from ottla.broker.quotas.connections import ConnectionQuotas, parse_overrides


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

    descriptor = -1
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

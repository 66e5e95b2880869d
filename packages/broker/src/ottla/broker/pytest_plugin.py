"""Pytest fixtures that give a test a real broker, empty and on a free port.

    def test_orders_are_counted(ottla_broker):
        producer = KafkaProducer(bootstrap_servers=ottla_broker.bootstrap_servers)

`ottla_broker` runs in the test's process on its own thread; `ottla_broker_process` is a separate process
that the test can kill. `ottla_cluster` is three brokers in processes of their own, which the test can kill
and restart one by one:

    def test_the_cluster_survives(ottla_cluster):
        ottla_cluster.brokers[1].kill()
        ottla_cluster.brokers[1].restart()

`ottla_secure_broker` has TLS, logins and ACLs; a marker gives it users and rules:

    @pytest.mark.ottla_secure_broker(users={"anna": "secret"}, acls=[("anna", "WRITE", "topic", "orders")])
    def test_anna_writes(ottla_secure_broker):
        with SyncProducer(**ottla_secure_broker.client_settings("anna")) as producer: ...

A marker sets the brokers' settings, with Kafka's keys in snake case:

    @pytest.mark.ottla_broker(num_partitions=4, log_segment_bytes=1_000_000)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.broker.testing import BrokerCluster, BrokerProcess, BrokerThread, SecureBroker

MARKER = "ottla_broker"
SECURE_MARKER = "ottla_secure_broker"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{MARKER}(**settings): settings of the test's broker")
    config.addinivalue_line("markers", f"{SECURE_MARKER}(users, acls): users and rules of the secure broker")


@pytest.fixture
def ottla_broker_settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """The broker's settings by Kafka's dotted keys; override this fixture or use the marker."""
    settings: dict[str, str] = {}
    for marker in reversed(list(request.node.iter_markers(MARKER))):
        _check_arguments(marker)
        settings |= {key.replace("_", "."): _text(value) for key, value in marker.kwargs.items()}
    return settings


def _check_arguments(marker: pytest.Mark) -> None:
    """Fail the test for a marker with arguments that are not settings of the broker."""
    from ottla.broker.config import is_known, nearest_key

    if marker.args:
        pytest.fail(f"@pytest.mark.{MARKER} takes settings by name, not {marker.args[0]!r}", pytrace=False)
    for name in marker.kwargs:
        if not is_known(name.replace("_", ".")):
            near = nearest_key(name.replace("_", "."))
            advice = f"; did you mean {near.replace('.', '_')}?" if near else ""
            pytest.fail(f"@pytest.mark.{MARKER}: {name} is not a broker setting{advice}", pytrace=False)


@pytest.fixture
def ottla_broker(
    tmp_path_factory: pytest.TempPathFactory, ottla_broker_settings: dict[str, str]
) -> Iterator[BrokerThread]:
    """A broker in this process, started for this test and stopped after it."""
    from ottla.broker.testing import BrokerThread

    with BrokerThread(tmp_path_factory.mktemp("ottla-broker"), ottla_broker_settings) as broker:
        yield broker


@pytest.fixture
def ottla_secure_broker(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    ottla_broker_settings: dict[str, str],
) -> Iterator[SecureBroker]:
    """A broker in this process with TLS, logins by SCRAM, and ACLs; `client_settings(user)` connect to it."""
    from ottla.broker.testing import SecureBroker

    users: dict[str, str] = {}
    acls: list[tuple[str, str, str, str]] = []
    for marker in reversed(list(request.node.iter_markers(SECURE_MARKER))):
        if marker.args or marker.kwargs.keys() - {"users", "acls"}:
            pytest.fail(f"@pytest.mark.{SECURE_MARKER} takes users={{...}} and acls=[...]", pytrace=False)
        users |= marker.kwargs.get("users", {})
        acls += marker.kwargs.get("acls", [])
    folder = tmp_path_factory.mktemp("ottla-secure-broker")
    with SecureBroker(folder, ottla_broker_settings, users=users, acls=acls) as broker:
        yield broker


@pytest.fixture
def ottla_broker_process(
    tmp_path_factory: pytest.TempPathFactory, ottla_broker_settings: dict[str, str]
) -> Iterator[BrokerProcess]:
    """A broker in a separate process, which the test may kill, pause and restart."""
    from ottla.broker.testing import BrokerProcess

    with BrokerProcess(tmp_path_factory.mktemp("ottla-broker"), ottla_broker_settings) as broker:
        yield broker


@pytest.fixture
def ottla_cluster(
    tmp_path_factory: pytest.TempPathFactory, ottla_broker_settings: dict[str, str]
) -> Iterator[BrokerCluster]:
    """Three brokers in separate processes, with ids 1 to 3, which the test may kill and restart one by one.

    They share an embedded coordinator, which is not among what can be killed.
    """
    from ottla.broker.testing import BrokerCluster

    with BrokerCluster(tmp_path_factory.mktemp("ottla-cluster"), ottla_broker_settings) as cluster:
        yield cluster


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

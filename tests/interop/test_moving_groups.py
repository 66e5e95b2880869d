"""Groups that change their protocol under load, member by member: every record is given, and none twice
beyond what uncommitted offsets explain."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.testing import BrokerCluster, BrokerProcess
from peers.fetched_programs import go_program, python_environment
from peers.group_coordinators import OF_CLUSTER, ONE_COORDINATOR, Coordinators
from peers.java import java_command
from peers.kraft_kafka import KraftKafka
from peers.maven import KAFKA_4, kafka_clients
from peers.moving_group import Deliveries, Load, MemberHost, MovingGroup

pytestmark = pytest.mark.timeout(900)

HERE: Final = Path(__file__).parent
MEMBERS, FEW_MEMBERS, PARTITIONS = 10, 3, 12
KILLED_IN: Final = (2, 9, 14)
"""The starts (even) and stops (odd) of members that happen while the coordinator is dead."""
SETTINGS: Final = ONE_COORDINATOR | {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}
# librdkafka waits for the answer to a heartbeat as long as the heartbeat interval. The answer waits for the
# replicas, so it may be late whenever a coordinator is killed: the brokers repeat what was in it.
OF_LIBRDKAFKA: Final = {"group.consumer.heartbeat.interval.ms": "5000"}
_numbers = count(1)


def python_host(name: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(HERE / "python" / f"{name}_members.py")]


def java_host(version: str = KAFKA_4) -> list[str]:
    return java_command(HERE / "java" / "HostedMembers.java", kafka_clients(version))


def confluent_kafka_host(version: str) -> list[str]:
    program = HERE / "python" / "confluent_kafka_members.py"
    return [str(python_environment(f"confluent-kafka=={version}")), str(program)]


def franz_go_host(version: str) -> list[str]:
    return [str(go_program(HERE / "go" / "franz_go_members.go", f"github.com/twmb/franz-go@{version}"))]


HOSTS: Final[dict[str, Callable[[], list[str]]]] = {
    "confluent-kafka": python_host("confluent_kafka"),
    "java": java_host,
    "ottla": python_host("ottla"),
}
OLD_CLIENTS: Final = {
    "kafka-python 2.0.2": ("", "kafka-python==2.0.2"),
    "kafka-python 2.2.21": ("", "kafka-python==2.2.21"),
    # These have no wheels for later Pythons, and need a kafka-python of their time.
    "aiokafka 0.7.0": ("3.9", "aiokafka==0.7.0", "kafka-python==2.0.2"),
    "aiokafka 0.8.1": ("3.9", "aiokafka==0.8.1", "kafka-python==2.0.2"),
    **{
        f"aiokafka {version}": ("", f"aiokafka=={version}")
        for version in ("0.9.0", "0.10.0", "0.11.0", "0.12.0")
    },
}
"""The Python that each needs, if not that of the tests, and its packages."""
RELEASES: Final[dict[str, Callable[[], list[str]]]] = {
    **{
        f"confluent-kafka {version}": partial(confluent_kafka_host, version)
        for version in ("2.8.2", "2.10.1", "2.12.2", "2.14.2")
    },
    **{
        f"franz-go {version}": partial(franz_go_host, version)
        for version in ("v1.19.5", "v1.20.7", "v1.21.7", "v1.22.3")
    },
    **{
        f"java {version}": partial(java_host, version)
        for version in ("3.7.2", "3.8.1", "3.9.1", "4.0.2", "4.1.2")
    },
}
"""Releases that have the consumer protocol: at first as an early access or a preview.

That of confluent-kafka 2.6 is not among them: its members read on behind commits of others, also with brokers
of Apache Kafka 4.4.
"""
CLIENTS: Final = ["confluent-kafka", pytest.param("java", marks=pytest.mark.java), "ottla"]


def settings_for(client: str) -> dict[str, str]:
    return SETTINGS | (OF_LIBRDKAFKA if client == "confluent-kafka" else {})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        yield running


def new_topic(servers: str, replicas: int) -> str:
    topic, admin = f"orders-{next(_numbers)}", AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, replicas)])[topic].result(60)
    return topic


def protocol_of(servers: str, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": servers})
    return str(admin.describe_consumer_groups([group], request_timeout=60)[group].result(90).type.name)


def halting(coordinators: Coordinators, number: int) -> AbstractContextManager[None]:
    """Kill the coordinator before a start or stop of some numbers, and start it again after it."""
    return coordinators.killed() if number in KILLED_IN else nullcontext()


class Move:
    """A group of members under load, whose members are replaced by those of another protocol."""

    def __init__(
        self, servers: str, client: str, host: list[str], *, replicas: int = 1, members: int = MEMBERS
    ) -> None:
        self._servers = servers
        self._client = client
        self._host = host
        self._replicas = replicas
        self._members = members

    def run(self, halting: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext()) -> None:
        """Replace the members twice; `halting` gets the number of each start and stop."""
        topic = new_topic(self._servers, self._replicas)
        with MemberHost(self._host, self._servers, topic, topic) as host:
            group = MovingGroup({"classic": [host], "consumer": [host]}, PARTITIONS)
            with Load(self._servers, topic, PARTITIONS) as load:
                for _ in range(self._members):
                    group.start("classic")
                group.settle("by the first members")
                assert protocol_of(self._servers, topic) == "CLASSIC"
                for protocol in ("consumer", "classic"):
                    for step in range(self._members):
                        self._replace_one(group, protocol, step, halting)
                    assert protocol_of(self._servers, topic) == protocol.upper()
            check(group, load, self._client)

    def _replace_one(
        self,
        group: MovingGroup,
        protocol: str,
        step: int,
        halting: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        with halting(2 * step):
            group.start(protocol)
            group.settle(f"with one more of {protocol}")
        with halting(2 * step + 1):
            group.stop_oldest()
            group.settle(f"with one less beside {protocol}")


def check(group: MovingGroup, load: Load, client: str) -> None:
    """Wait until all is read, make the members leave, and judge what they did."""
    assert load.errors == []
    group.wait_until_read(load.counts)
    while group.members:
        group.stop_oldest()
    deliveries = Deliveries(PARTITIONS)
    deliveries.judge(group.events())
    print(f"{client}: {sum(load.counts)} records, {deliveries.repeated} given again")
    assert deliveries.faults == []
    assert deliveries.committed == load.counts


@pytest.mark.parametrize("client", CLIENTS)
def test_ten_members_move_to_the_consumer_protocol_and_back(tmp_path: Path, client: str) -> None:
    with BrokerProcess(tmp_path, settings_for(client)) as broker:
        Move(broker.bootstrap_servers, client, HOSTS[client]()).run()


@pytest.mark.java
def test_our_members_move_to_the_consumer_protocol_of_kafka_and_back(tmp_path: Path) -> None:
    with KraftKafka(tmp_path, SETTINGS) as broker:
        Move(broker.bootstrap_servers, "ottla", HOSTS["ottla"]()).run()


@pytest.mark.parametrize("client", CLIENTS)
def test_ten_members_move_while_their_coordinators_are_killed(tmp_path: Path, client: str) -> None:
    with BrokerCluster(tmp_path, settings_for(client) | OF_CLUSTER) as cluster:
        coordinators = Coordinators(cluster)
        move = Move(cluster.bootstrap_servers, client, HOSTS[client](), replicas=3)
        move.run(partial(halting, coordinators))
    assert coordinators.kills == 2 * len(KILLED_IN)


@pytest.mark.parametrize(
    "release",
    [pytest.param(name, marks=[pytest.mark.java] if name.startswith("java") else []) for name in RELEASES],
)
def test_members_of_a_release_move_to_the_consumer_protocol_and_back(
    broker: BrokerProcess, release: str
) -> None:
    Move(broker.bootstrap_servers, release, RELEASES[release](), members=FEW_MEMBERS).run()


@pytest.mark.parametrize("client", OLD_CLIENTS)
def test_old_members_read_beside_members_of_the_consumer_protocol(broker: BrokerProcess, client: str) -> None:
    servers, library = broker.bootstrap_servers, client.split()[0].replace("-", "_")
    python, *packages = OLD_CLIENTS[client]
    program = str(HERE / "python" / f"{library}_members.py")
    old = [str(python_environment(*packages, python=python)), program]
    topic = new_topic(servers, 1)
    with (
        MemberHost(old, servers, topic, topic) as classic,
        MemberHost(HOSTS["ottla"](), servers, topic, topic) as modern,
    ):
        group = MovingGroup({"classic": [classic], "consumer": [modern]}, PARTITIONS)
        with Load(servers, topic, PARTITIONS) as load:
            for protocol in ("classic", "classic", "consumer", "consumer"):
                group.start(protocol)
                group.settle(f"with one more of {protocol}")
            assert protocol_of(servers, topic) == "CONSUMER"
            group.stop_oldest()
            group.start("classic")
            group.settle("with a classic member that joined the consumer group")
            assert protocol_of(servers, topic) == "CONSUMER"
            for _ in range(3):
                group.stop_oldest()
                group.settle("with one less")
            assert protocol_of(servers, topic) == "CLASSIC"
        check(group, load, client)

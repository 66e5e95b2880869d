"""The coordinator that a broker brings by itself: a full disk, a damaged journal, directories, strangers."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla.broker.cluster.own_coordinator import check_brokers_are_here
from ottla.broker.cluster.registration import StartupRefused
from ottla.broker.testing import BrokerFailed, BrokerProcess, BrokerThread
from ottla.zookeeper.cli import zookeeper
from ottla.zookeeper.embedded import EmbeddedCoordinator
from ottla.zookeeper.embedded.access import access_to, credentials, read_or_make_secret, write_address
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.testing import MemoryEnsemble
from ottla.zookeeper.znodes import BrokerRegistration, Endpoint

TIMEOUT_S = 20.0


def admin_of(broker: BrokerThread | BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def create(broker: BrokerThread | BrokerProcess, name: str) -> None:
    admin = admin_of(broker)  # a client that is collected cancels its requests
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(TIMEOUT_S)


def topics_of(broker: BrokerThread | BrokerProcess) -> set[str]:
    return {name for name in admin_of(broker).list_topics(timeout=TIMEOUT_S).topics if name[0] != "_"}


@contextmanager
def no_room(broker: BrokerProcess) -> Iterator[None]:
    """Let no file of a broker grow beyond the size of its coordinator's journal."""
    unlimited = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
    size = (broker.data_dir / "coordinator" / "journal").stat().st_size
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (size + 50, unlimited[1]))
    yield
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, unlimited)


def eventually(attempt: Callable[[], object]) -> None:
    """Repeat what a client may try again, until it succeeds."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            attempt()
        except KafkaException as error:
            if time.monotonic() > deadline or error.args[0].code() != KafkaError.REQUEST_TIMED_OUT:
                raise
            time.sleep(0.1)
        else:
            return


def test_a_full_disk_refuses_topics_until_there_is_room(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create(broker, "before")
        with no_room(broker):
            for name in ("first", "second", "third"):
                with pytest.raises(KafkaException) as refused:
                    create(broker, name)
                assert refused.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
            assert topics_of(broker) == {"before"}

        eventually(lambda: create(broker, "after"))

        assert topics_of(broker) == {"before", "after"}
        failures: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True})
        producer.produce("after", b"record", on_delivery=lambda error, _: failures.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert failures == [None]
        broker.restart()
        assert topics_of(broker) == {"before", "after"}


def test_a_damaged_bit_in_the_journal_stops_the_start_with_one_line(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        for number in range(10):
            create(broker, f"topic{number}")
    journal = tmp_path / "data" / "coordinator" / "journal"
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 1
    journal.write_bytes(data)
    broker.log_file.unlink()

    with pytest.raises(BrokerFailed):
        broker.start()

    (line,) = broker.log_file.read_text().splitlines()
    assert line.startswith(f"Error: {journal}: its bytes ")
    assert "`ottla zookeeper rebuild`" in line


def test_an_empty_directory_put_first_is_no_other_cluster(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "old") as broker:
        create(broker, "kept")
        assert broker.broker is not None
        before = broker.broker.cluster_id, broker.broker.broker_id
    directories = f"{tmp_path / 'new'},{tmp_path / 'old'}"

    with BrokerThread(tmp_path / "new", {"log.dirs": directories}) as broker:
        assert topics_of(broker) == {"kept"}
        assert broker.broker is not None
        assert (broker.broker.cluster_id, broker.broker.broker_id) == before
        create(broker, "more")
    assert not (tmp_path / "new" / "coordinator").exists()


def test_of_two_coordinators_the_clusters_own_is_started(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "other"):
        pass
    (tmp_path / "new").mkdir()
    (tmp_path / "other" / "coordinator").rename(tmp_path / "new" / "coordinator")
    with BrokerThread(tmp_path / "old") as broker:
        create(broker, "kept")
    directories = f"{tmp_path / 'new'},{tmp_path / 'old'}"

    with BrokerThread(tmp_path / "new", {"log.dirs": directories}) as broker:
        assert topics_of(broker) == {"kept"}


def test_directories_without_their_coordinator_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "old"):
        pass
    (tmp_path / "old" / "coordinator").rename(tmp_path / "coordinator")

    with pytest.raises(BrokerFailed, match=r"in none of its .*ottla zookeeper rebuild"):
        BrokerThread(tmp_path / "old").start()


def test_a_coordinator_whose_disk_fails_ends_the_broker_with_one_line(tmp_path: Path) -> None:
    script = """
import errno, os, sys
from ottla.zookeeper.embedded import transaction_log

write, broken = os.write, sys.argv.pop()
def failing(descriptor, data):
    if os.path.exists(broken):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return write(descriptor, data)

init = transaction_log.TransactionLog.__init__
transaction_log.TransactionLog.__init__ = lambda *a, **k: init(*a, **{**k, "os_write": failing})
from ottla.broker.server.cli import broker
broker(sys.argv[1:])
"""
    broken = tmp_path / "broken"
    flags = ["start", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"), str(broken)]
    with subprocess.Popen(
        [sys.executable, "-c", script, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        broken.touch()
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", 1, 1)], request_timeout=5)
        _, said = process.communicate(timeout=60)

    assert process.returncode == 1
    assert said.splitlines()[-1].startswith(f"Error: {tmp_path / 'data' / 'coordinator'} cannot be written")
    assert "Traceback" not in said


def test_commands_find_the_coordinator_of_a_data_directory_and_its_secret(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        create(broker, "mine")
        ls = CliRunner().invoke(zookeeper, ["ls", str(tmp_path / "data"), "/brokers/topics"])
        get = CliRunner().invoke(zookeeper, ["get", str(tmp_path / "data"), "/controller"])
        address = access_to(tmp_path / "data").connect_string
        without = CliRunner().invoke(zookeeper, ["ls", address, "/brokers/topics"])

    assert (ls.output, ls.exit_code) == ("mine\n", 0)
    assert '"brokerid":1001' in get.output
    assert without.exit_code == 1
    assert without.output.startswith("Error: NoAuth: /brokers/topics: the server asks for a secret")


async def test_the_port_of_the_coordinator_asks_for_a_secret(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        await asyncio.to_thread(create, broker, "mine")
        access = access_to(tmp_path / "data")
        stranger = KazooClient(access.connect_string, timeout=4)
        await asyncio.to_thread(stranger.start, 10)
        try:
            for forbidden in (
                lambda: stranger.create("/admin/delete_topics/mine", b""),
                lambda: stranger.get_children("/brokers/topics"),
            ):
                with pytest.raises(NoAuthError):
                    await asyncio.to_thread(forbidden)
        finally:
            await asyncio.to_thread(stranger.stop)
            await asyncio.to_thread(stranger.close)
        async with KazooSession(access.connect_string, credentials=access.credentials) as session:
            assert await session.children("/brokers/topics") == ["mine"]
        assert await asyncio.to_thread(topics_of, broker) == {"mine"}
    private = tmp_path / "data" / "coordinator"
    assert {path.stat().st_mode & 0o077 for path in (private, *private.iterdir())} == {0}


async def test_a_secured_broker_does_not_share_its_coordinator_with_another_machine(tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    secret = read_or_make_secret(directory)
    secured = {
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    async with EmbeddedCoordinator(directory, secret=secret) as coordinator:
        write_address(directory, coordinator.connect_string)
        async with KazooSession(coordinator.connect_string, credentials=credentials(secret)) as session:
            far = (Endpoint("PLAINTEXT", "192.0.2.7", 9092),)
            node = BrokerRegistration(3, far, {"PLAINTEXT": "PLAINTEXT"}, 0)
            await session.create(node.path, node.encode(), make_parents=True)
            settings = {"zookeeper.connect": str(directory), "broker.id": "1", **secured}

            with pytest.raises(BrokerFailed, match=r"broker 3 is at 192\.0\.2\.7, on another machine"):
                await asyncio.to_thread(BrokerThread(tmp_path / "1", settings).start)

            await session.delete(node.path)
            broker = await asyncio.to_thread(BrokerThread(tmp_path / "1", settings).start)
            assert await session.children("/brokers/ids") == ["1"]
            await asyncio.to_thread(broker.stop)


async def test_brokers_of_other_machines_are_refused_beside_an_embedded_coordinator() -> None:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        for broker_id, host in ((1, "127.0.0.1"), (2, "::1")):
            endpoints = (Endpoint("PLAINTEXT", host, 9092),)
            node = BrokerRegistration(broker_id, endpoints, {"PLAINTEXT": "PLAINTEXT"}, 0)
            await session.create(node.path, node.encode(), make_parents=True)
        await check_brokers_are_here(session, 1)

        node = BrokerRegistration(
            3, (Endpoint("PLAINTEXT", "192.0.2.7", 9092),), {"PLAINTEXT": "PLAINTEXT"}, 0
        )
        await session.create(node.path, node.encode())
        with pytest.raises(StartupRefused, match=r"broker 3 is at 192\.0\.2\.7"):
            await check_brokers_are_here(session, 1)
        await check_brokers_are_here(session, 3)  # its own registration, of before a crash


@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o644), lambda path: path.write_text("x\n")])
def test_a_broker_does_not_start_with_a_secret_that_others_know(
    tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    secret = tmp_path / "data" / "coordinator" / "secret"
    with BrokerProcess(tmp_path / "data"):
        pass
    spoil(secret)
    with pytest.raises(BrokerFailed) as refused:
        BrokerProcess(tmp_path / "data").start()
    assert str(secret) in str(refused.value)
    assert "Traceback" not in str(refused.value)

    secret.unlink()  # as the message says: there is another, and the topics are still there
    with BrokerProcess(tmp_path / "data"):
        assert secret.stat().st_mode & 0o777 == 0o600


async def test_two_brokers_share_the_coordinator_of_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    secret = read_or_make_secret(directory)
    async with EmbeddedCoordinator(directory, secret=secret) as coordinator:
        write_address(directory, coordinator.connect_string)
        settings = {"zookeeper.connect": str(directory), "offsets.topic.replication.factor": "1"}
        brokers = [BrokerProcess(tmp_path / name, {"broker.id": name, **settings}) for name in "12"]
        for broker in brokers:
            await asyncio.to_thread(broker.start)
        try:
            async with KazooSession(coordinator.connect_string, credentials=credentials(secret)) as session:
                assert await session.children("/brokers/ids") == ["1", "2"]
        finally:
            for broker in brokers:
                await asyncio.to_thread(broker.stop)

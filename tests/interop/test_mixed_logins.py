"""Brokers of ours and of Apache Kafka log in at each other by Kerberos, and by tokens that end meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ottla.admin import Admin
from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.testing import BrokerThread
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.kerberos import REALM, KerberosRealm, missing_kerberos
from peers.processes import free_port

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

BOUND_S: Final = 120.0
TOKENS: Final = (
    f'{LOGIN_MODULES["OAUTHBEARER"]} required unsecuredLoginStringClaim_sub="kafka" '
    'unsecuredLoginLifetimeSeconds="5" unsecuredValidatorPrincipalClaimName="sub";'
)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosRealm]:
    pytest.importorskip("gssapi")
    if missing := missing_kerberos():
        pytest.skip(missing)
    with KerberosRealm(tmp_path_factory.mktemp("realm")) as realm, realm.of_this_process():
        yield realm


def settings(mechanism: str, line: str) -> dict[str, str]:
    """Return the settings of a broker of either kind: clients without a login, brokers with one."""
    clients, brokers = free_port(), free_port()
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{clients},BROKERS://localhost:{brokers}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients},BROKERS://localhost:{brokers}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.kerberos.service.name": "kafka",
        f"listener.name.brokers.{mechanism.lower()}.sasl.jaas.config": line,
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:kafka;User:ANONYMOUS",
    }


async def replicate(folder: Path, mechanism: str, line: str) -> None:
    """Replicate records both ways between the two brokers for eight seconds: tokens end in that time."""
    with ZooKeeper(folder / "zookeeper") as zookeeper:
        apaches = settings(mechanism, line) | {"inter.broker.protocol.version": "2.8"}
        apache = ApacheKafka(folder / "apache", apaches, zookeeper=zookeeper, heap="384m")
        apache.port = int(apaches["listeners"].partition(",")[0].rpartition(":")[2])
        ours = settings(mechanism, line) | {"zookeeper.connect": zookeeper.connect_string, "broker.id": "2"}
        with apache, BrokerThread(folder / "ours", ours) as ottla:
            servers = f"{apache.bootstrap_servers},{ottla.bootstrap_servers}"
            async with asyncio.timeout(BOUND_S), Admin(servers) as admin:
                both = {0: (1, 2), 1: (2, 1)}
                await admin.topics.create("t", assignments=both, configs={"min.insync.replicas": "2"})
                async with Producer(servers, acks="all") as producer:
                    for number in range(40):
                        await producer.send_and_wait("t", b"%d" % number, partition=number % 2)
                        await asyncio.sleep(0.2)  # the rate of the stream
                positions = {TopicPartition("t", partition): 0 for partition in both}
                found: set[bytes | None] = set()
                async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
                    consumer.assign(list(positions))
                    while len(found) < 40:
                        found.add((await anext(consumer)).value)

    assert found == {b"%d" % number for number in range(40)}


async def test_brokers_of_both_kinds_log_in_at_each_other_by_kerberos(
    realm: KerberosRealm, tmp_path: Path
) -> None:
    keytab = realm.keytab("kafka/localhost")
    line = (
        f"{LOGIN_MODULES['GSSAPI']} required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="kafka/localhost@{REALM}";'
    )

    await replicate(tmp_path, "GSSAPI", line)


async def test_brokers_of_both_kinds_log_in_at_each_other_by_tokens(tmp_path: Path) -> None:
    await replicate(tmp_path, "OAUTHBEARER", TOKENS)

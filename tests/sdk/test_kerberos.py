"""Our clients log in by Kerberos, at Ottla and Apache Kafka, with keytabs of a realm that the test runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.testing import BrokerThread
from ottla.client.errors import AuthenticationFailed
from ottla.consumer import Consumer
from ottla.producer import Producer
from peers.apache_kafka import ApacheKafka, Listener
from peers.kerberos import REALM, KerberosRealm, missing_kerberos
from peers.kraft_kafka import KraftKafka
from peers.maven import missing_tools
from peers.processes import free_port
from sdk.conftest import chosen_kinds

pytest.importorskip("gssapi")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kafka" in metafunc.fixturenames:
        metafunc.parametrize("kafka", chosen_kinds(metafunc.config), indirect=True, scope="module")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosRealm]:
    if missing := missing_kerberos():
        pytest.skip(missing)
    with KerberosRealm(tmp_path_factory.mktemp("realm")) as realm, realm.of_this_process():
        yield realm


@pytest.fixture(scope="module")
def kafka(
    request: pytest.FixtureRequest, realm: KerberosRealm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a listener with GSSAPI, whose logins last 3 s."""
    if request.param != "ottla" and (missing := missing_tools()):
        pytest.skip(missing)
    keytab = realm.keytab("kafka/localhost")
    jaas = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="kafka/localhost@{REALM}";'
    )
    settings = {
        "listener.name.login.sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.login.gssapi.sasl.jaas.config": jaas,
        "listener.name.login.gssapi.connections.max.reauth.ms": "3000",
        "sasl.kerberos.service.name": "kafka",
        "offsets.topic.num.partitions": "1",
    }
    if request.param == "ottla":
        settings |= {
            "listeners": "LOGIN://127.0.0.1:0",
            "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
            "inter.broker.listener.name": "LOGIN",
        }
        with BrokerThread(tmp_path_factory.mktemp("kerberos"), settings) as broker:
            yield broker.bootstrap_servers
        return
    listeners = {"LOGIN": Listener("SASL_PLAINTEXT", free_port())}
    runner = ApacheKafka if request.param == "kafka-3.9" else KraftKafka
    folder = tmp_path_factory.mktemp("kerberos")
    with runner(folder, settings, heap="384m", listeners=listeners):
        yield f"127.0.0.1:{listeners['LOGIN'].port}"


def login(keytab: Path, principal: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_domain_name": "localhost",
        "sasl_kerberos_principal": principal,
        "sasl_kerberos_keytab": str(keytab),
    }


async def test_a_keytab_logs_in_again_and_again_amid_a_stream(kafka: str, realm: KerberosRealm) -> None:
    security, topic = login(realm.keytab("anna"), f"anna@{REALM}"), f"kerberos-{secrets.token_hex(4)}"
    async with (
        asyncio.timeout(120),
        Producer(kafka, **security) as producer,
        Consumer(
            topic, bootstrap_servers=kafka, group_id=topic, auto_offset_reset="earliest", **security
        ) as consumer,
    ):
        for number in range(40):  # through two logins that end
            await producer.send_and_wait(topic, b"%d" % number)
            assert (await anext(consumer)).value == b"%d" % number
            await asyncio.sleep(0.2)  # the rate of the stream


async def test_a_login_that_the_realm_refuses_says_why(kafka: str, realm: KerberosRealm) -> None:
    keytab = realm.keytab("josef")

    with pytest.raises(
        AuthenticationFailed,
        match=r"login of nobody@OTTLA\.TEST at kafka@localhost: .*redentials",
    ):
        await Producer(kafka, **login(keytab, f"nobody@{REALM}")).start()
    strange = login(keytab, f"josef@{REALM}") | {"sasl_kerberos_service_name": "zookeeper"}
    with pytest.raises(AuthenticationFailed, match=r"login of josef@.* at zookeeper@localhost: .*not found"):
        await Producer(kafka, **strange).start()

"""Logins by Kerberos at our broker, with a real key distribution centre: clients, brokers, wrong keys."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.security.sasl.testing import BOUND_S, Wire
from ottla.broker.testing import BrokerFailed, BrokerThread, _coordinator_for_tests
from ottla.client.kerberos import Kerberos
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.testing import Background
from peers.kerberos import REALM, KerberosRealm, missing_kerberos

pytest.importorskip("gssapi")

SERVICE = "kafka/localhost"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosRealm]:
    if missing := missing_kerberos():
        pytest.skip(missing)
    with KerberosRealm(tmp_path_factory.mktemp("realm")) as realm, realm.of_this_process():
        yield realm


def jaas(keytab: Path, principal: str = f"{SERVICE}@{REALM}") -> str:
    return (
        f"{LOGIN_MODULES['GSSAPI']} required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="{principal}";'
    )


def settings_of(keytab: Path, **changed: str) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "SASL_PLAINTEXT://localhost:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": jaas(keytab),
        "super.users": "User:kafka;User:anna",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        **changed,
    }


@pytest.fixture(scope="module")
def keytab(realm: KerberosRealm) -> Path:
    return realm.keytab(SERVICE, "broker")


@pytest.fixture(scope="module")
def anna(realm: KerberosRealm) -> Path:
    return realm.keytab("anna")


@pytest.fixture(scope="module")
def broker(keytab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker"), settings_of(keytab)) as running:
        yield running


def client(principal: str, keytab: Path | None) -> Kerberos:
    return Kerberos("kafka", "localhost", f"{principal}@{REALM}", None if keytab is None else str(keytab))


def log_in(wire: Wire, login: Kerberos) -> Any:
    """Exchange tokens until the client or the broker has no more; return the last answer."""
    assert wire.handshake("GSSAPI").error_code == 0
    answer = wire.token(login.first())
    while answer.error_code == 0 and (token := login.answer(answer.auth_bytes)) is not None:
        answer = wire.token(token)
    return answer


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return why logins were refused, by the log of the broker."""
    return [vars(record)["reason"] for record in caplog.records if record.message == "login refused"]


# ---- the exchange


def test_tokens_in_requests_prove_the_name_of_a_keytab(broker: BrokerThread, anna: Path) -> None:
    with Wire(broker.port) as wire:
        answer = log_in(wire, client("anna", anna))

        assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
        assert wire.serves()


@pytest.mark.parametrize("with_handshake", [True, False])
def test_tokens_without_a_header_follow_the_first_handshake_or_none_at_all(
    broker: BrokerThread, anna: Path, with_handshake: bool
) -> None:
    login = client("anna", anna)
    with Wire(broker.port) as wire:
        if with_handshake:
            assert wire.handshake("GSSAPI", version=0).error_code == 0
        wire.send_frame(login.first())
        for _ in range(2):  # the context, and the layer; the last token has no answer, as in Kafka
            token = login.answer(wire.frame())
            assert token is not None
            wire.send_frame(token)

        assert wire.serves()


@pytest.mark.parametrize(
    "token",
    [b"", b"\x60\x00junk", b"\x60" * 500_000, b"n,,n=anna,r=x"],
    ids=["empty", "junk", "large", "scram"],
)
def test_a_token_that_is_none_is_refused_with_kafkas_words(broker: BrokerThread, token: bytes) -> None:
    with Wire(broker.port) as wire:
        wire.handshake("GSSAPI")
        answer = wire.token(token)

        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            "Authentication failed during authentication due to invalid credentials with SASL mechanism "
            "GSSAPI"
        )
        assert wire.is_closed()


def test_a_context_must_be_complete_before_a_layer_is_chosen(broker: BrokerThread, anna: Path) -> None:
    with Wire(broker.port) as wire:
        wire.handshake("GSSAPI")
        login = client("anna", anna)
        assert wire.token(login.first()).error_code == 0

        assert wire.token(b"not empty").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert wire.is_closed()


def test_a_replayed_ticket_closes_the_connection_without_an_answer(broker: BrokerThread, anna: Path) -> None:
    token = client("anna", anna).first()
    with Wire(broker.port) as wire:
        wire.handshake("GSSAPI")
        assert wire.token(token).error_code == 0
    with Wire(broker.port) as wire:
        wire.handshake("GSSAPI")

        with pytest.raises((EOFError, ConnectionResetError)):
            wire.token(token)


def test_a_clock_that_is_off_is_refused_and_named_in_the_log(
    realm: KerberosRealm, keytab: Path, anna: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = realm.ticket_cache("anna", anna, SERVICE, 3_600)
    with pytest.MonkeyPatch.context() as context:
        context.setenv("KRB5CCNAME", f"FILE:{cache}")
        with BrokerThread(tmp_path, settings_of(keytab)) as broker, Wire(broker.port) as wire:
            answer = log_in(wire, Kerberos("kafka", "localhost", None, None))

    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "invalid credentials" in answer.error_message
    (reason,) = reasons(caplog)
    assert "Clock skew too great" in reason


def test_a_principal_without_a_rule_is_refused_and_named_in_the_log(
    realm: KerberosRealm, keytab: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = {"sasl.kerberos.principal.to.local.rules": "RULE:[2:$1](kafka),RULE:[1:$1](otto)s/otto/anna/"}
    keytabs = {name: realm.keytab(name) for name in ("otto", "eve")}
    with BrokerThread(tmp_path, settings_of(keytab, **rules)) as broker:
        with Wire(broker.port) as wire:
            assert log_in(wire, client("otto", keytabs["otto"])).error_code == 0
        with Wire(broker.port) as wire:
            assert (
                log_in(wire, client("eve", keytabs["eve"])).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            )

    assert reasons(caplog) == [f"no rule of sasl.kerberos.principal.to.local.rules applies to 'eve@{REALM}'"]


def test_a_keytab_with_an_old_key_lets_nobody_in_until_it_is_replaced(
    realm: KerberosRealm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = "kafka/127.0.0.1"
    old, otto = realm.keytab(service, "old"), realm.keytab("otto")
    settings = settings_of(old) | {
        "listener.name.sasl_plaintext.gssapi.sasl.jaas.config": jaas(old, f"{service}@{REALM}")
    }

    def answer() -> Any:
        with Wire(running.port) as wire:
            # Tickets are kept by the path of the keytab: another path asks for another ticket.
            copy = shutil.copy(otto, tmp_path / f"{secrets.token_hex(4)}.keytab")
            return log_in(wire, Kerberos("kafka", "127.0.0.1", f"otto@{REALM}", str(copy)))

    with BrokerThread(tmp_path / "data", settings) as running:
        assert answer().error_code == 0
        new = realm.keytab(service, "new")
        refused = answer()
        new.replace(old)

        assert answer().error_code == 0

    assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    (reason,) = reasons(caplog)
    assert "keytab" in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"junk", "Unsupported key table format version number"),
        ("anna", f"No key table entry found for {SERVICE}@{REALM}"),
    ],
    ids=["missing", "damaged", "of another"],
)
def test_a_keytab_that_cannot_be_used_refuses_the_start_in_one_line(
    anna: Path, tmp_path: Path, content: bytes | str | None, problem: str
) -> None:
    keytab = tmp_path / "given.keytab"
    if content is not None:
        keytab.write_bytes(content if isinstance(content, bytes) else anna.read_bytes())

    with pytest.raises(BrokerFailed) as raised:
        with BrokerThread(tmp_path / "data", settings_of(keytab)):
            pass
    assert f"no key of {SERVICE}@{REALM} in {keytab}: " in str(raised.value)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_logins_have_threads_of_their_own(broker: BrokerThread, anna: Path) -> None:
    with Wire(broker.port) as wire:
        log_in(wire, client("anna", anna))

    assert any(thread.name.startswith("logins") for thread in threading.enumerate())


def test_the_log_of_a_login_has_no_token(
    broker: BrokerThread, anna: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = client("anna", anna).first()
    with Wire(broker.port) as wire:
        wire.handshake("GSSAPI")
        assert wire.token(token).error_code == 0

    logged = "".join(str(vars(record)) for record in caplog.records)
    assert repr(token)[2:60] not in logged
    assert token[:20].hex() not in logged


# ---- clients by other hands


async def test_aiokafka_logs_in(broker: BrokerThread, realm: KerberosRealm, anna: Path) -> None:
    from aiokafka import AIOKafkaProducer

    with pytest.MonkeyPatch.context() as context:
        context.setenv("KRB5CCNAME", f"FILE:{realm.ticket_cache('anna', anna, SERVICE, 0)}")
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
            sasl_kerberos_service_name="kafka",
            sasl_kerberos_domain_name="localhost",
        )
        async with asyncio.timeout(BOUND_S), producer:
            assert (await producer.send_and_wait("aiokafka", b"v")).topic == "aiokafka"


def test_kafka_python_logs_in(broker: BrokerThread, realm: KerberosRealm, anna: Path) -> None:
    from kafka import KafkaProducer

    with pytest.MonkeyPatch.context() as context:
        context.setenv("KRB5CCNAME", f"FILE:{realm.ticket_cache('anna', anna, SERVICE, 0)}")
        made = KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="GSSAPI",
            sasl_kerberos_service_name="kafka",
            sasl_kerberos_domain_name="localhost",
        )
        with closing(made) as producer:
            assert producer.send("kafka-python", b"v").get(BOUND_S).topic == "kafka-python"


# ---- brokers at each other


async def test_brokers_log_in_at_each_other(keytab: Path, tmp_path: Path) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async with asyncio.timeout(BOUND_S):
        with Background(_coordinator_for_tests()) as coordinator, ExitStack() as stack:
            settings = {
                "zookeeper.connect": coordinator.value.connect_string,
                "listeners": "PLAINTEXT://127.0.0.1:0,BROKERS://localhost:0",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "sasl.mechanism.inter.broker.protocol": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "listener.name.brokers.gssapi.sasl.jaas.config": jaas(keytab),
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                "super.users": "User:kafka;User:ANONYMOUS",
            }
            running = []
            for broker_id in ("1", "2"):
                broker = BrokerThread(tmp_path / broker_id, settings | {"broker.id": broker_id})
                running.append(await asyncio.to_thread(stack.enter_context, broker))
            servers = [broker.bootstrap_servers for broker in running]
            admin = AIOKafkaAdminClient(bootstrap_servers=servers)
            await admin.start()
            topic = NewTopic("t", 4, 2, topic_configs={"min.insync.replicas": "2"})
            await admin.create_topics([topic], timeout_ms=30_000)
            await admin.close()
            async with AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer:
                for partition in range(4):
                    await producer.send_and_wait("t", b"v", partition=partition)


def test_brokers_that_no_rule_lets_act_are_refused_at_the_start(keytab: Path, tmp_path: Path) -> None:
    with Background(_coordinator_for_tests()) as coordinator:
        settings = settings_of(keytab) | {"zookeeper.connect": coordinator.value.connect_string}
        with pytest.raises(BrokerFailed, match=r"brokers connect to each other as User:kafka, which may not"):
            with BrokerThread(tmp_path / "1", settings | {"super.users": "User:anna"}):
                pass
        rule = {"sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]"}
        with pytest.raises(BrokerFailed, match=r"brokers have no principal: no rule of sasl\.kerberos"):
            with BrokerThread(tmp_path / "2", settings | rule):
                pass

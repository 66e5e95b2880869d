"""Logins by Kerberos: Java's clients and kcat at our broker, and Apache Kafka's answers to each message."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ottla.broker.config import ConfigError
from ottla.broker.config.logins import LOGIN_MODULES
from ottla.broker.security.principal_mapping import LocalNames, NoRuleApplies, parse_kerberos_rules
from ottla.broker.security.sasl.testing import Wire
from ottla.broker.testing import BrokerThread
from ottla.client.kerberos import Kerberos
from peers.apache_kafka import ApacheKafka, Listener
from peers.java import run_program
from peers.kerberos import REALM, KerberosRealm, missing_kerberos
from peers.maven import kafka_clients
from peers.processes import free_port

pytest.importorskip("gssapi")
pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

JAVA: Final = Path(__file__).parent / "java"
ONE_RECORD: Final = JAVA / "OneRecord.java"
SERVICE: Final = "kafka/localhost"


def jaas(keytab: Path, principal: str) -> str:
    return (
        f"{LOGIN_MODULES['GSSAPI']} required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="{principal}@{REALM}";'
    )


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosRealm]:
    if missing := missing_kerberos():
        pytest.skip(missing)
    with KerberosRealm(tmp_path_factory.mktemp("realm")) as realm, realm.of_this_process():
        yield realm


@dataclass(frozen=True)
class Keytabs:
    """Keytabs of the service and of a client; `old` has a key that the realm has replaced."""

    service: Path
    old: Path
    anna: Path


@pytest.fixture(scope="module")
def keytabs(realm: KerberosRealm) -> Keytabs:
    old = realm.keytab("kafka/127.0.0.1", "old")
    realm.keytab("kafka/127.0.0.1", "new")
    return Keytabs(realm.keytab(SERVICE, "service"), old, realm.keytab("anna"))


def settings_of(keytabs: Keytabs) -> dict[str, str]:
    """Return the settings of two listeners: one with the right key, and one with the old one."""
    return {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.login.gssapi.sasl.jaas.config": jaas(keytabs.service, SERVICE),
        "listener.name.stale.gssapi.sasl.jaas.config": jaas(keytabs.old, "kafka/127.0.0.1"),
    }


@pytest.fixture(scope="module")
def ports(keytabs: Keytabs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The ports of our listeners LOGIN and STALE."""
    ports = {"LOGIN": free_port(), "STALE": free_port()}
    settings = settings_of(keytabs) | {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "advertised.listeners": ",".join(f"{name}://localhost:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT,STALE:SASL_PLAINTEXT",
        "inter.broker.listener.name": "LOGIN",
    }
    with BrokerThread(tmp_path_factory.mktemp("ottla"), settings):
        yield ports


@pytest.fixture(scope="module")
def kafkas_ports(keytabs: Keytabs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The ports of the same listeners of Apache Kafka 3.9."""
    listeners = {name: Listener("SASL_PLAINTEXT", free_port()) for name in ("LOGIN", "STALE")}
    folder = tmp_path_factory.mktemp("kafka")
    # The stale key gives no ticket, which Java would ask for at the start.
    accepting = settings_of(keytabs)
    key = "listener.name.stale.gssapi.sasl.jaas.config"
    accepting[key] = accepting[key].replace("storeKey=true", "storeKey=true isInitiator=false")
    # Kafka reads the number of Kerberos' error by reflection, which Java forbids since 16. Without it Kafka
    # refuses a replay, and its client gives up.
    opened = "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED"
    with pytest.MonkeyPatch.context() as context:
        context.setenv("JDK_JAVA_OPTIONS", f"{os.environ['JDK_JAVA_OPTIONS']} {opened}")
        kafka = ApacheKafka(folder, accepting, heap="384m", listeners=listeners).start()
    try:
        yield {name: listener.port for name, listener in listeners.items()}
    finally:
        kafka.stop()


# ---- clients


def properties(folder: Path, port: int, login: Mapping[str, str]) -> str:
    path = folder / "client.properties"
    common = {
        "bootstrap.servers": f"localhost:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        **login,
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in common.items()))
    return str(path)


@pytest.mark.parametrize("version", ["3.9.1", "4.4.0", "1.0.2", "0.10.2.2"])
def test_a_java_client_logs_in_with_a_keytab(
    ports: dict[str, int], keytabs: Keytabs, tmp_path: Path, version: str
) -> None:
    login = {"sasl.jaas.config": jaas(keytabs.anna, "anna")}
    file = properties(tmp_path, ports["LOGIN"], login)
    topic = f"java-{version}"

    assert run_program(ONE_RECORD, kafka_clients(version), file, topic).split()[-1] == topic


def test_a_java_client_of_0_9_begins_with_a_token(
    realm: KerberosRealm, ports: dict[str, int], keytabs: Keytabs, tmp_path: Path
) -> None:
    (tmp_path / "jaas.conf").write_text(f"KafkaClient {{ {jaas(keytabs.anna, 'anna')} }};")
    file = properties(tmp_path, ports["LOGIN"], {})
    options = (
        f"{realm.environment['JDK_JAVA_OPTIONS']} -Djava.security.auth.login.config={tmp_path}/jaas.conf"
    )
    with pytest.MonkeyPatch.context() as context:
        context.setenv("JDK_JAVA_OPTIONS", options)

        assert run_program(ONE_RECORD, kafka_clients("0.9.0.1"), file, "java-0.9").split()[-1] == "java-0.9"


def test_a_java_client_reads_that_its_ticket_is_refused(
    ports: dict[str, int], keytabs: Keytabs, tmp_path: Path
) -> None:
    login = {"sasl.jaas.config": jaas(keytabs.anna, "anna")}
    file = Path(properties(tmp_path, ports["STALE"], login))
    file.write_text(file.read_text().replace("localhost", "127.0.0.1"))

    with pytest.raises(
        AssertionError, match=r"SaslAuthenticationException: Authentication failed during auth"
    ):
        run_program(ONE_RECORD, kafka_clients("3.9.1"), str(file), "refused")


def missing_kcat() -> str | None:
    """Return what kcat lacks for Kerberos, or None."""
    if shutil.which("kcat") is None:
        return "needs kcat (Debian: kcat)"
    if not list(Path("/usr/lib").glob("*/sasl2/libgssapiv2.so*")):
        return "needs Kerberos for Cyrus SASL (Debian: libsasl2-modules-gssapi-mit)"
    return None


def test_kcat_logs_in_with_a_keytab(ports: dict[str, int], keytabs: Keytabs, tmp_path: Path) -> None:
    if missing := missing_kcat():
        pytest.skip(missing)
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"anna@{REALM}",
        "sasl.kerberos.keytab": str(keytabs.anna),
    }
    options = [part for key, value in login.items() for part in ("-X", f"{key}={value}")]
    broker = ["-b", f"localhost:{ports['LOGIN']}", *options]
    with pytest.MonkeyPatch.context() as context:
        context.setenv("KRB5CCNAME", f"FILE:{tmp_path}/kcat.tickets")  # its kinit writes it
        produce = ["kcat", "-P", "-t", "kcat", *broker]
        subprocess.run(produce, input="kcat's\n", text=True, check=True, timeout=60)
        consume = ["kcat", "-C", "-t", "kcat", "-o", "beginning", "-e", "-q", *broker]
        done = subprocess.run(consume, capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "kcat's\n"


# ---- answers


def client(keytabs: Keytabs) -> Kerberos:
    return Kerberos("kafka", "localhost", f"anna@{REALM}", str(keytabs.anna))


def told(answer: Any) -> tuple[int, str | None, int]:
    return (answer.error_code, answer.error_message, answer.session_lifetime_ms)


def logged_in(wire: Wire, login: Kerberos) -> list[Any]:
    wire.handshake("GSSAPI")
    answer = wire.token(login.first())
    while answer.error_code == 0 and (token := login.answer(answer.auth_bytes)) is not None:
        answer = wire.token(token)
    return [told(answer), answer.auth_bytes]


def a_login(port: int, keytabs: Keytabs, realm: KerberosRealm) -> list[Any]:
    with Wire(port) as wire:
        return [*logged_in(wire, client(keytabs)), wire.serves()]


def tokens_without_a_header(port: int, keytabs: Keytabs, realm: KerberosRealm, version: int = 0) -> list[Any]:
    login = client(keytabs)
    with Wire(port) as wire:
        if version == 0:
            wire.handshake("GSSAPI", version=0)
        wire.send_frame(login.first())
        for _ in range(2):
            wire.send_frame(login.answer(wire.frame()) or b"")
        return [wire.serves()]


def a_token_without_a_handshake(port: int, keytabs: Keytabs, realm: KerberosRealm) -> list[Any]:
    return tokens_without_a_header(port, keytabs, realm, version=-1)


def refused(token: bytes) -> Callable[[int, Keytabs, KerberosRealm], list[Any]]:
    def play(port: int, keytabs: Keytabs, realm: KerberosRealm) -> list[Any]:
        with Wire(port) as wire:
            wire.handshake("GSSAPI")
            return [told(wire.token(token)), wire.is_closed()]

    return play


def a_token_behind_the_context(port: int, keytabs: Keytabs, realm: KerberosRealm) -> list[Any]:
    with Wire(port) as wire:
        wire.handshake("GSSAPI")
        first = wire.token(client(keytabs).first())
        return [first.error_code, told(wire.token(b"x")), wire.is_closed()]


def a_layer_that_was_not_offered(port: int, keytabs: Keytabs, realm: KerberosRealm) -> list[Any]:
    login = client(keytabs)
    with Wire(port) as wire:
        wire.handshake("GSSAPI")
        empty = login.answer(wire.token(login.first()).auth_bytes)
        wire.token(empty or b"")
        assert login._context is not None
        wrapped = bytes(login._context.wrap(b"\4\0\0\0", False).message)
        return [told(wire.token(wrapped)), wire.is_closed()]


def a_replay(port: int, keytabs: Keytabs, realm: KerberosRealm) -> list[Any]:
    token = client(keytabs).first()
    with Wire(port) as wire:
        wire.handshake("GSSAPI")
        wire.token(token)
    with Wire(port) as wire:
        wire.handshake("GSSAPI")
        try:
            return [told(wire.token(token))]
        except (EOFError, ConnectionResetError):
            return ["closed"]


def a_clock_that_is_off(port: int, keytabs: Keytabs, realm: KerberosRealm) -> list[Any]:
    cache = realm.ticket_cache("anna", keytabs.anna, SERVICE, 3_600)
    with pytest.MonkeyPatch.context() as context, Wire(port) as wire:
        context.setenv("KRB5CCNAME", f"FILE:{cache}")
        return logged_in(wire, Kerberos("kafka", "localhost", None, None))


CASES: Final = {
    "login": a_login,
    "tokens without a header": tokens_without_a_header,
    "a token without a handshake": a_token_without_a_handshake,
    "an empty token": refused(b""),
    "junk": refused(b"\x60\x05junk!"),
    "a large token": refused(b"\x60" * 500_000),
    "a token behind the context": a_token_behind_the_context,
    "another layer": a_layer_that_was_not_offered,
    "a replay": a_replay,
    "a clock that is off": a_clock_that_is_off,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_message_is_answered_as_apache_kafka_answers_it(
    ports: dict[str, int],
    kafkas_ports: dict[str, int],
    keytabs: Keytabs,
    realm: KerberosRealm,
    case: Callable[[int, Keytabs, KerberosRealm], list[Any]],
) -> None:
    assert case(ports["LOGIN"], keytabs, realm) == case(kafkas_ports["LOGIN"], keytabs, realm)


def test_a_key_that_was_replaced_is_answered_as_apache_kafka_answers_it(
    ports: dict[str, int], kafkas_ports: dict[str, int], keytabs: Keytabs
) -> None:
    def answer(port: int) -> list[Any]:
        with Wire(port) as wire:
            login = Kerberos("kafka", "127.0.0.1", f"anna@{REALM}", str(keytabs.anna))
            return [*logged_in(wire, login), wire.is_closed()]

    assert answer(ports["STALE"]) == answer(kafkas_ports["STALE"])


# ---- rules

RULES: Final = [
    r"DEFAULT",
    r"default",
    r"DEFAULT/L",
    r"RULE:[1:$1]",
    r"RULE:[2:$1]",
    r"RULE:[0:$0]",
    r"RULE:[3:$1]",
    r"RULE:[1:$1@$0]",
    r"RULE:[2:$1-$2]",
    r"RULE:[2:$2.$1$0]",
    r"RULE:[1:x$1y$1]",
    r"RULE:[1:$1](a.*)",
    r"RULE:[1:$1](a)",
    r"RULE:[1:$1@$0](.*@OTTLA.TEST)s/@.*//",
    r"RULE:[1:$1@$0](.*@OTTLA\.TEST)s/@.*/-x/",
    r"RULE:[1:$1]s/a/x/",
    r"RULE:[1:$1]s/a/x/g",
    r"RULE:[1:$1]s/a//g",
    r"RULE:[1:$1]s/^(.)(.*)$/$2$1/",
    r"RULE:[1:$1]s/(.)/$1$1/g",
    r"RULE:[1:$1]s/^(.)(.*)$/$12/",
    r"RULE:[1:$1]s/a/\$/g",
    r"RULE:[1:$1]s/a/\\/",
    r"RULE:[1:$1]/L",
    r"RULE:[1:$1]/U",
    r"RULE:[1:$1]L",
    r"RULE:[1:$1]U",
    r"RULE:[1:$1]s/n/N/g/L",
    r"RULE:[1:$1]s/n/N/g/U",
    r"RULE:[1:$1]s/n/N//L",
    r"RULE:[1:$1]s/n/N/L",
    r"RULE:[1:$1]/LU",
    r"RULE:[1:$2]",
    r"RULE:[1:$]",
    r"RULE:[:$1]",
    r"RULE:[1:$1",
    r"RULE:[1:$1]s/a/b",
    r"RULE:[1:$1](*)",
    r"RULE:[1:]x",
    r"RULE:[1:$1](a|A)nna",
    r"RULE:[1:$1]([aA].*)",
    r"RULE:[1:$1]s/[0-9]+/#/g",
    r"RULE:[1:$1]s/$/-x/",
    r"RULE:[1:$1]s/$/-x/g",
    r"RULE:[1:$1]s/n*/-/g",
    r"RULE:[1:$1]s/n*?/-/g",
    r"RULE:[1:$1]s/(a|)/-/g",
    r"RULE:[1:$1]s//./g",
    r"RULE:[1:$1]s/^/./g",
    r"RULE:[2:$1](kafka)s/kafka/broker/",
]
UNUSABLE: Final = ("RULE:[1:$1]s/a/$/", "RULE:[1:$1]s/a/$1/", "RULE:[1:$1]s/a/\\/")
"""Rules that Java fails to apply where they match: here they refuse the start."""
PRINCIPALS: Final = """\
anna@OTTLA.TEST
Anna@OTTLA.TEST
anna@ELSEWHERE
ANNA@elsewhere
aaa@OTTLA.TEST
bob@OTTLA.TEST
kafka/host.example.com@OTTLA.TEST
kafka/h@ELSEWHERE
a/b/c@OTTLA.TEST
a@b@OTTLA.TEST
anna@
user07x12@OTTLA.TEST
ünna ☃@OTTLA.TEST
a$1@OTTLA.TEST
a\\b@OTTLA.TEST
a,b=c@OTTLA.TEST
""".splitlines()


def named(rule: str, principal: str) -> str:
    try:
        return f"={LocalNames(parse_kerberos_rules([rule]), REALM).name_of(principal)}"
    except (ConfigError, NoRuleApplies):
        return "refused"


def test_rules_make_the_users_that_kafka_makes(tmp_path: Path) -> None:
    pairs = [(rule, principal) for rule in RULES for principal in PRINCIPALS]
    pairs += [(rule, "anna@OTTLA.TEST") for rule in UNUSABLE]
    given = tmp_path / "given"
    given.write_text("".join(f"{REALM}\t{rule}\t{principal}\n" for rule, principal in pairs))
    with pytest.MonkeyPatch.context() as context:
        context.setenv("JDK_JAVA_OPTIONS", "-Dstdout.encoding=UTF-8 -Dfile.encoding=UTF-8")
        printed = run_program(JAVA / "LocalNames.java", kafka_clients("3.9.1"), str(given))

    # Kafka accepts an empty user; here such a rule gives none.
    kafkas = dict(
        zip(pairs, ("refused" if line == "=" else line for line in printed.splitlines()), strict=True)
    )
    ours = {pair: named(*pair) for pair in pairs}
    assert {pair: (ours[pair], kafkas[pair]) for pair in pairs if ours[pair] != kafkas[pair]} == {}
    assert len(set(ours.values())) > 50

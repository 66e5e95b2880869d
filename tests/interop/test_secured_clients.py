"""Several releases of each client, unmodified, against a broker with TLS, logins and ACLs.

A client's program does all its cases in one process: with each mechanism that it has, over plain connections
and TLS, without and with a certificate, it produces, and reads and commits as the member of a group. Then it
is refused, in its own words: for a wrong password, and for a permission that it lacks.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from ottla.admin import Acl, Admin, Operation, PatternType, PermissionType, ResourceType
from ottla.client.config import ClientConfig
from ottla.client.security import SecurityConfig
from peers.certificates import missing_openssl
from peers.fetched_programs import go_program, node_modules, python_environment
from peers.java import java_command
from peers.maven import kafka_clients
from peers.secured_kafka import MECHANISMS, PASSWORD, STRANGER, USER, SecuredKafka, secured_kafka

pytestmark = pytest.mark.timeout(600)

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "reference" / "secured-clients.md"
PROGRAM_S: Final = 400
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
TOKEN: Final = "a delegation token"
RENEWED: Final = "renewed logins"
REFUSED: Final = "refused"
"""The kinds of outcomes beside `ok`: of a login, of a certificate, and of permissions."""
UNTRUSTED: Final = "untrusted"
NO_TOPIC: Final = "no topic"
NO_GROUP: Final = "no group"
Words = Mapping[str, str]
_numbers = count(1)


@dataclass(frozen=True)
class Client:
    """A release of a client: its program, its mechanisms, and its words by kind of error, or by case."""

    command: Callable[[], list[str]]
    words: Words
    mechanisms: tuple[str, ...] = MECHANISMS
    is_java: bool = False


@dataclass(frozen=True)
class Case:
    """One case of a client: where it connects, as whom, and the kind of its outcome."""

    name: str
    listener: str
    mechanism: str = ""
    user: str = USER
    password: str = PASSWORD
    certificate: str = ""
    authority: str = "authority"
    action: str = "round"
    topic: str = ""
    outcome: str = "ok"
    more: Mapping[str, str] = field(default_factory=dict)


# --- the clients


def python_client(program: str, *requirements: str, python: str = "") -> Callable[[], list[str]]:
    return lambda: python_program(program, str(python_environment(*requirements, python=python)))


def python_program(program: str, interpreter: str) -> list[str]:
    source = HERE / "python" / f"{program}_secured.py"
    return ["env", f"PYTHONPATH={HERE.parent}", interpreter, str(source)]


def kafkajs(version: str) -> list[str]:
    modules = node_modules(f"kafkajs@{version}")
    return ["env", f"NODE_PATH={modules}", "node", str(HERE / "javascript" / "kafkajs_secured.js")]


def go(program: str, module: str) -> list[str]:
    parts = (HERE / "go" / f"{program}_secured.go", module, HERE / "go" / "secured_cases.go")
    return [str(go_program(*parts))]


def java(version: str) -> list[str]:
    return java_command(HERE / "java" / "SecuredRounds.java", kafka_clients(version))


def kcat() -> list[str]:
    if shutil.which("kcat") is None:
        pytest.skip("needs kcat (Debian: kcat)")
    return python_program("kcat", sys.executable)


OF_JAVA: Final = {
    REFUSED: "SaslAuthenticationException",
    UNTRUSTED: "SslAuthenticationException",
    NO_TOPIC: "TopicAuthorizationException",
    NO_GROUP: "GroupAuthorizationException",
}
OF_LIBRDKAFKA: Final = {
    REFUSED: "_AUTHENTICATION",
    UNTRUSTED: "_SSL",
    NO_TOPIC: "TOPIC_AUTHORIZATION_FAILED",
    NO_GROUP: "GROUP_AUTHORIZATION_FAILED",
}
OF_KCAT: Final = {
    REFUSED: "SASL authentication error",
    UNTRUSTED: "certificate verify failed",
    NO_TOPIC: "Topic authorization failed",
    NO_GROUP: "not permitted for the group",
    # It cannot log in again on a connection, and ends when it has none.
    RENEWED: "Disconnected",
}
OF_FRANZ_GO: Final = {
    REFUSED: "SASL_AUTHENTICATION_FAILED",
    UNTRUSTED: "certificate signed by unknown authority",
    NO_TOPIC: "TOPIC_AUTHORIZATION_FAILED",
    NO_GROUP: "GROUP_AUTHORIZATION_FAILED",
}
OF_FRANZ_GO_1_15: Final = {
    **OF_FRANZ_GO,
    "wrong password OAUTHBEARER": "unexpected data in oauth response",
    "no right to read": "context deadline exceeded",
}
OF_SARAMA: Final = {
    REFUSED: "SASL Authentication failed",
    UNTRUSTED: "certificate signed by unknown authority",
    NO_TOPIC: "not authorized to access this topic",
    NO_GROUP: "not authorized to access this group",
}
OF_KAFKAJS: Final = {
    REFUSED: "KafkaJSSASLAuthenticationError",
    UNTRUSTED: "unable to verify the first certificate",
    NO_TOPIC: "Topic authorization failed|TOPIC_AUTHORIZATION_FAILED",
    NO_GROUP: "KafkaJSGroupCoordinatorNotFound",
    # It takes the refusal for an answer and goes on; the broker closes the connection.
    "wrong password OAUTHBEARER": "Closed connection",
}
OF_AIOKAFKA: Final = {
    REFUSED: "SaslAuthenticationFailed",
    UNTRUSTED: "CERTIFICATE_VERIFY_FAILED",
    NO_TOPIC: "TopicAuthorizationFailedError",
    NO_GROUP: "GroupAuthorizationFailedError",
    "wrong password OAUTHBEARER": "KafkaConnectionError",
}
# Its tokens come without the header of a request, where an answer has no place for an error.
OF_OLD_AIOKAFKA: Final = {**OF_AIOKAFKA, REFUSED: "KafkaConnectionError", UNTRUSTED: "KafkaConnectionError"}
OF_KAFKA_PYTHON: Final = {
    REFUSED: "SaslAuthenticationFailed",
    UNTRUSTED: "CERTIFICATE_VERIFY_FAILED",
    NO_TOPIC: "TopicAuthorizationFailedError|not authorized",
    NO_GROUP: "GroupAuthorizationFailedError",
}
OF_KAFKA_PYTHON_3: Final = {
    **OF_KAFKA_PYTHON,
    # It throws an answer away that comes in one read with the end of the connection, which follows a refusal.
    REFUSED: "SaslAuthenticationFailed|KafkaConnectionError: socket disconnected",
}
OF_OLD_KAFKA_PYTHON: Final = {
    **OF_KAFKA_PYTHON,
    REFUSED: "NoBrokersAvailable",
    NO_TOPIC: "KafkaTimeoutError|No partition metadata",
    "wrong password OAUTHBEARER": "AuthenticationFailedError",
}

CLIENTS: Final[dict[str, Client]] = {
    **{
        f"kafka-clients {version}": Client(
            partial(java, version), OF_JAVA, (*MECHANISMS, TOKEN), is_java=True
        )
        for version in ("3.9.1", "4.1.0", "4.4.0")
    },
    # The last release before 2 has no wheels for later Pythons.
    "confluent-kafka 1.9.2": Client(
        python_client("confluent_kafka", "confluent-kafka==1.9.2", python="3.10"), OF_LIBRDKAFKA
    ),
    **{
        f"confluent-kafka {version}": Client(
            python_client("confluent_kafka", f"confluent-kafka=={version}"), OF_LIBRDKAFKA
        )
        for version in ("2.3.0", "2.16.1")
    },
    "kcat 1.7.1": Client(kcat, OF_KCAT),
    **{
        f"franz-go {version}": Client(
            partial(go, "franz_go", f"github.com/twmb/franz-go@{version}"), words, (*MECHANISMS, TOKEN)
        )
        for version, words in (("v1.15.4", OF_FRANZ_GO_1_15), ("v1.22.3", OF_FRANZ_GO))
    },
    **{
        f"sarama {version}": Client(partial(go, "sarama", f"github.com/IBM/sarama@{version}"), OF_SARAMA)
        for version in ("v1.50.1", "v1.61.1")
    },
    **{
        f"kafkajs {version}": Client(partial(kafkajs, version), OF_KAFKAJS) for version in ("1.16.0", "2.2.4")
    },
    "aiokafka 0.7.2": Client(
        python_client("aiokafka", "aiokafka==0.7.2", "kafka-python==2.0.2", python="3.9"), OF_OLD_AIOKAFKA
    ),
    **{
        f"aiokafka {version}": Client(python_client("aiokafka", f"aiokafka=={version}"), words)
        for version, words in (
            ("0.10.0", OF_OLD_AIOKAFKA),
            ("0.12.0", OF_OLD_AIOKAFKA),
            ("0.14.0", OF_AIOKAFKA),
        )
    },
    "kafka-python 1.4.7": Client(
        python_client("kafka_python", "kafka-python==1.4.7", python="3.9"),
        OF_OLD_KAFKA_PYTHON,
        ("PLAIN", "OAUTHBEARER"),
    ),
    **{
        f"kafka-python {version}": Client(python_client("kafka_python", f"kafka-python=={version}"), words)
        for version, words in (
            ("2.0.2", OF_OLD_KAFKA_PYTHON),
            ("2.2.21", OF_KAFKA_PYTHON),
            ("3.0.12", OF_KAFKA_PYTHON_3),
        )
    },
}


# --- the cases


def cases_of(client: Client) -> list[Case]:
    logins = [name for name in client.mechanisms if name != TOKEN]
    stranger = partial(Case, listener="BOTH", mechanism="PLAIN", user=STRANGER)
    return [
        *(Case(f"SASL_PLAINTEXT {name}", "LOGIN", name) for name in logins),
        *(Case(f"SASL_SSL {name}", "BOTH", name) for name in logins),
        Case("SASL_SSL with a certificate", "STRICT", "PLAIN", certificate="client"),
        Case("SSL", "ENCRYPTED"),
        Case("SSL with a certificate", "MUTUAL", certificate="client"),
        *(Case(name, "BOTH", "SCRAM-SHA-256", action="round") for name in client.mechanisms if name == TOKEN),
        Case(RENEWED, "SESSION", logins[-2], action="stay"),
        *(
            Case(f"wrong password {name}", "BOTH", name, password="wrong", action="produce", outcome=REFUSED)
            for name in logins
        ),
        Case("another authority", "ENCRYPTED", authority="other", action="produce", outcome=UNTRUSTED),
        stranger("no right to write", action="produce", outcome=NO_TOPIC, topic=SECRETS),
        stranger("no right to read", action="consume", outcome=NO_TOPIC, topic=SECRETS),
        stranger("no right to a group", action="consume", outcome=NO_GROUP),
        Case("a certificate without rights", "MUTUAL", certificate="stranger", action="produce",
             outcome=NO_TOPIC, topic=SECRETS),
    ]  # fmt: skip


SECRETS: Final = "secrets"
OPEN_GROUP: Final = "open-group"
CLOSED_GROUP: Final = "closed-group"


@dataclass(frozen=True)
class Ground:
    """The broker, and what all clients have in common."""

    kafka: SecuredKafka
    folder: Path
    token: tuple[str, str]

    def lines(self, case: Case, topic: str) -> str:
        """Write a case for a program."""
        listener = self.kafka.listeners[case.listener]
        words = {
            "case": case.name, "do": case.action, "outcome": case.outcome, "protocol": listener.protocol,
            "servers": self.kafka.at(case.listener), "topic": case.topic or topic,
            "group": self.group(case, topic),
        }  # fmt: skip
        if listener.protocol.endswith("SSL"):
            words["cafile"] = str(self.folder / f"{case.authority}.crt")
        if case.certificate:
            words["certfile"] = str(self.folder / f"{case.certificate}.crt")
            words["keyfile"] = str(self.folder / f"{case.certificate}.key")
            words["storefile"] = str(self.folder / f"{case.certificate}.pem")
        return "".join(f"{key}={value}\n" for key, value in (words | self.login(case)).items())

    def group(self, case: Case, topic: str) -> str:
        if case.outcome == "ok":
            return f"{topic}-{case.name}"
        return CLOSED_GROUP if case.outcome == NO_GROUP else OPEN_GROUP

    def login(self, case: Case) -> dict[str, str]:
        if not case.mechanism:
            return {}
        words = {"mechanism": case.mechanism, "username": case.user, "password": case.password}
        if case.name == TOKEN:
            return words | {"username": self.token[0], "password": self.token[1], "tokenauth": "true"}
        if case.mechanism == "OAUTHBEARER":
            is_right = case.password == PASSWORD
            claim = "sub" if is_right else "name"
            words["token"] = unsecured_token({claim: case.user})
            words["claim"] = claim
        return words


def unsecured_token(claims: Mapping[str, str]) -> str:
    """Make a JWS without a signature: clients pass on any text."""
    now_s = int(time.time())
    parts = ({"alg": "none"}, {**claims, "iat": now_s, "exp": now_s + 3_600})
    encoded = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    return b".".join(encoded).decode() + "."


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if missing := missing_openssl():
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("secured")
    with secured_kafka(folder, "ottla") as kafka:
        kafka.authority.sign("stranger")
        for name in ("client", "stranger"):  # Java wants both in one file
            parts = [folder / "certificates" / f"{name}.{ending}" for ending in ("key", "crt")]
            (folder / "certificates" / f"{name}.pem").write_text("".join(part.read_text() for part in parts))
        token = asyncio.run(prepared(kafka))
        yield Ground(kafka, folder / "certificates", token)


def rule(operation: Operation, kind: ResourceType, name: str, pattern: PatternType) -> Acl:
    principal = f"User:{STRANGER}"
    return Acl(kind, name, pattern, principal, "*", operation, PermissionType.ALLOW)


async def prepared(kafka: SecuredKafka) -> tuple[str, str]:
    """Create what the stranger may read and what nobody may; return a token of the user."""
    async with Admin(kafka.bootstrap_servers) as admin:
        await admin.topics.create(SECRETS, partitions=1, replication_factor=1)
        await admin.acls.create(
            [
                rule(Operation.READ, ResourceType.TOPIC, "open-", PatternType.PREFIXED),
                rule(Operation.READ, ResourceType.GROUP, OPEN_GROUP, PatternType.LITERAL),
            ]
        )
    login = SecurityConfig(
        security_protocol="SASL_PLAINTEXT", sasl_username=USER, sasl_password=PASSWORD
    )  # fmt: skip
    async with Admin(kafka.at("LOGIN"), ClientConfig(security=login)) as admin:
        token = await admin.tokens.create()
    return token.token_id, token.password


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.java] if client.is_java else [])
        for name, client in CLIENTS.items()
    ],
)
async def test_a_release_of_a_client_gets_in_by_each_mechanism_and_is_refused_in_its_words(
    ground: Ground, name: str, tmp_path: Path
) -> None:
    client = CLIENTS[name]
    topic = f"open-{next(_numbers)}"
    async with Admin(ground.kafka.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=1, replication_factor=1)
    cases = cases_of(client)

    outcomes = await asyncio.to_thread(
        run, [*client.command(), str(tmp_path)], "\n".join(ground.lines(case, topic) for case in cases)
    )

    wrong = {
        case.name: outcomes.get(case.name, "no outcome")
        for case in cases
        if not re.search(expected_of(client, case), outcomes.get(case.name, ""))
    }
    assert wrong == {}


def test_the_page_lists_every_release_that_is_tried() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]

    for name in CLIENTS:
        library, release = name.split()
        assert any(row.startswith(f"| {library}") and release in row.split("|")[2] for row in rows), name


def expected_of(client: Client, case: Case) -> str:
    """Return the words of an outcome: those of the case, or of its kind."""
    return client.words.get(case.name) or client.words.get(case.outcome, "^ok$")


def run(command: list[str], cases: str) -> dict[str, str]:
    """Run a client's program; return its outcomes by case."""
    try:
        done = subprocess.run(
            command, input=cases, capture_output=True, text=True, timeout=PROGRAM_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"no end after:\n{(error.stdout or b'').decode()[-4000:]}") from None
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)

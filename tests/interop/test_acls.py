"""ACLs of Ottla and of Apache Kafka 3.9 with its AclAuthorizer on one ZooKeeper: each reads the other's.

The same requests are sent to both, and answered alike. Kafka's own tool manages an Ottla broker.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest

from ottla.broker.config import broker_config_from
from ottla.broker.server.broker import Broker
from ottla.protocol.api import (
    ApiKey,
    RequestHeader,
    decode_response_header,
    encode_request_header,
    response_class,
)
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from ottla.zookeeper.kazoo_session import KazooSession
from ottla.zookeeper.testing import Background
from peers.apache_kafka import ApacheKafka, ZooKeeper
from peers.apache_kafka import run_tool as run_kafkas_tool
from peers.maven import kafka_3_server, kafka_4_tools

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

BOUND_S: Final = 60.0
AUTHORIZER: Final = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS;User:CN=broker,OU=ops",
}
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, TOKEN, USER = 2, 3, 4, 5, 6, 7
READ, WRITE, DENY, ALLOW = 3, 4, 2, 3
CLOSED: Final = "the connection is closed"
Row = tuple[int, int, str, str, str, int, int]


@dataclass(frozen=True)
class Pair:
    """A broker of Apache Kafka and one of Ottla in one cluster, with the session of a test."""

    apache: int
    ottla: int
    zookeeper: Background[KazooSession]

    @property
    def ports(self) -> tuple[int, int]:
        return self.apache, self.ottla

    def data_of(self, path: str) -> bytes | None:
        async def read() -> bytes | None:
            session = self.zookeeper.value
            return (await session.get(path))[0] if await session.exists(path) else None

        return self.zookeeper.run(read())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("acls")
    with ZooKeeper(folder / "zookeeper") as zookeeper:
        settings = {**AUTHORIZER, "inter.broker.protocol.version": "2.8"}
        own = {
            **AUTHORIZER, "broker.id": "2", "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(folder / "ottla"), "zookeeper.connect": zookeeper.connect_string,
        }  # fmt: skip
        with (
            ApacheKafka(folder / "apache", settings, zookeeper=zookeeper, heap="384m") as apache,
            Background(Broker(broker_config_from(own))) as ottla,
            Background(KazooSession(zookeeper.connect_string)) as session,
        ):
            yield Pair(apache.port, ottla.value.port, session)


def ask(port: int, request: Any, version: int = 3) -> Any:
    key = ApiKey(request.API_KEY)
    frame = encode_request_header(RequestHeader(int(key), version, 7, "it")) + request.encode(version)
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND_S) as wire, wire.makefile("rb") as file:
        wire.sendall(struct.pack(">i", len(frame)) + frame)
        if not (size := file.read(4)):
            return CLOSED
        body = file.read(struct.unpack(">i", size)[0])
    _, offset = decode_response_header(body, key, version)
    return response_class(key).decode(body[offset:], version)


def creation(
    name: str = "t", *, kind: int = TOPIC, pattern_type: int = LITERAL, principal: str = "User:alice",
    host: str = "*", operation: int = READ, permission: int = ALLOW,
) -> AclCreation:  # fmt: skip
    return AclCreation(
        resource_type=kind, resource_name=name, resource_pattern_type=pattern_type, principal=principal,
        host=host, operation=operation, permission_type=permission,
    )  # fmt: skip


def filter_(
    name: str | None = None, *, kind: int = ANY, pattern_type: int = ANY, principal: str | None = None,
    host: str | None = None, operation: int = ANY, permission: int = ANY,
) -> DeleteAclsFilter:  # fmt: skip
    return DeleteAclsFilter(
        resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern_type,
        principal_filter=principal, host_filter=host, operation=operation, permission_type=permission,
    )  # fmt: skip


def create(port: int, *rules: AclCreation, version: int = 3) -> Any:
    answer = ask(port, CreateAclsRequest(creations=list(rules)), version)
    return CLOSED if answer == CLOSED else [result.error_code for result in answer.results]


def of_version(of: DeleteAclsFilter, version: int) -> DeleteAclsFilter:
    """Return a filter as the first version can have it: patterns are literal there."""
    fields = {field.name: getattr(of, field.name) for field in of.FIELDS}
    return DeleteAclsFilter(**fields | {"pattern_type_filter": LITERAL}) if version == 0 else of


def delete(port: int, *filters: DeleteAclsFilter, version: int = 3) -> Any:
    filters_of_version = [of_version(of, version) for of in filters]
    answer = ask(port, DeleteAclsRequest(filters=filters_of_version), version)
    if answer == CLOSED:
        return CLOSED
    return [
        (
            result.error_code,
            sorted(
                (
                    acl.error_code, acl.resource_type, acl.pattern_type, acl.resource_name,
                    acl.principal, acl.host, acl.operation, acl.permission_type,
                )
                for acl in result.matching_acls
            ),
        )
        for result in answer.filter_results
    ]  # fmt: skip


def describe(port: int, of: DeleteAclsFilter | None = None, version: int = 3) -> Any:
    of = of_version(of or filter_(), version)
    asked = DescribeAclsRequest(
        resource_type_filter=of.resource_type_filter, resource_name_filter=of.resource_name_filter,
        pattern_type_filter=of.pattern_type_filter, principal_filter=of.principal_filter,
        host_filter=of.host_filter, operation=of.operation, permission_type=of.permission_type,
    )  # fmt: skip
    answer = ask(port, asked, version)
    if answer == CLOSED:
        return CLOSED
    assert answer.error_code == 0
    return sorted(
        (
            resource.resource_type, resource.pattern_type, resource.resource_name,
            acl.principal, acl.host, acl.operation, acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    )  # fmt: skip


def until(condition: Callable[[], bool], shown: Callable[[], object]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.02)


def until_both(pair: Pair, rows: list[Row]) -> None:
    """Wait until both brokers show these rules."""

    def shown() -> list[Any]:
        return [describe(port) for port in pair.ports]

    until(lambda: shown() == [rows, rows], shown)


ODD: Final = "User:CN=ä,O=\"b;c\":d/e\\ 'x'"
SEVERAL: Final = [
    creation("t"),
    creation("t", operation=WRITE, permission=DENY, host="10.0.0.1"),
    creation("*", principal="User:*", operation=8),
    creation("a:b", kind=GROUP, principal=ODD),
    creation("pay-", kind=TRANSACTIONAL_ID, pattern_type=PREFIXED, operation=WRITE),
    creation("kafka-cluster", kind=CLUSTER, operation=9, principal="User:other"),
    creation("token-1", kind=TOKEN, operation=8),
    creation("User:owner", kind=USER, operation=13),
    creation("ünïcode", kind=GROUP, pattern_type=PREFIXED, operation=2),
]


@pytest.mark.parametrize("writer", ["apache", "ottla"])
def test_the_rules_that_one_wrote_are_shown_and_removed_by_the_other(pair: Pair, writer: str) -> None:
    first, second = pair.ports if writer == "apache" else pair.ports[::-1]
    assert create(first, *SEVERAL) == [0] * len(SEVERAL)

    expected = sorted(
        (
            rule.resource_type, rule.resource_pattern_type, rule.resource_name,
            rule.principal, rule.host, rule.operation, rule.permission_type,
        )
        for rule in SEVERAL
    )  # fmt: skip
    until_both(pair, expected)

    ((error, removed),) = delete(second, filter_())
    assert (error, [row[1:] for row in removed]) == (0, expected)
    until_both(pair, [])


def test_both_write_the_same_znodes_and_notifications(pair: Pair) -> None:
    rules = [creation("t", principal=ODD), creation("pay-", pattern_type=PREFIXED, operation=10)]
    written: list[list[bytes | None]] = []
    for port in pair.ports:
        assert create(port, *rules) == [0, 0]
        written.append(
            [pair.data_of("/kafka-acl/Topic/t"), pair.data_of("/kafka-acl-extended/prefixed/Topic/pay-")]
        )
        delete(port, filter_())
        until_both(pair, [])
        assert pair.data_of("/kafka-acl/Topic/t") is None
    apache, ottla = written

    assert apache == ottla

    async def notifications() -> list[list[bytes]]:
        session, found = pair.zookeeper.value, []
        for folder in ("/kafka-acl-changes", "/kafka-acl-extended-changes"):
            names = await session.children(folder)
            found.append([(await session.get(f"{folder}/{name}"))[0] for name in names[-4:]])
        return found

    literal, extended = pair.zookeeper.run(notifications())
    assert set(literal) == {b"TOPIC:t"}
    assert len(set(extended)) == 1, extended


INVALID: Final = {
    "cluster of another name": creation("other", kind=CLUSTER),
    "empty name": creation(""),
    "slash": creation("a/b"),
    "relative": creation(".."),
    "control character": creation("a\0b"),
    "principal without a type": creation("bad", principal="alice"),
    "unknown type": creation(kind=99),
    "unknown operation": creation(operation=99),
    "unknown permission": creation(permission=99),
    "unknown pattern": creation(pattern_type=99),
    "any type": creation(kind=ANY),
    "any operation": creation(operation=ANY),
    "any permission": creation(permission=ANY),
    "any pattern": creation(pattern_type=ANY),
    "match": creation(pattern_type=MATCH),
    "code of unknown": creation(kind=0),
    "empty host": creation("h", host=""),
    "operation that a topic has not": creation("o", operation=9),
}


@pytest.mark.parametrize("rule", INVALID.values(), ids=INVALID)
def test_a_rule_is_taken_or_refused_alike(pair: Pair, rule: AclCreation) -> None:
    answers = []
    for port in pair.ports:
        answers.append((create(port, rule, creation("good")), delete(port, filter_())))
        until_both(pair, [])

    apache, ottla = answers
    assert apache == ottla


FILTERS: Final = {
    "everything": filter_(),
    "type": filter_(kind=GROUP),
    "name": filter_("pay"),
    "literal": filter_("pay", pattern_type=LITERAL),
    "prefixed": filter_(pattern_type=PREFIXED),
    "match": filter_("pay", pattern_type=MATCH),
    "match of nothing named": filter_(pattern_type=MATCH),
    "wildcard": filter_("*"),
    "matching the wildcard": filter_("*", pattern_type=MATCH),
    "principal": filter_(principal="User:bob"),
    "everybody": filter_(principal="User:*"),
    "host": filter_(host="10.0.0.1"),
    "operation": filter_(operation=WRITE),
    "permission": filter_(permission=DENY),
    "empty name": filter_(""),
    "unknown type": filter_(kind=99),
    "unknown pattern": filter_(pattern_type=99),
    "code of unknown": filter_(operation=0),
    "slash": filter_("a/b", kind=TOPIC, pattern_type=LITERAL),
}
STORED: Final = [
    creation("pay"), creation("pay", principal="User:bob", operation=WRITE),
    creation("p", pattern_type=PREFIXED, permission=DENY), creation("pay", pattern_type=PREFIXED),
    creation("payment"), creation("*", principal="User:*"), creation("pay", kind=GROUP, host="10.0.0.1"),
]  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 3])
@pytest.mark.parametrize("of", FILTERS.values(), ids=FILTERS)
def test_a_filter_selects_alike(pair: Pair, of: DeleteAclsFilter, version: int) -> None:
    answers = []
    for port in pair.ports:
        assert create(port, *STORED) == [0] * len(STORED)
        described = describe(port, of, version)
        answers.append((described, delete(port, of, filter_("pay"), version=version)))
        delete(port, filter_())
        until_both(pair, [])

    apache, ottla = answers
    assert apache == ottla


@pytest.mark.parametrize(
    ("class_path", "class_name"),
    [(kafka_3_server, "kafka.admin.AclCommand"), (kafka_4_tools, "org.apache.kafka.tools.AclCommand")],
    ids=["kafka-3.9", "kafka-4"],
)
def test_kafkas_tool_manages_an_ottla_broker(
    pair: Pair, class_path: Callable[[], str], class_name: str
) -> None:
    tool = (class_name, "--bootstrap-server", f"127.0.0.1:{pair.ottla}")
    run_tool = partial(run_kafkas_tool, class_path=class_path())

    run_tool(*tool, "--add", "--allow-principal", "User:carol", "--producer", "--topic", "made")
    run_tool(
        *tool, "--add", "--deny-principal", "User:dave", "--operation", "Read", "--topic", "ma",
        "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    listed = run_tool(*tool, "--list")

    assert "principal=User:carol, host=*, operation=WRITE, permissionType=ALLOW" in listed
    assert "patternType=PREFIXED" in listed
    by_match = run_tool(*tool, "--list", "--topic", "made", "--resource-pattern-type", "match")
    assert "User:dave" in by_match
    run_tool(*tool, "--remove", "--force", "--topic", "made", "--resource-pattern-type", "any")
    assert "User:carol" not in run_tool(*tool, "--list")
    delete(pair.ottla, filter_())
    until_both(pair, [])


def test_a_changed_rule_is_known_to_the_other_broker_within_a_second(pair: Pair) -> None:
    figures = []
    for writer, reader in (pair.ports, pair.ports[::-1]) * 3:
        assert create(writer, creation("t")) == [0]
        began = time.monotonic()
        until(lambda: bool(describe(reader)), lambda: describe(reader))  # noqa: B023
        figures.append(round((time.monotonic() - began) * 1000))
        delete(writer, filter_())
        until_both(pair, [])
    print(f"apache to ottla, ottla to apache, in ms: {figures}")

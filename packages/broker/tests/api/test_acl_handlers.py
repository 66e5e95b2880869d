"""DescribeAcls, CreateAcls and DeleteAcls over an ensemble in memory: Kafka's checks, codes and messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from ottla.broker.api import create_acls, delete_acls, describe_acls, elect_leaders
from ottla.broker.api.testing import FakeSession
from ottla.broker.cluster.acls import Acls
from ottla.broker.cluster.features import TRANSACTION, Features
from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.broker.runtime.clock import SystemClock
from ottla.broker.security.acls.authorizer import AclAuthorizer
from ottla.broker.security.authorizer import ALLOW_ALL, Authorizer
from ottla.broker.security.principal import Principal
from ottla.protocol.api import ApiKey, RequestHeader
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from ottla.zookeeper.testing import MemoryEnsemble

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, USER = 2, 3, 4, 5, 7
ALL, READ, WRITE, CLUSTER_ACTION, CREATE_TOKENS, TWO_PHASE_COMMIT = 2, 3, 4, 9, 13, 15
DENY, ALLOW = 2, 3
CALLER = FakeSession(principal=Principal("User", "admin"))

Row = tuple[int, int, str, str, str, int, int]
"""A rule: type, pattern type, name, principal, host, operation, permission."""


@dataclass
class Services:
    acls: Acls | None
    ensemble: MemoryEnsemble
    features: Features

    @property
    def authorizer(self) -> Authorizer:
        return ALLOW_ALL if self.acls is None else self.acls.authorizer

    def context(self, api_key: ApiKey, *, caller: FakeSession = CALLER) -> RequestContext:
        return RequestContext(RequestHeader(api_key, 3, 1, "client"), caller, 0.0, authorizer=self.authorizer)

    async def create(
        self, *creations: AclCreation, caller: FakeSession = CALLER
    ) -> list[tuple[int, str | None]]:
        context = self.context(ApiKey.CREATE_ACLS, caller=caller)
        answer = await create_acls.handle(self, CreateAclsRequest(creations=list(creations)), context)
        return [(result.error_code, result.error_message) for result in answer.results]

    async def delete(self, *filters: DeleteAclsFilter) -> list[list[Row]]:
        context = self.context(ApiKey.DELETE_ACLS)
        answer = await delete_acls.handle(self, DeleteAclsRequest(filters=list(filters)), context)
        assert {result.error_code for result in answer.filter_results} <= {0}
        found = [result.matching_acls for result in answer.filter_results]
        assert {acl.error_code for acls in found for acl in acls} <= {0}
        return [
            [
                (
                    acl.resource_type, acl.pattern_type, acl.resource_name,
                    acl.principal, acl.host, acl.operation, acl.permission_type,
                )
                for acl in acls
            ]
            for acls in found
        ]  # fmt: skip

    async def describe(self, asked: DescribeAclsRequest) -> list[Row]:
        answer = await describe_acls.handle(self, asked, self.context(ApiKey.DESCRIBE_ACLS))
        assert answer.error_code == 0
        return [
            (
                resource.resource_type, resource.pattern_type, resource.resource_name,
                acl.principal, acl.host, acl.operation, acl.permission_type,
            )
            for resource in answer.resources
            for acl in resource.acls
        ]  # fmt: skip


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    ensemble = MemoryEnsemble()
    async with ensemble.session() as session:
        clock = SystemClock()
        acls = Acls(session, AclAuthorizer({"User:admin"}, now_ms=clock.monotonic_ms), clock)
        await acls.load()
        yield Services(acls, ensemble, Features(session, lambda: -1))


def creation(
    name: str = "t", *, kind: int = TOPIC, pattern_type: int = LITERAL, principal: str = "User:alice",
    operation: int = READ, permission: int = ALLOW,
) -> AclCreation:  # fmt: skip
    return AclCreation(
        resource_type=kind, resource_name=name, resource_pattern_type=pattern_type, principal=principal,
        host="*", operation=operation, permission_type=permission,
    )  # fmt: skip


def filter_(
    name: str | None = None, *, kind: int = ANY, pattern_type: int = ANY, principal: str | None = None,
    operation: int = ANY, permission: int = ANY,
) -> DeleteAclsFilter:  # fmt: skip
    return DeleteAclsFilter(
        resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern_type,
        principal_filter=principal, host_filter=None, operation=operation, permission_type=permission,
    )  # fmt: skip


def asked(of: DeleteAclsFilter) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=of.resource_type_filter, resource_name_filter=of.resource_name_filter,
        pattern_type_filter=of.pattern_type_filter, principal_filter=of.principal_filter,
        host_filter=of.host_filter, operation=of.operation, permission_type=of.permission_type,
    )  # fmt: skip


def names(rows: Iterable[Row]) -> list[tuple[int, str]]:
    return [(row[1], row[2]) for row in rows]


async def test_rules_are_created_described_and_deleted(services: Services) -> None:
    odd = "User:CN=ä;b:c,O=\u2028 x"
    assert (
        await services.create(
            creation("t"),
            creation("t-", pattern_type=PREFIXED, permission=DENY, operation=ALL),
            creation("*", kind=USER, operation=CREATE_TOKENS, principal=odd),
            creation("kafka-cluster", kind=CLUSTER, operation=CLUSTER_ACTION),
        )
        == [(0, "")] * 4
    )

    expected: list[Row] = [
        (TOPIC, LITERAL, "t", "User:alice", "*", READ, ALLOW),
        (TOPIC, PREFIXED, "t-", "User:alice", "*", ALL, DENY),
        (CLUSTER, LITERAL, "kafka-cluster", "User:alice", "*", CLUSTER_ACTION, ALLOW),
        (USER, LITERAL, "*", odd, "*", CREATE_TOKENS, ALLOW),
    ]
    assert await services.describe(asked(filter_())) == expected
    assert await services.delete(filter_(principal="User:alice"), filter_()) == [expected[:3], expected[3:]]
    assert await services.describe(asked(filter_())) == []


async def test_a_rule_that_several_filters_select_is_in_the_result_of_the_first(services: Services) -> None:
    await services.create(creation("a"), creation("b"), creation("b", operation=WRITE))

    found = await services.delete(filter_("b", kind=TOPIC, operation=READ), filter_("b"), filter_("a"))

    assert [[(row[2], row[5]) for row in rows] for rows in found] == [
        [("b", READ)],
        [("b", WRITE)],
        [("a", READ)],
    ]


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (filter_(), [(LITERAL, "*"), (LITERAL, "pay"), (LITERAL, "x"), (PREFIXED, "p"), (PREFIXED, "pay")]),
        (filter_(pattern_type=PREFIXED), [(PREFIXED, "p"), (PREFIXED, "pay")]),
        (filter_("pay"), [(LITERAL, "pay"), (PREFIXED, "pay")]),
        (filter_("pay", pattern_type=LITERAL), [(LITERAL, "pay")]),
        (
            filter_("pay", pattern_type=MATCH),
            [(LITERAL, "*"), (LITERAL, "pay"), (PREFIXED, "p"), (PREFIXED, "pay")],
        ),
        (filter_("*"), [(LITERAL, "*")]),
        (filter_("pay", kind=GROUP), []),
        (filter_("pay", operation=WRITE), []),
        (filter_("pay", kind=99), []),
        (filter_("a/b", pattern_type=LITERAL, kind=TOPIC), []),
        (filter_("..", kind=TOPIC), []),
    ],
)
async def test_describe_and_delete_select_the_same(
    services: Services, of: DeleteAclsFilter, found: list[tuple[int, str]]
) -> None:
    for name, pattern_type in (
        ("*", LITERAL), ("pay", LITERAL), ("x", LITERAL), ("p", PREFIXED), ("pay", PREFIXED),
    ):  # fmt: skip
        await services.create(creation(name, pattern_type=pattern_type))

    described = await services.describe(asked(of))

    assert names(described) == found
    assert await services.delete(of) == [described]


async def test_rules_that_another_broker_has_just_written_are_deleted_by_their_name(
    services: Services,
) -> None:
    async with services.ensemble.session() as session:
        clock = SystemClock()
        acls = Acls(session, AclAuthorizer({"User:admin"}, now_ms=clock.monotonic_ms), clock)
        other = Services(acls, services.ensemble, services.features)
        await other.create(creation("t"))

    assert names((await services.delete(filter_("t", kind=TOPIC)))[0]) == [(LITERAL, "t")]


INVALID = ErrorCode.INVALID_REQUEST
UNKNOWN = ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("bad", "code", "message"),
    [
        (
            creation("other", kind=CLUSTER),
            INVALID,
            "The only valid name for the CLUSTER resource is kafka-c",
        ),
        (creation(""), INVALID, "Invalid empty resource name"),
        (creation("a/b"), INVALID, "Failed to create ACL"),
        (creation(kind=99), INVALID, "Failed to create ACL"),
        (creation(operation=99), INVALID, "Failed to create ACL"),
        (creation(permission=99), INVALID, "Failed to create ACL"),
        (creation(pattern_type=99), INVALID, "Failed to create ACL"),
        (creation("bad", principal="alice"), UNKNOWN, "not a principal"),
        (creation(".."), UNKNOWN, "cannot be a component"),
    ],
)
async def test_an_invalid_rule_fails_alone(
    services: Services, bad: AclCreation, code: ErrorCode, message: str
) -> None:
    (found, text), other = await services.create(bad, creation("good"))

    assert found == code
    assert message in (text or "")
    assert other == (0, "")
    assert names(await services.describe(asked(filter_()))) == [(LITERAL, "good")]


@pytest.mark.parametrize(
    "bad",
    [creation(kind=ANY), creation(operation=ANY), creation(permission=ANY), creation(pattern_type=ANY),
     creation(pattern_type=MATCH)],
)  # fmt: skip
async def test_a_rule_with_any_or_match_fails_the_whole_request(services: Services, bad: AclCreation) -> None:
    assert [code for code, _ in await services.create(creation("good"), bad)] == [UNKNOWN, UNKNOWN]
    assert await services.describe(asked(filter_())) == []


async def test_a_rule_of_two_phase_commit_waits_for_members_that_know_it(services: Services) -> None:
    rule = creation("txn-1", kind=TRANSACTIONAL_ID, operation=TWO_PHASE_COMMIT)

    ((code, text),) = await services.create(rule)
    services.features.in_effect = {TRANSACTION: 2}
    allowed = await services.create(rule)

    assert code == ErrorCode.INVALID_REQUEST
    assert "TWO_PHASE_COMMIT needs transaction.version 2, which is off" in (text or "")
    assert allowed == [(0, "")]
    (described,) = await services.describe(asked(filter_(operation=TWO_PHASE_COMMIT)))
    assert described[-2:] == (TWO_PHASE_COMMIT, ALLOW)


async def test_a_principal_without_a_type_fails_the_rules_of_its_pattern(services: Services) -> None:
    found = await services.create(creation("t"), creation("t", principal="alice"), creation("u"))

    assert [code for code, _ in found] == [UNKNOWN, UNKNOWN, 0]


async def test_a_code_that_stands_for_unknown_closes_the_connection(services: Services) -> None:
    for bad in (creation(kind=0), creation(operation=0), creation(permission=0), creation(pattern_type=0)):
        with pytest.raises(CloseConnection):
            await services.create(bad)
    for of in (filter_(kind=0), filter_(operation=0), filter_(permission=0), filter_(pattern_type=0)):
        with pytest.raises(CloseConnection):
            await services.delete(of)
        with pytest.raises(CloseConnection):
            await services.describe(asked(of))


async def test_a_client_that_may_not_alter_the_cluster_gets_the_error_for_each_element(
    services: Services,
) -> None:
    alice = FakeSession(principal=Principal("User", "alice"))
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    assert [found for found, _ in await services.create(creation("a"), creation("b"), caller=alice)] == [
        code
    ] * 2

    context = services.context(ApiKey.DELETE_ACLS, caller=alice)
    answer = await delete_acls.handle(services, DeleteAclsRequest(filters=[filter_()] * 2), context)
    assert [result.error_code for result in answer.filter_results] == [code] * 2


async def test_without_an_authorizer_security_is_disabled(services: Services) -> None:
    without = Services(None, services.ensemble, services.features)
    code = ErrorCode.SECURITY_DISABLED

    assert await without.create(creation()) == [(code, "No Authorizer is configured.")]
    described = await describe_acls.handle(without, asked(filter_()), without.context(ApiKey.DESCRIBE_ACLS))
    assert (described.error_code, described.error_message) == (
        code, "No Authorizer is configured on the broker",
    )  # fmt: skip
    deleted = await delete_acls.handle(
        without, DeleteAclsRequest(filters=[filter_()]), without.context(ApiKey.DELETE_ACLS)
    )
    assert [result.error_code for result in deleted.filter_results] == [code]


async def test_a_large_batch_is_one_znode_per_pattern(services: Services) -> None:
    batch = [creation("t", principal=f"User:{number}") for number in range(2_000)]
    assert set(await services.create(*batch)) == {(0, "")}
    assert len(services.ensemble.tree.nodes["/kafka-acl-changes"].children) == 1

    (found,) = await services.delete(filter_("t", kind=TOPIC))
    assert len(found) == 2_000


async def test_rules_beyond_the_size_of_a_znode_are_refused(services: Services) -> None:
    batch = [creation("t", principal=f"User:{number:0>200}") for number in range(5_000)]

    assert {code for code, _ in await services.create(*batch)} == {INVALID}
    assert await services.describe(asked(filter_())) == []


async def test_without_zookeeper_a_change_times_out(services: Services) -> None:
    services.ensemble.stop()

    assert [code for code, _ in await services.create(creation())] == [ErrorCode.REQUEST_TIMED_OUT]


@pytest.mark.parametrize("version", [0, 2])
async def test_elections_are_refused_in_each_version_where_it_has_room_for_the_error(version: int) -> None:
    header = RequestHeader(ApiKey.ELECT_LEADERS, version, 1, "client")
    context = RequestContext(header, CALLER, 0.0, authorizer=AclAuthorizer(now_ms=lambda: 0.0))
    asked = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=[0])])

    answer = await elect_leaders.handle(cast(Any, None), asked, context)

    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    decoded = ElectLeadersResponse.decode(answer.encode(version), version)
    assert decoded.error_code == (code if version else 0)
    assert [
        result.error_code for topic in decoded.replica_election_results for result in topic.partition_result
    ] == [code]

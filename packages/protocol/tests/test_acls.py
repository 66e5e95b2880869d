"""Decisions by access rules, as Kafka's AclAuthorizer makes them."""

from __future__ import annotations

import pytest

from ottla.protocol.acls import (
    IMPLIED_BY,
    OPERATIONS,
    Acl,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    decide,
)

ANNA, HOST = "User:anna", "10.0.0.1"


def rule(
    operation: Operation = Operation.READ,
    name: str = "orders",
    *,
    principal: str = ANNA,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: PermissionType = PermissionType.ALLOW,
) -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, principal, host, operation, permission)


def allowed(*acls: Acl, operation: Operation = Operation.READ, name: str = "orders") -> bool:
    return decide(acls, ANNA, HOST, operation, ResourceType.TOPIC, name).is_allowed


def test_without_a_rule_nothing_is_allowed_and_no_rule_is_named() -> None:
    decision = decide([], ANNA, HOST, Operation.READ, ResourceType.TOPIC, "orders")

    assert decision == (False, None, False)


@pytest.mark.parametrize(
    "acl",
    [
        rule(),
        rule(Operation.ALL),
        rule(name="*"),
        rule(name="ord", pattern=PatternType.PREFIXED),
        rule(name="orders", pattern=PatternType.PREFIXED),
        rule(host=HOST),
        rule(principal="User:*"),
    ],
)
def test_a_rule_that_matches_allows_and_is_named(acl: Acl) -> None:
    decision = decide([acl], ANNA, HOST, Operation.READ, ResourceType.TOPIC, "orders")

    assert decision == (True, acl, True)


@pytest.mark.parametrize(
    "acl",
    [
        rule(Operation.WRITE),
        rule(name="orders2"),
        rule(name="orders-", pattern=PatternType.PREFIXED),
        rule(name="*", pattern=PatternType.PREFIXED),
        rule(host="10.0.0.2"),
        rule(principal="User:josef"),
        rule(principal="Group:*"),
        rule()._replace(resource_type=ResourceType.GROUP),
    ],
)
def test_a_rule_about_something_else_allows_nothing(acl: Acl) -> None:
    assert not allowed(acl)


def test_a_rule_that_denies_wins_over_all_that_allow() -> None:
    deny = rule(permission=PermissionType.DENY, name="*", principal="User:*")

    decision = decide([rule(), deny], ANNA, HOST, Operation.READ, ResourceType.TOPIC, "orders")

    assert decision == (False, deny, True)


@pytest.mark.parametrize(
    ("implied", "by"), [(implied, by) for implied, found in IMPLIED_BY.items() for by in found]
)
def test_a_permission_implies_describing_but_its_denial_does_not(implied: Operation, by: Operation) -> None:
    deny = rule(by, permission=PermissionType.DENY)

    assert allowed(rule(by), operation=implied)
    assert not allowed(rule(implied), operation=by)
    assert allowed(rule(implied), deny, operation=implied)


def test_other_rules_of_a_resource_are_noticed_where_none_is_about_the_principal() -> None:
    decision = decide(
        [rule(principal="User:josef")], ANNA, HOST, Operation.READ, ResourceType.TOPIC, "orders"
    )

    assert decision == (False, None, True)


def test_each_type_of_resource_has_operations() -> None:
    assert set(OPERATIONS) == set(ResourceType) - {ResourceType.UNKNOWN, ResourceType.ANY}


def test_a_rule_reads_as_a_sentence() -> None:
    deny = rule(name="ord", pattern=PatternType.PREFIXED, permission=PermissionType.DENY)

    assert str(deny) == "deny User:anna from * to READ TOPIC prefix ord"

"""`ottla acl`, `user`, `quota` and `token`: what they ask, and what they print."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from click.testing import CliRunner, Result

from ottla.admin.access_checks import explain
from ottla.client.cli import main
from ottla.client.testing import ScriptedBroker
from ottla.protocol.acls import Acl, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.messages import acls as access
from ottla.protocol.messages import client_quotas as quotas
from ottla.protocol.messages import delegation_tokens as tokens
from ottla.protocol.messages import scram_credentials as scram
from ottla.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

ANNA = "User:anna"
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


def ottla(*arguments: str, broker: ScriptedBroker | None = None, text: str | None = None) -> Result:
    where = ["--bootstrap-server", broker.bootstrap_servers] if broker else []
    return CliRunner().invoke(main, [*arguments, *where], input=text)


def rule(
    operation: Operation = Operation.READ,
    name: str = "orders",
    permission: PermissionType = PermissionType.ALLOW,
    *,
    principal: str = ANNA,
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, principal, host, operation, permission)


def has_rules(broker: ScriptedBroker, *rules: Acl) -> None:
    """Answer DescribeAcls with some rules, whatever the filter, and delete those that are named."""
    described = [
        access.DescribeAclsResource(
            resource_type=found.resource_type,
            resource_name=found.resource_name,
            pattern_type=found.pattern_type,
            acls=[
                access.AclDescription(
                    principal=found.principal,
                    host=found.host,
                    operation=found.operation,
                    permission_type=found.permission_type,
                )
            ],
        )
        for found in rules
    ]
    broker.on(access.DescribeAclsRequest, lambda _: access.DescribeAclsResponse(resources=described))
    broker.on(
        access.DeleteAclsRequest,
        lambda asked: access.DeleteAclsResponse(
            filter_results=[
                access.DeleteAclsFilterResult(
                    matching_acls=[
                        access.DeleteAclsMatchingAcl(
                            resource_type=wanted.resource_type_filter,
                            resource_name=wanted.resource_name_filter or "",
                            pattern_type=wanted.pattern_type_filter,
                            principal=wanted.principal_filter or "",
                            host=wanted.host_filter or "",
                            operation=wanted.operation,
                            permission_type=wanted.permission_type,
                        )
                    ]
                )
                for wanted in asked.filters
            ]
        ),
    )
    broker.on(
        access.CreateAclsRequest,
        lambda asked: access.CreateAclsResponse(
            results=[access.AclCreationResult() for _ in asked.creations]
        ),
    )


def created(broker: ScriptedBroker) -> list[tuple[int, str, int, str, int, int]]:
    (asked,) = broker.seen(access.CreateAclsRequest)
    return [
        (
            made.resource_type, made.resource_name, made.resource_pattern_type, made.host, made.operation,
            made.permission_type,
        )
        for made in asked.creations
    ]  # fmt: skip


def test_a_consumers_rules_are_those_it_needs(broker: ScriptedBroker) -> None:
    has_rules(broker)

    done = ottla(
        "acl", "add", "--principal", ANNA, "--consumer", "--topic", "orders", "--group", "billing",
        broker=broker,
    )  # fmt: skip

    assert created(broker) == [(2, "orders", 3, "*", 3, 3), (3, "billing", 3, "*", 3, 3)]
    assert [line.split() for line in done.output.splitlines()] == [
        ["RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"],
        ["TOPIC", "orders", "LITERAL", ANNA, "*", "READ", "ALLOW"],
        ["GROUP", "billing", "LITERAL", ANNA, "*", "READ", "ALLOW"],
    ]


def test_a_producers_rules_are_those_it_needs(broker: ScriptedBroker) -> None:
    has_rules(broker)

    ottla(
        "acl", "add", "--principal", ANNA, "--producer", "--topic", "shop-", "--transactional-id", "shop-",
        "--prefixed", broker=broker,
    )  # fmt: skip

    assert created(broker) == [
        (2, "shop-", 4, "*", 4, 3), (2, "shop-", 4, "*", 5, 3), (5, "shop-", 4, "*", 4, 3),
    ]  # fmt: skip


def test_single_rules_name_operation_and_host_and_may_deny(broker: ScriptedBroker) -> None:
    has_rules(broker)

    done = ottla(
        "acl", "add", "--principal", "User:*", "-o", "alter", "--cluster", "--host", "10.0.0.1", "--deny",
        "--json", broker=broker,
    )  # fmt: skip

    assert created(broker) == [(4, "kafka-cluster", 3, "10.0.0.1", 7, 2)]
    assert json.loads(done.output)[0]["permission"] == "DENY"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("acl", "add", "--principal", "anna", "-o", "READ", "--topic", "t"), "'anna' must be User:NAME"),
        (("acl", "add", "--principal", ANNA, "-o", "READ"), "give a resource: --topic NAME"),
        (("acl", "add", "--principal", ANNA, "--topic", "t"), "give --operation NAME, --producer or"),
        (
            ("acl", "add", "--principal", ANNA, "-o", "WRITE", "--group", "g"),
            "GROUP has no operation WRITE; it has READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS",
        ),
        (
            ("acl", "add", "--principal", ANNA, "-o", "READ", "--topic", "*", "--prefixed"),
            "'*' stands for all names without --prefixed",
        ),
        (("acl", "remove",), "give options that choose rules, or --all"),
        (("acl", "remove", "--all", "--topic", "t"), "give options that choose rules, or --all"),
        (("acl", "check", "--principal", ANNA, "-o", "ALL", "--topic", "t"), "check one of them"),
        (("acl", "check", "--principal", ANNA, "-o", "READ"), "give one resource"),
        (("quota", "set", "--producer-byte-rate", "1"), "give --user, --client-id, both, or --ip"),
        (("quota", "set", "--user", "anna"), "give a limit: --producer-byte-rate"),
        (("quota", "set", "--ip", "::1", "--user", "a", "--producer-byte-rate", "1"), "stand alone"),
        (("quota", "set", "--user", "a", "--default-user", "--producer-byte-rate", "1"), "not both"),
        (("quota", "set", "--ip", "::1", "--producer-byte-rate", "1"), "is no limit of addresses"),
        (("quota", "set", "--user", "a", "--connection-creation-rate", "1"), "is a limit of --ip"),
        (("user", "add", "anna", "--password", "x"), "No such option"),
        (("token", "create", "--owner", "anna"), "write User:NAME"),
    ],
)  # fmt: skip
def test_a_usage_error_says_what_to_write(
    broker: ScriptedBroker, arguments: Sequence[str], words: str
) -> None:
    done = ottla(*arguments, broker=broker)

    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_rules_are_removed_after_they_were_shown_and_confirmed(broker: ScriptedBroker) -> None:
    has_rules(broker, rule())

    refused = ottla("acl", "remove", "--principal", ANNA, broker=broker, text="n\n")
    assert refused.exit_code == 1
    assert not broker.seen(access.DeleteAclsRequest)

    done = ottla("acl", "remove", "--principal", ANNA, broker=broker, text="y\n")
    assert "Remove this rule?" in done.output
    assert done.output.endswith("Removed 1.\n")
    (asked,) = broker.seen(access.DeleteAclsRequest)
    assert [(found.resource_name_filter, found.principal_filter) for found in asked.filters] == [
        ("orders", ANNA)
    ]


def test_a_list_asks_for_rules_that_affect_a_name(broker: ScriptedBroker) -> None:
    has_rules(broker, rule())

    done = ottla("acl", "list", "--topic", "orders", "--affecting", "-o", "READ", "--json", broker=broker)

    (asked,) = broker.seen(access.DescribeAclsRequest)
    assert (asked.resource_type_filter, asked.pattern_type_filter, asked.operation) == (2, 2, 3)
    assert json.loads(done.output)[0]["name"] == "orders"


def has_settings(broker: ScriptedBroker, **settings: str) -> None:
    entries = [
        DescribeConfigsResourceResult(name=name.replace("_", "."), value=value)
        for name, value in settings.items()
    ]
    broker.on(
        DescribeConfigsRequest,
        lambda _: DescribeConfigsResponse(results=[DescribeConfigsResult(configs=entries)]),
    )


def test_a_check_names_the_rule_and_ends_with_its_decision(broker: ScriptedBroker) -> None:
    deny = rule(Operation.ALL, "*", PermissionType.DENY, principal="User:*")
    has_rules(broker, rule(), deny)
    has_settings(broker, super_users="User:root")
    arguments = ("acl", "check", "-o", "READ", "--topic", "orders", "--principal")

    denied = ottla(*arguments, ANNA, broker=broker)
    as_root = ottla(*arguments, "User:root", "--json", broker=broker)

    assert (denied.exit_code, denied.output) == (
        1, "Denied: by the rule: deny User:* from * to ALL TOPIC *\n",
    )  # fmt: skip
    assert as_root.exit_code == 0
    assert json.loads(as_root.output) == {
        "allowed": True, "reason": "super.users names User:root", "rule": None,
    }  # fmt: skip


def test_a_check_works_for_users_that_may_not_read_the_brokers_configuration(broker: ScriptedBroker) -> None:
    has_rules(broker, rule(Operation.WRITE))
    broker.on(
        DescribeConfigsRequest,
        lambda _: DescribeConfigsResponse(results=[DescribeConfigsResult(error_code=31)]),
    )

    done = ottla("acl", "check", "-o", "DESCRIBE", "--topic", "orders", "--principal", ANNA, broker=broker)

    assert done.output == "Allowed: by the rule: allow User:anna from * to WRITE TOPIC orders\n"


@pytest.mark.parametrize(
    ("rules", "settings", "expected"),
    [
        ([], {}, (False, "no rule allows User:anna to CREATE TOPIC new, unless super.users names it")),
        ([], {"super.users": "User:a;User:anna "}, (True, "super.users names User:anna")),
        (
            [],
            {"super.users": "", "allow.everyone.if.no.acl.found": "true"},
            (True, "no rule is about this resource, and allow.everyone.if.no.acl.found is true"),
        ),
        (
            [rule(Operation.READ, "new", principal="User:b")],
            {"super.users": "", "allow.everyone.if.no.acl.found": "true"},
            (False, "no rule allows User:anna to CREATE TOPIC new"),
        ),
        (
            [rule(Operation.CREATE, "kafka-cluster", kind=CLUSTER)],
            {},
            (True, "by the rule: allow User:anna from * to CREATE CLUSTER kafka-cluster"),
        ),
        (
            [rule(Operation.CREATE, "new", host="10.0.0.1")],
            {"super.users": ""},
            (False, "no rule allows User:anna to CREATE TOPIC new"),
        ),
    ],
)
def test_a_check_explains_itself(
    rules: list[Acl], settings: dict[str, str | None], expected: tuple[bool, str]
) -> None:
    assert explain(rules, settings, ANNA, None, Operation.CREATE, TOPIC, "new")[:2] == expected


def has_users(broker: ScriptedBroker) -> None:
    broker.on(
        scram.AlterUserScramCredentialsRequest,
        lambda _: scram.AlterUserScramCredentialsResponse(
            results=[scram.AlterUserScramCredentialsResult(user="anna")]
        ),
    )
    infos = [scram.CredentialInfo(mechanism=code, iterations=4_096) for code in (1, 2)]
    results = [scram.DescribeUserScramCredentialsResult(user="anna", credential_infos=infos)]
    broker.on(
        scram.DescribeUserScramCredentialsRequest,
        lambda _: scram.DescribeUserScramCredentialsResponse(results=results),
    )


def test_a_password_is_asked_for_twice_and_not_shown(broker: ScriptedBroker) -> None:
    has_users(broker)

    done = ottla("user", "add", "anna", broker=broker, text="pencil\npencil\n")

    assert done.output.endswith("Set the password of anna for SCRAM-SHA-512.\n")
    assert "pencil" not in done.output
    (asked,) = broker.seen(scram.AlterUserScramCredentialsRequest)
    assert [(found.name, found.mechanism) for found in asked.upsertions] == [("anna", 2)]


def test_a_password_comes_from_a_command_for_several_mechanisms(broker: ScriptedBroker) -> None:
    has_users(broker)

    done = ottla(
        "user", "add", "anna", "--password-command", "echo pencil", "--mechanism", "scram-sha-256",
        "--mechanism", "SCRAM-SHA-512", broker=broker,
    )  # fmt: skip
    missing = ottla("user", "add", "anna", "--password-env", "NOT_SET_HERE", broker=broker)

    assert done.output == "Set the password of anna for SCRAM-SHA-256 and SCRAM-SHA-512.\n"
    assert missing.output == (
        "Error: the environment variable NOT_SET_HERE is not set, and a secret is to be in it\n"
    )


def test_users_are_listed_and_removed(broker: ScriptedBroker) -> None:
    has_users(broker)

    listed = ottla("user", "list", broker=broker)
    removed = ottla("user", "remove", "anna", broker=broker)

    assert [line.split() for line in listed.output.splitlines()[1:]] == [
        ["anna", "SCRAM-SHA-256", "4096"], ["anna", "SCRAM-SHA-512", "4096"],
    ]  # fmt: skip
    assert removed.output == "Removed the password of anna for SCRAM-SHA-256 and SCRAM-SHA-512.\n"
    asked = broker.seen(scram.AlterUserScramCredentialsRequest)
    assert [[found.mechanism for found in request.deletions] for request in asked] == [[1], [2]]


def has_quotas(broker: ScriptedBroker) -> None:
    entries = [
        quotas.EntryData(
            entity=[quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[quotas.ValueData(key=key, value=value) for key, value in limits.items()],
        )
        for entity, limits in (
            ((("user", "anna"), ("client-id", "loader")), {"producer_byte_rate": 1024.0}),
            ((("user", None),), {"request_percentage": 12.5, "producer_byte_rate": 5.0}),
        )
    ]
    broker.on(
        quotas.DescribeClientQuotasRequest, lambda _: quotas.DescribeClientQuotasResponse(entries=entries)
    )
    broker.on(
        quotas.AlterClientQuotasRequest,
        lambda asked: quotas.AlterClientQuotasResponse(entries=[quotas.EntryDataResponse()]),
    )


def test_quotas_are_set_listed_and_removed(broker: ScriptedBroker) -> None:
    has_quotas(broker)

    done = ottla(
        "quota", "set", "--user", "anna", "--default-client-id", "--consumer-byte-rate", "10", broker=broker
    )
    listed = ottla("quota", "list", broker=broker)
    removed = ottla("quota", "remove", "--default-user", "--limit", "request_percentage", broker=broker)
    nothing = ottla("quota", "remove", "--user", "josef", broker=broker)

    assert done.output == "Set consumer_byte_rate of user anna, client-id <default>.\n"
    assert [line.split() for line in listed.output.splitlines()] == [
        ["USER", "CLIENT", "ID", "PRODUCER_BYTE_RATE", "REQUEST_PERCENTAGE"],
        ["<default>", "-", "5", "12.5"],
        ["anna", "loader", "1024", "-"],
    ]
    assert removed.output == "Removed request_percentage of user <default>.\n"
    assert "user josef has no such limit" in nothing.output
    first, second = broker.seen(quotas.AlterClientQuotasRequest)
    assert [(part.entity_type, part.entity_name) for part in first.entries[0].entity] == [
        ("user", "anna"), ("client-id", None),
    ]  # fmt: skip
    assert [(op.key, op.remove) for op in second.entries[0].ops] == [("request_percentage", True)]


def has_tokens(broker: ScriptedBroker) -> None:
    broker.on(
        tokens.CreateDelegationTokenRequest,
        lambda _: tokens.CreateDelegationTokenResponse(
            principal_type="User", principal_name="anna", expiry_timestamp_ms=86_400_000, token_id="abc",
            hmac=b"secret",
        ),
    )  # fmt: skip
    described = [
        tokens.DescribedDelegationToken(
            principal_type="User", principal_name="anna", token_id="abc", hmac=b"secret"
        )
    ]
    broker.on(
        tokens.DescribeDelegationTokenRequest,
        lambda _: tokens.DescribeDelegationTokenResponse(tokens=described),
    )
    broker.on(
        tokens.RenewDelegationTokenRequest,
        lambda _: tokens.RenewDelegationTokenResponse(expiry_timestamp_ms=86_400_000),
    )
    broker.on(
        tokens.ExpireDelegationTokenRequest,
        lambda _: tokens.ExpireDelegationTokenResponse(expiry_timestamp_ms=0),
    )


def test_a_tokens_password_is_printed_once_when_it_is_made(broker: ScriptedBroker) -> None:
    has_tokens(broker)

    made = ottla("token", "create", "--renewer", "User:josef", broker=broker)
    as_json = ottla("token", "create", "--json", broker=broker)
    listed = ottla("token", "list", "--json", broker=broker)

    assert made.output.endswith("\nPassword: c2VjcmV0\n")
    assert json.loads(as_json.output)["password"] == "c2VjcmV0"
    assert json.loads(listed.output)[0]["token_id"] == "abc"
    assert "c2VjcmV0" not in listed.output


def test_tokens_are_renewed_and_expired_by_their_id(broker: ScriptedBroker) -> None:
    has_tokens(broker)

    renewed = ottla("token", "renew", "abc", "--period-ms", "5", broker=broker)
    expired = ottla("token", "expire", "abc", broker=broker)
    missing = ottla("token", "expire", "xyz", broker=broker)

    assert renewed.output == "Token abc ends 1970-01-02T00:00:00Z.\n"
    assert expired.output == "Token abc ends 1970-01-01T00:00:00Z.\n"
    assert "there is no token 'xyz' that this user may see" in missing.output
    (renewal,), (expiry,) = (
        broker.seen(tokens.RenewDelegationTokenRequest), broker.seen(tokens.ExpireDelegationTokenRequest),
    )  # fmt: skip
    assert (bytes(renewal.hmac), renewal.renew_period_ms) == (b"secret", 5)
    assert (bytes(expiry.hmac), expiry.expiry_time_period_ms) == (b"secret", -1)

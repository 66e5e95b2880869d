"""ACLs, SCRAM credentials and delegation tokens, as brokers are asked for them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest

from ottla.admin import (
    Acl,
    AclFilter,
    Admin,
    DelegationToken,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    ScramCredential,
)
from ottla.client.errors import UnsupportedByBroker
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import (
    DelegationTokenNotFound,
    InvalidRequest,
    ResourceNotFound,
    SecurityDisabled,
)
from ottla.protocol.messages import acls as messages
from ottla.protocol.messages import delegation_tokens as tokens
from ottla.protocol.messages import scram_credentials as scram
from ottla.protocol.messages.metadata import MetadataRequest

RULE = Acl(
    ResourceType.TOPIC, "orders", PatternType.PREFIXED, "User:anna", "*", Operation.READ, PermissionType.ALLOW
)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        yield broker


async def test_acls_of_all_resources_come_sorted_and_typed(broker: ScriptedBroker) -> None:
    entry = messages.AclDescription(principal="User:anna", host="*", operation=3, permission_type=3)
    resources = [
        messages.DescribeAclsResource(
            resource_type=kind, resource_name=name, pattern_type=pattern, acls=[entry]
        )
        for kind, name, pattern in ((4, "kafka-cluster", 3), (2, "orders", 4))
    ]
    broker.on(messages.DescribeAclsRequest, lambda _: messages.DescribeAclsResponse(resources=resources))

    async with Admin(broker.bootstrap_servers) as admin:
        found = await admin.acls.describe(AclFilter(principal="User:anna"))

    (asked,) = broker.seen(messages.DescribeAclsRequest)
    assert found == [
        RULE,
        RULE._replace(
            resource_type=ResourceType.CLUSTER,
            resource_name="kafka-cluster",
            pattern_type=PatternType.LITERAL,
        ),
    ]
    assert (asked.principal_filter, asked.resource_name_filter, asked.pattern_type_filter) == (
        "User:anna", None, PatternType.ANY,
    )  # fmt: skip


async def test_brokers_without_an_authorizer_have_an_error_of_their_own(broker: ScriptedBroker) -> None:
    broker.on(
        messages.DescribeAclsRequest,
        lambda _: messages.DescribeAclsResponse(error_code=54, error_message="No Authorizer is configured."),
    )

    async with Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(SecurityDisabled, match="No Authorizer is configured"):
            await admin.acls.describe()


async def test_a_rule_that_is_refused_is_named(broker: ScriptedBroker) -> None:
    results = [
        messages.AclCreationResult(),
        messages.AclCreationResult(error_code=42, error_message="bad host"),
    ]
    broker.on(messages.CreateAclsRequest, lambda _: messages.CreateAclsResponse(results=results))
    wrong = RULE._replace(resource_name="bills", host="nowhere")

    async with Admin(broker.bootstrap_servers) as admin:
        with pytest.raises(
            InvalidRequest, match=r"^allow User:anna from nowhere to READ TOPIC prefix bills: bad host$"
        ):
            await admin.acls.create([RULE, wrong])

    (asked,) = broker.seen(messages.CreateAclsRequest)
    assert [(rule.resource_name, rule.resource_pattern_type) for rule in asked.creations] == [
        ("orders", 4), ("bills", 4),
    ]  # fmt: skip


async def test_deleted_rules_are_returned_once_however_many_filters_match(broker: ScriptedBroker) -> None:
    match = messages.DeleteAclsMatchingAcl(
        resource_type=2, resource_name="orders", pattern_type=4, principal="User:anna", host="*",
        operation=3, permission_type=3,
    )  # fmt: skip
    results = [messages.DeleteAclsFilterResult(matching_acls=[match]) for _ in range(2)]
    broker.on(messages.DeleteAclsRequest, lambda _: messages.DeleteAclsResponse(filter_results=results))

    async with Admin(broker.bootstrap_servers) as admin:
        deleted = await admin.acls.delete([AclFilter.of(RULE), AclFilter(principal="User:anna")])

    assert deleted == [RULE]


async def test_a_password_is_sent_as_a_salted_hash_only(broker: ScriptedBroker) -> None:
    broker.on(
        scram.AlterUserScramCredentialsRequest,
        lambda _: scram.AlterUserScramCredentialsResponse(
            results=[scram.AlterUserScramCredentialsResult(user="anna")]
        ),
    )

    async with Admin(broker.bootstrap_servers) as admin:
        await admin.users.set_password("anna", "pencil", "SCRAM-SHA-256", iterations=5_000)
        await admin.users.set_password("anna", "pencil")

    first, second = broker.seen(scram.AlterUserScramCredentialsRequest)
    (sent,), (other,) = first.upsertions, second.upsertions
    salt = bytes(sent.salt)
    assert bytes(sent.salted_password) == hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 5_000)
    assert (sent.mechanism, sent.iterations, other.mechanism, other.iterations) == (1, 5_000, 2, 4_096)
    assert salt != bytes(other.salt)


async def test_the_new_controller_is_asked_once_the_old_one_has_lost_its_office(
    broker: ScriptedBroker,
) -> None:
    codes = iter((41, 0))
    broker.on(
        scram.AlterUserScramCredentialsRequest,
        lambda _: scram.AlterUserScramCredentialsResponse(
            results=[scram.AlterUserScramCredentialsResult(user="anna", error_code=next(codes))]
        ),
    )

    async with Admin(broker.bootstrap_servers) as admin:
        known = len(broker.seen(MetadataRequest))
        await admin.users.delete("anna", ["SCRAM-SHA-512"])

    asked = broker.seen(scram.AlterUserScramCredentialsRequest)
    assert [(found.deletions[0].name, found.deletions[0].mechanism) for found in asked] == [("anna", 2)] * 2
    assert len(broker.seen(MetadataRequest)) > known


async def test_credentials_are_described_without_secrets(broker: ScriptedBroker) -> None:
    infos = [
        scram.CredentialInfo(mechanism=2, iterations=8_192),
        scram.CredentialInfo(mechanism=1, iterations=4_096),
    ]  # fmt: skip
    results = [
        scram.DescribeUserScramCredentialsResult(user="anna", credential_infos=infos),
        scram.DescribeUserScramCredentialsResult(user="josef", error_code=91, error_message="no such user"),
    ]
    broker.on(
        scram.DescribeUserScramCredentialsRequest,
        lambda asked: scram.DescribeUserScramCredentialsResponse(
            results=results if asked.users else results[:1]
        ),
    )

    async with Admin(broker.bootstrap_servers) as admin:
        assert await admin.users.describe() == [
            ScramCredential("anna", "SCRAM-SHA-256", 4_096),
            ScramCredential("anna", "SCRAM-SHA-512", 8_192),
        ]
        with pytest.raises(ResourceNotFound, match="user 'josef': no such user"):
            await admin.users.describe(["anna", "josef"])


def created(_: tokens.CreateDelegationTokenRequest) -> tokens.CreateDelegationTokenResponse:
    return tokens.CreateDelegationTokenResponse(
        principal_type="User", principal_name="anna", token_requester_principal_type="User",
        token_requester_principal_name="admin", issue_timestamp_ms=1, expiry_timestamp_ms=2,
        max_timestamp_ms=3, token_id="abc", hmac=b"\x00\x01",
    )  # fmt: skip


async def test_a_token_is_a_login_and_its_secret_is_not_shown(broker: ScriptedBroker) -> None:
    broker.on(tokens.CreateDelegationTokenRequest, created)

    async with Admin(broker.bootstrap_servers) as admin:
        token = await admin.tokens.create(owner="User:anna", renewers=["User:josef"], max_lifetime_ms=7)

    (asked,) = broker.seen(tokens.CreateDelegationTokenRequest)
    assert (asked.owner_principal_name, asked.renewers[0].principal_name, asked.max_lifetime_ms) == (
        "anna", "josef", 7,
    )  # fmt: skip
    assert token == DelegationToken("abc", b"\x00\x01", "User:anna", "User:admin", ("User:josef",), 1, 2, 3)
    assert token.password == "AAE="
    assert "x01" not in repr(token)


async def test_an_old_broker_is_not_asked_for_a_token_of_another_owner() -> None:
    async with ScriptedBroker({tokens.CreateDelegationTokenRequest.API_KEY: (0, 2)}) as broker:
        broker.on(MetadataRequest, lambda _: broker.metadata())
        broker.on(
            tokens.CreateDelegationTokenRequest,
            lambda _: tokens.CreateDelegationTokenResponse(principal_type="User", principal_name="anna"),
        )

        async with Admin(broker.bootstrap_servers) as admin:
            with pytest.raises(UnsupportedByBroker):
                await admin.tokens.create(owner="User:anna")
            assert (await admin.tokens.create()).requester == "User:anna"


async def test_tokens_are_renewed_expired_and_described(broker: ScriptedBroker) -> None:
    broker.on(
        tokens.RenewDelegationTokenRequest,
        lambda _: tokens.RenewDelegationTokenResponse(expiry_timestamp_ms=9),
    )
    broker.on(
        tokens.ExpireDelegationTokenRequest, lambda _: tokens.ExpireDelegationTokenResponse(error_code=62)
    )
    described = [
        tokens.DescribedDelegationToken(
            principal_type="User", principal_name="anna", expiry_timestamp=end, token_id=str(end),
            renewers=[tokens.DescribedDelegationTokenRenewer(principal_type="User", principal_name="josef")],
        )
        for end in (5, 2)
    ]  # fmt: skip
    broker.on(
        tokens.DescribeDelegationTokenRequest,
        lambda _: tokens.DescribeDelegationTokenResponse(tokens=described),
    )

    async with Admin(broker.bootstrap_servers) as admin:
        assert await admin.tokens.renew(b"h", period_ms=4) == 9
        with pytest.raises(DelegationTokenNotFound):
            await admin.tokens.expire(b"h")
        found = await admin.tokens.describe(["User:anna"])
        await admin.tokens.describe()
        with pytest.raises(ValueError, match="write User:NAME"):
            await admin.tokens.describe(["anna"])

    asked = broker.seen(tokens.DescribeDelegationTokenRequest)
    assert [(token.token_id, token.requester, token.renewers) for token in found] == [
        ("2", "User:anna", ("User:josef",)), ("5", "User:anna", ("User:josef",)),
    ]  # fmt: skip
    assert asked[0].owners is not None
    assert asked[1].owners is None

"""The znodes of ACLs, as Apache Kafka's AclAuthorizer writes them, and damaged ones."""

from __future__ import annotations

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.zookeeper.errors import IllegalName, MalformedZnode
from ottla.zookeeper.znodes import AclChange, AclEntry, ResourceAcls
from ottla.zookeeper.znodes.acls import OPERATIONS, PERMISSION_TYPES, RESOURCE_TYPES, resource_type_of

ALICE = AclEntry("User:alice", "ALLOW", "DESCRIBE_CONFIGS", "*")

texts = st.text(st.characters(exclude_categories=["Cs"]))
entries = st.builds(
    AclEntry,
    st.tuples(texts, texts).map(":".join),
    st.sampled_from(PERMISSION_TYPES),
    st.sampled_from(OPERATIONS),
    texts,
)


def test_rules_of_a_literal_pattern_are_what_kafka_writes() -> None:
    node = ResourceAcls("TRANSACTIONAL_ID", "pay", "LITERAL", (ALICE,))

    assert node.path == "/kafka-acl/TransactionalId/pay"
    assert node.encode() == (
        b'{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*",'
        b'"operation":"DescribeConfigs"}],"version":1}'
    )


def test_rules_of_a_prefixed_pattern_have_a_tree_of_their_own() -> None:
    assert ResourceAcls("TOPIC", "pay-", "PREFIXED").path == "/kafka-acl-extended/prefixed/Topic/pay-"


def test_a_znode_without_data_has_no_rules() -> None:
    assert ResourceAcls.decode("TOPIC", "t", "LITERAL", b"") == ResourceAcls("TOPIC", "t", "LITERAL")


@given(st.lists(entries).map(tuple))
def test_rules_are_read_as_they_were_written(drawn: tuple[AclEntry, ...]) -> None:
    node = ResourceAcls("GROUP", "g", "PREFIXED", drawn)

    assert ResourceAcls.decode("GROUP", "g", "PREFIXED", node.encode()) == node


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"version":2,"acls":[]}', "version 2"),
        (b'{"acls":[]}', "no field 'version'"),
        (b'{"version":1}', "no field 'acls'"),
        (b'{"version":1,"acls":{}}', "not an array"),
        (b'{"version":1,"acls":["User:a"]}', "not a JSON object"),
        (b'{"version":1,"acls":[{"principal":"alice","permissionType":"Allow","operation":"Read","host":"*"}]}',
         "not a principal"),
        (b'{"version":1,"acls":[{"principal":"User:a","permissionType":"May","operation":"Read","host":"*"}]}',
         "'May' is not one of Deny, Allow"),
        (b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}',
         "'Fly' is not one of All, Read"),
        (b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read"}]}',
         "no field 'host'"),
        (b'{"version":1,"acls":[', "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)  # fmt: skip
def test_damaged_rules_are_malformed_and_say_why(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedZnode, match=reason):
        ResourceAcls.decode("TOPIC", "t", "LITERAL", data)


@given(st.binary())
def test_any_bytes_are_rules_or_malformed(data: bytes) -> None:
    with contextlib.suppress(MalformedZnode):
        ResourceAcls.decode("TOPIC", "t", "LITERAL", data)
    for folder in ("/kafka-acl-changes", "/kafka-acl-extended-changes"):
        with contextlib.suppress(MalformedZnode):
            AclChange.decode(f"{folder}/acl_changes_0000000001", data)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\0b"])
def test_a_name_that_is_no_component_of_a_path_is_illegal(name: str) -> None:
    with pytest.raises(IllegalName):
        _ = ResourceAcls("TOPIC", name, "LITERAL").path


def test_a_literal_change_is_text_and_its_name_may_have_colons() -> None:
    change = AclChange("TRANSACTIONAL_ID", "a:b", "LITERAL")

    assert change.path == "/kafka-acl-changes/acl_changes_"
    assert change.encode() == b"TRANSACTIONAL_ID:a:b"
    assert AclChange.decode(f"{change.path}0000000007", change.encode()) == change
    assert AclChange.decode(f"{change.path}0000000007", b"Topic:t") == AclChange("TOPIC", "t", "LITERAL")


def test_a_prefixed_change_is_json() -> None:
    change = AclChange("TOPIC", "pay-", "PREFIXED")

    assert change.path == "/kafka-acl-extended-changes/acl_changes_"
    assert change.encode() == (b'{"version":1,"resourceType":"TOPIC","name":"pay-","patternType":"PREFIXED"}')
    assert AclChange.decode(f"{change.path}0000000007", change.encode()) == change


@pytest.mark.parametrize("data", [b"", b"TOPIC", b"HOUSE:a", b"\xff:a"])
def test_a_damaged_literal_change_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedZnode):
        AclChange.decode("/kafka-acl-changes/acl_changes_0000000001", data)


@pytest.mark.parametrize(
    "data",
    [
        b"TOPIC:a",
        b'{"version":2,"resourceType":"TOPIC","name":"a","patternType":"PREFIXED"}',
        b'{"version":1,"resourceType":"HOUSE","name":"a","patternType":"PREFIXED"}',
        b'{"version":1,"resourceType":"TOPIC","name":"a","patternType":"MATCH"}',
    ],
)
def test_a_damaged_prefixed_change_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedZnode):
        AclChange.decode("/kafka-acl-extended-changes/acl_changes_0000000001", data)


def test_every_type_has_a_component_of_a_path() -> None:
    steps = ["Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User"]

    assert [resource_type_of(step) for step in steps] == list(RESOURCE_TYPES)
    assert resource_type_of("House") is None
    assert all(step[0] in string.ascii_uppercase for step in steps)

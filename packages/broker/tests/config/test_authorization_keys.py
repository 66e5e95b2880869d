"""The keys of the authorizer: those that are understood, and one line for the others."""

from __future__ import annotations

import pytest

from ottla.broker.config import broker_config_from, load_broker_config
from ottla.client.config_definition import ConfigError


def test_without_an_authorizer_nothing_is_configured() -> None:
    config = broker_config_from({})

    assert (config.authorizer_class_name, config.super_users, config.allow_everyone_if_no_acl_found) == (
        "", "", False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer"]
)
def test_both_names_of_kafkas_authorizer_are_known(name: str) -> None:
    assert broker_config_from({"authorizer.class.name": name}).authorizer_class_name == name


@pytest.mark.parametrize(
    "name", ["org.apache.kafka.metadata.authorizer.StandardAuthorizer", "com.example.Mine", "AclAuthorizer"]
)
def test_another_authorizer_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        broker_config_from({"authorizer.class.name": name})

    assert "must be kafka.security.authorizer.AclAuthorizer" in str(refusal.value)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["admin", "User:admin,User:other;bob", ";User:a"])
def test_super_users_without_a_type_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"super\.users must be principals separated by semicolons"):
        broker_config_from({"super.users": text})


def test_super_users_may_be_distinguished_names() -> None:
    text = "User:CN=broker,OU=Ops,C=SE;User:admin"

    assert broker_config_from({"super.users": text}).super_users == text


def test_keys_of_an_authorizer_that_is_not_configured_are_named_in_a_warning() -> None:
    keys = {"super.users": "User:admin", "allow.everyone.if.no.acl.found": "true"}
    loaded = load_broker_config({"listeners": "PLAINTEXT://127.0.0.1:0", **keys})
    assert loaded.warnings == (
        "allow.everyone.if.no.acl.found has no effect without authorizer.class.name",
        "super.users has no effect without authorizer.class.name",
    )

    authorizer = {"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}
    assert load_broker_config({"listeners": "PLAINTEXT://0.0.0.0:0", **keys, **authorizer}).warnings == ()

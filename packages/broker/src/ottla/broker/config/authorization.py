"""The broker's settings of authorization."""

from __future__ import annotations

from typing import Final

from ottla.client.config_definition import ConfigError, setting
from ottla.zookeeper.frozen_classes import field_group

AUTHORIZERS: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "kafka.security.auth.SimpleAclAuthorizer",
)
"""Kafka's authorizer with ACLs in ZooKeeper, and its name before Kafka 2.4."""


@field_group
class AuthorizationSettings:
    """The part of `BrokerConfig` about the authorizer."""

    authorizer_class_name: str = setting(
        "",
        "`kafka.security.authorizer.AclAuthorizer` has ACLs decide about every request; empty allows all.",
    )
    super_users: str = setting(
        "",
        "Principals that may do everything, separated by semicolons: "
        "`User:admin;User:CN=broker,OU=ops`. The brokers' own belongs here, unless an ACL allows it "
        "CLUSTER_ACTION.",
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, "Whether a resource without ACLs is open to everybody."
    )


def check_authorization(config: AuthorizationSettings) -> None:
    """Check the rules of these keys; raise `ConfigError` for the first that is broken."""
    if config.authorizer_class_name not in ("", *AUTHORIZERS):
        raise ConfigError(
            "authorizer.class.name",
            f"must be {AUTHORIZERS[0]}, whose ACLs are in ZooKeeper, not {config.authorizer_class_name}: "
            "other Java classes cannot run here",
        )
    if not config.super_users:
        return
    from ottla.broker.security.acls.bindings import parse_super_users  # not needed without an authorizer

    try:
        parse_super_users(config.super_users)
    except ValueError as error:
        raise ConfigError("super.users", f"must be principals separated by semicolons: {error}") from None

"""The rule that admits or refuses a principal, by the rules and settings that brokers describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.admin.acls import AclFilter
from ottla.admin.configs import BROKER
from ottla.protocol.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Decision,
    Operation,
    PatternType,
    ResourceType,
    decide,
)
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.admin import Admin

_SUPER_USERS: Final = "super.users"
_EVERYONE: Final = "allow.everyone.if.no.acl.found"


async def check_access(
    admin: Admin, principal: str, host: str | None, operation: Operation, kind: ResourceType, name: str
) -> tuple[bool, str, Acl | None]:
    """Return whether an operation is allowed, the reason in words, and the rule that decides.

    Without a host rules for single hosts do not count. Super users are known only where brokers show them.
    """
    matching = AclFilter(resource_type=kind, resource_name=name, pattern_type=PatternType.MATCH)
    acls = await admin.acls.describe(matching)
    if operation == Operation.CREATE and kind == ResourceType.TOPIC:
        acls += await admin.acls.describe(AclFilter(resource_type=ResourceType.CLUSTER))
    return explain(acls, await _settings(admin), principal, host, operation, kind, name)


async def _settings(admin: Admin) -> dict[str, str | None]:
    """Return the authorizer settings that one broker shows; none if this client may not see them."""
    try:
        description = await admin.brokers.describe()
        entries = await admin.configs.describe(BROKER, str(description.brokers[0].id))
    except KafkaError:
        return {}
    return {entry.name: entry.value for entry in entries if entry.name in (_SUPER_USERS, _EVERYONE)}


def explain(
    acls: list[Acl],
    settings: dict[str, str | None],
    principal: str,
    host: str | None,
    operation: Operation,
    kind: ResourceType,
    name: str,
) -> tuple[bool, str, Acl | None]:
    """Decide as `check_access` does, by given rules and settings."""
    supers = settings.get(_SUPER_USERS)
    if supers is not None and principal in (user.strip() for user in supers.split(";")):
        return True, f"{_SUPER_USERS} names {principal}", None
    found = decide(acls, principal, host or WILDCARD, operation, kind, name)
    if not found.is_allowed and operation == Operation.CREATE and kind == ResourceType.TOPIC:
        on_cluster = decide(acls, principal, host or WILDCARD, operation, ResourceType.CLUSTER, CLUSTER_NAME)
        found = on_cluster if on_cluster.is_allowed else found
    if found.acl is not None:
        return found.is_allowed, f"by the rule: {found.acl}", found.acl
    return _without_rule(found, settings, principal, host, f"{operation.name} {kind.name} {name}")


def _without_rule(
    found: Decision, settings: dict[str, str | None], principal: str, host: str | None, action: str
) -> tuple[bool, str, None]:
    if not found.has_rules and str(settings.get(_EVERYONE)).lower() == "true":
        return True, f"no rule is about this resource, and {_EVERYONE} is true", None
    where = f" from {host}" if host is not None else ""
    unseen = "" if settings.get(_SUPER_USERS) is not None else f", unless {_SUPER_USERS} names it"
    return False, f"no rule allows {principal}{where} to {action}{unseen}", None

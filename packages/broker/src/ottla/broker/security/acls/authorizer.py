"""The authorizer of ACLs: decides as Kafka's AclAuthorizer, and logs what it decides for audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ottla.broker.security.acls.audit import AuditLog
from ottla.broker.security.acls.bindings import WILDCARD, PermissionType
from ottla.broker.security.acls.rules import ALLOWED_BY, ITSELF, RulesByPattern, principals_of
from ottla.broker.security.authorizer import CLUSTER, Operation, plain_address

if TYPE_CHECKING:
    from ottla.broker.security.authorizer import Decision, Resource, ResourceType
    from ottla.broker.security.principal import Principal

_compared: Final = lru_cache(4096)(plain_address)


class AclAuthorizer:
    """Decides by super users first, then by denials, then by permissions."""

    def __init__(
        self,
        super_users: Iterable[str] = (),
        *,
        allow_everyone_if_no_acl_found: bool = False,
        now_ms: Callable[[], float],
    ) -> None:
        """`super_users` are principals as text. `now_ms` is a clock that never goes back."""
        self.rules = RulesByPattern()
        self._super_users = frozenset(super_users)
        self._by_default = allow_everyone_if_no_acl_found
        self._log = AuditLog(now_ms)

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        """Return whether a principal may perform an operation from a host (an IP address)."""
        name = str(principal)
        if name in self._super_users:
            return True
        found = self.rules.about(resource)
        if not found:
            return self._by_default
        asked, host = principals_of(name), _compared(host)
        if any(rules.say(PermissionType.DENY, asked, ITSELF[operation], host) for rules in found):
            return False
        return any(rules.say(PermissionType.ALLOW, asked, ALLOWED_BY[operation], host) for rules in found)

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a principal may perform an operation on at least one resource of a type."""
        name = str(principal)
        return name in self._super_users or self.rules.allows_any(
            resource_type, name, operation, _compared(host), by_default=self._by_default
        )

    def may_act_as_broker(self, principal: Principal) -> bool:
        """Return whether a principal may perform CLUSTER_ACTION, from some host at least."""
        hosts = {entry.host for rules in self.rules.about(CLUSTER) for entry in rules.entries}
        return any(
            self.allows(principal, host, Operation.CLUSTER_ACTION, CLUSTER) for host in {*hosts, WILDCARD}
        )

    def audit(self, decision: Decision) -> None:
        """Log a decision about a resource that a request has asked for."""
        self._log.log(decision)

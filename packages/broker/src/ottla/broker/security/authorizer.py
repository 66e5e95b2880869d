"""Authorization: which principal may perform which operation on which resource.

The dispatcher asks before the handler where a request names one resource; a handler asks for each element of
its lists (`RequestContext.allows`). Without a configured authorizer every request is allowed.
"""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, Protocol

from ottla.broker.security.principal import Principal
from ottla.protocol.acls import CLUSTER_NAME
from ottla.protocol.acls import Operation as Operation
from ottla.protocol.acls import ResourceType as ResourceType


class Resource(NamedTuple):
    """One resource; the name of the only cluster is `kafka-cluster`."""

    type: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, CLUSTER_NAME)


def plain_address(text: str) -> str:
    """Return an address as it is compared: IPv4 inside IPv6 (`::ffff:10.0.0.1`) is IPv4."""
    if text == "*":  # of rules
        return text
    try:
        parsed = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(mapped or parsed)


class Decision(NamedTuple):
    """A decision about a request, as it is logged for audit."""

    principal: Principal
    host: str
    operation: Operation
    resource: Resource
    api: str
    is_allowed: bool


class Authorizer(Protocol):
    """Decides about requests. It answers at once: what it knows of ACLs is in memory."""

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        """Return whether a principal may perform an operation from a host (an IP address)."""
        ...

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a principal may perform an operation on at least one resource of a type."""
        ...

    def audit(self, decision: Decision) -> None:
        """Log a decision about a resource that a request has asked for."""
        ...


class AllowAll:
    """Allows everything, as Kafka without an authorizer."""

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        """Allow it."""
        return True

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Allow it."""
        return True

    def audit(self, decision: Decision) -> None:
        """Log nothing."""


ALLOW_ALL: Final = AllowAll()

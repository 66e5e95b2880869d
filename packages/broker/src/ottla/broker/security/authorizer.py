"""Authorization: which principal may perform which operation on which resource.

The dispatcher asks before the handler where a request names one resource; a handler asks for each element of
its lists (`RequestContext.allows`). Without a configured authorizer every request is allowed.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple, Protocol

from ottla.broker.security.principal import Principal


class Operation(IntEnum):
    """Operations, with Kafka's codes of ACLs. ALL stands in rules only."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class ResourceType(IntEnum):
    """Types of resources, with Kafka's codes of ACLs."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Resource(NamedTuple):
    """One resource; the name of the only cluster is `kafka-cluster`."""

    type: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")


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

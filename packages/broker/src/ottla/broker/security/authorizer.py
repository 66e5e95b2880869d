"""Authorization: which principal may perform which operation on which resource.

The dispatcher asks before the handler where a request names one resource; a handler asks for each element of
its lists (`RequestContext.allows`). No authorizer is configured today, and every request is allowed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from ottla.broker.security.principal import Principal


class Operation(IntEnum):
    """Operations, with Kafka's codes of ACLs."""

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


class ResourceType(IntEnum):
    """Types of resources, with Kafka's codes of ACLs."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Resource(NamedTuple):
    """One resource; the name of the only cluster is `kafka-cluster`."""

    type: ResourceType
    name: str


CLUSTER: Final = Resource(ResourceType.CLUSTER, "kafka-cluster")


class Authorizer(Protocol):
    """Decides about requests. It answers at once: what it knows of ACLs is in memory."""

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        """Return whether a principal may perform an operation from a host (an IP address)."""
        ...


class AllowAll:
    """Allows everything, as Kafka without an authorizer."""

    def allows(self, principal: Principal, host: str, operation: Operation, resource: Resource) -> bool:
        """Allow it."""
        return True


ALLOW_ALL: Final = AllowAll()

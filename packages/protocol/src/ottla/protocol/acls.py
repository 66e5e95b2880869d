"""Access rules (ACLs) and how they decide: Kafka's codes, patterns of resources, deny before allow.

A rule names a principal, a host, an operation, and a pattern of resources. For one request the rules count
whose pattern matches the resource. If one of them denies, the request is refused; else one must allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

WILDCARD: Final = "*"
ANY_PRINCIPAL: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


class ResourceType(IntEnum):
    """Types of resources; ANY only in filters."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a rule's name matches names (KIP-290); ANY and MATCH only in filters.

    LITERAL matches one name, or each name if it is `*`. PREFIXED matches all names that begin with it.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """Operations; ANY only in filters, ALL only in rules."""

    UNKNOWN = 0
    ANY = 1
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
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """Whether a rule denies or allows; ANY only in filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


_TOPIC: Final = (
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
)  # fmt: skip
_CLUSTER: Final = (
    Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
)  # fmt: skip

OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: _TOPIC,
    ResourceType.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: _CLUSTER,
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that exist on each type of resource, beside ALL. A rule with another is invalid."""

IMPLIED_BY: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""The operations whose permission allows another operation too. A denied operation implies nothing."""


class Acl(NamedTuple):
    """One rule: a principal may, or may not, perform an operation from a host on matching resources."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission_type: PermissionType

    def __str__(self) -> str:
        pattern = "prefix " if self.pattern_type == PatternType.PREFIXED else ""
        return (
            f"{self.permission_type.name.lower()} {self.principal} from {self.host} to "
            f"{self.operation.name} {self.resource_type.name} {pattern}{self.resource_name}"
        )

    def matches_resource(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether the rule is about a resource."""
        if self.resource_type != resource_type:
            return False
        if self.pattern_type == PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, WILDCARD)

    def is_about(self, principal: str, host: str) -> bool:
        """Return whether the rule is about a principal's requests from a host."""
        is_any_user = self.principal == ANY_PRINCIPAL  # of each type, as in Kafka
        return (is_any_user or self.principal == principal) and self.host in (host, WILDCARD)


class Decision(NamedTuple):
    """Whether a request is allowed, and the rule that decided; None if no rule did.

    `has_rules`: whether any rule is about the resource. Without one `allow.everyone.if.no.acl.found` counts.
    """

    is_allowed: bool
    acl: Acl | None
    has_rules: bool


def decide(
    acls: Iterable[Acl],
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> Decision:
    """Decide by rules alone whether a principal may perform an operation on a resource."""
    rules = [acl for acl in acls if acl.matches_resource(resource_type, name)]
    about = [acl for acl in rules if acl.is_about(principal, host)]
    denying, allowing = {operation, Operation.ALL}, {operation, Operation.ALL, *IMPLIED_BY.get(operation, ())}
    for permission, operations in ((PermissionType.DENY, denying), (PermissionType.ALLOW, allowing)):
        for acl in about:
            if acl.permission_type == permission and acl.operation in operations:
                return Decision(permission == PermissionType.ALLOW, acl, True)
    return Decision(False, None, bool(rules))

"""CreateAcls: adds rules; those of one pattern in one step (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.features import TRANSACTION
from ottla.broker.cluster.zookeeper_session import zookeeper_errors
from ottla.broker.requests.context import CloseConnection, RequestContext
from ottla.broker.requests.permissions import ALTER
from ottla.broker.security.acls.bindings import (
    ANY,
    UNKNOWN,
    Entry,
    Pattern,
    PatternType,
    PermissionType,
    parse_principal,
)
from ottla.broker.security.authorizer import CLUSTER, Operation, ResourceType
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    SecurityDisabled,
    UnknownServerError,
)
from ottla.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.acls import Acls, Change
    from ottla.broker.cluster.features import Features

TWO_PHASE: Final = 2
"""The level of `transaction.version` that no broker of Apache Kafka with ZooKeeper has."""


class Needs(Protocol):
    """The parts of the broker that CreateAcls uses."""

    acls: Acls | None
    features: Features


async def handle(services: Needs, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Add the valid rules; each has a result of its own."""
    creations = request.creations
    if any(UNKNOWN in _codes(creation) for creation in creations):
        raise CloseConnection  # as Kafka
    if (refusal := refusal_of_change(services.acls, context)) is not None:
        return _response([refusal] * len(creations))
    assert services.acls is not None
    if any(ANY in _codes(creation) or _is_match(creation) for creation in creations):
        return _response([UnknownServerError("a rule has no ANY and no MATCH")] * len(creations))
    errors: list[KafkaError | None] = []
    by_pattern: dict[Pattern, list[int]] = {}
    async for creation in context.paced(creations):
        errors.append(_error_of(creation) or _unknown_to_members(creation, services.features))
        if errors[-1] is None:
            by_pattern.setdefault(_pattern(creation), []).append(len(errors) - 1)
    changes: dict[Pattern, Change] = {}
    for pattern, indexes in by_pattern.items():
        changes[pattern] = partial(_with, [creations[index] for index in indexes])
    found = await services.acls.alter(changes)
    for indexes, error in zip(by_pattern.values(), found, strict=True):
        for index in indexes:
            errors[index] = error_of_change(error)
    return _response(errors)


def refusal_of_change(acls: Acls | None, context: RequestContext) -> KafkaError | None:
    """Return why no rule at all is changed; there is no place for one error in the response."""
    if not context.allows(ALTER, CLUSTER):
        return ClusterAuthorizationFailed()
    return SecurityDisabled("No Authorizer is configured.") if acls is None else None


def error_of_change(error: Exception | None) -> KafkaError | None:
    """Return Kafka's error for a failure to change the rules of a pattern."""
    if error is None or isinstance(error, KafkaError):
        return error
    try:
        with zookeeper_errors():
            raise error
    except KafkaError as known:
        return known
    except Exception as unknown:
        return UnknownServerError(str(unknown))


def _codes(creation: AclCreation) -> tuple[int, int, int, int]:
    return (
        creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type,
    )  # fmt: skip


def _is_match(creation: AclCreation) -> bool:
    return creation.resource_pattern_type == PatternType.MATCH


def _error_of(creation: AclCreation) -> KafkaError | None:
    """Return why a rule is invalid."""
    if creation.resource_type == ResourceType.CLUSTER and creation.resource_name != CLUSTER.name:
        return InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER.name}")
    if not creation.resource_name:
        return InvalidRequest("Invalid empty resource name")
    try:
        _pattern(creation), Operation(creation.operation), PermissionType(creation.permission_type)
    except ValueError as error:
        return InvalidRequest(f"Failed to create ACL: {error}")
    if "/" in creation.resource_name:
        return InvalidRequest(f"Failed to create ACL: {creation.resource_name!r} has a slash")
    return None


def _unknown_to_members(creation: AclCreation, features: Features) -> KafkaError | None:
    """Return why a rule cannot be stored while other members do not know its operation.

    A broker of Apache Kafka 3.9 fails every DescribeAcls that finds it, and writes it back as `Unknown`.
    """
    is_known = creation.operation != Operation.TWO_PHASE_COMMIT or features.level(TRANSACTION) >= TWO_PHASE
    if is_known:
        return None
    return InvalidRequest(
        f"Failed to create ACL: TWO_PHASE_COMMIT needs {TRANSACTION} {TWO_PHASE}, which is off: a broker of "
        "Apache Kafka 3.9 does not know the operation (`ottla feature describe`)"
    )


def _pattern(creation: AclCreation) -> Pattern:
    pattern_type = PatternType(creation.resource_pattern_type)
    return Pattern(ResourceType(creation.resource_type), pattern_type, creation.resource_name)


def _with(creations: Iterable[AclCreation], before: frozenset[Entry]) -> frozenset[Entry]:
    return before.union(map(_entry, creations))


def _entry(creation: AclCreation) -> Entry:
    """Raises ValueError for a principal without a type: it fails all rules of its pattern, as in Kafka."""
    parse_principal(creation.principal)
    operation, permission = Operation(creation.operation), PermissionType(creation.permission_type)
    return Entry(creation.principal, creation.host, operation, permission)


def _response(errors: Iterable[KafkaError | None]) -> CreateAclsResponse:
    return CreateAclsResponse(
        results=[
            AclCreationResult()
            if error is None
            else AclCreationResult(error_code=error.code, error_message=str(error))
            for error in errors
        ]
    )

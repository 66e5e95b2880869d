"""Authorization: before the handler for a request as a whole, in the handler for the names in a list.

The dispatcher asks `RequestAuthorization`. An `Authorizer` decides which principals may do what, and with
CLUSTER_ACTION which senders are brokers. Without one `cluster.inter_broker_access` decides about brokers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.cluster.inter_broker_access import UnknownBrokers
from ottla.broker.requests.context import CloseConnection
from ottla.broker.requests.permissions import CLUSTER_ACTION, Permission
from ottla.broker.security.authorizer import ALLOW_ALL, CLUSTER, Resource, ResourceType
from ottla.protocol.acls import OPERATIONS
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.requests.routes import Route
    from ottla.broker.security.authorizer import Authorizer

REFUSALS: Final[dict[ResourceType, type[KafkaError]]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}
"""The error where an operation on a resource is not allowed."""
NO_OPERATIONS_ASKED: Final = -(2**31)
"""The authorized operations in a response to a request that does not ask for them."""
_PERMISSIONS: Final = {
    int(kind): [Permission(operation, kind) for operation in operations]
    for kind, operations in OPERATIONS.items()
}
_ALL_OPERATIONS: Final = {
    kind: sum(1 << permission.operation for permission in permissions)
    for kind, permissions in _PERMISSIONS.items()
}
NOTHING_REFUSED: Final[AbstractSet[str]] = frozenset()


class RequestAuthorization:
    """Decides whether a request reaches its handler."""

    def __init__(self, brokers: InterBrokerAccess | None = None, authorizer: Authorizer = ALLOW_ALL) -> None:
        """Without `brokers` no sender is one."""
        self._brokers = brokers
        self.authorizer = authorizer

    async def is_broker(self, context: RequestContext) -> bool:
        """Return whether a broker sends a request. Raises `CloseConnection` while that is unknown."""
        if context.has_authorizer:
            return _acts_for_cluster(context)
        return self._brokers is not None and await is_broker(self._brokers, context)

    async def check_broker(self, context: RequestContext) -> None:
        """Raise ClusterAuthorizationFailed, and log it, where the sender is no broker."""
        if self._brokers is None:
            is_allowed = context.has_authorizer and context.allows(CLUSTER_ACTION, CLUSTER)
        else:
            is_allowed = await is_served(self._brokers, context)
        if not is_allowed:
            raise ClusterAuthorizationFailed

    def check_permissions(self, route: Route[Any], request: Any, context: RequestContext) -> None:
        """Raise the error of the first permission that is asked before the handler, and not allowed."""
        if self.authorizer is ALLOW_ALL:
            return
        for permission in route.permissions:
            if permission.is_asked_first and not context.allows(permission, permission.resource_of(request)):
                raise REFUSALS[permission.type]


# ---- names in lists


async def refused_names(
    context: RequestContext, permission: Permission, names: Iterable[str]
) -> AbstractSet[str]:
    """Return the names in a request's list on which its sender lacks a permission; each is asked for once."""
    if not context.has_authorizer:
        return NOTHING_REFUSED
    refused: AbstractSet[str] = await context.turn.run(refusing_names(context, permission, names))
    return refused


def refusing_names(
    context: RequestContext, permission: Permission, names: Iterable[str]
) -> Generator[None, None, AbstractSet[str]]:
    """Return the same as `refused_names`, in steps of a name each."""
    if not context.has_authorizer:
        return NOTHING_REFUSED
    asked: dict[str, bool] = {}
    for name in names:
        if name not in asked:
            asked[name] = context.allows(permission, Resource(permission.type, name))
        yield
    return {name for name, is_allowed in asked.items() if not is_allowed}


def authorized_operations(context: RequestContext, resource: Resource) -> int:
    """Return the operations that the sender may perform on a resource, a bit for each code (KIP-430)."""
    if not context.has_authorizer:
        return _ALL_OPERATIONS[resource.type]
    return sum(
        1 << permission.operation
        for permission in _PERMISSIONS[resource.type]
        if context.allows(permission, resource, is_asked_for=False)
    )


# ---- brokers


class Needs(Protocol):
    """The part of the broker that knows the other brokers."""

    inter_broker: InterBrokerAccess


class FromReplica(Protocol):
    """A request that a client or a follower sends: `replica_id` is the follower's broker id, or negative."""

    replica_id: int


def from_follower(request: Any) -> bool:
    """Return whether a request is a follower's; its replica id stands before its lists."""
    return getattr(request, "replica_id", -1) >= 0


def may_be_refused(services: Needs, request: FromReplica, context: RequestContext) -> bool:
    """Return whether `refusal_of_replica` has to be asked before the request is served."""
    if request.replica_id < 0:
        return False
    if context.has_authorizer:
        return not _acts_for_cluster(context)
    return not services.inter_broker.admits_now(context.session)


async def refusal_of_replica(
    services: Needs, request: FromReplica, context: RequestContext
) -> TopicAuthorizationFailed | None:
    """Return the error of every partition where a client claims to be a follower; None for the others.

    As a follower it would see records that are not committed and move the high watermark.
    """
    if request.replica_id < 0 or await is_served(services.inter_broker, context):
        return None
    return TopicAuthorizationFailed()


def _acts_for_cluster(context: RequestContext) -> bool:
    return context.allows(CLUSTER_ACTION, CLUSTER, is_asked_for=False)


async def is_broker(brokers: InterBrokerAccess, context: RequestContext) -> bool:
    """Return whether a broker sends a request.

    Raises `CloseConnection` while that is unknown: a broker connects again and repeats its request, whereas
    most errors in an answer would end the matter for it.
    """
    if context.has_authorizer:
        return _acts_for_cluster(context)
    try:
        return await brokers.admits(context.session)
    except UnknownBrokers as error:
        raise CloseConnection from error


async def is_served(brokers: InterBrokerAccess, context: RequestContext) -> bool:
    """Return whether a request that only brokers send is served to its sender; a refusal is logged.

    With an authorizer, a broker is a client that may perform CLUSTER_ACTION.
    """
    if context.has_authorizer:
        is_allowed = context.allows(CLUSTER_ACTION, CLUSTER)
    else:
        is_allowed = await is_broker(brokers, context)
    if is_allowed:
        return True
    name = f"{ApiKey(context.header.api_key).name} v{context.api_version}"
    brokers.refused(context.session, name)
    return False

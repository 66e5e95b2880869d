"""Authorization of requests: the one place that asks, before the handler, whether the sender may send it.

The dispatcher asks `RequestAuthorization`: `cluster.inter_broker_access` decides which senders are brokers,
and an `Authorizer` which principals may do what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.broker.cluster.inter_broker_access import UnknownBrokers
from ottla.broker.requests.context import CloseConnection
from ottla.broker.requests.permissions import CLUSTER_ACTION
from ottla.broker.security.authorizer import ALLOW_ALL, CLUSTER, ResourceType
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess, Peer
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


class RequestAuthorization:
    """Decides whether a request reaches its handler."""

    def __init__(self, brokers: InterBrokerAccess | None = None, authorizer: Authorizer = ALLOW_ALL) -> None:
        """Without `brokers` no sender is one."""
        self._brokers = brokers
        self.authorizer = authorizer

    async def is_broker(self, session: Peer) -> bool:
        """Return whether a broker sends over a connection. Raises `CloseConnection` while that is unknown."""
        return self._brokers is not None and await is_broker(self._brokers, session)

    async def check_broker(self, context: RequestContext) -> None:
        """Raise ClusterAuthorizationFailed, and log it, where the sender is no broker."""
        if self._brokers is None:
            is_allowed = self.authorizer is not ALLOW_ALL and context.allows(CLUSTER_ACTION, CLUSTER)
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
    return request.replica_id >= 0 and not services.inter_broker.admits_now(context.session)


async def refusal_of_replica(
    services: Needs, request: FromReplica, context: RequestContext
) -> TopicAuthorizationFailed | None:
    """Return the error of every partition where a client claims to be a follower; None for the others.

    As a follower it would see records that are not committed and move the high watermark.
    """
    if request.replica_id < 0 or await is_served(services.inter_broker, context):
        return None
    return TopicAuthorizationFailed()


async def is_broker(brokers: InterBrokerAccess, session: Peer) -> bool:
    """Return whether a broker is at the other end of a connection.

    Raises `CloseConnection` while that is unknown: a broker connects again and repeats its request, whereas
    most errors in an answer would end the matter for it.
    """
    try:
        return await brokers.admits(session)
    except UnknownBrokers as error:
        raise CloseConnection from error


async def is_served(brokers: InterBrokerAccess, context: RequestContext) -> bool:
    """Return whether a request that only brokers send is served to its sender; a refusal is logged.

    With an authorizer, a broker is a client that may perform CLUSTER_ACTION.
    """
    if context.authorizer is not ALLOW_ALL:
        is_allowed = context.allows(CLUSTER_ACTION, CLUSTER)
    else:
        is_allowed = await is_broker(brokers, context.session)
    if is_allowed:
        return True
    name = f"{ApiKey(context.header.api_key).name} v{context.api_version}"
    brokers.refused(context.session, name)
    return False

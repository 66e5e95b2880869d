"""Requests that only brokers send: served to brokers, refused with Kafka's errors to everyone else.

`ottla.broker.cluster.inter_broker_access` decides who is a broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla.broker.cluster.inter_broker_access import UnknownBrokers
from ottla.broker.requests.context import CloseConnection
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ClusterAuthorizationFailed, TopicAuthorizationFailed

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess, Peer
    from ottla.broker.requests.context import RequestContext


class Needs(Protocol):
    """The part of the broker that knows the other brokers."""

    inter_broker: InterBrokerAccess


class FromReplica(Protocol):
    """A request that a client or a follower sends: `replica_id` is the follower's broker id, or negative."""

    replica_id: int


S = TypeVar("S", bound=Needs)


def brokers_only(
    handle: Callable[[S, Any, RequestContext], Awaitable[Any]],
) -> Callable[[S, Any, RequestContext], Awaitable[Any]]:
    """Make a handler answer CLUSTER_AUTHORIZATION_FAILED to clients."""

    async def handle_of_brokers(services: S, request: Any, context: RequestContext) -> Any:
        if not await is_served(services, context):
            raise ClusterAuthorizationFailed
        return await handle(services, request, context)

    return handle_of_brokers


def from_follower(request: Any) -> bool:
    """Tell whether a request is a follower's; its replica id stands before its lists."""
    return getattr(request, "replica_id", -1) >= 0


def may_be_refused(services: Needs, request: FromReplica, context: RequestContext) -> bool:
    """Tell whether `refusal_of_replica` has to be asked before the request is served."""
    return request.replica_id >= 0 and not services.inter_broker.admits_now(context.session)


async def refusal_of_replica(
    services: Needs, request: FromReplica, context: RequestContext
) -> TopicAuthorizationFailed | None:
    """Return the error of every partition where a client claims to be a follower; None where all is well.

    As a follower it would see records that are not committed and move the high watermark.
    """
    if request.replica_id < 0 or await is_served(services, context):
        return None
    return TopicAuthorizationFailed()


async def is_broker(access: InterBrokerAccess, session: Peer) -> bool:
    """Tell whether a broker is at the other end of a connection.

    Raises `CloseConnection` while that cannot be told: a broker connects again and repeats its request,
    whereas most errors in an answer would end the matter for it.
    """
    try:
        return await access.admits(session)
    except UnknownBrokers as error:
        raise CloseConnection from error


async def is_served(services: Needs, context: RequestContext) -> bool:
    """Tell whether a request that only brokers send is served to its sender; a refusal is logged."""
    if await is_broker(services.inter_broker, context.session):
        return True
    name = f"{ApiKey(context.header.api_key).name} v{context.api_version}"
    services.inter_broker.refused(context.session, name)
    return False

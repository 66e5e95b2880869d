"""FindCoordinator: the broker that coordinates a group or a transactional id.

The first request of a kind creates the internal topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.features import SHARE as SHARE_FEATURE
from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.requests.authorization import REFUSALS
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import CLUSTER_ACTION, DESCRIBE_GROUPS, DESCRIBE_TXNS
from ottla.broker.security.authorizer import CLUSTER, Resource
from ottla.protocol.errors import (
    ClusterAuthorizationFailed,
    CoordinatorNotAvailable,
    InvalidRequest,
    KafkaError,
)
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.topics import (
    GROUP_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)

if TYPE_CHECKING:
    from ottla.broker.api.consumer_group_heartbeat import Levels
    from ottla.broker.cluster.metadata import BrokerEndpoint, MetadataCache

TOPICS: Final[Mapping[int, str]] = {
    0: GROUP_METADATA_TOPIC,
    1: TRANSACTION_STATE_TOPIC,
    2: SHARE_GROUP_STATE_TOPIC,
}
"""The topic whose partitions' leaders coordinate, by the type of the key."""
SEVERAL_FROM: Final = 4
SHARE: Final = 2
SHARE_FROM: Final = 6
_TOPIC_ID_LENGTH: Final = 22
_PERMISSIONS: Final = {0: DESCRIBE_GROUPS, 1: DESCRIBE_TXNS}


class InternalTopics(Protocol):
    """Creates the topics that hold the broker's own state (`cluster.topics.Topics`)."""

    async def ensure_internal(self, name: str, /) -> object:
        """Create an internal topic unless it exists."""
        ...


class Needs(Protocol):
    """The parts of the broker that FindCoordinator uses."""

    metadata: MetadataCache

    @property
    def topics(self) -> InternalTopics:
        """Creates the internal topics."""
        ...

    @property
    def features(self) -> Levels:
        """The feature levels of the cluster."""
        ...


async def handle(
    services: Needs, request: FindCoordinatorRequest, context: RequestContext
) -> FindCoordinatorResponse:
    """Respond with the leader of the partition that keeps the group, or the transactional id."""
    if context.api_version >= SEVERAL_FROM:
        return FindCoordinatorResponse(
            coordinators=[
                await _coordinator(services, request.key_type, key, context)
                async for key in context.paced(request.coordinator_keys)
            ]
        )
    found = await _coordinator(services, request.key_type, request.key, context)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _coordinator(services: Needs, key_type: int, key: str, context: RequestContext) -> Coordinator:
    try:
        node_id, endpoint = await _find(services, key_type, key, context)
    except KafkaError as error:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=str(error) or None
        )
    return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port, error_message=None)


async def _find(
    services: Needs, key_type: int, key: str, context: RequestContext
) -> tuple[int, BrokerEndpoint]:
    topic = TOPICS.get(key_type)
    if topic is None or (key_type == SHARE and context.api_version < SHARE_FROM):
        raise InvalidRequest(f"There is no kind {key_type} of coordinator.")
    if key_type == SHARE:
        _check_share_key(services, key, context)
    else:
        permission = _PERMISSIONS[key_type]
        if not context.allows(permission, Resource(permission.type, key)):
            raise REFUSALS[permission.type]
    if topic not in services.metadata:
        await _create(services, topic)
    return _leader(services, topic, key, context)


def _check_share_key(services: Needs, key: str, context: RequestContext) -> None:
    """Raise unless a broker asks, in a cluster with share groups, for a key `group:topic id:partition`."""
    if not context.allows(CLUSTER_ACTION, CLUSTER):
        raise ClusterAuthorizationFailed
    if not services.features.level(SHARE_FEATURE):
        raise InvalidRequest("The cluster has no share groups.")
    rest, _, number = key.rpartition(":")
    group_id, _, topic_id = rest.rpartition(":")
    if not group_id or len(topic_id) != _TOPIC_ID_LENGTH or not number.isdecimal():
        raise InvalidRequest(f"{key[:200]!r} is no key of a share partition.")


async def _create(services: Needs, topic: str) -> None:
    try:
        await services.topics.ensure_internal(topic)
    except KafkaError as error:
        raise CoordinatorNotAvailable(f"{topic} cannot be created: {error}") from error


def _leader(services: Needs, topic: str, key: str, context: RequestContext) -> tuple[int, BrokerEndpoint]:
    partitions = services.metadata.partition_count(topic)
    if not partitions:
        raise CoordinatorNotAvailable(f"{topic} is being created.")
    leader_id = services.metadata.leader_of(TopicPartition(topic, partition_for(key, partitions)))
    broker = services.metadata.broker(leader_id) if leader_id is not None else None
    endpoint = broker.endpoint(context.session.listener_name) if broker else None
    if broker is None or endpoint is None:
        raise CoordinatorNotAvailable(f"The partition of {topic} has no leader that can be reached.")
    return broker.id, endpoint

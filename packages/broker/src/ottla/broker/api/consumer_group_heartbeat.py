"""ConsumerGroupHeartbeat: take part in a group whose coordinator assigns the partitions (KIP-848)."""

from __future__ import annotations

import base64
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.features import GROUP
from ottla.broker.groups.consumer.heartbeats import ConsumerHeartbeat, HeartbeatAnswer, anyone
from ottla.broker.groups.consumer.members import JOINING, LEAVING, LEAVING_STATIC
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_TOPICS, READ_GROUPS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import (
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from ottla.protocol.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.runtime.environment import Environment

MOST_TOPICS: Final = 10_000
"""Topics that a member reads by name: what a heartbeat does with them takes one turn of the loop."""
MEMBER_ID_FROM: Final = 1
"""The first version whose members choose their own ids (KIP-1082)."""


class Levels(Protocol):
    """The feature levels of the cluster."""

    def level(self, name: str) -> int:
        """Return the level of a feature, 0 for one that is off."""
        ...


class Needs(Protocol):
    """The parts of the broker that ConsumerGroupHeartbeat uses."""

    config: BrokerConfig
    environment: Environment
    groups: GroupCoordinator

    @property
    def features(self) -> Levels:
        """The levels of this moment."""
        ...


async def handle(
    services: Needs, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    """Respond with the member's epoch, and with its partitions when they are new."""
    try:
        await _check_permissions(services, request, context)
        _check(services, request, context.api_version)
        answer: HeartbeatAnswer = await services.groups.request(
            request.group_id,
            GroupKind.CONSUMER,
            _heartbeat(services, request, context),
            creates=request.member_epoch == JOINING,
        )
    except KafkaError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error))
    return _response(answer)


async def _check_permissions(
    services: Needs, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> None:
    if services.features.level(GROUP) == 0:
        raise UnsupportedVersion("The consumer group protocol is off: group.version is 0.")
    if not context.allows(READ_GROUPS, Resource(ResourceType.GROUP, request.group_id)):
        raise GroupAuthorizationFailed
    names = request.subscribed_topic_names
    if names and await refused_names(context, DESCRIBE_TOPICS, names):
        raise TopicAuthorizationFailed


def _check(services: Needs, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raise InvalidRequest or UnsupportedAssignor, in Kafka's order and words."""
    epoch = request.member_epoch
    if version >= MEMBER_ID_FROM or epoch > JOINING or epoch == LEAVING:
        _refuse_blank(request.member_id, "MemberId")
    _refuse_blank(request.group_id, "GroupId")
    _refuse_blank(request.instance_id, "InstanceId")
    _refuse_blank(request.rack_id, "RackId")
    refuse_many(request.subscribed_topic_names)
    if epoch == JOINING:
        _check_join(request)
    elif epoch == LEAVING_STATIC and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    elif epoch < LEAVING_STATIC:
        raise InvalidRequest("MemberEpoch is invalid.")
    known = services.config.group_consumer_assignors
    if request.server_assignor is not None and request.server_assignor not in known:
        raise UnsupportedAssignor(
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(known)}."
        )


def _refuse_blank(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise InvalidRequest(f"{name} can't be empty.")


def refuse_many(names: Collection[str] | None) -> None:
    """Raise InvalidRequest for more topics than a member may read by name."""
    if names is not None and len(names) > MOST_TOPICS:
        raise InvalidRequest(f"A member reads at most {MOST_TOPICS} topics by name, not {len(names)}.")


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _heartbeat(
    services: Needs, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerHeartbeat:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerHeartbeat(
        member_id=request.member_id or _new_member_id(services),
        epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if names is None else frozenset(names),
        expression=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else {topic.topic_id: frozenset(topic.partitions) for topic in owned},
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
        may_describe=partial(_is_shown, context) if context.has_authorizer else anyone,
    )


def _new_member_id(services: Needs) -> str:
    digits = services.environment.random.getrandbits(128).to_bytes(16, "big")
    return base64.urlsafe_b64encode(digits).rstrip(b"=").decode()


def _is_shown(context: RequestContext, name: str) -> bool:
    """Return whether a client may describe a topic, for its expression; it asks for none by name."""
    return context.allows(DESCRIBE_TOPICS, Resource(ResourceType.TOPIC, name), is_asked_for=False)


def _response(answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
    assigned = answer.assignment
    return ConsumerGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None
        if assigned is None
        else Assignment(
            topic_partitions=[
                TopicPartitionsResponse(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in assigned.items()
            ]
        ),
    )

"""ShareGroupHeartbeat: take part in a share group, whose members may read the same partitions (KIP-932)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ottla.broker.api.consumer_group_heartbeat import refuse_many
from ottla.broker.cluster.features import SHARE
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.share.events import JOINING, LEAVING, ShareAnswer, ShareHeartbeat, StateInitialized
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.permissions import DESCRIBE_TOPICS, READ_GROUPS
from ottla.broker.runtime.loop_budget import slices
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.broker.share.state import UNINITIALIZED, SharePartitionKey
from ottla.protocol.errors import (
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    UnsupportedVersion,
)
from ottla.protocol.messages.consumer_groups import Assignment, TopicPartitionsResponse
from ottla.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

if TYPE_CHECKING:
    from ottla.broker.api.consumer_group_heartbeat import Levels
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.share.parts import ShareParts

log = logging.getLogger(__name__)

OFF = "Share groups are off: share.version is 0."


class Needs(Protocol):
    """The parts of the broker that ShareGroupHeartbeat uses."""

    groups: GroupCoordinator

    @property
    def features(self) -> Levels:
        """The feature levels of the cluster."""
        ...

    @property
    def share(self) -> Callable[[], ShareParts]:
        """Returns the parts for share groups."""
        ...


async def handle(
    services: Needs, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse:
    """Respond with the member's epoch, and with its partitions when they are new."""
    try:
        await _check(services, request, context)
        names = request.subscribed_topic_names
        heartbeat = ShareHeartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            rack_id=request.rack_id,
            topics=None if names is None else frozenset(names),
            client_id=context.client_id or "",
            client_host=f"/{context.session.client_host}",
        )
        answer: ShareAnswer = await services.groups.request(
            request.group_id, GroupKind.SHARE, heartbeat, creates=request.member_epoch == JOINING
        )
    except KafkaError as error:
        return ShareGroupHeartbeatResponse(error_code=int(error.code), error_message=str(error) or None)
    if answer.to_initialize:
        tasks = services.share().partitions.tasks
        tasks.spawn(initialize(services, request.group_id, answer), "share-state-initialization")
    return ShareGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None
        if answer.assignment is None
        else Assignment(
            topic_partitions=[
                TopicPartitionsResponse(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in answer.assignment.items()
            ]
        ),
    )


async def _check(services: Needs, request: ShareGroupHeartbeatRequest, context: RequestContext) -> None:
    """Raise the error of a heartbeat that is refused, in Kafka's order and words."""
    if services.features.level(SHARE) == 0:
        raise UnsupportedVersion(OFF)
    if not context.allows(READ_GROUPS, Resource(ResourceType.GROUP, request.group_id)):
        raise GroupAuthorizationFailed
    names = request.subscribed_topic_names
    if names and await refused_names(context, DESCRIBE_TOPICS, names):
        raise TopicAuthorizationFailed
    for value, name in (
        (request.group_id, "GroupId"),
        (request.member_id, "MemberId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if len(request.member_id) > 36:
        raise InvalidRequest("MemberId can't be longer than 36 characters.")
    if request.member_epoch < LEAVING:
        raise InvalidRequest("MemberEpoch is invalid.")
    refuse_many(names)
    if request.member_epoch == JOINING and not names:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")


async def initialize(services: Needs, group_id: str, answer: ShareAnswer) -> None:
    """Begin the state of partitions, and report to the group whether that succeeded.

    Thousands of partitions may wait until the topic of the states is there: a slice of them goes on together.
    """
    persister = services.share().persister
    keys = [
        SharePartitionKey(group_id, topic, number)
        for topic, numbers in answer.to_initialize.items()
        for number in sorted(numbers)
    ]
    failures: Counter[str] = Counter()

    async def begin(key: SharePartitionKey) -> None:
        try:
            await persister.initialize(key, answer.state_epoch, UNINITIALIZED)
        except KafkaError as error:
            failures[error.code.name] += 1

    for some in slices(keys):
        async with asyncio.TaskGroup() as tasks:
            for key in some:
                tasks.create_task(begin(key))
        if failures:
            break  # each slice could take as long as this one; the group asks for all of them again
    if failures:
        facts = {"group": group_id, "partitions": failures.total(), "errors": dict(failures)}
        log.warning("state of share partitions not initialized", extra=facts)
    event = StateInitialized(answer.to_initialize, bool(failures))
    try:
        await services.groups.request(group_id, GroupKind.SHARE, event)
    except KafkaError as error:  # another coordinator has the group: it asks again
        log.info("initialized state not recorded", extra={"group": group_id, "error": error.code.name})

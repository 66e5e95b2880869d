"""StreamsGroupHeartbeat: take part in a streams group; create the internal topics that its topology needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.features import STREAMS
from ottla.broker.cluster.topics import DEFAULT, NewTopic
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.streams.events import Heartbeat, HeartbeatResult, Leave
from ottla.broker.groups.streams.members import LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH
from ottla.broker.groups.streams.topic_configuration import NAMED_IN_MESSAGE, StatusCode
from ottla.broker.groups.streams.topology import InternalTopic
from ottla.broker.quotas.clients import ControllerMutations
from ottla.broker.requests.authorization import NOTHING_REFUSED, refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import CREATE, CREATE_TOPICS, DESCRIBE_TOPICS, READ_GROUPS
from ottla.broker.security.authorizer import CLUSTER, Resource, ResourceType
from ottla.protocol.errors import (
    CoordinatorLoadInProgress,
    GroupAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    StreamsInvalidTopology,
    TopicAlreadyExists,
    TopicAuthorizationFailed,
    UnsupportedVersion,
)
from ottla.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
)
from ottla.protocol.topics import INTERNAL_TOPICS, why_illegal_topic_name

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.config import BrokerConfig
    from ottla.broker.groups.hosting.coordinator import GroupCoordinator

OFF: Final = "The streams group protocol is off: streams.version is 0."
_NAMED_TOGETHER: Final = 256
"""Topics that an error names at most."""


class Levels(Protocol):
    """The feature levels of the cluster."""

    def level(self, name: str) -> int:
        """Return the level of a feature, 0 for one that is off."""
        ...


class Needs(Protocol):
    """The parts of the broker that StreamsGroupHeartbeat uses."""

    config: BrokerConfig
    groups: GroupCoordinator
    metadata: MetadataCache
    topics: Topics

    @property
    def features(self) -> Levels:
        """The levels of this moment."""
        ...


async def handle(
    services: Needs, request: StreamsGroupHeartbeatRequest, context: RequestContext
) -> StreamsGroupHeartbeatResponse:
    """Respond with the member's epoch, and with its tasks when they are new."""
    try:
        _require_permission(services, request, context)
        await _check_topics(services, request, context)
        _check(request)
        if not await services.metadata.known(services.topics.published):
            # Its topics would seem to be missing, and would be created.
            raise CoordinatorLoadInProgress
        result: HeartbeatResult = await services.groups.request(
            request.group_id,
            GroupKind.STREAMS,
            _event(request, context),
            creates=request.member_epoch == 0,
        )
    except KafkaError as error:
        return StreamsGroupHeartbeatResponse(error_code=error.code, error_message=str(error))
    if result.missing_topics:
        problem = await _create(services, result.missing_topics, context)
        _add_problem(result.response, problem)
    return result.response


def _event(request: StreamsGroupHeartbeatRequest, context: RequestContext) -> Heartbeat | Leave:
    if request.member_epoch in (LEAVE_GROUP_EPOCH, LEAVE_GROUP_STATIC_EPOCH):
        return Leave(
            None,
            request.member_id,
            request.member_epoch,
            request.instance_id,
            request.shutdown_application,
        )
    return Heartbeat(
        token=None,
        request=request,
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
        version=context.api_version,
    )


# ---- checks, in Kafka's order


def _require_permission(
    services: Needs, request: StreamsGroupHeartbeatRequest, context: RequestContext
) -> None:
    if services.features.level(STREAMS) == 0:
        raise UnsupportedVersion(OFF)
    if not context.allows(READ_GROUPS, Resource(ResourceType.GROUP, request.group_id)):
        raise GroupAuthorizationFailed


async def _check_topics(
    services: Needs, request: StreamsGroupHeartbeatRequest, context: RequestContext
) -> None:
    """Raise StreamsInvalidTopology for names that no topology may have, then TopicAuthorizationFailed."""
    if request.topology is None:
        return
    names: dict[str, None] = {}
    most, named = services.config.group_streams_max_topology_topics, 0
    async for part in context.paced(request.topology.subtopologies):
        of_part = list(_names(part))
        names.update(dict.fromkeys(of_part))
        named += max(1, len(of_part))
        if named > most:
            # The coordinator works through a topology in one turn of its loop.
            raise StreamsInvalidTopology(
                f"The topology names more than {most} topics: raise group.streams.max.topology.topics."
            )
    internal = [name for name in INTERNAL_TOPICS if name in names]
    if internal:
        raise StreamsInvalidTopology(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        )
    illegal = [name async for name in context.paced(names) if why_illegal_topic_name(name)]
    if illegal:
        shown = ",".join(islice(illegal, _NAMED_TOGETHER))
        raise StreamsInvalidTopology(f"Topic names {shown} are not valid topic names.")
    if await refused_names(context, DESCRIBE_TOPICS, names):
        raise TopicAuthorizationFailed


def _names(part: Subtopology) -> Iterator[str]:
    yield from part.source_topics
    yield from part.repartition_sink_topics
    for topic in (*part.repartition_source_topics, *part.state_changelog_topics):
        yield topic.name


def _check(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise InvalidRequest, in Kafka's order and words."""
    for part in () if request.topology is None else request.topology.subtopologies:
        if part.source_topic_regex:
            raise InvalidRequest("Regular expressions for source topics are not supported yet.")
    for value, name in (
        (request.member_id, "MemberId"),
        (request.group_id, "GroupId"),
        (request.instance_id, "InstanceId"),
        (request.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    epoch = request.member_epoch
    if epoch == 0:
        _check_join(request)
    elif epoch == LEAVE_GROUP_STATIC_EPOCH and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    elif epoch < LEAVE_GROUP_STATIC_EPOCH:
        raise InvalidRequest(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    tasks = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if any(named is None for named in tasks) and any(named is not None for named in tasks):
        raise InvalidRequest("If one task-type is non-null, all must be non-null.")
    if epoch != 0 and request.topology is not None:
        raise InvalidRequest("Topology can only be provided when (re-)joining.")


def _check_join(request: StreamsGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    for tasks, name in (
        (request.active_tasks, "ActiveTasks"),
        (request.standby_tasks, "StandbyTasks"),
        (request.warmup_tasks, "WarmupTasks"),
    ):
        if tasks:
            raise InvalidRequest(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise InvalidRequest("Topology must be non-null when (re-)joining.")


# ---- internal topics


async def _create(
    services: Needs, missing: Mapping[str, InternalTopic], context: RequestContext
) -> str | None:
    """Create topics with the member's rights, as many as one request may; return why some are still missing.

    The others follow with the next heartbeats, which still miss them.
    """
    refused = await _not_to_create(missing, context)
    if refused:
        return f"Unauthorized to CREATE on topics {', '.join(sorted(refused))}."
    mutations = ControllerMutations(context.quotas, is_strict=False)
    failed: dict[str, KafkaError] = {}
    some = list(islice(missing.values(), services.config.request_max_created_topics))
    async for topic in context.paced(some):
        try:
            await services.topics.create(_new_topic(topic), charge=mutations.record)
        except TopicAlreadyExists:
            continue  # another member was faster
        except KafkaError as error:
            failed[topic.name] = error
    context.throttle_time_ms = mutations.throttle_time_ms
    if not failed:
        return None
    shown = ", ".join(f"{name} ({error})" for name, error in islice(failed.items(), NAMED_IN_MESSAGE))
    more = len(failed) - NAMED_IN_MESSAGE
    return f"Creation failed: {shown}{f' and {more} more' if more > 0 else ''}."


async def _not_to_create(missing: Mapping[str, InternalTopic], context: RequestContext) -> AbstractSet[str]:
    if context.allows(CREATE, CLUSTER, is_asked_for=False):
        return NOTHING_REFUSED
    return await refused_names(context, CREATE_TOPICS, missing)


def _new_topic(topic: InternalTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor or DEFAULT,
        configs=dict(topic.configs),
    )


def _add_problem(response: StreamsGroupHeartbeatResponse, problem: str | None) -> None:
    """Add to the status of missing topics why they are not created."""
    for status in response.status or ():
        if problem is not None and status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail += f"; {problem}"

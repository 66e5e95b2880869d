"""Metadata: live brokers, topics and leaders; creates unknown topics where this is allowed."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ottla.broker.api.describe_cluster import cluster_operations
from ottla.broker.cluster.metadata import NO_LEADER, KnownPartition, KnownTopic
from ottla.broker.quotas.clients import ControllerMutations
from ottla.broker.requests.authorization import (
    NO_OPERATIONS_ASKED,
    NOTHING_REFUSED,
    authorized_operations,
    refused_names,
)
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import CREATE, CREATE_TOPICS, DESCRIBE_TOPICS
from ottla.broker.security.authorizer import CLUSTER, Resource, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.topics import INTERNAL_TOPICS, why_illegal_topic_name

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import KnownBroker, MetadataCache
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.config import BrokerConfig

_NO_ID = uuid.UUID(int=0)
FIRST_BY_ID = 12


Alive: TypeAlias = "Mapping[int, KnownBroker]"


class Needs(Protocol):
    """The parts of the broker that Metadata uses."""

    cluster_id: str
    config: BrokerConfig
    metadata: MetadataCache
    topics: Topics


async def handle(services: Needs, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Describe the cluster as this broker knows it, with the addresses of the client's listener."""
    is_known = await services.metadata.known(services.topics.published)
    version = context.api_version
    everything = request.topics is None or (version == 0 and not request.topics)
    # Of one moment: a client such as kafka-python never recovers from a leader that is not among the brokers.
    alive = services.metadata.alive
    brokers = _brokers(alive, context)
    if everything and not is_known:
        # Clients ignore an answer without brokers and ask again. With brokers, they would take the topics
        # that this broker was told of so far for all that exist, and the subscriber of a pattern would leave
        # the others.
        brokers, topics = [], []
    elif everything:
        topics = [
            await _describe(alive, topic, context)
            async for topic in context.paced(list(services.metadata.topics()))
            if _is_shown(topic.name, context)
        ]
    elif version < FIRST_BY_ID and _needs_ids(request):
        invalid = ErrorCode.INVALID_REQUEST
        topics = [_missing(invalid, asked.name or "", asked.topic_id) for asked in request.topics or ()]
    else:
        topics = await _asked_for(services, alive if is_known else None, request, context)
    if version >= 8 and request.include_topic_authorized_operations:
        async for topic in context.paced(topics):
            _show_operations(topic, context)
    cluster_asked = version >= 8 and request.include_cluster_authorized_operations
    return MetadataResponse(
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=services.metadata.controller_id,
        topics=topics,
        cluster_authorized_operations=cluster_operations(context) if cluster_asked else NO_OPERATIONS_ASKED,
    )


def _brokers(alive: Alive, context: RequestContext) -> list[MetadataResponseBroker]:
    return [
        MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker in alive.values()
        if (endpoint := broker.endpoint(context.session.listener_name))
    ]


def _is_shown(name: str, context: RequestContext) -> bool:
    """Whether a topic that the request does not name is shown to its sender."""
    return context.allows(DESCRIBE_TOPICS, Resource(ResourceType.TOPIC, name), is_asked_for=False)


def _show_operations(topic: MetadataResponseTopic, context: RequestContext) -> None:
    """Show the authorized operations on a topic, unless the topic itself is not shown."""
    if topic.name is not None and topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        resource = Resource(ResourceType.TOPIC, topic.name)
        topic.topic_authorized_operations = authorized_operations(context, resource)


async def _asked_for(
    services: Needs, alive: Alive | None, request: MetadataRequest, context: RequestContext
) -> list[MetadataResponseTopic]:
    """Describe topics; those that the client may not create or see stand at the end, as Kafka does it.

    Without `alive` nothing is known of any topic yet.
    """
    once = {(topic.name, topic.topic_id): topic async for topic in context.paced(request.topics or ())}
    by_id = [topic for topic in once.values() if topic.topic_id != _NO_ID]
    # Topics that are named beside ids are left out, as Apache Kafka does.
    asked = by_id or list(once.values())
    hidden: list[MetadataRequestTopic] = []
    uncreated: AbstractSet[str] = NOTHING_REFUSED
    if context.has_authorizer:
        asked, hidden = await _shown_and_hidden(services, asked, context)
    answers = [_hidden(entry, is_by_id=bool(by_id)) async for entry in context.paced(hidden)]
    if alive is None:
        return [*[_not_told(entry) async for entry in context.paced(asked)], *answers]
    may_create = (
        not by_id
        and services.config.auto_create_topics_enable
        and (context.api_version < 4 or request.allow_auto_topic_creation)
    )
    errors: dict[str, KafkaError] = {}
    if may_create:
        uncreated = await _not_to_create(services, asked, context)
        creatable = [entry async for entry in context.paced(asked) if entry.name not in uncreated]
        errors = await _create_missing(services, creatable, context)
        asked = creatable
    refused = [_missing(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name) for name in sorted(uncreated)]
    shown = [await _answer(services, alive, topic, errors, context) async for topic in context.paced(asked)]
    return [*shown, *refused, *answers]


async def _shown_and_hidden(
    services: Needs, asked: Iterable[MetadataRequestTopic], context: RequestContext
) -> tuple[list[MetadataRequestTopic], list[MetadataRequestTopic]]:
    """Divide topics by whether the client may describe them. An id that is unknown hides nothing."""
    names = {
        entry.topic_id: services.metadata.topic_name(entry.topic_id)
        async for entry in context.paced(asked)
        if entry.topic_id != _NO_ID
    }

    def name_of(entry: MetadataRequestTopic) -> str | None:
        return names.get(entry.topic_id, entry.name)

    named = (name for entry in asked if (name := name_of(entry)) is not None)
    refused = await refused_names(context, DESCRIBE_TOPICS, named)
    shown: list[MetadataRequestTopic] = []
    hidden: list[MetadataRequestTopic] = []
    async for entry in context.paced(asked):
        (hidden if name_of(entry) in refused else shown).append(entry)
    return shown, hidden


def _hidden(asked: MetadataRequestTopic, *, is_by_id: bool) -> MetadataResponseTopic:
    """Return TOPIC_AUTHORIZATION_FAILED with what the client knows: the name or the id that it sent."""
    return MetadataResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=None if is_by_id else asked.name,
        topic_id=asked.topic_id if is_by_id else _NO_ID,
    )


async def _not_to_create(
    services: Needs, asked: Iterable[MetadataRequestTopic], context: RequestContext
) -> AbstractSet[str]:
    """Return the topics that do not exist and that the client may not create."""
    if not context.has_authorizer:
        return NOTHING_REFUSED
    missing = [
        entry.name
        async for entry in context.paced(asked)
        if entry.name is not None and entry.name not in services.metadata
    ]
    if not missing or context.allows(CREATE, CLUSTER, is_asked_for=False):
        return NOTHING_REFUSED
    return await refused_names(context, CREATE_TOPICS, missing)


async def _create_missing(
    services: Needs, asked: Iterable[MetadataRequestTopic], context: RequestContext
) -> dict[str, KafkaError]:
    """Create topics that do not exist, as many as one request may create.

    The others get UNKNOWN_TOPIC_OR_PARTITION, on which a client asks again.
    """
    missing = [
        topic.name
        async for topic in context.paced(asked)
        if topic.name is not None
        and topic.name not in services.metadata
        and not why_illegal_topic_name(topic.name)
    ]
    limit = services.config.request_max_auto_created_topics
    if not missing:
        return {}
    mutations = ControllerMutations(context.quotas, is_strict=False)
    errors = await services.topics.auto_create(missing[:limit], mutations.record)
    context.throttle_time_ms = mutations.throttle_time_ms
    return errors


async def _answer(
    services: Needs,
    alive: Alive,
    asked: MetadataRequestTopic,
    errors: dict[str, KafkaError],
    context: RequestContext,
) -> MetadataResponseTopic:
    name = services.metadata.topic_name(asked.topic_id) if asked.topic_id != _NO_ID else asked.name
    if name is None:
        return _missing(ErrorCode.UNKNOWN_TOPIC_ID, None, asked.topic_id)
    if topic := services.metadata.topic(name):
        return await _describe(alive, topic, context)
    if why_illegal_topic_name(name):
        return _missing(ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    if error := errors.get(name):
        return _missing(error.code, name)
    return _missing(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)


def _needs_ids(request: MetadataRequest) -> bool:
    """Whether a topic is asked for by its id."""
    return any(topic.name is None or topic.topic_id != _NO_ID for topic in request.topics or ())


def _not_told(asked: MetadataRequestTopic) -> MetadataResponseTopic:
    """Return LEADER_NOT_AVAILABLE, on which clients retry: this broker has no metadata from a controller yet.

    Where the controller has died, too, that takes as long as its session. UNKNOWN_TOPIC_OR_PARTITION would be
    final for some clients.
    """
    return _missing(ErrorCode.LEADER_NOT_AVAILABLE, asked.name, asked.topic_id)


def _missing(error: ErrorCode, name: str | None, topic_id: uuid.UUID = _NO_ID) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic_id, is_internal=name in INTERNAL_TOPICS
    )


async def _describe(alive: Alive, topic: KnownTopic, context: RequestContext) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(alive, partition, context)
            async for partition in context.paced(list(topic.partitions.values()))
        ],
    )


def _partition(alive: Alive, partition: KnownPartition, context: RequestContext) -> MetadataResponsePartition:
    found = describe_partition(alive, partition, context.session.listener_name)
    if found.error_code == ErrorCode.LISTENER_NOT_FOUND and context.api_version < 6:
        found.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    if context.api_version == 0:
        # The oldest clients look up every replica among the brokers and fail when one is missing.
        found.replica_nodes = [broker for broker in found.replica_nodes if broker in alive]
        found.isr_nodes = [broker for broker in found.isr_nodes if broker in alive]
        if not found.error_code and len(found.replica_nodes) < len(partition.replicas):
            found.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    return found


def describe_partition(
    alive: Alive, partition: KnownPartition, listener_name: str
) -> MetadataResponsePartition:
    """Describe a partition for a client on a listener, with the error of a leader that it cannot reach."""
    leader = alive.get(partition.leader)
    error, leader_id = ErrorCode.NONE, partition.leader
    if leader is None:
        error, leader_id = ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER
    elif leader.endpoint(listener_name) is None:
        error, leader_id = ErrorCode.LISTENER_NOT_FOUND, NO_LEADER
    return MetadataResponsePartition(
        error_code=error,
        partition_index=partition.partition,
        leader_id=leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[b for b in partition.replicas if b not in alive or b in partition.offline_replicas],
    )

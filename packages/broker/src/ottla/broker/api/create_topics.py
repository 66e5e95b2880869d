"""CreateTopics: create topics with their partitions, replica placement and configuration."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.topics import CreatedTopic, NewTopic
from ottla.broker.quotas.clients import ControllerMutations
from ottla.broker.requests.authorization import NOTHING_REFUSED, refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import CREATE, CREATE_TOPICS, DESCRIBE_TOPIC_CONFIGS
from ottla.broker.security.authorizer import CLUSTER, Resource, ResourceType
from ottla.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    RequestTimedOut,
    TopicAuthorizationFailed,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.configs import Configs
    from ottla.broker.cluster.placement import Charge
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.config import BrokerConfig
    from ottla.broker.runtime.environment import Environment

FIRST_STRICT: Final = 6
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
_NO_ID: Final = uuid.UUID(int=0)


class Needs(Protocol):
    """The parts of the broker that CreateTopics uses."""

    config: BrokerConfig
    configs: Configs
    environment: Environment
    topics: Topics


async def handle(
    services: Needs, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create the topics that can be created; respond once they have leaders or the timeout is over."""
    deadline_ms = services.environment.clock.monotonic_ms() + request.timeout_ms
    limit = services.config.request_max_created_topics
    if len(request.topics) > limit:
        error = PolicyViolation(
            f"{len(request.topics)} topics are to be created, more than request.max.created.topics ({limit})"
        )
        names = {topic.name: None async for topic in context.paced(request.topics)}
        return CreateTopicsResponse(topics=[_failed(name, error) async for name in context.paced(names)])
    times = Counter(topic.name for topic in request.topics)
    unique = {topic.name: topic for topic in request.topics}
    refused = await _not_to_create(unique, context)
    mutations = ControllerMutations.of(context.quotas, context.api_version, FIRST_STRICT)
    results = [
        _failed(topic.name, TopicAuthorizationFailed())
        if topic.name in refused and times[topic.name] == 1
        else await _create(
            services, topic, times[topic.name], mutations.record, validate_only=request.validate_only
        )
        async for topic in context.paced(unique.values())
    ]
    context.throttle_time_ms = mutations.throttle_time_ms
    if not request.validate_only:
        await _wait(services, [r for r in results if r.error_code == ErrorCode.NONE], deadline_ms)
    if context.has_authorizer:
        async for result in context.paced(results):
            _hide_configs(result, context)
    return CreateTopicsResponse(topics=results)


async def _not_to_create(names: Iterable[str], context: RequestContext) -> AbstractSet[str]:
    """Return the topics that the client may not create: CREATE on the cluster is enough for all."""
    if context.allows(CREATE, CLUSTER, is_asked_for=False):
        return NOTHING_REFUSED
    return await refused_names(context, CREATE_TOPICS, names)


def _hide_configs(result: CreatableTopicResult, context: RequestContext) -> None:
    """Leave the settings out, and what comes with them, where the client may not describe them (KIP-525).

    Their error stands, like in Kafka, also at a topic that it may not create; at none that failed otherwise.
    """
    resource = Resource(ResourceType.TOPIC, result.name)
    if context.allows(DESCRIBE_TOPIC_CONFIGS, resource, is_asked_for=False):
        return
    if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result.configs, result.topic_id = [], _NO_ID
    result.num_partitions = result.replication_factor = -1


async def _create(
    services: Needs, topic: CreatableTopic, times: int, charge: Charge, *, validate_only: bool
) -> CreatableTopicResult:
    try:
        if times > 1:
            raise InvalidRequest(f"The request has several entries for topic {topic.name}.")
        created = await services.topics.create(_new_topic(topic), validate_only=validate_only, charge=charge)
    except KafkaError as error:
        return _failed(topic.name, error)
    result = _created(services, created, topic)
    if validate_only:
        result.topic_id = _NO_ID  # the topic that is created later gets another one
    return result


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=error.code, error_message=str(error) or None, configs=[]
    )


def _new_topic(topic: CreatableTopic) -> NewTopic:
    indexes = [assignment.partition_index for assignment in topic.assignments]
    if len(set(indexes)) != len(indexes):
        raise InvalidRequest("A partition is assigned more than once.")
    return NewTopic(
        name=topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={
            assignment.partition_index: list(assignment.broker_ids) for assignment in topic.assignments
        },
        configs={config.name: config.value for config in topic.configs},
    )


def _created(services: Needs, created: CreatedTopic, asked: CreatableTopic) -> CreatableTopicResult:
    overrides = {config.name: config.value for config in asked.configs}
    return CreatableTopicResult(
        name=created.name,
        error_message=None,
        topic_id=created.id,
        num_partitions=created.partitions,
        replication_factor=created.replication_factor,
        configs=[
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in services.configs.describe_topic_with(overrides)
        ],
    )


async def _wait(services: Needs, created: list[CreatableTopicResult], deadline_ms: float) -> None:
    for result in created:
        left_ms = deadline_ms - services.environment.clock.monotonic_ms()
        if not await services.topics.wait_until_led(result.name, result.num_partitions, left_ms):
            error = RequestTimedOut("The topic was created, but its leaders are not known yet.")
            result.error_code, result.error_message = error.code, str(error)

"""DeleteTopics: mark topics for deletion and wait until they are deleted."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.cluster.zookeeper_session import all_of
from ottla.broker.quotas.clients import ControllerMutations
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DELETE_TOPICS, DESCRIBE_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import (
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    RequestTimedOut,
    TopicAuthorizationFailed,
    UnknownTopicId,
)
from ottla.protocol.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.cluster.placement import Charge
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.config import BrokerConfig
    from ottla.broker.runtime.environment import Environment

FIRST_STRICT: Final = 5
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
MARKS_AT_ONCE: Final = 20
_NO_ID = uuid.UUID(int=0)


class Needs(Protocol):
    """The parts of the broker that DeleteTopics uses."""

    config: BrokerConfig
    environment: Environment
    metadata: MetadataCache
    topics: Topics


async def handle(
    services: Needs, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Delete topics by name, or by id from version 6 on."""
    deadline_ms = services.environment.clock.monotonic_ms() + request.timeout_ms
    limit, count = services.config.request_max_deleted_topics, len(request.topics) + len(request.topic_names)
    asked = list(request.topics) if context.api_version >= 6 else []
    asked += [DeleteTopicState(name=name) async for name in context.paced(request.topic_names)]
    if count > limit:
        error = PolicyViolation(
            f"{count} topics are to be deleted, more than request.max.deleted.topics ({limit})"
        )
        return DeleteTopicsResponse(
            responses=[_failed(entry.name, entry.topic_id, error) async for entry in context.paced(asked)]
        )
    mutations = ControllerMutations.of(context.quotas, context.api_version, FIRST_STRICT)
    results: list[DeletableTopicResult] = []
    async for at in context.paced(range(0, len(asked), MARKS_AT_ONCE)):
        some = asked[at : at + MARKS_AT_ONCE]
        results += await all_of(_mark(services, topic, context, mutations.record) for topic in some)
    context.throttle_time_ms = mutations.throttle_time_ms
    async for result in context.paced(results):
        if not result.error_code:
            await _wait(services, result, deadline_ms)
    return DeleteTopicsResponse(responses=results)


async def _mark(
    services: Needs, asked: DeleteTopicState, context: RequestContext, charge: Charge
) -> DeletableTopicResult:
    """Mark a topic. A client that knows the id and may not describe the topic gets no name."""
    name = asked.name
    topic_id = asked.topic_id
    try:
        if name is not None and topic_id != _NO_ID:
            raise InvalidRequest("A topic is identified by its name or by its id, not by both.")
        if name is None:
            name = services.metadata.topic_name(topic_id)
            if name is None:
                raise UnknownTopicId
            if not context.allows(DESCRIBE_TOPICS, Resource(ResourceType.TOPIC, name)):
                return _failed(None, topic_id, TopicAuthorizationFailed())
        if not context.allows(DELETE_TOPICS, Resource(ResourceType.TOPIC, name)):
            raise TopicAuthorizationFailed
        known_id = services.metadata.topic_id(name)
        await services.topics.delete(name, charge=charge)
    except KafkaError as error:
        return _failed(name, topic_id, error)
    return DeletableTopicResult(name=name, topic_id=known_id)


def _failed(name: str | None, topic_id: uuid.UUID, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.code, error_message=str(error) or None
    )


async def _wait(services: Needs, result: DeletableTopicResult, deadline_ms: float) -> None:
    left_ms = deadline_ms - services.environment.clock.monotonic_ms()
    if not await services.topics.wait_until_gone(result.name or "", left_ms):
        error = RequestTimedOut("The topic is marked for deletion, but not deleted yet.")
        result.error_code, result.error_message = error.code, str(error)

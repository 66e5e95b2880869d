"""CreatePartitions: add partitions to topics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.quotas.clients import ControllerMutations
from ottla.broker.requests.authorization import refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER_TOPICS
from ottla.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    RequestTimedOut,
    TopicAuthorizationFailed,
)
from ottla.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.placement import Charge
    from ottla.broker.cluster.topics import Topics
    from ottla.broker.runtime.environment import Environment

FIRST_STRICT: Final = 3
"""The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


class Needs(Protocol):
    """The parts of the broker that CreatePartitions uses."""

    environment: Environment
    topics: Topics


async def handle(
    services: Needs, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Raise topics to the given partition counts; existing partitions stay where they are."""
    deadline_ms = services.environment.clock.monotonic_ms() + request.timeout_ms
    times = Counter(topic.name for topic in request.topics)
    unique = {topic.name: topic for topic in request.topics}
    refused = await refused_names(context, ALTER_TOPICS, (name for name in unique if times[name] == 1))
    mutations = ControllerMutations.of(context.quotas, context.api_version, FIRST_STRICT)
    results = []
    async for topic in context.paced(unique.values()):
        if topic.name in refused:
            results.append(_failed(topic.name, TopicAuthorizationFailed()))
            continue
        result = await _add(
            services, topic, times[topic.name], mutations.record, validate_only=request.validate_only
        )
        left_ms = deadline_ms - services.environment.clock.monotonic_ms()
        if result.error_code == ErrorCode.NONE and not request.validate_only:
            await _wait(services, topic, result, left_ms)
        results.append(result)
    context.throttle_time_ms = mutations.throttle_time_ms
    return CreatePartitionsResponse(results=results)


def _failed(name: str, error: KafkaError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=str(error) or None)


async def _add(
    services: Needs, topic: CreatePartitionsTopic, times: int, charge: Charge, *, validate_only: bool
) -> CreatePartitionsTopicResult:
    assignments = (
        None
        if topic.assignments is None
        else [list(assignment.broker_ids) for assignment in topic.assignments]
    )
    try:
        if times > 1:
            raise InvalidRequest(f"The request has several entries for topic {topic.name}.")
        await services.topics.add_partitions(
            topic.name, topic.count, assignments, validate_only=validate_only, charge=charge
        )
    except KafkaError as error:
        return _failed(topic.name, error)
    return CreatePartitionsTopicResult(name=topic.name)


async def _wait(
    services: Needs, topic: CreatePartitionsTopic, result: CreatePartitionsTopicResult, left_ms: float
) -> None:
    if not await services.topics.wait_until_led(topic.name, topic.count, left_ms):
        error = RequestTimedOut("The partitions were created, but their leaders are not known yet.")
        result.error_code, result.error_message = error.code, str(error)

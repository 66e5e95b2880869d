"""AlterPartitionReassignments: move partitions to other brokers, or cancel a move (KIP-455)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.controller.events import AlterReassignments, Answers
from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller

LEAST_TIMEOUT_MS: Final = 5_000
"""The least time for the controller to store the moves: a timeout of 0 does not ask for less than that."""


class Needs(Protocol):
    """The parts of the broker that AlterPartitionReassignments uses."""

    controller: Controller


async def handle(
    services: Needs, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Have the controller store and begin the moves; respond with the outcome of each partition."""
    targets: dict[TopicPartition, tuple[int, ...] | None] = {}
    async for topic in context.paced(request.topics):
        async for one in context.paced(topic.partitions):
            replicas = None if one.replicas is None else tuple(one.replicas)
            targets[TopicPartition(topic.name, one.partition_index)] = replicas
    try:
        async with asyncio.timeout(max(LEAST_TIMEOUT_MS, request.timeout_ms) / 1000):
            answers = await services.controller.ask(AlterReassignments(targets))
    except TimeoutError:
        return AlterPartitionReassignmentsResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
    except KafkaError as error:
        return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=str(error) or None)
    responses = [
        ReassignableTopicResponse(name=topic.name, partitions=await _results(topic, answers, context))
        async for topic in context.paced(request.topics)
    ]
    return AlterPartitionReassignmentsResponse(error_message=None, responses=responses)


async def _results(
    topic: ReassignableTopic, answers: Answers, context: RequestContext
) -> list[ReassignablePartitionResponse]:
    results = []
    async for one in context.paced(topic.partitions):
        partition = TopicPartition(topic.name, one.partition_index)
        code = answers.partitions.get(partition, ErrorCode.NONE)
        message = (answers.messages.get(partition) or str(error_for(ErrorCode(code)))) if code else None
        results.append(
            ReassignablePartitionResponse(
                partition_index=one.partition_index, error_code=code, error_message=message
            )
        )
    return results

"""AlterPartitionReassignments: move partitions to other brokers, or cancel a move (KIP-455)."""

from __future__ import annotations

from ottla.broker.api.ask_controller import Needs, ask_controller, message_of
from ottla.broker.controller.events import AlterReassignments
from ottla.broker.peers.controller_requests import Answers
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER
from ottla.broker.security.authorizer import CLUSTER
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from ottla.protocol.topics import TopicPartition


async def handle(
    services: Needs, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Pass the moves to the controller to store and begin; respond with the outcome of each partition."""
    if not context.allows(ALTER, CLUSTER):
        return await _refused(request, context)
    targets: dict[TopicPartition, tuple[int, ...] | None] = {}
    async for topic in context.paced(request.topics):
        async for partition in context.paced(topic.partitions):
            replicas = None if partition.replicas is None else tuple(partition.replicas)
            targets[TopicPartition(topic.name, partition.partition_index)] = replicas
    try:
        answers = await ask_controller(services, AlterReassignments(targets), request.timeout_ms)
    except KafkaError as error:
        return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=str(error) or None)
    responses = [
        ReassignableTopicResponse(name=topic.name, partitions=await _results(topic, answers, context))
        async for topic in context.paced(request.topics)
    ]
    return AlterPartitionReassignmentsResponse(error_message=None, responses=responses)


async def _refused(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Refuse the request, and each partition that it names, as Kafka does."""
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refused = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                ReassignablePartitionResponse(
                    partition_index=asked.partition_index, error_code=error, error_message=message_of(error)
                )
                async for asked in context.paced(topic.partitions)
            ],
        )
        async for topic in context.paced(request.topics)
    ]
    return AlterPartitionReassignmentsResponse(
        error_code=error, error_message=message_of(error), responses=refused
    )


async def _results(
    topic: ReassignableTopic, answers: Answers, context: RequestContext
) -> list[ReassignablePartitionResponse]:
    results = []
    async for asked in context.paced(topic.partitions):
        partition = TopicPartition(topic.name, asked.partition_index)
        code = answers.partitions.get(partition, ErrorCode.NONE)
        message = message_of(code, answers.messages.get(partition))
        results.append(
            ReassignablePartitionResponse(
                partition_index=asked.partition_index, error_code=code, error_message=message
            )
        )
    return results

"""ListPartitionReassignments: which partitions are being moved (KIP-455)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.controller.events import ListReassignments
from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller

LEAST_TIMEOUT_MS: Final = 5_000


class Needs(Protocol):
    """The parts of the broker that ListPartitionReassignments uses."""

    controller: Controller


async def handle(
    services: Needs, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Respond with the moves of the partitions asked for, or of all."""
    partitions = None
    if request.topics is not None:
        partitions = frozenset(
            [
                TopicPartition(topic.name, number)
                for topic in request.topics
                async for number in context.paced(topic.partition_indexes)
            ]
        )
    try:
        async with asyncio.timeout(max(LEAST_TIMEOUT_MS, request.timeout_ms) / 1000):
            answers = await services.controller.ask(ListReassignments(partitions))
    except TimeoutError:
        return ListPartitionReassignmentsResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
    except KafkaError as error:
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=str(error) or None)
    topics: dict[str, list[OngoingPartitionReassignment]] = defaultdict(list)
    async for partition, moving in context.paced(answers.reassignments.items()):
        topics[partition.topic].append(
            OngoingPartitionReassignment(
                partition_index=partition.partition,
                replicas=list(moving.replicas),
                adding_replicas=list(moving.adding),
                removing_replicas=list(moving.removing),
            )
        )
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[OngoingTopicReassignment(name=name, partitions=each) for name, each in topics.items()],
    )

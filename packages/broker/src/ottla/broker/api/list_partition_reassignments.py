"""ListPartitionReassignments: which partitions are being moved (KIP-455)."""

from __future__ import annotations

from collections import defaultdict

from ottla.broker.api.ask_controller import Needs, ask_controller, partitions_named
from ottla.broker.controller.events import ListReassignments
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)


async def handle(
    services: Needs, request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Respond with the moves of the partitions asked for, or of all."""
    named = None if request.topics is None else ((t.name, t.partition_indexes) for t in request.topics)
    event = ListReassignments(await partitions_named(named, context))
    try:
        answers = await ask_controller(services, event, request.timeout_ms)
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
        topics=[OngoingTopicReassignment(name=name, partitions=moving) for name, moving in topics.items()],
    )

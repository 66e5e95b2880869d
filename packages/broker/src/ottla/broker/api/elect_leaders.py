"""ElectLeaders: elect preferred leaders, or unclean ones on demand (KIP-460)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from ottla.broker.api.ask_controller import Needs, ask_controller, message_of, partitions_named
from ottla.broker.controller.events import ElectLeaders
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import ALTER
from ottla.broker.security.authorizer import CLUSTER
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.protocol.topics import TopicPartition

PREFERRED: Final = 0
UNCLEAN: Final = 1


async def handle(
    services: Needs, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Ask the controller for the elections and report each partition's outcome."""
    if not context.allows(ALTER, CLUSTER):
        return await _refused(request, context)
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    asked = request.topic_partitions
    named = None if asked is None else ((t.topic, t.partitions) for t in asked)
    event = ElectLeaders(await partitions_named(named, context), unclean=request.election_type == UNCLEAN)
    try:
        answers = await ask_controller(services, event, request.timeout_ms)
    except KafkaError as error:
        return await _failed(request, context, error.code)
    return ElectLeadersResponse(replica_election_results=await _results(answers.partitions, context))


async def _failed(
    request: ElectLeadersRequest, context: RequestContext, error: ErrorCode
) -> ElectLeadersResponse:
    """Fail the whole request; version 0 has an error code at the partitions only."""
    if context.api_version > 0:
        return ElectLeadersResponse(error_code=error)
    return ElectLeadersResponse(replica_election_results=await _all_failed(request, context, error))


async def _all_failed(
    request: ElectLeadersRequest, context: RequestContext, error: ErrorCode
) -> list[ReplicaElectionResult]:
    asked = [TopicPartition(t.topic, p) for t in request.topic_partitions or () for p in t.partitions]
    return await _results(dict.fromkeys(asked, error), context)


async def _refused(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Refuse the request, and each partition that it names, as Kafka does; version 0 has those alone."""
    error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ElectLeadersResponse(
        error_code=error if context.api_version > 0 else ErrorCode.NONE,
        replica_election_results=await _all_failed(request, context, error),
    )


async def _results(
    errors: Mapping[TopicPartition, int], context: RequestContext
) -> list[ReplicaElectionResult]:
    by_topic: dict[str, list[PartitionResult]] = defaultdict(list)
    async for partition, code in context.paced(sorted(errors.items())):
        by_topic[partition.topic].append(
            PartitionResult(partition_id=partition.partition, error_code=code, error_message=message_of(code))
        )
    return [
        ReplicaElectionResult(topic=topic, partition_result=results) for topic, results in by_topic.items()
    ]

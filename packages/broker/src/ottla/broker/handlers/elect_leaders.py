"""ElectLeaders: elect preferred leaders, or unclean ones on demand (KIP-460)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.controller.events import ElectLeaders
from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError, error_for
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller

PREFERRED: Final = 0
UNCLEAN: Final = 1
LEAST_TIMEOUT_MS: Final = 5_000
"""The least time for the controller: a timeout of 0 asks for the outcome without a wait for new leaders."""


class Needs(Protocol):
    """The parts of the broker that ElectLeaders uses."""

    controller: Controller


async def handle(
    services: Needs, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Ask the controller for the elections and report each partition's outcome."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    partitions = None
    if request.topic_partitions is not None:
        partitions = frozenset(
            [
                TopicPartition(t.topic, p)
                for t in request.topic_partitions
                async for p in context.paced(t.partitions)
            ]
        )
    try:
        async with asyncio.timeout(max(LEAST_TIMEOUT_MS, request.timeout_ms) / 1000):
            event = ElectLeaders(partitions, unclean=request.election_type == UNCLEAN)
            answers = await services.controller.ask(event)
    except TimeoutError:
        return await _failed(request, context, ErrorCode.REQUEST_TIMED_OUT)
    except KafkaError as error:
        return await _failed(request, context, error.code)
    return ElectLeadersResponse(replica_election_results=await _results(answers.partitions, context))


async def _failed(
    request: ElectLeadersRequest, context: RequestContext, error: ErrorCode
) -> ElectLeadersResponse:
    """Fail the whole request; version 0 has an error code at the partitions only."""
    if context.api_version > 0:
        return ElectLeadersResponse(error_code=error)
    asked = [TopicPartition(t.topic, p) for t in request.topic_partitions or () for p in t.partitions]
    return ElectLeadersResponse(replica_election_results=await _results(dict.fromkeys(asked, error), context))


async def _results(
    errors: Mapping[TopicPartition, int], context: RequestContext
) -> list[ReplicaElectionResult]:
    by_topic: dict[str, list[PartitionResult]] = defaultdict(list)
    async for partition, code in context.paced(sorted(errors.items())):
        message = str(error_for(ErrorCode(code))) if code else None
        by_topic[partition.topic].append(
            PartitionResult(partition_id=partition.partition, error_code=code, error_message=message)
        )
    return [
        ReplicaElectionResult(topic=topic, partition_result=results) for topic, results in by_topic.items()
    ]

"""The five APIs of the share coordinator, by which other brokers initialize, read, write and delete state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ottla.broker.requests.permissions import CLUSTER_ACTION
from ottla.broker.security.authorizer import CLUSTER
from ottla.broker.share.coordinator import WrittenState
from ottla.broker.share.state import SharePartitionKey, read_batches, stored_batches
from ottla.protocol.errors import ClusterAuthorizationFailed, InvalidRequest, KafkaError
from ottla.protocol.messages import share_state as wire

if TYPE_CHECKING:
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.share.coordinator import ShareCoordinator
    from ottla.broker.share.parts import ShareParts

R = TypeVar("R", bound=Any)
T = TypeVar("T")


class Needs(Protocol):
    """The parts of the broker that these APIs use."""

    @property
    def share(self) -> Callable[[], ShareParts]:
        """Returns the parts for share groups."""
        ...


async def initialize(
    services: Needs, request: wire.InitializeShareGroupStateRequest, context: RequestContext
) -> wire.InitializeShareGroupStateResponse:
    """Begin the state of share partitions."""
    coordinator = services.share().coordinator

    async def answer(key: SharePartitionKey, asked: wire.InitializeStatePartition) -> wire.PartitionResult:
        await coordinator.initialize(key, asked.state_epoch, asked.start_offset)
        return wire.PartitionResult(partition=key.partition)

    return wire.InitializeShareGroupStateResponse(
        results=await _of_topics(request, context, answer, wire.InitializeStateResult, wire.PartitionResult)
    )


async def read(
    services: Needs, request: wire.ReadShareGroupStateRequest, context: RequestContext
) -> wire.ReadShareGroupStateResponse:
    """Return the state of share partitions to their new leader."""
    coordinator = services.share().coordinator

    async def answer(key: SharePartitionKey, asked: wire.ReadStatePartition) -> wire.ReadStatePartitionResult:
        state = await coordinator.read(key, asked.leader_epoch)
        return wire.ReadStatePartitionResult(
            partition=key.partition,
            state_epoch=state.state_epoch,
            start_offset=state.start_offset,
            state_batches=stored_batches(state.batches),
        )

    return wire.ReadShareGroupStateResponse(
        results=await _of_topics(
            request, context, answer, wire.ReadStateResult, wire.ReadStatePartitionResult
        )
    )


async def write(
    services: Needs, request: wire.WriteShareGroupStateRequest, context: RequestContext
) -> wire.WriteShareGroupStateResponse:
    """Take changes of leaders."""
    coordinator = services.share().coordinator

    async def answer(key: SharePartitionKey, asked: wire.WriteStatePartition) -> wire.PartitionResult:
        await coordinator.write(key, _written(asked))
        return wire.PartitionResult(partition=key.partition)

    return wire.WriteShareGroupStateResponse(
        results=await _of_topics(request, context, answer, wire.WriteStateResult, wire.PartitionResult)
    )


def _written(asked: wire.WriteStatePartition) -> WrittenState:
    try:
        batches = read_batches(asked.state_batches)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return WrittenState(
        asked.state_epoch, asked.leader_epoch, asked.start_offset, asked.delivery_complete_count, batches
    )


async def delete(
    services: Needs, request: wire.DeleteShareGroupStateRequest, context: RequestContext
) -> wire.DeleteShareGroupStateResponse:
    """Remove the state of share partitions."""
    coordinator = services.share().coordinator

    async def answer(key: SharePartitionKey, asked: wire.DeleteStatePartition) -> wire.PartitionResult:
        await coordinator.delete(key)
        return wire.PartitionResult(partition=key.partition)

    return wire.DeleteShareGroupStateResponse(
        results=await _of_topics(request, context, answer, wire.DeleteStateResult, wire.PartitionResult)
    )


async def summarize(
    services: Needs, request: wire.ReadShareGroupStateSummaryRequest, context: RequestContext
) -> wire.ReadShareGroupStateSummaryResponse:
    """Return where share partitions begin, and how much behind that is finished."""
    coordinator: ShareCoordinator = services.share().coordinator

    async def answer(
        key: SharePartitionKey, asked: wire.ReadStateSummaryPartition
    ) -> wire.ReadStateSummaryPartitionResult:
        state = coordinator.summary(key)
        return wire.ReadStateSummaryPartitionResult(
            partition=key.partition,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
        )

    return wire.ReadShareGroupStateSummaryResponse(
        results=await _of_topics(
            request, context, answer, wire.ReadStateSummaryResult, wire.ReadStateSummaryPartitionResult
        )
    )


async def _of_topics(
    request: Any,
    context: RequestContext,
    answer: Callable[[SharePartitionKey, Any], Awaitable[R]],
    of_topic: Callable[..., T],
    result: type[R],
) -> list[T]:
    """Answer for each topic; a request without a group has no results, as from Apache Kafka."""
    if not request.group_id:
        return []
    return [
        of_topic(
            topic_id=topic.topic_id,
            partitions=await _answers(request.group_id, topic, context, answer, result),
        )
        for topic in request.topics
    ]


async def _answers(
    group_id: str,
    topic: Any,
    context: RequestContext,
    answer: Callable[[SharePartitionKey, Any], Awaitable[R]],
    result: type[R],
) -> list[R]:
    """Answer for each partition of a topic; one that is refused does not concern the others."""
    answers: list[R] = []
    partitions: Iterable[Any] = topic.partitions
    async for asked in context.paced(partitions):
        try:
            if not context.allows(CLUSTER_ACTION, CLUSTER):
                raise ClusterAuthorizationFailed
            answers.append(await answer(SharePartitionKey(group_id, topic.topic_id, asked.partition), asked))
        except KafkaError as error:
            answers.append(
                result(
                    partition=asked.partition, error_code=int(error.code), error_message=str(error) or None
                )
            )
    return answers

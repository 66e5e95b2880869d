"""OffsetForLeaderEpoch: the end offset of an epoch in the leader's log, to find where a reader diverged."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.requests.authorization import NOTHING_REFUSED, refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import CLUSTER_ACTION, DESCRIBE_TOPICS
from ottla.broker.security.authorizer import CLUSTER
from ottla.protocol.errors import ErrorCode, KafkaError, KafkaStorageError
from ottla.protocol.messages.log_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.replicas import Replicas

UNDEFINED: Final = -1


class Needs(Protocol):
    """The parts of the broker that OffsetForLeaderEpoch uses."""

    replicas: Replicas


async def handle(
    services: Needs, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Respond with the largest epoch not above the requested one, and its end offset (KIP-101, KIP-279).

    Followers and consumers get the same answer, so it does not matter whether a replica id is a broker's.
    Topics that the client may not describe come last.
    """
    refused = await _refused(request, context)
    topics = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[
                _answer(
                    services,
                    TopicPartition(topic.topic, asked.partition),
                    asked.current_leader_epoch,
                    asked.leader_epoch,
                )
                async for asked in context.paced(topic.partitions)
            ],
        )
        async for topic in context.paced(request.topics)
        if topic.topic not in refused
    ]
    hidden = [
        await _hidden(topic, context)
        async for topic in context.paced(request.topics)
        if topic.topic in refused
    ]
    return OffsetForLeaderEpochResponse(topics=[*topics, *hidden])


async def _refused(request: OffsetForLeaderEpochRequest, context: RequestContext) -> AbstractSet[str]:
    if context.allows(CLUSTER_ACTION, CLUSTER, is_asked_for=False):
        return NOTHING_REFUSED
    return await refused_names(context, DESCRIBE_TOPICS, (topic.topic for topic in request.topics))


async def _hidden(topic: OffsetForLeaderTopic, context: RequestContext) -> OffsetForLeaderTopicResult:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[
            EpochEndOffset(
                partition=asked.partition, error_code=error, leader_epoch=UNDEFINED, end_offset=UNDEFINED
            )
            async for asked in context.paced(topic.partitions)
        ],
    )


def _answer(
    services: Needs,
    topic_partition: TopicPartition,
    current_leader_epoch: int,
    leader_epoch: int,
) -> EpochEndOffset:
    answer = EpochEndOffset(
        partition=topic_partition.partition,
        error_code=int(ErrorCode.NONE),
        leader_epoch=UNDEFINED,
        end_offset=UNDEFINED,
    )
    try:
        log = services.replicas.leader(topic_partition, current_leader_epoch).log
        answer.leader_epoch, answer.end_offset = log.leader_epochs.end_offset_for(
            leader_epoch, log.log_end_offset
        )
    except KafkaError as error:
        answer.error_code = int(error.code)
    except OSError:
        answer.error_code = int(KafkaStorageError.code)
    return answer

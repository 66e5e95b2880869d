"""OffsetForLeaderEpoch: the end offset of an epoch in the leader's log, to find where a reader diverged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError, KafkaStorageError
from ottla.protocol.messages.log_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
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
    """
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
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


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

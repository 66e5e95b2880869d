"""DescribeProducers: the idempotent and transactional producers that partitions led here know (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.open_transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.log.state.producer_state import Producer
    from ottla.broker.replication.replicas import Replicas


class Needs(Protocol):
    """The part of the broker that DescribeProducers uses."""

    replicas: Replicas


async def handle(
    services: Needs, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    """List the producers of every partition; one that is not led here gets NOT_LEADER_OR_FOLLOWER."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    await _partition(services, TopicPartition(topic.name, index), context)
                    async for index in context.paced(topic.partition_indexes)
                ],
            )
            for topic in request.topics
        ]
    )


async def _partition(
    services: Needs, topic_partition: TopicPartition, context: RequestContext
) -> PartitionResponse:
    response = PartitionResponse(partition_index=topic_partition.partition)
    try:
        producers = services.replicas.leader(topic_partition).log.producers
    except KafkaError as error:
        response.error_code, response.error_message = int(error.code), str(error) or None
        return response
    response.active_producers = [_state(producer) async for producer in context.paced(list(producers))]
    return response


def _state(producer: Producer) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_start,
    )

"""DescribeProducers: the idempotent and transactional producers that partitions led here know (KIP-664)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import READ_TOPICS
from ottla.broker.security.authorizer import Resource, ResourceType
from ottla.protocol.errors import InvalidTopicException, KafkaError, TopicAuthorizationFailed
from ottla.protocol.messages.open_transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from ottla.protocol.topics import TopicPartition, why_illegal_topic_name

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
                    await _partition(services, TopicPartition(topic.name, index), refusal, context)
                    async for index in context.paced(topic.partition_indexes)
                ],
            )
            for topic in request.topics
            for refusal in (_refusal(topic.name, context),)
        ]
    )


def _refusal(topic: str, context: RequestContext) -> KafkaError | None:
    if why := why_illegal_topic_name(topic):
        return InvalidTopicException(f"Topic name is illegal: {why}.")
    if not context.allows(READ_TOPICS, Resource(ResourceType.TOPIC, topic)):
        return TopicAuthorizationFailed()
    return None


async def _partition(
    services: Needs, topic_partition: TopicPartition, refusal: KafkaError | None, context: RequestContext
) -> PartitionResponse:
    response = PartitionResponse(partition_index=topic_partition.partition)
    try:
        if refusal is not None:
            raise refusal
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

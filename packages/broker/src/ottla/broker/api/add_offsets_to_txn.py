"""AddOffsetsToTxn: make a group's partition of `__consumer_offsets` part of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.coordinators.response_errors import known_to
from ottla.broker.requests.context import RequestContext
from ottla.broker.transactions.events import Producer
from ottla.protocol.messages.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.config import BrokerConfig
    from ottla.broker.transactions.coordinator import TransactionCoordinator


class Needs(Protocol):
    """The parts of the broker that AddOffsetsToTxn uses."""

    config: BrokerConfig
    metadata: MetadataCache
    transactions: TransactionCoordinator


async def handle(
    services: Needs, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    """Add the partition that will hold the group's offsets, also where its topic is still to be created."""
    count = (
        services.metadata.partition_count(GROUP_METADATA_TOPIC)
        or services.config.offsets_topic_num_partitions
    )
    error = await services.transactions.add_partitions(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        [TopicPartition(GROUP_METADATA_TOPIC, partition_for(request.group_id, count))],
    )
    return AddOffsetsToTxnResponse(error_code=known_to(context.api_version, error))

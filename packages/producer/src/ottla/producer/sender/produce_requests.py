"""Produce requests: batches into a request, and a response by partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.producer.accumulator import Batch
from ottla.producer.config import ProducerConfig
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.native import produce_client
from ottla.protocol.records import convert_down
from ottla.protocol.topics import TopicPartition

# Produce carries v2 batches from version 3 on; version 2 has magic 1, older ones magic 0.
_MAGIC_BY_VERSION: Final = {0: 0, 1: 0, 2: 1}


def produce_request(batches: Sequence[Batch], config: ProducerConfig, version: int) -> ProduceRequest:
    """Return the request for packed batches, in the record format that `version` carries."""
    magic = _MAGIC_BY_VERSION.get(version, 2)
    topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
    for batch in batches:
        data = batch.data or b""
        records = data if magic == 2 else convert_down(data, magic)
        part = PartitionProduceData(index=batch.partition.partition, records=records)
        topics[batch.partition.topic].append(part)
    return ProduceRequest(
        transactional_id=config.transactional_id,
        acks=config.required_acks,
        timeout_ms=config.client.request_timeout_ms,
        topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
    )


class ProduceEncoder:
    """Encodes Produce requests without a message object, for versions that `native.produce_client` knows."""

    def __init__(self, config: ProducerConfig) -> None:
        self._client_id = None if config.client.client_id is None else config.client.client_id.encode()
        self._transactional_id = None if config.transactional_id is None else config.transactional_id.encode()
        self._acks = config.required_acks
        self._timeout_ms = config.client.request_timeout_ms

    def encode(self, batches: Sequence[Batch], version: int, correlation_id: int) -> list[bytes]:
        """Return the parts of a framed request for packed batches."""
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for batch in batches:
            topic, index = batch.partition
            topics.setdefault(topic, []).append((index, batch.data or b""))
        named = [(topic.encode(), partitions) for topic, partitions in topics.items()]
        return produce_client.produce_request(
            version,
            correlation_id,
            self._client_id,
            self._transactional_id,
            self._acks,
            self._timeout_ms,
            named,
        )


def responses_by_partition(
    response: ProduceResponse,
) -> Mapping[TopicPartition, PartitionProduceResponse]:
    """Return the responses of a Produce response by partition."""
    return {
        TopicPartition(topic.name, partition.index): partition
        for topic in response.responses
        for partition in topic.partition_responses
    }


def unanswered(batches: Sequence[Batch]) -> Mapping[TopicPartition, PartitionProduceResponse]:
    """Return the responses that stand for a request with acks=0, which no broker answers."""
    return {batch.partition: PartitionProduceResponse(base_offset=-1) for batch in batches}

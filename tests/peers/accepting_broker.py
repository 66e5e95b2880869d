"""A scripted broker that acknowledges records, for unit tests of producers."""

from __future__ import annotations

from collections.abc import Callable

from ottla.client.testing import ScriptedBroker
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse


def serving(
    broker: ScriptedBroker, error: Callable[[], int] = lambda: 0, *, partitions: int = 1
) -> ScriptedBroker:
    """Make a broker lead the topic `t` and acknowledge batches, with an error code for each of them."""
    broker.on(MetadataRequest, lambda _: broker.metadata("t", partitions=partitions))
    broker.on(InitProducerIdRequest, lambda _: InitProducerIdResponse(producer_id=9, producer_epoch=0))
    broker.on(ProduceRequest, lambda request: acknowledged(request, error()))
    return broker


def acknowledged(request: ProduceRequest, error: int) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=part.index, error_code=error, base_offset=100)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def batches(broker: ScriptedBroker) -> list[bytes]:
    return [
        bytes(part.records or b"")
        for request in broker.seen(ProduceRequest)
        for topic in request.topic_data
        for part in topic.partition_data
    ]

"""Batches that this broker itself appends to topics of users, as Produce does with acks=all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.api.produce.delayed import ALL_ACKS, Placed, as_kafka_error, safe
from ottla.broker.api.produce.general import Needs, count, open_one, to_be_opened
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.produce import PartitionProduceResponse

if TYPE_CHECKING:
    from ottla.protocol.topics import TopicPartition


async def append_own(services: Needs, timeout_ms: int, topic_partition: TopicPartition, batch: bytes) -> None:
    """Append a batch to a partition that this broker leads, and wait until it is as safe as acks=all asks.

    It is checked, changed to the topic's codec and counted as one of a producer. Raises KafkaError.
    """
    result = Placed(PartitionProduceResponse(index=topic_partition.partition))
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await _append(services, topic_partition, batch, result)
    except (KafkaError, TimeoutError, OSError) as failure:
        error = as_kafka_error(failure)
        result.failed(error)
        raise error from failure
    finally:
        count(services, topic_partition.topic, batch, result)


async def _append(services: Needs, topic_partition: TopicPartition, batch: bytes, result: Placed) -> None:
    opened = to_be_opened(services, topic_partition, batch)
    if opened:
        batch = await open_one(services, topic_partition, batch)
    partition = services.replicas.leader(topic_partition)
    appended = partition.append(
        batch, required_acks=ALL_ACKS, now_ms=services.environment.clock.now_ms(), opened=opened
    )
    result.placed(partition, appended)
    if not result.is_safe(ALL_ACKS):
        await safe(result, ALL_ACKS)

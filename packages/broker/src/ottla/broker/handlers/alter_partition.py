"""AlterPartition: leaders propose in-sync replicas, the controller decides (KIP-497)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.controller.events import AlterPartition, Answers, ProposedIsr
from ottla.broker.handlers.request_context import RequestContext
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionDataResponse,
    TopicDataResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller


class Needs(Protocol):
    """The parts of the broker that AlterPartition uses."""

    controller: Controller


async def handle(
    services: Needs, request: AlterPartitionRequest, context: RequestContext
) -> AlterPartitionResponse:
    """Have the controller check and write the proposed ISRs; respond with the leaderships that hold now."""
    proposals = {
        TopicPartition(topic.topic_name, partition.partition_index): ProposedIsr(
            partition.leader_epoch, partition.partition_epoch, tuple(partition.new_isr)
        )
        for topic in request.topics
        for partition in topic.partitions
    }
    try:
        answers = await services.controller.ask(
            AlterPartition(request.broker_id, request.broker_epoch, proposals)
        )
    except KafkaError as error:
        return AlterPartitionResponse(error_code=error.code)
    return AlterPartitionResponse(error_code=answers.top, topics=_topics(answers))


def _topics(answers: Answers) -> list[TopicDataResponse]:
    by_topic: dict[str, list[PartitionDataResponse]] = defaultdict(list)
    for partition in sorted(answers.partitions.keys() | answers.leaderships.keys()):
        by_topic[partition.topic].append(PartitionDataResponse(**_entry(partition, answers)))
    return [TopicDataResponse(topic_name=topic, partitions=entries) for topic, entries in by_topic.items()]


def _entry(partition: TopicPartition, answers: Answers) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "partition_index": partition.partition,
        "error_code": answers.partitions.get(partition, 0),
    }
    leadership = answers.leaderships.get(partition)
    if leadership is not None and not entry["error_code"]:
        entry |= {
            "leader_id": leadership.leader,
            "leader_epoch": leadership.leader_epoch,
            "isr": list(leadership.isr),
            "partition_epoch": leadership.partition_epoch,
        }
    return entry

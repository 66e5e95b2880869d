"""AlterPartition: leaders propose in-sync replicas, the controller decides (KIP-497)."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.peers.controller_requests import AlterPartition, Answers, ProposedIsr
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.controller_requests import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    PartitionDataResponse,
    TopicData,
    TopicDataResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.controller.controller import Controller

FIRST_BY_ID = 2
FIRST_WITH_EPOCHS = 3
RECOVERING = 1


class Needs(Protocol):
    """The parts of the broker that AlterPartition uses."""

    controller: Controller
    metadata: MetadataCache


async def handle(
    services: Needs, request: AlterPartitionRequest, context: RequestContext
) -> AlterPartitionResponse:
    """Pass the proposed ISRs to the controller, and respond with the leaderships that hold now."""
    by_id = context.api_version >= FIRST_BY_ID
    proposals: dict[TopicPartition, ProposedIsr] = {}
    refused: list[TopicDataResponse] = []
    ids: dict[str, UUID] = {}
    for topic in request.topics:
        name = services.metadata.topic_name(topic.topic_id) if by_id else topic.topic_name
        if name is None:
            refused.append(_unknown(topic))
            continue
        ids[name] = topic.topic_id
        for partition in topic.partitions:
            proposals[TopicPartition(name, partition.partition_index)] = _proposal(
                partition, context.api_version
            )
    try:
        answers = await services.controller.ask(
            AlterPartition(request.broker_id, request.broker_epoch, proposals)
        )
    except KafkaError as error:
        return AlterPartitionResponse(error_code=error.code)
    topics = _topics(answers)
    for answered in topics:
        answered.topic_id = ids[answered.topic_name]
    return AlterPartitionResponse(error_code=answers.top, topics=[*topics, *refused])


def _proposal(partition: PartitionData, version: int) -> ProposedIsr:
    epochs = {}
    isr = partition.new_isr
    if version >= FIRST_WITH_EPOCHS:
        isr = [member.broker_id for member in partition.new_isr_with_epochs]
        epochs = {member.broker_id: member.broker_epoch for member in partition.new_isr_with_epochs}
    return ProposedIsr(
        partition.leader_epoch,
        partition.partition_epoch,
        tuple(isr),
        epochs,
        is_recovering=partition.leader_recovery_state == RECOVERING,
    )


def _unknown(topic: TopicData) -> TopicDataResponse:
    return TopicDataResponse(
        topic_id=topic.topic_id,
        partitions=[
            PartitionDataResponse(
                partition_index=partition.partition_index, error_code=int(ErrorCode.UNKNOWN_TOPIC_ID)
            )
            for partition in topic.partitions
        ],
    )


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

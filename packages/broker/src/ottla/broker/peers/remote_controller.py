"""Requests to the controller on another broker. Imported with the second broker: one alone needs none."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ottla.broker.cluster.partition_znodes import Leadership
from ottla.broker.peers.controller_requests import AlterPartition, Answers, ControlledShutdown
from ottla.protocol.messages.controller_requests import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    PartitionData,
    TopicData,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.peers.client import Peer


async def ask(controller: Peer, asked: AlterPartition | ControlledShutdown) -> Answers:
    """Send a request, and return the controller's answers. Raises the errors of `Peer.send`."""
    if isinstance(asked, ControlledShutdown):
        request = ControlledShutdownRequest(broker_id=asked.broker_id, broker_epoch=asked.broker_epoch)
        return _shutdown_answers(await controller.send(request, ControlledShutdownResponse))
    return _alter_answers(await controller.send(_alter_request(asked), AlterPartitionResponse))


def _alter_request(asked: AlterPartition) -> AlterPartitionRequest:
    topics: dict[str, list[PartitionData]] = defaultdict(list)
    for partition, proposal in asked.proposals.items():
        topics[partition.topic].append(
            PartitionData(
                partition_index=partition.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr=list(proposal.isr),
                partition_epoch=proposal.partition_epoch,
            )
        )
    return AlterPartitionRequest(
        broker_id=asked.broker_id,
        broker_epoch=asked.broker_epoch,
        topics=[TopicData(topic_name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def _alter_answers(response: AlterPartitionResponse) -> Answers:
    answers = Answers(top=response.error_code)
    for topic in response.topics:
        for result in topic.partitions:
            partition = TopicPartition(topic.topic_name, result.partition_index)
            if result.error_code:
                answers.partitions[partition] = result.error_code
            else:
                # AlterPartition does not return the controller epoch, and no caller needs it.
                answers.leaderships[partition] = Leadership(
                    result.leader_id, result.leader_epoch, tuple(result.isr), -1, result.partition_epoch
                )
    return answers


def _shutdown_answers(response: ControlledShutdownResponse) -> Answers:
    remaining = [
        TopicPartition(result.topic_name, result.partition_index) for result in response.remaining_partitions
    ]
    return Answers(top=response.error_code, remaining=remaining)

"""Followers for tests of the simulation itself: one task a partition, and only the rules that matter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.broker.cluster.peer_connection import PeerConnection
from ottla.client.config import Address
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.hosted_partition import HostedPartition
    from simulation.virtual_time import ProcessLoop

PORT = 9092


class StandInFollowers:
    """Copies each followed partition in a task of its own."""

    def __init__(self, broker_id: int, loop: ProcessLoop) -> None:
        self._broker_id = broker_id
        self._loop = loop
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}

    def follow(self, partition: HostedPartition, leader: int) -> None:
        """Copy from this leader from now on."""
        self.unfollow(partition.topic_partition)
        if leader >= 0:
            task = self._loop.create_task(self._copy(partition, leader))
            self._tasks[partition.topic_partition] = task

    def unfollow(self, topic_partition: TopicPartition) -> None:
        """Copy no longer."""
        task = self._tasks.pop(topic_partition, None)
        if task is not None:
            task.cancel()

    async def _copy(self, partition: HostedPartition, leader: int) -> None:
        peer = PeerConnection(Address(f"b{leader}", PORT), f"broker-{self._broker_id}-fetcher", 1_000)
        while True:
            try:
                response = await peer.send(self._request(partition), FetchResponse)
                await self._take(partition, response.responses[0].partitions[0])
            except (ClientError, KafkaError, IndexError):
                await asyncio.sleep(0.2)

    def _request(self, partition: HostedPartition) -> FetchRequest:
        log = partition.log
        wanted = FetchPartition(
            partition=partition.topic_partition.partition,
            fetch_offset=log.log_end_offset,
            current_leader_epoch=partition.leader_epoch,
            last_fetched_epoch=log.leader_epochs.latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=1 << 20,
        )
        topic = FetchTopic(topic=partition.topic_partition.topic, partitions=[wanted])
        return FetchRequest(
            replica_id=self._broker_id, max_wait_ms=500, min_bytes=1, session_epoch=-1, topics=[topic]
        )

    async def _take(self, partition: HostedPartition, answer: PartitionData) -> None:
        if answer.error_code:
            await asyncio.sleep(0.2)
        elif answer.diverging_epoch.epoch >= 0:
            found = answer.diverging_epoch
            _, own_end = partition.log.leader_epochs.end_offset_for(found.epoch, partition.log.log_end_offset)
            await partition.truncate_to(min(own_end, found.end_offset) if own_end >= 0 else found.end_offset)
        else:
            log = partition.log
            if answer.records:
                log.append_as_follower(bytes(answer.records), int(self._loop.time() * 1000))
            partition.core.log_end_offset = log.log_end_offset
            watermark = partition.core.watermark
            watermark.offset = max(watermark.offset, min(answer.high_watermark, log.log_end_offset))

"""A broker with one topic that answers metadata, offset and fetch requests as a test scripts them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from ottla.client.config import ClientConfig
from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.consumer import (
    Consumer,
    ConsumerConfig,
    TopicPartition,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.log_offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.records import BatchBuilder, Codec

BOUND_S = 60


FOLLOWER = 2


FAST = ConsumerConfig(
    auto_offset_reset="earliest",
    fetch_max_wait_ms=20,
    client=ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20),
)


A = TopicPartition("t", 0)


class Log:
    """Topic `t` with some partitions on a leader, and perhaps a follower; batches have leader epochs."""

    def __init__(self, broker: ScriptedBroker, partitions: int = 1) -> None:
        self.broker = broker
        self.follower: ScriptedBroker | None = None
        self.records: dict[int, list[tuple[bytes, int]]] = {n: [] for n in range(partitions)}
        self.epoch = 1
        self.topic_id = self.asked_id = UUID(int=1)
        self.preferred = -1
        self.codec = Codec.NONE
        self.key: bytes | None = None
        self.topic_error = 0
        self.errors: list[int] = []
        self.follower_errors: list[int] = []
        self.session: dict[int, int] | None = None
        self.has_sessions = True
        broker.on(MetadataRequest, self.metadata)
        broker.on(ListOffsetsRequest, self.offsets)
        broker.on(OffsetForLeaderEpochRequest, self.epoch_ends)
        broker.on(FetchRequest, self.fetch)

    def add(self, *values: bytes, partition: int = 0) -> None:
        self.records[partition] += [(value, self.epoch) for value in values]

    def metadata(self, _: MetadataRequest) -> MetadataResponse:
        brokers = [MetadataResponseBroker(node_id=NODE_ID, host=self.broker.host, port=self.broker.port)]
        if self.follower is not None:
            port = self.follower.port
            brokers.append(MetadataResponseBroker(node_id=FOLLOWER, host=self.broker.host, port=port))
        partitions = [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=NODE_ID,
                leader_epoch=self.epoch,
                replica_nodes=[NODE_ID, FOLLOWER],
                isr_nodes=[NODE_ID],
            )
            for index in self.records
        ]
        topic = MetadataResponseTopic(
            name="t", error_code=self.topic_error, topic_id=self.topic_id, partitions=partitions
        )
        return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=NODE_ID, topics=[topic])

    def offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        found = [
            ListOffsetsPartitionResponse(
                partition_index=each.partition_index,
                offset=0 if each.timestamp == -2 else len(self.records[each.partition_index]),
            )
            for each in request.topics[0].partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)])

    def epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        found = []
        for each in request.topics[0].partitions:
            below = [epoch for _, epoch in self.records[each.partition] if epoch <= each.leader_epoch]
            found.append(
                EpochEndOffset(
                    partition=each.partition, leader_epoch=max(below, default=-1), end_offset=len(below)
                )
            )
        topics = [OffsetForLeaderTopicResult(topic="t", partitions=found)]
        return OffsetForLeaderEpochResponse(topics=topics)

    def fetch(self, request: FetchRequest) -> FetchResponse:
        wanted = {each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions}
        session_id = 77 if self.has_sessions and request.session_epoch >= 0 else 0
        if session_id:
            if request.session_epoch == 0:
                self.session = wanted
            elif self.session is None:
                return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            else:
                for topic in request.forgotten_topics_data:
                    for partition in topic.partitions:
                        self.session.pop(partition)
                self.session |= wanted
                wanted = self.session
        answers = [self.data(partition, offset) for partition, offset in wanted.items()]
        for asked in request.topics:
            self.asked_id = asked.topic_id
        if self.asked_id not in (UUID(int=0), self.topic_id):  # of a topic that was deleted
            code = ErrorCode.UNKNOWN_TOPIC_ID
            answers = [PartitionData(partition_index=number, error_code=code) for number in wanted]
            return self.answer(answers, session_id, self.asked_id)
        if self.errors:
            answers = [PartitionData(partition_index=0, error_code=self.errors.pop(0))]
        elif self.preferred != -1 and self.follower is not None:
            answers = [PartitionData(partition_index=0, preferred_read_replica=self.preferred)]
        return self.answer(answers, session_id)

    def fetch_from_follower(self, request: FetchRequest) -> FetchResponse:
        answers = [
            self.data(each.partition, each.fetch_offset)
            for topic in request.topics
            for each in topic.partitions
        ]
        if self.follower_errors:
            answers = [PartitionData(partition_index=0, error_code=self.follower_errors.pop(0))]
        return self.answer(answers, 0)

    def answer(
        self, answers: list[PartitionData], session_id: int, topic_id: UUID | None = None
    ) -> FetchResponse:
        topic = FetchableTopicResponse(topic="t", topic_id=topic_id or self.topic_id, partitions=answers)
        return FetchResponse(session_id=session_id, responses=[topic])

    def data(self, partition: int, offset: int) -> PartitionData:
        records = self.records[partition]
        data = PartitionData(partition_index=partition, high_watermark=len(records))
        if offset > len(records):
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        elif offset < len(records):
            builder = BatchBuilder(1 << 26, codec=self.codec)
            epoch = records[offset][1]
            for value, own in records[offset:]:
                if own != epoch or builder.record_count == 1000:
                    break
                builder.append(self.key, value, 0)
            data.records = builder.build(base_offset=offset, partition_leader_epoch=epoch)
        return data


def reader(broker: ScriptedBroker, config: ConsumerConfig = FAST) -> Consumer:
    return Consumer("t", bootstrap_servers=broker.bootstrap_servers, config=config)


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(BOUND_S):
        return [(await anext(consumer)).value for _ in range(count)]


async def waits_for(consumer: Consumer) -> asyncio.Task[list[bytes | None]]:
    """Run a task that asks for the next record until it waits."""
    waiting = asyncio.create_task(take(consumer, 1))
    while not consumer._lifecycle.fetch.notifier.has_waiters:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return waiting

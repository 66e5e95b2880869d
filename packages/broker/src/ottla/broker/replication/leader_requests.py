"""The requests that a follower sends to a leader, and what their responses say about each partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.records import CorruptRecords, all_magic_2, split_batches
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.log.append.rules import Buffer
    from ottla.broker.replication.fetch_session import SessionRequest

LATEST: Final = -1
EARLIEST: Final = -2


def fetch(session: SessionRequest, broker_id: int, config: BrokerConfig) -> FetchRequest:
    """Return the Fetch of a follower: the session's changes, with the limits of `replica.fetch.*`."""
    topics: dict[str, list[FetchPartition]] = defaultdict(list)
    for (topic, partition), position in session.changed:
        topics[topic].append(
            FetchPartition(
                partition=partition,
                current_leader_epoch=position.leader_epoch,
                fetch_offset=position.offset,
                last_fetched_epoch=position.last_fetched_epoch,
                log_start_offset=position.log_start_offset,
                partition_max_bytes=config.replica_fetch_max_bytes,
            )
        )
    forgotten: dict[str, list[int]] = defaultdict(list)
    for topic, partition in session.forgotten:
        forgotten[topic].append(partition)
    return FetchRequest(
        replica_id=broker_id,
        max_wait_ms=config.replica_fetch_wait_max_ms,
        min_bytes=config.replica_fetch_min_bytes,
        max_bytes=config.replica_fetch_response_max_bytes,
        session_id=session.session_id,
        session_epoch=session.epoch,
        topics=[FetchTopic(topic=topic, partitions=those) for topic, those in topics.items()],
        forgotten_topics_data=[
            ForgottenTopic(topic=topic, partitions=those) for topic, those in forgotten.items()
        ],
    )


def whole_batches(records: Buffer) -> Buffer:
    """Return records without a batch that is cut off at the end, as Apache Kafka's answers may have one."""
    try:
        all_magic_2(records)
    except CorruptRecords:
        return records[: sum(len(batch) for batch in split_batches(records, torn_tail=True))]
    return records


def list_offsets(
    wanted: Iterable[tuple[TopicPartition, int]], timestamp: int, broker_id: int
) -> ListOffsetsRequest:
    """Ask for the log start or end of partitions, given with their leader epochs."""
    topics: dict[str, list[ListOffsetsPartition]] = defaultdict(list)
    for (topic, partition), leader_epoch in wanted:
        topics[topic].append(
            ListOffsetsPartition(
                partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
            )
        )
    return ListOffsetsRequest(
        replica_id=broker_id,
        topics=[ListOffsetsTopic(name=topic, partitions=those) for topic, those in topics.items()],
    )


def found_offsets(response: ListOffsetsResponse) -> dict[TopicPartition, tuple[int, int]]:
    """Return the error code and the offset of each partition."""
    return {
        TopicPartition(topic.name, partition.partition_index): (partition.error_code, partition.offset)
        for topic in response.topics
        for partition in topic.partitions
    }


def epoch_ends(
    wanted: Iterable[tuple[TopicPartition, int, int]], broker_id: int
) -> OffsetForLeaderEpochRequest:
    """Ask where epochs end: partitions with their current leader epoch, and the epoch asked about."""
    topics: dict[str, list[OffsetForLeaderPartition]] = defaultdict(list)
    for (topic, partition), leader_epoch, epoch in wanted:
        topics[topic].append(
            OffsetForLeaderPartition(
                partition=partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
            )
        )
    return OffsetForLeaderEpochRequest(
        replica_id=broker_id,
        topics=[OffsetForLeaderTopic(topic=topic, partitions=those) for topic, those in topics.items()],
    )


def found_epoch_ends(response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, tuple[int, int, int]]:
    """Return the error code, the leader's largest epoch up to the one asked about, and where it ends."""
    return {
        TopicPartition(topic.topic, partition.partition): (
            partition.error_code,
            partition.leader_epoch,
            partition.end_offset,
        )
        for topic in response.topics
        for partition in topic.partitions
    }

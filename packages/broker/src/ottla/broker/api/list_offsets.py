"""ListOffsets: the earliest offset, the latest, the first at or after a time, or that of the latest time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.requests.access import refusal_of_replica
from ottla.broker.requests.context import RequestContext
from ottla.protocol.errors import (
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.log.segments.timestamp_search import TimestampOffset
    from ottla.broker.replication.replicas import HostedPartition, Replicas
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.protocol.messages.list_offsets import ListOffsetsPartition

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_FIRST_WITH: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The first version of each timestamp with a meaning of its own."""
READ_COMMITTED: Final = 1
CONSUMER: Final = -1
ANY_REPLICA: Final = -2
"""The replica id of a tool that compares replicas: each answers for itself, to the end of its log."""
_FIRST_WITH_ONE_OFFSET: Final = 1
_FIRST_WITH_LEADER_EPOCH: Final = 4
_FIRST_WITH_NOT_AVAILABLE: Final = 5


class Needs(Protocol):
    """The parts of the broker that ListOffsets uses."""

    inter_broker: InterBrokerAccess
    record_threads: RecordThreads
    replicas: Replicas


async def handle(
    services: Needs, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Respond for every requested partition."""
    refusal = await refusal_of_replica(services, request, context)
    topics = []
    for topic in request.topics:
        partitions = [
            await _answer(
                services,
                request,
                context,
                TopicPartition(topic.name, one.partition_index),
                one,
                refusal,
            )
            async for one in context.paced(topic.partitions)
        ]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    return ListOffsetsResponse(topics=topics)


async def _answer(
    services: Needs,
    request: ListOffsetsRequest,
    context: RequestContext,
    topic_partition: TopicPartition,
    asked: ListOffsetsPartition,
    refusal: KafkaError | None,
) -> ListOffsetsPartitionResponse:
    version = context.api_version
    response = ListOffsetsPartitionResponse(partition_index=topic_partition.partition)
    try:
        if refusal is not None:
            raise refusal
        partition = _partition(services, request, topic_partition, asked)
        if version < _FIRST_WITH_ONE_OFFSET:
            response.old_style_offsets = offsets_before(partition, asked.timestamp, asked.max_num_offsets)
        else:
            await _find(services, partition, request, context, asked.timestamp, response)
        if version < _FIRST_WITH_LEADER_EPOCH:
            response.leader_epoch = -1
    except KafkaError as error:
        response.error_code = int(error.code)
    except (OSError, CorruptStorage):
        response.error_code = int(KafkaStorageError.code)
    return response


def _partition(
    services: Needs,
    request: ListOffsetsRequest,
    topic_partition: TopicPartition,
    asked: ListOffsetsPartition,
) -> HostedPartition:
    if request.replica_id == ANY_REPLICA:
        hosted = services.replicas.hosted(topic_partition)
        if hosted is not None:
            return hosted
    return services.replicas.leader(topic_partition, asked.current_leader_epoch)


async def _find(
    services: Needs,
    partition: HostedPartition,
    request: ListOffsetsRequest,
    context: RequestContext,
    timestamp: int,
    response: ListOffsetsPartitionResponse,
) -> None:
    log, version = partition.log, context.api_version
    end = visible_end(partition, request)
    if timestamp < 0 and version < _FIRST_WITH.get(timestamp, version + 1):
        raise UnsupportedVersion(f"the timestamp {timestamp} has no meaning in version {version}")
    if timestamp in (EARLIEST, EARLIEST_LOCAL):  # nothing is stored elsewhere
        response.offset, response.leader_epoch = (
            log.log_start_offset,
            _epoch_at(partition, log.log_start_offset),
        )
        return
    _check_available(partition, request, version)
    if timestamp == LATEST:
        response.offset, response.leader_epoch = end, partition.leader_epoch
        return
    if timestamp == LATEST_TIERED:
        return
    if timestamp == MAX_TIMESTAMP:
        timestamp = partition.log.max_timestamp()
        if timestamp < 0:  # without a record that has a time
            return
    found = await _first_at(services, context, partition, timestamp)
    if found is not None and found.offset < end:
        response.timestamp, response.offset = found.timestamp, found.offset
        response.leader_epoch = _epoch_at(partition, found.offset)


async def _first_at(
    services: Needs, context: RequestContext, partition: HostedPartition, timestamp: int
) -> TimestampOffset | None:
    """Search by time. A batch that may take long to look into is opened on a thread."""
    search, turn = partition.log.search_timestamp(timestamp), context.turn
    try:
        candidate = next(search)
        while True:
            found = None
            if candidate is None:
                await turn.yield_if_spent()
            elif candidate.is_long:
                found = await services.record_threads.run(candidate.look)
            else:
                found = candidate.look()
            candidate = search.send(found)
    except StopIteration as end:
        result: TimestampOffset | None = end.value
        return result


def _check_available(partition: HostedPartition, request: ListOffsetsRequest, version: int) -> None:
    # The high watermark of a new leader may be below the one that its predecessor has sent to clients. Until
    # it reaches the start of this epoch, "latest" would move backwards (KIP-207).
    core = partition.core
    if request.replica_id == CONSUMER and core.high_watermark < core.epoch_start_offset:
        raise OffsetNotAvailable if version >= _FIRST_WITH_NOT_AVAILABLE else LeaderNotAvailable


def visible_end(partition: HostedPartition, request: ListOffsetsRequest) -> int:
    """Return the end of the log as far as the requesting client or broker may see it."""
    if request.replica_id != CONSUMER:
        return partition.log.log_end_offset
    if request.isolation_level == READ_COMMITTED:
        return partition.log.last_stable_offset
    return partition.high_watermark


def _epoch_at(partition: HostedPartition, offset: int) -> int:
    epoch = partition.log.leader_epochs.epoch_for(offset)
    return -1 if epoch is None else epoch


def offsets_before(partition: HostedPartition, timestamp: int, max_num_offsets: int) -> list[int]:
    """Return version 0's offsets: bases of segments last changed before a time, and the end, newest first."""
    log = partition.log
    segments = [(one.base_offset, one.last_modified_ms) for one in log.segments]
    starts = [(max(base, log.log_start_offset), changed) for base, changed in segments]
    if timestamp == EARLIEST:
        found = [log.log_start_offset]
    elif timestamp == LATEST:
        found = [partition.high_watermark, *(start for start, _ in reversed(starts))]
    else:
        found = [start for start, changed in reversed(starts) if changed <= timestamp]
    distinct = list(dict.fromkeys(one for one in found if one <= partition.high_watermark))
    return distinct[: max(0, max_num_offsets)]

"""ListOffsets: the earliest offset, the latest, the first at or after a time, or that of the latest time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.requests.authorization import is_broker, refused_names
from ottla.broker.requests.context import RequestContext
from ottla.broker.requests.permissions import DESCRIBE_TOPICS
from ottla.protocol.errors import (
    ErrorCode,
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ottla.broker.cluster.inter_broker_access import InterBrokerAccess
    from ottla.broker.log.segments.timestamp_search import TimestampOffset
    from ottla.broker.replication.replicas import HostedPartition, Replicas
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.runtime.threads import RecordThreads
    from ottla.protocol.messages.log_offsets import ListOffsetsPartition, ListOffsetsTopic

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_FIRST_WITH: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version of each timestamp with a meaning of its own."""
READ_COMMITTED: Final = 1
CONSUMER: Final = -1
ANY_REPLICA: Final = -2
"""The replica id of a tool that compares replicas: each answers for itself, to the end of its log."""
_FIRST_WITH_ONE_OFFSET: Final = 1
_FIRST_WITH_LEADER_EPOCH: Final = 4
_FIRST_WITH_NOT_AVAILABLE: Final = 5


class ListedSegment(Protocol):
    """A segment, as version 0 looks at it."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def last_modified_ms(self) -> int:
        """When its file was last written."""
        ...


class Needs(Protocol):
    """The parts of the broker that ListOffsets uses."""

    environment: Environment
    inter_broker: InterBrokerAccess
    record_threads: RecordThreads
    replicas: Replicas


async def handle(
    services: Needs, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Respond for every requested partition; topics that the client may not describe come last.

    A client that claims to be a follower gets the answer of a consumer: kafka-python 3.0.0 to 3.0.11 send the
    replica id 0.
    """
    if request.replica_id >= 0 and not await is_broker(services.inter_broker, context):
        request.replica_id = CONSUMER
    refused = await refused_names(context, DESCRIBE_TOPICS, (topic.name for topic in request.topics))
    repeated = await _repeated(request, context)
    topics = []
    for topic in request.topics:
        if topic.name in refused:
            continue
        partitions = [
            await _answer(services, request, context, topic_partition, asked, topic_partition in repeated)
            async for asked in context.paced(topic.partitions)
            for topic_partition in (TopicPartition(topic.name, asked.partition_index),)
        ]
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
    hidden = [
        await _refused(topic, context)
        async for topic in context.paced(request.topics)
        if topic.name in refused
    ]
    return ListOffsetsResponse(topics=[*topics, *hidden])


async def _refused(topic: ListOffsetsTopic, context: RequestContext) -> ListOffsetsTopicResponse:
    error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ListOffsetsTopicResponse(
        name=topic.name,
        partitions=[
            ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error)
            async for asked in context.paced(topic.partitions)
        ],
    )


async def _repeated(request: ListOffsetsRequest, context: RequestContext) -> set[TopicPartition]:
    """Return the partitions that are named more than once, which version 0 allows."""
    named: set[TopicPartition] = set()
    repeated: set[TopicPartition] = set()
    if context.api_version >= _FIRST_WITH_ONE_OFFSET:
        for topic in request.topics:
            async for asked in context.paced(topic.partitions):
                topic_partition = TopicPartition(topic.name, asked.partition_index)
                (repeated if topic_partition in named else named).add(topic_partition)
    return repeated


async def _answer(
    services: Needs,
    request: ListOffsetsRequest,
    context: RequestContext,
    topic_partition: TopicPartition,
    asked: ListOffsetsPartition,
    is_repeated: bool,
) -> ListOffsetsPartitionResponse:
    version = context.api_version
    response = ListOffsetsPartitionResponse(partition_index=topic_partition.partition)
    try:
        if is_repeated:
            raise InvalidRequest(f"{topic_partition} is named more than once")
        partition = _partition(services, request, topic_partition, asked)
        if version < _FIRST_WITH_ONE_OFFSET:
            response.old_style_offsets = _listed_offsets(services, request, partition, asked)
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
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):  # nothing is tiered
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


# ---- version 0


def _listed_offsets(
    services: Needs, request: ListOffsetsRequest, partition: HostedPartition, asked: ListOffsetsPartition
) -> list[int]:
    log = partition.log
    offsets = segment_offsets(
        list(log.segments),
        log.log_start_offset,
        log.log_end_offset,
        asked.timestamp,
        asked.max_num_offsets,
        now_ms=services.environment.clock.now_ms(),
    )
    if request.replica_id != CONSUMER:
        return offsets
    return committed_offsets(offsets, partition.high_watermark)


def segment_offsets(
    segments: Sequence[ListedSegment],
    log_start: int,
    log_end: int,
    timestamp: int,
    max_num_offsets: int,
    *,
    now_ms: int,
) -> list[int]:
    """Return base offsets and the end of the log, newest first, from the newest that is as old as a time.

    The end of the log has the time of now. What stands before a match is not looked at, whatever its time.
    """
    known = [(max(segment.base_offset, log_start), segment.last_modified_ms) for segment in segments]
    if segments[-1].size:  # else the end is the base offset of the last segment
        known.append((log_end, now_ms))
    count = len(known)
    if timestamp == EARLIEST:
        count = 1
    elif timestamp != LATEST:
        while count and known[count - 1][1] > timestamp:
            count -= 1
    newest_first = [offset for offset, _ in reversed(known[:count])]
    return sorted(newest_first[: max(0, max_num_offsets)], reverse=True)


def committed_offsets(offsets: list[int], high_watermark: int) -> list[int]:
    """Return offsets, newest first, with the high watermark in place of those above it."""
    committed = [offset for offset in offsets if offset <= high_watermark]
    return committed if len(committed) == len(offsets) else [high_watermark, *committed]

"""ListOffsets, DeleteRecords and OffsetForLeaderEpoch against real logs."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from ottla.broker.api import delete_records, list_offsets, offset_for_leader_epoch
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.log_offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition


async def filled(plane: DataPlane, **config: Any) -> None:
    """Ten records, one a batch, at 1000, 2000, …; epoch 3."""
    partition = await plane.lead(leader_epoch=3, **config)
    for number in range(10):
        partition.append(batch_of(b"x", timestamp_ms=(number + 1) * 1000), now_ms=1)


async def listed(
    plane: DataPlane, timestamp: int, version: int = 6, **more: int
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(
        partition_index=0,
        timestamp=timestamp,
        max_num_offsets=more.pop("max_num_offsets", 1),
        current_leader_epoch=more.pop("current_leader_epoch", -1),
    )
    request = ListOffsetsRequest(
        replica_id=more.pop("replica_id", -1),
        isolation_level=more.pop("isolation_level", 0),
        topics=[ListOffsetsTopic(name="t", partitions=[asked])],
    )
    response = await list_offsets.handle(plane.services, request, plane.context(ApiKey.LIST_OFFSETS, version))
    response.encode(version)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
async def test_offsets_by_time(plane: DataPlane, version: int) -> None:
    await filled(plane)

    found = [await listed(plane, at, version) for at in (-2, -1, 1, 3000, 3001, 10_000, 10_001)]

    assert [one.offset for one in found] == [0, 10, 0, 2, 3, 9, -1]
    assert [one.timestamp for one in found] == [-1, -1, 1000, 3000, 4000, 10_000, -1]
    assert {one.leader_epoch for one in found[:-1]} == ({3} if version >= 4 else {-1})


async def test_version_0_lists_segments(plane: DataPlane) -> None:
    await filled(plane, segment_bytes="200")

    newest = (await listed(plane, -1, 0, max_num_offsets=100)).old_style_offsets
    oldest = (await listed(plane, -2, 0, max_num_offsets=100)).old_style_offsets

    assert newest[0] == 10
    assert newest == sorted(newest, reverse=True)
    assert newest[-1] == 0
    assert len(newest) > 3
    assert oldest == [0]
    assert (await listed(plane, -1, 0, max_num_offsets=1)).old_style_offsets == [10]


class ASegment(NamedTuple):
    """A segment as version 0 looks at it."""

    base_offset: int
    last_modified_ms: int
    size: int = 100


SEGMENTS = [ASegment(0, 100), ASegment(10, 300), ASegment(20, 200), ASegment(30, 400)]


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (-1, [40, 30, 20, 10, 5]),
        (-2, [5]),
        (1000, [40, 30, 20, 10, 5]),  # the end of the log has the time of now
        (999, [30, 20, 10, 5]),
        (399, [20, 10, 5]),  # all that are older than the newest match
        (250, [20, 10, 5]),
        (199, [5]),
        (99, []),
    ],
)
def test_version_0_lists_what_is_older_than_the_newest_match(timestamp: int, expected: list[int]) -> None:
    found = list_offsets.segment_offsets(SEGMENTS, 5, 40, timestamp, 9, now_ms=1000)

    assert found == expected
    assert list_offsets.segment_offsets(SEGMENTS, 5, 40, timestamp, 2, now_ms=1000) == expected[:2]
    assert list_offsets.segment_offsets(SEGMENTS, 5, 40, timestamp, -1, now_ms=1000) == []


def test_version_0_lists_the_end_of_a_log_once_where_its_last_segment_is_empty() -> None:
    segments = [ASegment(0, 100), ASegment(10, 300, size=0)]

    assert list_offsets.segment_offsets(segments, 0, 10, -1, 9, now_ms=1000) == [10, 0]


def test_version_0_shows_consumers_the_high_watermark_in_place_of_what_is_above_it() -> None:
    assert list_offsets.committed_offsets([40, 30, 20], 25) == [25, 20]
    assert list_offsets.committed_offsets([40, 30, 20], 30) == [30, 30, 20]
    assert list_offsets.committed_offsets([40, 30, 20], 40) == [40, 30, 20]
    assert list_offsets.committed_offsets([], 40) == []


async def test_an_unknown_point_in_time_is_refused(plane: DataPlane) -> None:
    await filled(plane)

    assert (await listed(plane, -7, 11)).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(("timestamp", "version"), [(-3, 6), (-4, 7), (-5, 8), (-6, 10)])
async def test_a_point_in_time_of_a_later_version_is_refused(
    plane: DataPlane, timestamp: int, version: int
) -> None:
    await filled(plane)

    assert (await listed(plane, timestamp, version)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await listed(plane, timestamp, version + 1)).error_code == 0


@pytest.mark.parametrize("segment_bytes", ["200", "1000000"])
async def test_the_record_of_the_latest_time_is_found_wherever_it_is(
    plane: DataPlane, segment_bytes: str
) -> None:
    await filled(plane, segment_bytes=segment_bytes)
    partition = plane.replicas.hosted(TopicPartition("t", 0))
    assert partition is not None
    builder = BatchBuilder(1 << 20)
    for at in (20_000, 30_000, 30_000, 5):
        builder.append(None, b"x", at, [])
    partition.append(bytes(builder.build()), now_ms=1)
    for number in range(10):
        partition.append(batch_of(b"x", timestamp_ms=number), now_ms=1)

    found = await listed(plane, -3, 7)

    assert (found.offset, found.timestamp, found.leader_epoch) == (11, 30_000, 3)


async def test_an_empty_partition_has_no_record_of_the_latest_time(plane: DataPlane) -> None:
    await plane.lead()

    found = await listed(plane, -3, 7)

    assert (found.error_code, found.offset, found.timestamp) == (0, -1, -1)


async def test_all_records_are_local_and_none_is_tiered(plane: DataPlane) -> None:
    await filled(plane)
    await deleted(plane, 4)

    assert (await listed(plane, -4, 8)).offset == 4
    assert (await listed(plane, -5, 9)).offset == -1


async def test_the_epoch_is_checked(plane: DataPlane) -> None:
    await filled(plane)

    assert (await listed(plane, -1, current_leader_epoch=2)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await listed(plane, -1, current_leader_epoch=4)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_new_leader_does_not_say_latest_before_it_knows(plane: DataPlane) -> None:
    await plane.lead(leader=2, isr=(1, 2), replicas=(1, 2))
    hosted = plane.replicas.hosted(TopicPartition("t", 0))
    assert hosted is not None
    hosted.log.append(batch_of(b"a", b"b"), leader_epoch=0, now_ms=1)
    await plane.lead(leader_epoch=1, isr=(1, 2), replicas=(1, 2))

    assert (await listed(plane, -1)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await listed(plane, -1, 4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert (await listed(plane, -2)).offset == 0
    assert (await listed(plane, -1, replica_id=2)).offset == 2
    hosted.fetched(2, 2, 0, now_ms=plane.environment.clock.now_ms())
    assert (await listed(plane, -1)).offset == 2


async def test_a_stranger_with_a_replica_id_gets_the_offsets_of_a_consumer(plane: DataPlane) -> None:
    """kafka-python 3.0.0 to 3.0.11 send the replica id 0."""
    await plane.lead(leader=2, isr=(1, 2), replicas=(1, 2))
    hosted = plane.replicas.hosted(TopicPartition("t", 0))
    assert hosted is not None
    hosted.log.append(batch_of(b"a", b"b"), leader_epoch=0, now_ms=1)
    await plane.lead(leader_epoch=1, isr=(1, 2), replicas=(1, 2))
    plane.brokers.clear()

    assert (await listed(plane, -1, replica_id=0)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    hosted.fetched(2, 2, 0, now_ms=plane.environment.clock.now_ms())
    hosted.append(batch_of(b"c"), now_ms=1)  # not committed

    assert hosted.log.log_end_offset == 3
    assert [(await listed(plane, time, replica_id=0)).offset for time in (-1, -2, 1)] == [
        (await listed(plane, time)).offset for time in (-1, -2, 1)
    ]
    assert (await listed(plane, -1, replica_id=0)).offset == 2
    assert (await listed(plane, -1, 0, replica_id=0, max_num_offsets=9)).old_style_offsets == [2, 0]


async def test_a_stranger_with_a_replica_id_gets_the_epochs_of_a_consumer(plane: DataPlane) -> None:
    await filled(plane)
    expected = await ended(plane, 3)

    plane.brokers.clear()

    assert (expected.error_code, expected.end_offset) == (0, 10)
    assert await ended(plane, 3, replica_id=0) == expected


@pytest.mark.parametrize("version", range(10))
async def test_a_partition_that_is_named_twice_is_an_invalid_request_from_version_1_on(
    plane: DataPlane, version: int
) -> None:
    await filled(plane)
    await plane.lead(partition=1)
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1, 0)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=asked)])

    response = await list_offsets.handle(plane.services, request, plane.context(ApiKey.LIST_OFFSETS, version))

    error = ErrorCode.INVALID_REQUEST if version else ErrorCode.NONE
    errors = [(one.partition_index, one.error_code) for one in response.topics[0].partitions]
    assert errors == [(0, error), (1, ErrorCode.NONE), (0, error)]


async def deleted(
    plane: DataPlane, offset: int, timeout_ms: int = 1000, topic: str = "t"
) -> DeleteRecordsPartitionResult:
    request = DeleteRecordsRequest(
        timeout_ms=timeout_ms,
        topics=[
            DeleteRecordsTopic(
                name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
            )
        ],
    )
    response = await delete_records.handle(plane.services, request, plane.context(ApiKey.DELETE_RECORDS, 2))
    response.encode(2)
    return response.topics[0].partitions[0]


async def test_a_tool_that_asks_each_replica_gets_the_end_of_its_log(plane: DataPlane) -> None:
    await filled(plane)
    await plane.lead(leader=2, leader_epoch=4, isr=(1, 2), replicas=(1, 2))

    assert (await listed(plane, -1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await listed(plane, -1, replica_id=-2)).offset == 10
    assert (await listed(plane, -2, replica_id=-2)).offset == 0


@pytest.mark.parametrize(("offset", "low"), [(0, 0), (4, 4), (10, 10), (-1, 10)])
async def test_records_are_deleted_up_to_an_offset(plane: DataPlane, offset: int, low: int) -> None:
    await filled(plane)

    answer = await deleted(plane, offset)

    assert (answer.error_code, answer.low_watermark) == (0, low)
    assert (await listed(plane, -2)).offset == low


@pytest.mark.parametrize("offset", [11, -2])
async def test_what_is_not_there_cannot_be_deleted(plane: DataPlane, offset: int) -> None:
    await filled(plane)

    assert (await deleted(plane, offset)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_compacted_and_internal_topics_keep_their_records(plane: DataPlane) -> None:
    await plane.lead(cleanup_policy="compact")
    await plane.lead("__consumer_offsets")

    assert (await deleted(plane, 0)).error_code == ErrorCode.POLICY_VIOLATION
    assert (await deleted(plane, 0, topic="__consumer_offsets")).error_code == ErrorCode.POLICY_VIOLATION


async def test_deleting_waits_for_the_replicas(plane: DataPlane) -> None:
    partition = await plane.lead(isr=(1, 2), replicas=(1, 2))
    partition.append(batch_of(b"a", b"b"), now_ms=1)
    partition.fetched(2, 2, 0, now_ms=plane.environment.clock.now_ms())

    assert (await deleted(plane, 2, timeout_ms=10)).error_code == ErrorCode.REQUEST_TIMED_OUT
    partition.fetched(2, 2, 2, now_ms=plane.environment.clock.now_ms())
    assert (await deleted(plane, 2)).low_watermark == 2


async def ended(
    plane: DataPlane, epoch: int, version: int = 4, current: int = -1, replica_id: int = -2
) -> EpochEndOffset:
    asked = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])]
    )
    response = await offset_for_leader_epoch.handle(
        plane.services, request, plane.context(ApiKey.OFFSET_FOR_LEADER_EPOCH, version)
    )
    response.encode(version)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(5))
async def test_where_epochs_ended(plane: DataPlane, version: int) -> None:
    await filled(plane)
    partition = await plane.lead(leader_epoch=7)
    partition.append(batch_of(b"x"), now_ms=1)

    found = [await ended(plane, epoch, version) for epoch in (3, 5, 7, 8)]

    assert [one.end_offset for one in found] == [10, 10, 11, -1]
    assert [one.leader_epoch for one in found] == [3, 3, 7, -1]


async def test_an_epoch_of_nowhere_is_an_error(plane: DataPlane) -> None:
    assert (await ended(plane, 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

"""Fetch against real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.response import FetchAnswer, FetchedPartition
from ottla.broker.api.testing import DataPlane, batch_of, topic_id_of
from ottla.broker.log.retention import retention
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.records import Codec, decode_records, split_batches
from ottla.protocol.topics import TopicPartition

BOUND_S = 60


def request_of(offset: int = 0, *, max_bytes: int = 1 << 20, wait_ms: int = 0, **more: Any) -> FetchRequest:
    partition = FetchPartition(
        partition=more.pop("partition", 0),
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=more.pop("current_leader_epoch", -1),
        last_fetched_epoch=more.pop("last_fetched_epoch", -1),
    )
    topic = more.pop("topic", "t")
    topic_id = more.pop("topic_id", topic_id_of(topic))
    topics = [FetchTopic(topic=topic, topic_id=topic_id, partitions=[partition])]
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=more.pop("min_bytes", 1), topics=topics, **more)


def begun(plane: DataPlane, request: FetchRequest, version: int = 12) -> FetchAnswer | Awaitable[FetchAnswer]:
    return fetch.handle(plane.services, request, plane.context(ApiKey.FETCH, version))


async def fetched(plane: DataPlane, request: FetchRequest, version: int = 12) -> FetchAnswer:
    answer = begun(plane, request, version)
    if isinstance(answer, Awaitable):
        answer = await asyncio.wait_for(answer, BOUND_S)
    parts = answer.encode_parts(version)
    body = b"".join(one if isinstance(one, bytes) else one.read() for one in parts)
    FetchResponse.decode(body, version)
    return answer


async def one(plane: DataPlane, request: FetchRequest, version: int = 12) -> FetchedPartition:
    return (await fetched(plane, request, version)).topics[0][1][0]


def bytes_of(partition: FetchedPartition) -> bytes:
    records = partition.records
    if records is None:
        return b""
    return records if isinstance(records, bytes) else records.read()


def values_of(partition: FetchedPartition) -> list[bytes | None]:
    return [
        None if record.value is None else bytes(record.value)
        for batch in split_batches(bytes_of(partition))
        for record in decode_records(batch)
    ]


def append(plane: DataPlane, *values: bytes, partition: int = 0, **more: Any) -> None:
    found = plane.replicas.leader(TopicPartition("t", partition))
    found.append(batch_of(*values, **more), now_ms=plane.environment.clock.now_ms())


@pytest.mark.parametrize("version", range(18))
async def test_every_version_gets_the_records(plane: DataPlane, version: int) -> None:
    await plane.lead()
    append(plane, b"a", b"b", codec=Codec.GZIP)
    append(plane, b"c")

    answer = await one(plane, request_of(), version)

    assert (answer.error_code, answer.high_watermark) == (0, 3)
    assert values_of(answer) == [b"a", b"b", b"c"]
    magic = bytes_of(answer)[16]
    assert magic == (0 if version < 2 else 1 if version < 4 else 2)


async def test_old_formats_can_be_refused(plane: DataPlane) -> None:
    await plane.lead(message_downconversion_enable="false")
    append(plane, b"a")

    assert (await one(plane, request_of(), 3)).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (await one(plane, request_of(), 4)).error_code == 0


async def test_zstd_is_not_for_old_clients(plane: DataPlane) -> None:
    await plane.lead(compression_type="zstd")
    append(plane, b"a")

    assert (await one(plane, request_of(), 9)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await one(plane, request_of(), 10)).error_code == 0


async def test_the_first_batch_is_returned_at_any_size_and_the_others_within_the_limit(
    plane: DataPlane,
) -> None:
    await plane.lead(partition=0)
    await plane.lead(partition=1)
    for partition in (0, 1):
        append(plane, b"x" * 1000, partition=partition)
        append(plane, b"y" * 1000, partition=partition)
    request = request_of(max_bytes=10)
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=10))

    first, second = (await fetched(plane, request)).topics[0][1]

    assert values_of(first) == [b"x" * 1000]
    assert values_of(second) == []


async def test_the_whole_answer_is_bounded(plane: DataPlane) -> None:
    await plane.lead(partition=0)
    await plane.lead(partition=1)
    for partition in (0, 1):
        append(plane, b"x" * 1000, partition=partition)
    request = request_of(max_bytes=1 << 20)
    request.topics[0].partitions.append(
        FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)
    )
    request.max_bytes = 1500

    first, second = (await fetched(plane, request)).topics[0][1]

    assert (len(values_of(first)), len(values_of(second))) == (1, 0)


@pytest.mark.parametrize(("offset", "error"), [(-1, 1), (0, 1), (1, 0), (3, 0), (4, 1), (2**62, 1)])
async def test_an_offset_outside_of_the_log_is_an_error(plane: DataPlane, offset: int, error: int) -> None:
    partition = await plane.lead()
    append(plane, b"a", b"b", b"c")
    partition.log.advance_log_start(1)

    assert (await one(plane, request_of(offset))).error_code == error


async def test_an_unknown_partition_is_an_error_at_once(plane: DataPlane) -> None:
    answer = await one(plane, request_of(wait_ms=60_000))

    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_a_reader_with_another_idea_of_the_epoch_is_told(
    plane: DataPlane, epoch: int, error: ErrorCode
) -> None:
    await plane.lead(leader_epoch=5)

    assert (await one(plane, request_of(current_leader_epoch=epoch))).error_code == error


async def test_a_log_that_went_another_way_is_told_where(plane: DataPlane) -> None:
    await plane.lead(leader_epoch=1)
    append(plane, b"a", b"b")
    await plane.lead(leader_epoch=4)
    append(plane, b"c")

    answer = await one(plane, request_of(3, last_fetched_epoch=2))

    assert answer.diverging_epoch == (1, 2)
    assert (await one(plane, request_of(2, last_fetched_epoch=1))).diverging_epoch is None


async def test_a_fetch_waits_for_records(plane: DataPlane) -> None:
    await plane.lead()
    answer = begun(plane, request_of(wait_ms=60_000))
    assert isinstance(answer, Awaitable)
    waiting = asyncio.ensure_future(answer)
    await asyncio.sleep(0)

    append(plane, b"a")

    found = (await asyncio.wait_for(waiting, BOUND_S)).topics[0][1][0]
    assert values_of(found) == [b"a"]


async def test_a_fetch_waits_until_there_is_enough(plane: DataPlane) -> None:
    await plane.lead()
    answer = begun(plane, request_of(wait_ms=60_000, min_bytes=150))
    assert isinstance(answer, Awaitable)
    waiting = asyncio.ensure_future(answer)
    await asyncio.sleep(0)
    append(plane, b"a")
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()

    append(plane, b"b" * 100)

    assert len(values_of((await asyncio.wait_for(waiting, BOUND_S)).topics[0][1][0])) == 2


async def test_a_wait_that_times_out_returns_the_available_records(plane: DataPlane) -> None:
    partition = await plane.lead()
    append(plane, b"a")

    answer = await one(plane, request_of(wait_ms=20, min_bytes=1 << 20))

    assert values_of(answer) == [b"a"]
    assert not partition.watchers


async def test_a_wait_ends_when_the_leader_goes(plane: DataPlane) -> None:
    partition = await plane.lead(replicas=(1, 2), isr=(1, 2))
    answer = begun(plane, request_of(wait_ms=60_000))
    assert isinstance(answer, Awaitable)
    waiting = asyncio.ensure_future(answer)
    await asyncio.sleep(0)

    await plane.lead(leader=2, leader_epoch=1, replicas=(1, 2), isr=(1, 2))

    found = (await asyncio.wait_for(waiting, BOUND_S)).topics[0][1][0]
    assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not partition.watchers


async def test_consumers_see_committed_records_and_followers_see_all(plane: DataPlane) -> None:
    partition = await plane.lead(isr=(1, 2), replicas=(1, 2))
    append(plane, b"a", b"b")

    assert values_of(await one(plane, request_of())) == []
    assert values_of(await one(plane, request_of(replica_id=2))) == [b"a", b"b"]
    assert partition.high_watermark == 0
    await one(plane, request_of(2, replica_id=2))
    assert partition.high_watermark == 2
    assert values_of(await one(plane, request_of())) == [b"a", b"b"]


async def test_a_broker_that_is_no_replica_gets_nothing(plane: DataPlane) -> None:
    await plane.lead()
    append(plane, b"a")

    assert (await one(plane, request_of(replica_id=9))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_committed_reads_say_which_transactions_were_aborted(plane: DataPlane) -> None:
    await plane.lead()
    append(plane, b"a")

    assert (await one(plane, request_of(isolation_level=1))).aborted == []
    assert (await one(plane, request_of(isolation_level=0))).aborted is None


async def test_a_session_carries_only_changes(plane: DataPlane) -> None:
    await plane.lead(partition=0)
    await plane.lead(partition=1)
    first = request_of(session_epoch=0)
    first.topics[0].partitions.append(
        FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20)
    )
    opened = await fetched(plane, first)
    assert opened.session_id > 0
    assert len(opened.topics[0][1]) == 2

    nothing = await fetched(plane, FetchRequest(session_id=opened.session_id, session_epoch=1))
    append(plane, b"a", partition=1)
    something = await fetched(plane, FetchRequest(session_id=opened.session_id, session_epoch=2))

    assert nothing.topics == []
    assert [(topic, [each.index for each in partitions]) for topic, partitions in something.topics] == [
        ("t", [1])
    ]


async def test_a_partition_that_is_named_twice_is_answered_once_as_it_was_named_last(
    plane: DataPlane,
) -> None:
    await plane.lead()
    append(plane, b"a")
    append(plane, b"b")
    request = request_of(0)
    request.topics.append(request_of(1).topics[0])

    answer = await fetched(plane, request)

    assert [[values_of(partition) for partition in partitions] for _, partitions in answer.topics] == [
        [[b"b"]]
    ]


async def test_a_wrong_session_is_refused(plane: DataPlane) -> None:
    unknown = await fetched(plane, FetchRequest(session_id=5, session_epoch=1))

    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_slice_outlives_its_segment(plane: DataPlane) -> None:
    partition = await plane.lead(segment_bytes="200")
    for number in range(5):
        append(plane, str(number).encode() * 50)
    answer = await one(plane, request_of(max_bytes=1))

    partition.log.advance_log_start(4)
    for segment in retention.expire(partition.log, plane.environment.clock.now_ms()):
        for path in segment.mark_deleted():
            path.unlink()

    assert values_of(answer) == [b"0" * 50]


async def test_topics_are_measured(plane: DataPlane) -> None:
    await plane.lead()
    append(plane, b"a")

    answer = await one(plane, request_of())
    await one(plane, request_of(9))

    meters = plane.services.topic_metrics.of("t")
    assert meters.bytes_out.count == answer.size
    assert meters.failed_fetch_requests.count == 1


async def test_a_damaged_segment_is_an_error_of_its_partition(plane: DataPlane) -> None:
    partition = await plane.lead()
    append(plane, b"a")
    append(plane, b"b")
    segment = partition.log.segments[0]
    partition.log.roll(0)
    segment.file.pwrite(bytes(segment.size), 0)

    answer = await one(plane, request_of(1))

    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR

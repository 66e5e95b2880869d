"""Fetch and Produce of clients from before message format 2."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.response import FetchAnswer, FetchedPartition
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.log.append.rules import AppendOrigin
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.records import BatchBuilder, Codec, ControlType, decode_records, end_transaction_marker
from ottla.protocol.topics import TopicPartition

BOUND_S = 60
OLD_VERSIONS = [0, 1, 2, 3]


def begun(
    plane: DataPlane, offset: int, version: int, *, wait_ms: int = 0
) -> FetchAnswer | Awaitable[FetchAnswer]:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])]
    )
    return fetch.handle(plane.services, request, plane.context(ApiKey.FETCH, version))


async def fetched(plane: DataPlane, offset: int, version: int) -> FetchedPartition:
    answer = begun(plane, offset, version)
    if isinstance(answer, Awaitable):
        answer = await asyncio.wait_for(answer, BOUND_S)
    return answer.topics[0][1][0]


def seen(partition: FetchedPartition) -> list[tuple[int, bytes | None]]:
    assert isinstance(partition.records, bytes)
    return [(one.offset, one.value) for one in decode_records(partition.records)]


def append(plane: DataPlane, data: bytes, origin: AppendOrigin = AppendOrigin.CLIENT) -> None:
    found = plane.replicas.leader(TopicPartition("t", 0))
    found.append(data, now_ms=plane.environment.clock.now_ms(), origin=origin)


def append_marker(plane: DataPlane) -> None:
    builder = BatchBuilder()
    builder.append(None, b"in it", 1_000)
    append(plane, builder.build(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    marker = end_transaction_marker(
        ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1
    )
    append(plane, marker, AppendOrigin.COORDINATOR)


@pytest.mark.parametrize("version", OLD_VERSIONS)
async def test_an_uncompressed_set_begins_at_the_wanted_offset(plane: DataPlane, version: int) -> None:
    await plane.lead()
    append(plane, batch_of(b"a", b"b", b"c"))

    assert seen(await fetched(plane, 1, version)) == [(1, b"b"), (2, b"c")]


@pytest.mark.parametrize("version", OLD_VERSIONS)
async def test_a_compressed_set_stays_whole(plane: DataPlane, version: int) -> None:
    await plane.lead()
    append(plane, batch_of(b"a", b"b", b"c", codec=Codec.GZIP))

    assert seen(await fetched(plane, 1, version)) == [(0, b"a"), (1, b"b"), (2, b"c")]


@pytest.mark.parametrize("version", OLD_VERSIONS)
async def test_what_precedes_zstd_is_read_before_the_error(plane: DataPlane, version: int) -> None:
    await plane.lead()
    append(plane, batch_of(b"a", codec=Codec.GZIP))
    append(plane, batch_of(b"b", codec=Codec.ZSTD))

    assert seen(await fetched(plane, 0, version)) == [(0, b"a")]
    assert (await fetched(plane, 1, version)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("version", OLD_VERSIONS)
async def test_markers_are_left_out(plane: DataPlane, version: int) -> None:
    await plane.lead()
    append_marker(plane)
    append(plane, batch_of(b"behind"))

    assert seen(await fetched(plane, 0, version)) == [(0, b"in it"), (2, b"behind")]


async def test_a_reader_before_a_marker_waits_for_a_record(plane: DataPlane) -> None:
    await plane.lead()
    append_marker(plane)
    answer = begun(plane, 1, 3, wait_ms=60_000)
    assert isinstance(answer, Awaitable)
    waiting = asyncio.ensure_future(answer)
    while not plane.replicas.leader(TopicPartition("t", 0)).watchers and not waiting.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # the conversion is on a thread
    assert not waiting.done()

    append(plane, batch_of(b"behind"))

    found = (await asyncio.wait_for(waiting, BOUND_S)).topics[0][1][0]
    assert seen(found) == [(2, b"behind")]


async def test_a_reader_before_a_marker_is_answered_when_its_time_is_over(plane: DataPlane) -> None:
    await plane.lead()
    append_marker(plane)

    answer = begun(plane, 1, 3, wait_ms=20)
    assert isinstance(answer, Awaitable)
    found = (await asyncio.wait_for(answer, BOUND_S)).topics[0][1][0]

    assert (found.error_code, seen(found), found.high_watermark) == (0, [], 2)

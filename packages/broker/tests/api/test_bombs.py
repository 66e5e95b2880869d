"""Batches that become far larger when they are opened, from producers and for old consumers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any

import pytest

from ottla.broker.api import list_offsets
from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.response import FetchAnswer
from ottla.broker.api.produce import general as produce
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.log.append.batch_preparation import opened
from ottla.broker.log.append.batch_validation import MAX_OPENED_BYTES
from ottla.broker.requests.context import Ordering
from ottla.broker.runtime import threads
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records import BatchBuilder, Codec

PIECE = 1 << 20
BOUND_S = 60


def bomb(codec: Codec, size_mib: int) -> bytes:
    builder = BatchBuilder(1 << 30, codec=codec)
    for _ in range(size_mib):
        builder.append(b"k", bytes(PIECE), 1)
    return builder.build()


async def answer_to(plane: DataPlane, records: bytes, topic: str = "t") -> PartitionProduceResponse:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(acks=1, timeout_ms=5_000, topic_data=[data])
    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, 9))
    if isinstance(answer, Awaitable):
        answer = await asyncio.wait_for(answer, BOUND_S)
    assert answer is not None
    return answer.responses[0].partition_responses[0]


async def fetched(plane: DataPlane, version: int, partitions: int = 1) -> FetchAnswer:
    asked = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
        for index in range(partitions)
    ]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="t", partitions=asked)])
    answer = fetch.handle(plane.services, request, plane.context(ApiKey.FETCH, version))
    return await asyncio.wait_for(answer, BOUND_S) if isinstance(answer, Awaitable) else answer


@pytest.mark.parametrize("settings", [{"compression_type": "gzip"}, {"cleanup_policy": "compact"}])
async def test_a_bomb_is_refused_where_the_broker_must_open_it(
    plane: DataPlane, settings: dict[str, Any]
) -> None:
    partition = await plane.lead(**settings)
    limit_mib = MAX_OPENED_BYTES // PIECE

    refused = await answer_to(plane, bomb(Codec.ZSTD, limit_mib))

    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert partition.log.log_end_offset == 0
    assert (await answer_to(plane, bomb(Codec.ZSTD, limit_mib - 1))).error_code == ErrorCode.NONE


async def test_a_bomb_is_stored_as_it_is_where_nobody_has_to_open_it(plane: DataPlane) -> None:
    await plane.lead()

    assert (await answer_to(plane, bomb(Codec.ZSTD, 64))).error_code == ErrorCode.NONE


async def test_a_stored_bomb_is_refused_to_a_client_for_whom_it_would_be_opened(plane: DataPlane) -> None:
    await plane.lead()
    assert (await answer_to(plane, bomb(Codec.GZIP, 64))).error_code == ErrorCode.NONE

    old, new = await fetched(plane, 0), await fetched(plane, 6)

    assert old.topics[0][1][0].error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert new.topics[0][1][0].error_code == ErrorCode.NONE


async def test_small_records_of_a_bomb_do_not_become_large_in_an_old_format(plane: DataPlane) -> None:
    await plane.lead(max_message_bytes="10000000")
    builder = BatchBuilder(1 << 30, codec=Codec.GZIP)
    for _ in range(1_100_000):  # 8 MiB, and 34 bytes each in the old format
        builder.append(None, None, 1)
    assert (await answer_to(plane, builder.build())).error_code == ErrorCode.NONE

    assert (await fetched(plane, 2)).topics[0][1][0].error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_an_answer_holds_only_so_many_converted_records(
    plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "MAX_CONVERTED_BYTES", 1_000)
    for index in range(4):
        partition = await plane.lead(partition=index)
        builder = BatchBuilder()
        builder.append(None, bytes(600), 1)
        partition.append(builder.build(), required_acks=1, now_ms=1)

    found = (await fetched(plane, 2, partitions=4)).topics[0][1]

    assert [one.size > 0 for one in found] == [True, True, False, False]
    assert {one.error_code for one in found} == {ErrorCode.NONE}


async def test_two_batches_are_opened_at_a_time_and_other_producers_do_not_wait(
    plane: DataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plane.lead("packed", compression_type="gzip")
    await plane.lead("plain")
    opening, most, go_on = [0], [0], threading.Event()
    really: Callable[..., Any] = opened

    def held(*arguments: Any) -> Any:
        opening[0] += 1
        most[0] = max(most[0], opening[0])
        go_on.wait(BOUND_S)
        opening[0] -= 1
        return really(*arguments)

    monkeypatch.setattr(produce, "opened", held)
    bombs = [asyncio.ensure_future(answer_to(plane, bomb(Codec.ZSTD, 1), "packed")) for _ in range(6)]
    async with asyncio.timeout(BOUND_S):
        while opening[0] < threads.RECORD_THREADS:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    plane.session.ordering = Ordering()  # another connection
    small = BatchBuilder(codec=Codec.ZSTD)
    small.append(None, bytes(10_000), 1)
    assert (await answer_to(plane, small.build(), "plain")).error_code == ErrorCode.NONE
    await asyncio.to_thread(int)  # the threads of cold reads are free as well
    go_on.set()

    assert [one.error_code for one in await asyncio.gather(*bombs)] == [ErrorCode.NONE] * 6
    assert most[0] == threads.RECORD_THREADS


class HeldThreads(threads.RecordThreads):
    """Threads on which the work for one batch does not end before `go_on` is set."""

    def __init__(self, held: bytes) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self._held = held

    async def run(self, work: Any, *arguments: Any, **named: Any) -> Any:
        return await super().run(self._done, work, *arguments, **named)

    async def run_long(self, work: Any, *arguments: Any, **named: Any) -> Any:
        return await super().run_long(self._done, work, *arguments, **named)

    def _done(self, work: Any, *arguments: Any, **named: Any) -> Any:
        done = work(*arguments, **named)
        if bytes(arguments[0]) == self._held:
            self.go_on.wait(BOUND_S)
        return done


@pytest.mark.parametrize(
    "level",
    [{"compression_zstd_level": "22"}, {"compression_type": "gzip", "compression_gzip_level": "9"}],
    ids=str,
)
async def test_batches_that_compress_slowly_hold_up_no_others(
    plane: DataPlane, level: dict[str, Any]
) -> None:
    await plane.lead("packed", **{"compression_type": "zstd"} | level)
    slow = bomb(Codec.SNAPPY, 5)
    held = plane.services.record_threads = HeldThreads(slow)
    bombs = [asyncio.ensure_future(answer_to(plane, slow, "packed")) for _ in range(6)]
    for _ in range(10):
        await asyncio.sleep(0)

    plane.session.ordering = Ordering()  # another connection
    assert (await answer_to(plane, batch_of(bytes(10_000)), "packed")).error_code == ErrorCode.NONE
    assert not any(answer.done() for answer in bombs)

    held.go_on.set()
    assert [answer.error_code for answer in await asyncio.gather(*bombs)] == [ErrorCode.NONE] * 6
    held.close()


class CountedThreads(threads.RecordThreads):
    runs = 0

    async def run(self, work: Any, *arguments: Any, **named: Any) -> Any:
        self.runs += 1
        return await super().run(work, *arguments, **named)


async def found_by_time(plane: DataPlane, timestamp: int) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsTopic(
        name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    )
    answer = await list_offsets.handle(
        plane.services, ListOffsetsRequest(topics=[asked]), plane.context(ApiKey.LIST_OFFSETS, 2)
    )
    return answer.topics[0].partitions[0]


async def test_a_search_by_time_opens_a_bomb_while_the_loop_goes_on(plane: DataPlane) -> None:
    partition = await plane.lead()
    builder = BatchBuilder(1 << 30, codec=Codec.ZSTD)
    for timestamp in range(1, 21):
        builder.append(None, bytes(PIECE), timestamp)
    partition.append(builder.build(), required_acks=1, now_ms=1)

    counted = plane.services.record_threads = CountedThreads()
    found = await asyncio.wait_for(found_by_time(plane, 20), BOUND_S)
    counted.close()

    assert (found.timestamp, found.offset) == (20, 19)
    assert counted.runs == 1, "the batch was opened on the event loop"


async def test_a_search_by_time_rests_while_it_passes_old_batches(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.append(batch_of(b"of a clock that was ahead", timestamp_ms=2_000), now_ms=1)
    for _ in range(1_000):
        partition.append(batch_of(b"x", timestamp_ms=1_000), now_ms=1)
    partition.append(batch_of(b"y", timestamp_ms=4_000), now_ms=1)

    steps = list(islice(partition.log.search_timestamp(3_000), 4))
    found = await asyncio.wait_for(found_by_time(plane, 3_000), BOUND_S)

    assert steps[:3] == [None] * 3, "nobody else has a turn meanwhile"
    assert steps[3] is not None
    assert steps[3].base_offset == 1_001
    assert (found.timestamp, found.offset) == (4_000, 1_001)

"""Many fetches that wait: how many of them, and how they are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.delayed_fetches import READ_MS, DelayedFetches
from ottla.broker.api.fetch.response import FetchAnswer
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.runtime.loop_budget import WOKEN_FETCHES_MS, LoopBudget
from ottla.protocol.api import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

BOUND_S = 60
WOKEN_AT_ONCE = round(WOKEN_FETCHES_MS / READ_MS)
FOR_EVER_MS = 3_600_000


class Resumed:
    """A fetch that counts how often it is resumed."""

    def __init__(self, delayed: DelayedFetches, *, is_follower: bool = False) -> None:
        self.times = 0
        self.wait = delayed.begin(self.resume, is_follower=is_follower, at_most_ms=FOR_EVER_MS)

    def resume(self) -> None:
        self.times += 1


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


def begun(stack: ExitStack, delayed: DelayedFetches, *, is_follower: bool = False) -> Resumed:
    made = Resumed(delayed, is_follower=is_follower)
    stack.callback(made.wait.close)
    return made


async def test_waits_are_woken_a_few_in_each_turn_and_in_their_order(stack: ExitStack) -> None:
    delayed, count = DelayedFetches(10_000, LoopBudget()), 10 * WOKEN_AT_ONCE
    waits = [begun(stack, delayed) for _ in range(count)]
    for one in waits:
        one.wait.wake()
        one.wait.wake()
    woken: list[int] = []
    while not woken or woken[-1] < count:
        woken.append(sum(one.times for one in waits))
        await asyncio.sleep(0)

    assert [after - before for before, after in pairwise(woken)] == [WOKEN_AT_ONCE] * 9
    late = begun(stack, delayed)
    for _ in range(3):
        await asyncio.sleep(0)
    late.wait.wake()
    assert late.times == 1


async def test_one_wait_too_many_ends_the_oldest_of_a_client(stack: ExitStack) -> None:
    delayed = DelayedFetches(2, LoopBudget())
    follower = begun(stack, delayed, is_follower=True)
    first, second = begun(stack, delayed), begun(stack, delayed)
    assert not first.wait.is_over

    third = begun(stack, delayed)

    assert [one.wait.is_over for one in (follower, first, second, third)] == [False, True, False, False]
    assert first.times == 1
    assert len(delayed) == 2
    stack.close()
    assert len(delayed) == 0


@pytest.fixture
async def plane(tmp_path: Path) -> DataPlane:
    made = DataPlane(tmp_path)
    await made.lead()
    return made


def waiting(plane: DataPlane, **more: Any) -> asyncio.Task[FetchAnswer]:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=FOR_EVER_MS, min_bytes=1, topics=[FetchTopic(topic="t", partitions=[partition])], **more
    )
    answer = fetch.handle(plane.services, request, plane.context(ApiKey.FETCH, 12))
    assert isinstance(answer, Awaitable)

    async def result() -> FetchAnswer:
        return await answer

    return asyncio.create_task(result())


async def test_an_append_that_wakes_many_leaves_the_loop_to_others(plane: DataPlane) -> None:
    fetches, most_in_a_turn, done = [waiting(plane) for _ in range(1000)], 0, 0
    for _ in range(3):
        await asyncio.sleep(0)
    partition = next(iter(plane.replicas))
    assert len(partition.watchers) == 1000

    partition.append(batch_of(b"a"), required_acks=1, now_ms=0)
    assert not partition.watchers, "another append does not look at those that are being woken"
    async with asyncio.timeout(BOUND_S):
        while done < 1000:
            await asyncio.sleep(0)
            now_done = sum(one.done() for one in fetches)
            most_in_a_turn, done = max(most_in_a_turn, now_done - done), now_done

    assert most_in_a_turn <= WOKEN_AT_ONCE
    assert all(one.result().topics[0][1][0].size for one in fetches)


async def test_a_fetch_of_many_partitions_reads_again_only_what_has_changed(tmp_path: Path) -> None:
    plane, count = DataPlane(tmp_path), 300
    led = [await plane.lead(partition=number, replicas=(1, 2)) for number in range(count)]
    wanted = [FetchPartition(partition=number, partition_max_bytes=1000) for number in range(count)]
    request = FetchRequest(
        replica_id=2,
        max_wait_ms=FOR_EVER_MS,
        min_bytes=150,
        topics=[FetchTopic(topic="t", partitions=wanted)],
    )
    answer = fetch.handle(plane.services, request, plane.context(ApiKey.FETCH, 12))
    assert isinstance(answer, Awaitable)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(awaited(answer))
        while not all(one.watchers for one in led):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for one in led:
            one.core.followers[2].last_fetch_ms = 0

        led[7].append(batch_of(b"a"), required_acks=1, now_ms=0)
        while not led[7].watchers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        led[9].append(batch_of(b"b" * 100), required_acks=1, now_ms=0)

    read = [number for number, one in enumerate(led) if one.core.followers[2].last_fetch_ms]
    assert read == [7, 9]
    sizes = [one.size for one in waiting.result().topics[0][1]]
    assert len(sizes) == count
    assert [number for number, size in enumerate(sizes) if size] == [7, 9]
    assert not any(one.watchers for one in led)


async def awaited(answer: Awaitable[FetchAnswer]) -> FetchAnswer:
    return await answer


async def test_beyond_the_limit_the_oldest_gets_what_there_is(plane: DataPlane) -> None:
    plane.services.delayed_fetches.limit = 3

    fetches = [waiting(plane) for _ in range(5)]
    async with asyncio.timeout(BOUND_S):
        await asyncio.gather(*fetches[:2])
    for _ in range(3):
        await asyncio.sleep(0)

    assert [one.done() for one in fetches] == [True, True, False, False, False]
    for one in fetches[2:]:
        one.cancel()
    await asyncio.gather(*fetches[2:], return_exceptions=True)
    assert len(plane.services.delayed_fetches) == 0


async def test_a_fetch_reads_and_watches_a_partition_once_however_often_it_names_it(plane: DataPlane) -> None:
    partitions = [FetchPartition(partition=0, partition_max_bytes=1000)] * 5_000
    request = FetchRequest(
        max_wait_ms=FOR_EVER_MS, min_bytes=1, topics=[FetchTopic(topic="t", partitions=partitions)]
    )
    context = plane.context(ApiKey.FETCH, 12)

    async def result() -> FetchAnswer:
        answer = fetch.handle(plane.services, request, context)
        assert isinstance(answer, Awaitable)
        return await answer

    waits = asyncio.create_task(result())
    partition = next(iter(plane.replicas))
    turns = 0
    async with asyncio.timeout(BOUND_S):
        while not len(plane.services.delayed_fetches):
            turns += 1
            await asyncio.sleep(0)

    assert len(partition.watchers) == 1
    partition.append(batch_of(b"a"), required_acks=1, now_ms=0)
    async with asyncio.timeout(BOUND_S):
        answer = await waits
    [(_, answered)] = answer.topics
    assert [found.size > 0 for found in answered] == [True]

"""The conditions that end a delayed fetch and a delayed produce."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api.fetch.delayed_general import is_enough
from ottla.broker.api.fetch.response import FetchedPartition
from ottla.broker.api.fetch.sessions import FetchContext, RequestedPartition
from ottla.broker.api.produce.delayed import (
    ALL_ACKS,
    LEADER_ACKS,
    Placed,
    nothing_to_wait_for,
    when_safe,
)
from ottla.broker.runtime.loop_budget import LONG
from ottla.protocol.errors import ErrorCode, NotLeaderOrFollower
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from ottla.protocol.topics import TopicPartition

WANTED = [RequestedPartition(TopicPartition("t", 0), 0, 1 << 20, -1, -1, -1)]


@pytest.mark.parametrize(
    ("result", "enough"),
    [
        (FetchedPartition(0), False),
        (FetchedPartition(0, records=b"1234"), False),
        (FetchedPartition(0, records=b"12345"), True),
        (FetchedPartition(0, error_code=6), True),
        (FetchedPartition(0, diverging_epoch=(1, 2)), True),
    ],
)
def test_a_fetch_waits_until_there_are_min_bytes_or_an_error(result: FetchedPartition, enough: bool) -> None:
    request = FetchRequest(max_wait_ms=500, min_bytes=5)
    assert is_enough(request, FetchContext(WANTED), [result]) is enough


def test_a_fetch_without_a_wait_or_without_partitions_is_answered_at_once() -> None:
    nothing = [FetchedPartition(0)]
    assert is_enough(FetchRequest(max_wait_ms=0, min_bytes=5), FetchContext(WANTED), nothing)
    assert is_enough(FetchRequest(max_wait_ms=500, min_bytes=5), FetchContext([]), [])


@pytest.mark.parametrize("acks", [LEADER_ACKS, ALL_ACKS])
def test_a_produce_that_failed_waits_for_no_replica(acks: int) -> None:
    placed = Placed(PartitionProduceResponse(index=0))
    placed.failed(NotLeaderOrFollower())
    assert nothing_to_wait_for(acks, [placed])


class Led:
    """A partition that was appended to, as far as a delayed produce looks at it."""

    def __init__(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.core = SimpleNamespace(leader_epoch=1)
        self.log = SimpleNamespace(config=SimpleNamespace(flush_before_acknowledge=False))
        self.waited, self.committed = asyncio.Event(), asyncio.Event()

    async def replicated(self, offset: int) -> None:
        self.waited.set()
        if self.high_watermark < offset:
            await self.committed.wait()


def placed_in(partition: Any) -> Placed:
    placed = Placed(PartitionProduceResponse(index=0))
    appended: Any = SimpleNamespace(base_offset=0, last_offset=9, log_append_time_ms=-1, log_start_offset=0)
    placed.placed(partition, appended)
    return placed


async def waited_for(placed: list[Placed], timeout_ms: int) -> list[int]:
    clock: Any = SimpleNamespace(monotonic_ms=lambda: asyncio.get_running_loop().time() * 1000)
    request, context = ProduceRequest(acks=ALL_ACKS, timeout_ms=timeout_ms), SimpleNamespace(remote_ms=0.0)
    await when_safe(request, context, ProduceResponse(), placed, clock)  # type: ignore[arg-type]
    return [one.response.error_code for one in placed]


async def test_committed_partitions_do_not_time_out_with_one_that_is_not() -> None:
    placed = [placed_in(Led(0)), *(placed_in(Led(10)) for _ in range(2 * LONG))]

    assert await waited_for(placed, 1) == [ErrorCode.REQUEST_TIMED_OUT, *([ErrorCode.NONE] * 2 * LONG)]


async def test_batches_of_an_ended_leadership_are_not_acknowledged_by_a_later_high_watermark() -> None:
    slow, changed = [Led(0) for _ in range(LONG)], Led(0)
    waiting = asyncio.create_task(waited_for([placed_in(one) for one in (*slow, changed)], 60_000))
    await slow[0].waited.wait()
    # Behind these, the new leader's log was copied here: other records have the same offsets.
    changed.core.leader_epoch, changed.high_watermark = 2, 100
    for one in slow:
        one.committed.set()

    assert (await waiting)[-1] == ErrorCode.NOT_LEADER_OR_FOLLOWER

"""Waiting for buffer space: in order, within `max_block_ms`, one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from ottla.producer import BufferFull, ProducerClosed, ProducerMetrics
from ottla.producer.append.record_admission import BufferSpace


@dataclass
class Memory:
    """A buffer of two records of one byte."""

    size_bytes: int = 0
    buffer_memory: int = 2
    record_count: int = 0
    max_records: int = 9

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= self.buffer_memory


async def test_waiters_append_in_order_and_do_not_overfill_the_buffer() -> None:
    memory, metrics = Memory(size_bytes=2), ProducerMetrics()
    space = BufferSpace(memory, -1, metrics)
    appended: list[int] = []

    async def append(number: int) -> None:
        await space.wait()
        appended.append(number)
        memory.size_bytes += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(append(number))
        for freed in range(4):
            await asyncio.sleep(0.01)
            assert appended == list(range(freed))
            memory.size_bytes -= 1
            space.wake_next()

    assert appended == [0, 1, 2, 3]
    assert metrics.bufferpool_wait_time_total_ms > 0
    assert space.available_bytes == 0


async def test_one_wake_up_wakes_all_waiters_that_fit() -> None:
    memory = Memory(size_bytes=2)
    space = BufferSpace(memory, -1, ProducerMetrics())
    waiting = [asyncio.create_task(space.wait()) for _ in range(3)]
    await asyncio.sleep(0)

    memory.size_bytes = 0
    space.wake_next()

    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)


@pytest.mark.parametrize("max_block_ms", [0, 10])
async def test_a_full_buffer_raises_after_max_block_ms(max_block_ms: int) -> None:
    metrics = ProducerMetrics()
    space = BufferSpace(Memory(size_bytes=2), max_block_ms, metrics)

    with pytest.raises(BufferFull, match="2 bytes wait to be sent"):
        await space.wait()

    assert metrics.buffer_exhausted_total == 1


async def test_closing_fails_every_waiter() -> None:
    space = BufferSpace(Memory(size_bytes=2), -1, ProducerMetrics())
    waiting = [asyncio.create_task(space.wait()) for _ in range(2)]
    await asyncio.sleep(0)

    space.fail_all(ProducerClosed("closed"))

    for each in waiting:
        with pytest.raises(ProducerClosed):
            await each

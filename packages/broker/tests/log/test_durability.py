from __future__ import annotations

import asyncio
from pathlib import Path

from ottla.broker.log.files import DiskFiles
from ottla.broker.log.flushing import FlushPlan
from ottla.broker.log.memory_files import MemoryFiles
from ottla.broker.log.testing import append, log_in

AT = Path("/data")


async def test_appends_that_wait_together_share_one_sync() -> None:
    log = log_in(AT, MemoryFiles())
    began: list[int] = []
    begin = log.flushing.begin

    def counted() -> FlushPlan:
        began.append(log.log_end_offset)
        return begin()

    log.flushing.begin = counted  # type: ignore[method-assign]

    async def durably(number: int) -> None:
        end = append(log, b"%d" % number) + 1
        await log.durable(end)
        assert log.recovery_point >= end

    async with asyncio.timeout(20):
        await asyncio.gather(*(durably(number) for number in range(100)))

    assert began == [100]


async def test_waiting_for_durable_records_returns_at_once() -> None:
    log = log_in(AT, MemoryFiles())
    append(log, b"a")
    await log.durable()

    await log.durable()

    assert log.recovery_point == 1


async def test_a_cancelled_wait_does_not_disturb_the_others(tmp_path: Path) -> None:
    log = log_in(tmp_path, DiskFiles())
    append(log, b"a")
    waiting = asyncio.get_running_loop().create_task(log.durable())
    await asyncio.sleep(0)
    waiting.cancel()
    append(log, b"b")

    async with asyncio.timeout(20):
        await log.durable()

    assert log.recovery_point == 2


async def test_flush_messages_starts_a_sync_by_itself() -> None:
    log = log_in(AT, MemoryFiles(), flush_messages=3)
    ended, end = asyncio.Event(), log.flushing.end

    def told(plan: FlushPlan) -> None:
        end(plan)
        ended.set()

    log.flushing.end = told  # type: ignore[method-assign]
    append(log, b"a", b"b")
    assert not log.commit.busy
    append(log, b"c")

    async with asyncio.timeout(20):
        await ended.wait()
    assert log.recovery_point == 3


def test_a_flush_planned_before_a_truncation_does_not_raise_the_recovery_point() -> None:
    log = log_in(AT, MemoryFiles())
    append(log, b"a")
    append(log, b"b")
    plan = log.flushing.begin()

    log.truncate_to(1)
    append(log, b"c")
    plan.run()
    log.flushing.end(plan)

    assert log.recovery_point <= 1

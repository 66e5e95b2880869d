"""When a processor commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.processing.committing import Committer
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Plan
from ottla.streams.testing.virtual_loop import START_S, VirtualLoop

P0 = TopicPartition("orders", 0)


class InDoubt:
    """Commits whose first call is not answered, as that of a transaction; the next call ends it."""

    interval_ms = 10

    def __init__(self) -> None:
        self.is_pending = False
        self.calls: list[int] = []

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        self.calls.append(len(plans))
        if len(self.calls) < 3:
            self.is_pending = True
            raise TimeoutError("no answer")
        self.is_pending = False
        return plans


class Choosy:
    """Commits that keep plans back, as transactions do while the metadata of a plan is incomplete."""

    interval_ms = 10
    is_pending = False

    def __init__(self) -> None:
        self.keeps_back = True

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        return () if self.keeps_back else plans


class NotedStates:
    """States that note up to where they may forget."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    async def assigned(self, partition: TopicPartition, offset: int | None) -> None: ...

    def committed(self, partition: TopicPartition, offset: int) -> None:
        self.offsets.append(offset)

    def revoked(self, partition: TopicPartition) -> None: ...


def finished_scheduler() -> Scheduler:
    scheduler = Scheduler("key")
    scheduler.assign(P0, 0)
    scheduler.add(P0, [ConsumerRecord("orders", 0, 0, key=b"k", value=b"v")], 1)
    work = scheduler.take(0)
    assert work is not None
    scheduler.release(work)
    scheduler.finish(work)
    return scheduler


async def test_a_commit_in_doubt_is_ended_though_its_partition_is_revoked() -> None:
    scheduler, commits = finished_scheduler(), InDoubt()
    committer = Committer(scheduler, commits, None, None, timeout_ms=10_000, on_tick=lambda: None)

    assert not await committer.commit()
    scheduler.revoke(P0)
    scheduler.unassign(P0)
    assert not await committer.commit()
    assert await committer.commit()
    assert await committer.commit()

    assert commits.calls == [1, 0, 0]


async def test_a_plan_that_is_kept_back_stays_due_and_is_not_called_committed() -> None:
    scheduler, commits, states = finished_scheduler(), Choosy(), NotedStates()
    committer = Committer(scheduler, commits, None, states, timeout_ms=10_000, on_tick=lambda: None)

    assert not await committer.commit()
    assert ([each.offset for each in scheduler.due_commits()], states.offsets) == ([1], [])
    commits.keeps_back = False
    assert await committer.commit()

    assert (scheduler.due_commits(), states.offsets) == ([], [1])


class Refused:
    """Commits of which the second is refused for 3.5 s, as in a rebalance whose leader died."""

    interval_ms = 1_000
    is_pending = True

    def __init__(self) -> None:
        self.begun_s: list[float] = []

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        self.begun_s.append(asyncio.get_running_loop().time() - START_S)
        if len(self.begun_s) == 2:
            await asyncio.sleep(3.5)
        return plans


def test_a_commit_that_a_rebalance_held_up_is_followed_by_the_next_at_once() -> None:
    loop, commits = VirtualLoop(patience_s=10, max_turns=1_000), Refused()
    committer = Committer(Scheduler("key"), commits, None, None, timeout_ms=10_000, on_tick=lambda: None)

    running = loop.create_task(committer.run())
    loop.drive(START_S + 7.5)
    running.cancel()
    loop.drive(START_S + 8)
    loop.close()

    assert commits.begun_s == pytest.approx([1, 2, 5.6, 6.6])

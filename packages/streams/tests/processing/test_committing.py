"""When a processor commits."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.processing.committing import Committer
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Plan

P0 = TopicPartition("orders", 0)


class InDoubt:
    """Commits whose first call is not answered, as that of a transaction; the next call ends it."""

    interval_ms = 10

    def __init__(self) -> None:
        self.is_pending = False
        self.calls: list[int] = []

    async def commit(self, plans: Sequence[Plan]) -> None:
        self.calls.append(len(plans))
        if len(self.calls) < 3:
            self.is_pending = True
            raise TimeoutError("no answer")
        self.is_pending = False


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

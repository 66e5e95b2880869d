"""Workers on a scheduler, with outputs of the test."""

from __future__ import annotations

import asyncio

import pytest

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import OutputFailed
from ottla.streams.processing.workers import Workers
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Stop, Verdict, Work

P0 = TopicPartition("orders", 0)


class NotedOutputs:
    """Notes what becomes of the outputs of works."""

    def __init__(self, acknowledged: asyncio.Future[None] | None = None) -> None:
        self.acknowledged = acknowledged
        self.calls: list[str] = []
        self.ended = asyncio.Event()

    def settle(self, work: Work) -> asyncio.Future[None] | None:
        self.calls.append("settle")
        self.ended.set()
        return self.acknowledged

    def discard(self, work: Work) -> None:
        self.calls.append("discard")

    def revoked(self, partition: TopicPartition) -> None: ...


class Stopping:
    """A policy that stops."""

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        return Stop()

    async def set_aside(self, work: Work, error: BaseException) -> None: ...


async def outputs_of(*, is_given_up: bool) -> list[str]:
    """Handle a record whose partition is given up meanwhile, or is not."""
    scheduler, outputs, failures = Scheduler("key"), NotedOutputs(), list[BaseException]()

    async def handler(work: Work) -> None:
        if is_given_up:
            scheduler.revoke(P0)
            scheduler.unassign(P0)

    workers = Workers(
        scheduler, handler, Stopping(), outputs, None, max_concurrency=1, handler_timeout_ms=None,
        fail=failures.append, on_resume_due=lambda: None,
    )  # fmt: skip
    scheduler.assign(P0, 0)
    scheduler.add(P0, [ConsumerRecord("orders", 0, 0, key=b"k", value=b"v")], 1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        workers.start(tasks)
        workers.wake()
        await outputs.ended.wait()
        workers.stop()
    assert not failures
    return outputs.calls


async def test_outputs_of_work_whose_partition_was_given_up_are_forgotten_before_they_are_settled() -> None:
    assert await outputs_of(is_given_up=True) == ["discard", "settle"]


async def test_outputs_of_work_whose_partition_stays_are_settled() -> None:
    assert await outputs_of(is_given_up=False) == ["settle"]


@pytest.mark.parametrize("is_given_up", [True, False])
async def test_work_whose_outputs_failed_holds_up_no_drain(is_given_up: bool) -> None:
    """A processor that stops for it waited for `drain_timeout_ms`, and 5 s more."""
    failed = asyncio.get_running_loop().create_future()
    scheduler, outputs, failures = Scheduler("key"), NotedOutputs(failed), list[BaseException]()

    async def handler(work: Work) -> None: ...

    workers = Workers(
        scheduler, handler, Stopping(), outputs, None, max_concurrency=1, handler_timeout_ms=None,
        fail=failures.append, on_resume_due=lambda: None,
    )  # fmt: skip
    scheduler.assign(P0, 0)
    scheduler.add(P0, [ConsumerRecord("orders", 0, 0, key=b"k", value=b"v")], 1)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        workers.start(tasks)
        workers.wake()
        await outputs.ended.wait()
        scheduler.revoke(P0)
        drained = tasks.create_task(workers.progress())
        await asyncio.sleep(0)
        assert not scheduler.is_drained(P0)
        if is_given_up:
            scheduler.unassign(P0)
        failed.set_exception(ConnectionError("no broker"))
        await drained
        workers.stop()

    assert scheduler.is_drained(P0)
    assert [type(each) for each in failures] == ([] if is_given_up else [OutputFailed])
    assert not scheduler.due_commits() or scheduler.due_commits()[0].offset == 0

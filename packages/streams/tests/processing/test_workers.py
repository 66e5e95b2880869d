"""Workers on a scheduler, with outputs of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from ottla.consumer import ConsumerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import HandlerCancelled, OutputFailed
from ottla.streams.processing.workers import Workers
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Skip, Stop, Verdict, Work

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


# --- cancellations that are not the processor's


class Skipping:
    """A policy that skips what fails, and keeps the errors."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def decide(self, work: Work, error: BaseException, now_ms: int) -> Verdict:
        self.errors.append(error)
        return Skip()

    async def set_aside(self, work: Work, error: BaseException) -> None: ...


class OneWorker:
    """One worker, with a handler of the test; `handled` has the offsets whose handler was called."""

    def __init__(self, handler: Callable[[Work], Awaitable[None]]) -> None:
        self.scheduler = Scheduler("none")
        self.policy = Skipping()
        self.failures: list[BaseException] = []
        self.handled: list[int] = []
        self.task: asyncio.Task[object] | None = None
        self._handler = handler
        self.workers = Workers(
            self.scheduler, self._handle, self.policy, NotedOutputs(), None, max_concurrency=1,
            handler_timeout_ms=None, fail=self.failures.append, on_resume_due=lambda: None,
        )  # fmt: skip
        self.scheduler.assign(P0, 0)

    async def _handle(self, work: Work) -> None:
        self.handled.append(work.offset)
        self.task = asyncio.current_task()
        await self._handler(work)

    def add(self, offset: int) -> None:
        self.scheduler.add(P0, [ConsumerRecord("orders", 0, offset, key=b"k", value=b"v")], offset + 1)
        self.workers.wake()

    async def finished(self, offsets: int) -> None:
        """Return once all records below an offset are finished."""
        async with asyncio.timeout(30):
            while (plan := self.scheduler.commit_plan(P0)) is None or plan.offset < offsets:
                await self.workers.progress()

    async def run(self) -> None:
        """Handle two records, one after the other."""
        async with asyncio.TaskGroup() as tasks:
            self.workers.start(tasks)
            for offset in range(2):
                self.add(offset)
                await self.finished(offset + 1)
            self.workers.stop()


def cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def test_a_handler_that_is_cancelled_by_its_library_fails_and_its_worker_goes_on() -> None:
    async def handler(work: Work) -> None:
        if work.offset == 0:
            cancel_this_task()
        await asyncio.sleep(0)

    worker = OneWorker(handler)
    await worker.run()

    assert worker.handled == [0, 1]
    assert [type(error) for error in worker.policy.errors] == [HandlerCancelled]


async def test_a_handler_whose_library_cancels_its_task_and_never_uncancels_it_leaves_nothing_behind() -> (
    None
):
    """As async_timeout 4 does: the next handler would find its task cancelled."""
    found: list[int] = []

    async def handler(work: Work) -> None:
        task = asyncio.current_task()
        assert task is not None
        found.append(task.cancelling())
        cancel_this_task()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            raise TimeoutError from None

    worker = OneWorker(handler)
    await worker.run()

    assert found == [0, 0]
    assert [type(error) for error in worker.policy.errors] == [TimeoutError, TimeoutError]


async def test_a_cancellation_that_a_handler_did_not_await_reaches_nothing_else() -> None:
    async def handler(work: Work) -> None:
        if work.offset == 0:
            cancel_this_task()  # it would be thrown where the worker waits for work

    worker = OneWorker(handler)
    await worker.run()

    assert worker.handled == [0, 1]
    assert not worker.policy.errors


async def test_a_worker_that_was_left_cancelled_survives_that_its_partition_is_given_up() -> None:
    given_up = asyncio.Event()

    async def handler(work: Work) -> None:
        if work.offset == 1:
            return
        cancel_this_task()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        given_up.set()
        await asyncio.sleep(1_000)

    worker = OneWorker(handler)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        worker.workers.start(tasks)
        worker.add(0)
        await given_up.wait()
        worker.scheduler.unassign(P0)
        worker.workers.cancel([P0])
        worker.scheduler.assign(P0, 1)
        worker.add(1)
        await worker.finished(2)
        worker.workers.stop()

    assert worker.handled == [0, 1]
    assert not worker.policy.errors


async def test_a_worker_that_is_cancelled_while_it_waits_for_work_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(work: Work) -> None: ...

    worker = OneWorker(handler)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        worker.workers.start(tasks)
        worker.add(0)
        await worker.finished(1)
        await asyncio.sleep(0)  # it waits for work
        assert worker.task is not None
        worker.task.cancel()
        worker.add(1)
        await worker.finished(2)
        assert worker.workers.count == 1
        worker.workers.stop()

    assert worker.handled == [0, 1]
    assert "another one takes its place" in caplog.text


async def test_workers_end_when_everything_around_them_is_cancelled() -> None:
    running = asyncio.Event()

    async def handler(work: Work) -> None:
        running.set()
        await asyncio.sleep(1_000)

    worker = OneWorker(handler)

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            worker.workers.start(tasks)
            worker.add(0)
            await asyncio.sleep(1_000)

    around = asyncio.create_task(run())
    async with asyncio.timeout(30):
        await running.wait()
        around.cancel()
        with pytest.raises(asyncio.CancelledError):
            await around

    assert not worker.policy.errors

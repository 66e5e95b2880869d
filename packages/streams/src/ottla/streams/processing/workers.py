"""The workers of a processor: long-lived tasks that take work from the scheduler and call the handler.

A handler that does not wait costs no task and no turn of the event loop. All workers together run for 5 ms
without one, then each yields. There is no timer per record: one watcher cancels the workers whose handlers
take too long, and a worker tells its own cancellations from those of the outside by `Worker.cancelled_for`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import HandlerCancelled, HandlerFailed, HandlerTimedOut, OutputFailed
from ottla.streams.processing.lease import LOOK_EVERY_S, Lease
from ottla.streams.scheduling.assignment import WorkItem
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import (
    DeadLetter,
    FailurePolicy,
    Handler,
    Observer,
    Outputs,
    Retry,
    Skip,
    Stop,
    Verdict,
)

TURN_MS = 5
_TIMEOUT, _GIVEN_UP = "timeout", "given up"


class Worker:
    """One task, and the work that it carries out."""

    __slots__ = ("cancelled_for", "has_deadline", "task", "wake", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.work: WorkItem | None = None
        self.has_deadline = False
        self.cancelled_for: str | None = None
        self.wake: asyncio.Future[None] | None = None

    def cancel(self, reason: str) -> None:
        """Cancel the handler, for a reason that the worker knows."""
        if self.cancelled_for is None and self.task is not None:
            self.cancelled_for = reason
            self.task.cancel()


class Workers:
    """Up to `max_concurrency` workers, started when there is work for them."""

    def __init__(
        self,
        scheduler: Scheduler,
        handler: Handler,
        failures: FailurePolicy,
        outputs: Outputs,
        observer: Observer | None,
        *,
        max_concurrency: int,
        handler_timeout_ms: int | None,
        fail: Callable[[BaseException], None],
        on_resume_due: Callable[[], None],
        session_ends_s: Callable[[], float | None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._lease = Lease(session_ends_s)
        self._lease_timer: asyncio.TimerHandle | None = None
        self._handler = handler
        self._failures = failures
        self._outputs = outputs
        self._observer = observer
        self._max = max_concurrency
        self._timeout_ms = handler_timeout_ms
        self._fail = fail
        self._on_resume_due = on_resume_due
        self._tasks: asyncio.TaskGroup | None = None
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        self._turn_end_s = 0.0
        self._has_turn = False
        self._retry_timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._busy = 0
        self._waking = 0
        """The workers that were woken and have not run yet: as many as are busy, so that their number doubles
        with each turn of the loop, and stays at one or two for handlers that do not wait."""
        self._progress = asyncio.Event()
        self._awaiting_progress = 0

    # --- what the processor calls

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run workers in a task group from now on."""
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Cancel all workers, and start none any more."""
        self._is_stopped = True
        for timer in (self._retry_timer, self._lease_timer):
            if timer is not None:
                timer.cancel()
        for worker in self._workers:
            if worker.task is not None:
                worker.task.cancel()

    @property
    def count(self) -> int:
        """The number of workers that were started."""
        return len(self._workers)

    def now_ms(self) -> int:
        """Return the time of the loop's clock."""
        return int(self._loop.time() * 1_000)

    def wake(self) -> None:
        """Let a worker look for work: one that is idle, or else a new one."""
        if self._is_stopped or self._tasks is None:
            return
        while self._idle:
            waiting = self._idle.pop().wake
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
                self._waking += 1
                return
        if len(self._workers) < self._max:
            worker = Worker()
            self._workers.append(worker)
            self._waking += 1
            worker.task = self._tasks.create_task(self._run(worker), name="ottla-streams-worker")

    def cancel(self, partitions: Iterable[TopicPartition]) -> None:
        """Cancel the handlers of partitions; their work is dropped."""
        given_up = frozenset(partitions)
        for worker in self._workers:
            if worker.work is not None and worker.work.partition in given_up:
                worker.cancel(_GIVEN_UP)

    async def progress(self) -> None:
        """Return when a piece of work ended after this was called; a drain waits for it."""
        self._awaiting_progress += 1
        try:
            self._progress.clear()
            await self._progress.wait()
        finally:
            self._awaiting_progress -= 1

    async def watch(self) -> None:
        """Cancel handlers that take longer than the timeout, until cancelled."""
        assert self._timeout_ms is not None, "there is nothing to watch"
        while True:
            await asyncio.sleep(min(1_000, max(1, self._timeout_ms // 10)) / 1_000)
            latest_ms = self.now_ms() - self._timeout_ms
            for worker in self._workers:
                if worker.has_deadline and worker.work is not None and worker.work.started_ms <= latest_ms:
                    worker.cancel(_TIMEOUT)

    # --- one worker

    async def _run(self, worker: Worker) -> None:
        """Take work and carry it out; what runs once per record stands here, and calls little."""
        scheduler, handler, time = self._scheduler, self._handler, self._loop.time
        take, observer, has_timeout = scheduler.take, self._observer, self._timeout_ms is not None
        lease = self._lease
        self._waking -= 1
        try:
            while not self._is_stopped:
                now_s = time()
                if now_s >= lease.ends_s and not self._may_start(now_s):
                    await self._wait(worker)
                    continue
                work = take(int(now_s * 1_000))
                if work is None:
                    await self._wait(worker)
                    continue
                if self._waking <= self._busy and scheduler.has_ready:
                    self._wake_two()
                worker.work = work
                self._busy += 1
                if observer is not None:
                    observer.on_started(work)
                try:
                    if work.set_aside_for is not None:
                        await self._set_aside(worker, work, work.set_aside_for)
                    else:
                        worker.has_deadline = has_timeout
                        await handler(work)
                        self._succeeded(work)
                except BaseException as error:
                    worker.has_deadline = False
                    await self._failed(worker, work, self._cause(worker, work, error))
                finally:
                    self._end_call(worker, work)
                if self._is_turn_over(now_s):
                    await self._yield(worker)
        except Exception as error:  # of a policy or an observer: the processor cannot go on
            self._fail(error)

    def _end_call(self, worker: Worker, work: WorkItem) -> None:
        self._busy -= 1
        worker.work = None
        worker.has_deadline = False
        if work.is_active:  # the worker is cancelled, or a policy failed
            self._scheduler.drop(work)
        if worker.cancelled_for is not None:  # the handler went on in spite of it
            self._uncancel(worker)
        if self._awaiting_progress:
            self._progress.set()
        if self._scheduler.resume_due:
            self._on_resume_due()

    def _may_start(self, now_s: float) -> bool:
        """Return whether the group surely keeps this member; if not, workers are woken when it does."""
        if self._lease.renew(now_s):
            return True
        if self._lease_timer is None and not self._is_stopped:
            self._lease_timer = self._loop.call_later(LOOK_EVERY_S, self._look_at_lease)
        return False

    def _look_at_lease(self) -> None:
        self._lease_timer = None
        if self._may_start(self._loop.time()):
            self._wake_two()

    def _wake_two(self) -> None:
        self.wake()
        self.wake()

    async def _wait(self, worker: Worker) -> None:
        worker.wake = self._loop.create_future()
        self._idle.append(worker)
        await worker.wake
        self._waking -= 1

    async def _yield(self, worker: Worker) -> None:
        """Let others run. A worker that was woken goes on in the place of this one, if there is one.

        Otherwise all that were ever started would yield after each record, while handlers do not wait.
        """
        if self._waking:
            await self._wait(worker)
        else:
            await asyncio.sleep(0)

    def _is_turn_over(self, now_s: float) -> bool:
        if not self._has_turn:
            self._has_turn = True
            self._turn_end_s = now_s + TURN_MS / 1_000
            self._loop.call_soon(self._end_turn)
        return now_s >= self._turn_end_s

    def _end_turn(self) -> None:
        self._has_turn = False

    def _succeeded(self, work: WorkItem) -> None:
        if self._observer is not None:
            self._observer.on_finished(work, self.now_ms() - work.started_ms)
        if work.assignment.is_stale:  # its handler went on when it was cancelled: others handle the records
            self._outputs.discard(work)
        acknowledged = self._outputs.settle(work)
        self._scheduler.release(work)
        if acknowledged is None:
            self._scheduler.finish(work)
        else:
            acknowledged.add_done_callback(partial(self._settled, work))

    def _settled(self, work: WorkItem, acknowledged: asyncio.Future[None]) -> None:
        """The outputs of work are acknowledged, or failed; its lane went on before."""
        error = asyncio.CancelledError() if acknowledged.cancelled() else acknowledged.exception()
        if error is None:
            self._scheduler.finish(work)
        else:
            self._scheduler.forsake(work)
            if not work.assignment.is_stale:
                self._fail(OutputFailed(work.partition, work.offset, error))
        self._progress.set()

    # --- failures

    def _cause(self, worker: Worker, work: WorkItem, error: BaseException) -> BaseException | None:
        """Return the failure of a handler; None if its partition was given up.

        Raises CancelledError if the worker itself is cancelled.
        """
        if not isinstance(error, asyncio.CancelledError):
            return error
        reason = worker.cancelled_for
        if reason is not None and not self._uncancel(worker):
            if reason == _TIMEOUT:
                return HandlerTimedOut(work.partition, work.offset, self._timeout_ms or 0)
            return None
        if reason is not None or (worker.task is not None and worker.task.cancelling()):
            raise error
        return HandlerCancelled(work.partition, work.offset)

    def _uncancel(self, worker: Worker) -> int:
        worker.cancelled_for = None
        return 0 if worker.task is None else worker.task.uncancel()

    async def _failed(self, worker: Worker, work: WorkItem, error: BaseException | None) -> None:
        self._outputs.discard(work)
        if error is None or (work.assignment.is_stale and isinstance(error, Exception)):
            self._scheduler.drop(work)  # whoever has the partition now handles the record
            return
        verdict = self._verdict(work, error)
        if self._observer is not None:
            self._observer.on_failed(work, error, verdict)
        match verdict:
            case Retry():
                self._park(work, verdict.at_ms)
            case Skip():
                self._end(work)
            case DeadLetter():
                work.set_aside_for = work.set_aside_for or error
                await self._set_aside_once_more(worker, work)
            case Stop():
                self._scheduler.drop(work)
                self._fail(self._stopping(work, error))

    def _verdict(self, work: WorkItem, error: BaseException) -> Verdict:
        if not isinstance(error, Exception):  # SystemExit, KeyboardInterrupt, GeneratorExit
            return Stop()
        return self._failures.decide(work, error, self.now_ms())

    def _stopping(self, work: WorkItem, error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            return error
        failure = HandlerFailed(work.partition, work.offset, error, work.attempt)
        failure.__cause__ = error
        return failure

    async def _set_aside_once_more(self, worker: Worker, work: WorkItem) -> None:
        assert work.set_aside_for is not None
        try:
            await self._set_aside(worker, work, work.set_aside_for)
        except BaseException as error:
            cause = self._cause(worker, work, error)
            verdict = self._verdict(work, cause) if cause is not None else None
            if self._observer is not None and cause is not None and verdict is not None:
                self._observer.on_failed(work, cause, verdict)
            if cause is None:
                self._scheduler.drop(work)
            elif isinstance(verdict, Retry):
                self._park(work, verdict.at_ms)
            else:
                self._scheduler.drop(work)
                self._fail(self._stopping(work, cause))

    async def _set_aside(self, worker: Worker, work: WorkItem, error: BaseException) -> None:
        await self._failures.set_aside(work, error)
        if self._observer is not None:
            self._observer.on_set_aside(work)
        self._end(work)

    def _end(self, work: WorkItem) -> None:
        self._scheduler.release(work)
        self._scheduler.finish(work)

    def _park(self, work: WorkItem, at_ms: int) -> None:
        if self._scheduler.retry(work, at_ms):
            self._arm_retry_timer()

    def _arm_retry_timer(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        at_ms = self._scheduler.next_retry_ms()
        if at_ms is not None:
            self._retry_timer = self._loop.call_at((at_ms + 1) / 1_000, self._retry_is_due)

    def _retry_is_due(self) -> None:
        self._retry_timer = None
        self._scheduler.unpark(self.now_ms())  # all workers may be busy: the next free one takes it
        self.wake()
        self._arm_retry_timer()

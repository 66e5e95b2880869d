"""The workers of a processor: long-lived tasks that take work from the scheduler and call the handler.

A handler that does not wait costs no task and no turn of the event loop. All workers together run for 5 ms
without one, then each yields. There is no timer per record: one watcher cancels the workers whose handlers
take too long.

A cancellation that reaches a worker is one of three. The processor's own: `Worker.cancelled_for` has the
reason. One of everything around the workers: it reaches the task `_around` too, so the worker ends. Any other
one is of a library that the handler uses, which is that handler's failure, and is cleared after the call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import (
    HandlerCancelled,
    HandlerFailed,
    HandlerTimedOut,
    OutputFailed,
    OutputTooLarge,
)
from ottla.streams.processing.worker import LOOK_EVERY_S, Lease, Worker
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

log = logging.getLogger(__name__)

TURN_MS = 5
_TIMEOUT, _GIVEN_UP = "timeout", "given up"


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
        self._around: asyncio.Task[bool] | None = None
        self._workers: dict[Worker, None] = {}
        self._idle: list[Worker] = []
        self._setting_aside: set[asyncio.Task[None]] = set()
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
        self._around = tasks.create_task(asyncio.Event().wait(), name="ottla-streams-workers")

    def stop(self) -> None:
        """Cancel all workers, and start none any more."""
        self._is_stopped = True
        for timer in (self._retry_timer, self._lease_timer):
            if timer is not None:
                timer.cancel()
        for task in (self._around, *self._setting_aside, *(worker.task for worker in self._workers)):
            if task is not None:
                task.cancel()

    @property
    def _is_ending(self) -> bool:
        """Whether a cancellation may be one of everything around the workers."""
        return self._is_stopped or (
            self._around is not None and (self._around.done() or self._around.cancelling() > 0)
        )

    @property
    def count(self) -> int:
        """The number of workers that live."""
        return len(self._workers)

    def running(self) -> set[tuple[TopicPartition, int]]:
        """Return the first offsets of all work that runs."""
        works = [worker.work for worker in self._workers]
        return {(work.partition, work.offset) for work in works if work is not None}

    def now_ms(self) -> int:
        """Return the time of the loop's clock."""
        return int(self._loop.time() * 1_000)

    def wake(self) -> None:
        """Wake an idle worker to take work, or start a new one."""
        if self._is_stopped or self._tasks is None:
            return
        while self._idle:
            worker = self._idle.pop()
            if worker.wake is not None and not worker.wake.done():
                worker.wake.set_result(None)
                worker.is_woken = True
                self._waking += 1
                return
        if len(self._workers) < self._max:
            worker = Worker()
            self._workers[worker] = None
            self._waking += 1
            worker.task = self._tasks.create_task(self._run(worker), name="ottla-streams-worker")
            worker.task.add_done_callback(partial(self._ended, worker))

    def _ended(self, worker: Worker, task: asyncio.Task[None]) -> None:
        """A worker's task is done: unless all end, it was cancelled while it had no work, and is replaced."""
        del self._workers[worker]
        if worker.is_woken:  # others would wait for it to take their place
            self._waking -= 1
        if task.cancelled() and not self._is_ending:
            log.warning(
                "a worker was cancelled after its handler had returned, by a library of the handler; "
                "another one takes its place"
            )
            self._wake_two()

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
        assert worker.task is not None
        cancelling = worker.task.cancelling
        worker.is_woken = False
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
                # One worker is enough for handlers that do not wait: others are woken only once those that
                # were woken before are busy, so that no more tasks take turns than there is waiting to do.
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
                    # SystemExit too: the record of a handler that ends the program is not finished. The
                    # deadline is over before the policy is asked, which may wait for dead letters.
                    worker.has_deadline = False
                    await self._failed(worker, work, self._cause(worker, work, error))
                finally:
                    self._end_call(worker, work)
                if cancelling():  # a count, not a state: a leak of this call would count against the next one
                    await self._clear_cancellation(worker)
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
        if self._awaiting_progress:
            self._progress.set()
        if self._scheduler.resume_due:
            self._on_resume_due()

    async def _clear_cancellation(self, worker: Worker) -> None:
        """Clear what a handler left of a cancellation that it caught, or that it never awaited."""
        if self._is_ending:
            return
        worker.clear_cancellation()
        # `uncancel` forgets no CancelledError that is still to be thrown: it is thrown here, not at what
        # waits for the next record.
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._is_ending:
                raise
            worker.clear_cancellation()

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
        worker.is_woken = False
        self._waking -= 1

    async def _yield(self, worker: Worker) -> None:
        """Yield to other tasks. A worker that was woken takes the place of this one, if there is one.

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
        elif work.assignment.is_stale:
            self._scheduler.forsake(work)
        else:
            self._refused(work, OutputFailed(work.partition, work.offset, error), error)
        self._progress.set()

    def _refused(self, work: WorkItem, failure: OutputFailed, error: BaseException) -> None:
        """Treat handled work whose output will never be acknowledged, or not in time."""
        verdict = self._verdict(work, failure) if isinstance(error, OutputTooLarge) else Stop()
        if self._observer is not None and isinstance(verdict, Skip | DeadLetter):
            self._observer.on_failed(work, failure, verdict)
        if isinstance(verdict, Skip):
            self._scheduler.finish(work)
        elif isinstance(verdict, DeadLetter) and self._tasks is not None and not self._is_stopped:
            # Its lane went on, so no worker may take it again: a task of its own sends the dead letters.
            task = self._tasks.create_task(
                self._set_aside_handled(work, failure), name="ottla-streams-refused"
            )
            self._setting_aside.add(task)
            task.add_done_callback(self._setting_aside.discard)
        else:
            self._scheduler.forsake(work)
            self._fail(failure)

    async def _set_aside_handled(self, work: WorkItem, error: BaseException) -> None:
        """Set released work aside, again and again while that is delayed, and finish it."""
        is_finished = False
        try:
            while not work.assignment.is_stale:
                try:
                    await self._failures.set_aside(work, error)
                except Exception as failure:
                    verdict = self._verdict(work, failure)
                    if not isinstance(verdict, Retry):
                        self._fail(self._stopping(work, failure))
                        return
                    await asyncio.sleep(max(0, verdict.at_ms - self.now_ms()) / 1_000)
                    continue
                if self._observer is not None:
                    self._observer.on_set_aside(work)
                self._scheduler.finish(work)
                is_finished = True
                return
        finally:
            if not is_finished:
                self._scheduler.forsake(work)
            self._progress.set()

    # --- failures

    def _cause(self, worker: Worker, work: WorkItem, error: BaseException) -> BaseException | None:
        """Return the failure of a handler; None if its partition was given up.

        Raises CancelledError if everything around the workers is cancelled.
        """
        if not isinstance(error, asyncio.CancelledError):
            return error
        if self._is_ending:
            raise error
        reason = worker.clear_cancellation()
        if reason == _TIMEOUT:
            return HandlerTimedOut(work.partition, work.offset, self._timeout_ms or 0)
        return HandlerCancelled(work.partition, work.offset) if reason is None else None

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

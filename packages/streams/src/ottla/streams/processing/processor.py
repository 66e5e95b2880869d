"""The processor: it reads topics, and handles many records at once, each key in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ottla.client.settings import SettingError, config_from
from ottla.consumer import Consumer
from ottla.streams.config import StreamsConfig
from ottla.streams.environment import environment
from ottla.streams.operating.health import LOOK_EVERY_S, Standstills
from ottla.streams.processing.assembly import Assembly, Program, warn_of_missing_topics
from ottla.streams.processing.committing import Committer
from ottla.streams.processing.rebalancing import Rebalancing
from ottla.streams.processing.workers import Workers
from ottla.streams.scheduling.intake import STEP_RECORDS, IntakeLimits
from ottla.streams.scheduling.scheduler import Scheduler
from ottla.streams.seams import Commits, FailurePolicy, Handler, Observer, Outputs, PartitionStates

if TYPE_CHECKING:
    from ottla.streams.dedupe.guard import Dedupe

log = logging.getLogger(__name__)

INTAKE_PAUSE_S = 0.005
"""The least time between two looks at the budgets."""
LEAVE_AT_ONCE_S = 1.0
"""How long leaving the group may take once the drain was cancelled."""


class Processor:
    """Handles the records of topics: many at once, those of one key in order.

        async with Processor(handle, "orders", group_id="billing", max_concurrency=500) as processor:
            await processor.wait()

    The handler is any function (`ottla.streams.handlers`), or takes a `Work` (`seams.Handler`); `wrap` puts
    another around it. Failures follow the settings, unless a policy is given.

    A record is finished when its handler succeeded and what it sent is acknowledged; offsets are committed up
    to the first unfinished record, with the finished ones after it in the commit's metadata. At the end of
    the block running handlers may take `drain_timeout_ms`, and what is finished is committed; a cancellation
    meanwhile ends the block at once. A failure
    cancels the block, which then raises it: HandlerFailed, OutputFailed, or what the consumer fails with.
    `dedupe` is opened and closed by the processor: records that were handled are not handled again. With
    `processing_guarantee="exactly-once"` offsets, outputs and dead letters are in one transaction.
    """

    def __init__(
        self,
        handler: Handler | Callable[..., Any] | Program,
        *topics: str,
        config: StreamsConfig | None = None,
        wrap: Callable[[Handler], Handler] | None = None,
        failures: FailurePolicy | None = None,
        outputs: Outputs | None = None,
        commits: Callable[[Consumer], Commits] | None = None,
        observer: Observer | None = None,
        states: PartitionStates | None = None,
        dedupe: Dedupe | None = None,
        **settings: Any,
    ) -> None:
        config = _config(config, settings)
        if not topics:
            raise SettingError(
                'give a processor at least one topic: Processor(handle, "orders", group_id="g")'
            )
        _check_dead_letters(config, topics)
        self.parts = parts = Assembly(
            config, handler, failures=failures, outputs=outputs, commits=commits, wrap=wrap, dedupe=dedupe
        )
        """The parts that the settings have chosen; observers read counts of them."""
        self.config = config = parts.config
        states = parts.states or states
        self.consumer = environment().consumer(config.reading())
        """The consumer; its metrics are read by observers. Ask it for no records."""
        self.scheduler = _scheduler(config)
        """Counts of it are read by observers."""
        self._topics, self._observer = topics, observer
        self.outputs = parts.outputs
        """The outputs of handlers; `send(work, record)` is for handlers of `Work`."""
        self._workers = self._make_workers(parts)
        self.standstills = Standstills()
        """The partitions that stand still; health is judged by them."""
        self._committer = self._make_committer(parts, states)
        self._rebalancing = Rebalancing(
            self.scheduler, self.consumer, self._workers, self._committer, parts.settling, observer, states,
            drain_timeout_ms=config.drain_timeout_ms, fail=self._fail,
        )  # fmt: skip
        self._tasks: asyncio.TaskGroup | None = None
        self._running: list[asyncio.Task[None]] = []
        self._budgets_due = asyncio.Event()
        self._stopping = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stop_task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._body: asyncio.Task[Any] | None = None
        self._has_cancelled_body = False

    def _make_workers(self, parts: Assembly) -> Workers:
        return Workers(
            self.scheduler,
            parts.handler,
            parts.failures,
            parts.settling,
            self._observer,
            max_concurrency=parts.max_concurrency,
            handler_timeout_ms=self.config.handler_timeout_ms,
            fail=self._fail,
            on_resume_due=self._look_at_budgets,
            session_ends_s=lambda: self.consumer.session_ends_s,
        )

    def _make_committer(self, parts: Assembly, states: PartitionStates | None) -> Committer:
        return Committer(
            self.scheduler,
            parts.commits(self.consumer),
            self._observer,
            states,
            timeout_ms=self.config.commit_timeout_ms,
            on_tick=self._look_at_budgets,
            before_commit=self._follow_positions,
        )

    # --- the life of a processor

    async def __aenter__(self) -> Self:
        await self.parts.__aenter__()
        self._tasks = tasks = asyncio.TaskGroup()
        await tasks.__aenter__()
        self._workers.start(tasks)
        try:
            self.consumer.subscribe(self._topics, listener=self._rebalancing)
            await self.consumer.start()
        except BaseException:
            await self._leave()
            raise
        for run in (
            self._take_in, self._apply_budgets, self._committer.run, self._warn_of_missing_topics,
            self._watch_standstills,
        ):  # fmt: skip
            self._start(run)
        if self.config.handler_timeout_ms is not None:
            self._start(self._workers.watch)
        self._body = asyncio.current_task()
        self._stop_task = tasks.create_task(self._stop_when_asked(), name="ottla-streams-stop")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        if self._has_cancelled_body and body is not None:
            body.uncancel()
        self._stopping.set()
        try:
            await self._stopped.wait()
        except asyncio.CancelledError:
            await self._end_at_once()
            raise
        if self._stop_task is not None and self._stop_task.cancelling():
            await self._end_at_once()
            return
        await self._leave()
        if self._failure is not None and (error is None or self._has_cancelled_body):
            raise self._failure

    async def run(self) -> None:
        """Enter the block, wait until `stop` is called or something fails, and leave it."""
        async with self:
            await self.wait()

    async def wait(self) -> None:
        """Wait until the processor stopped: by `stop`, or by a failure, which leaving the block raises."""
        await self._stopped.wait()

    def stop(self) -> None:
        """Ask the processor to drain and to stop; return at once."""
        self._stopping.set()

    async def _stop_when_asked(self) -> None:
        try:
            await self._stopping.wait()
            await self._rebalancing.stop()
        except asyncio.CancelledError:
            # All tasks of a loop are cancelled at once when it ends: the block must not wait for this one.
            self._stopped.set()
            raise
        except Exception as error:
            self._failure = self._failure or error
        if self._failure is not None and self._body is not None:
            # Not by the task group: it would cancel the workers before they are drained.
            self._has_cancelled_body = True
            self._body.cancel()
        self._stopped.set()

    async def _end_at_once(self) -> None:
        """Give up all partitions without a commit: the drain was cancelled, so there is no time to wait."""
        if self._stop_task is not None:
            self._stop_task.cancel()
        try:
            await self._rebalancing.abandon()
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_AT_ONCE_S):
                    await self.consumer.stop()
        finally:  # the consumer's task is cancelled, too, when its loop ends
            await self._leave()

    async def _leave(self) -> None:
        assert self._tasks is not None
        try:
            await self.consumer.stop()
        finally:
            for task in self._running:
                task.cancel()
            self._workers.stop()
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                await self.parts.__aexit__(None, None, None)

    async def _warn_of_missing_topics(self) -> None:
        await warn_of_missing_topics(self.consumer, self._topics, self.config.consumer.client)

    async def _watch_standstills(self) -> None:
        """Look for partitions that stand still, until cancelled."""
        while True:
            now_ms = self._workers.now_ms()
            positions = self.scheduler.unfinished_positions()
            # A retry that is due may wait for a free worker until the next look.
            cared_for = self._workers.running() | self.scheduler.retried_from(now_ms - LOOK_EVERY_S * 1_000)
            for standstill in self.standstills.look(now_ms, positions, cared_for):
                log.error(
                    "a partition stands still: its record neither runs nor waits for a retry",
                    extra=standstill.partition._asdict()
                    | {"offset": standstill.offset, "unfinished": standstill.unfinished},
                )
            await asyncio.sleep(LOOK_EVERY_S)

    def _start(self, run: Callable[[], Awaitable[None]]) -> None:
        assert self._tasks is not None
        self._running.append(self._tasks.create_task(self._until_failure(run), name=run.__name__))

    async def _until_failure(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop because of a failure; the first one is raised."""
        self._failure = self._failure or error
        self._stopping.set()

    # --- intake

    async def _take_in(self) -> None:
        """Read on and on, however slow the handlers are: heartbeats and polls go on."""
        async for batch in self.consumer.batches(max_records=STEP_RECORDS):
            if self.scheduler.add(batch.topic_partition, batch.records, batch.next_offset):
                self._workers.wake()
            self._apply_intake()

    async def _follow_positions(self) -> None:
        """Count offsets as finished that the consumer passed without a record: markers of transactions.

        Not once something failed: records may have been delivered that were not queued.
        """
        assigned = self.consumer.assignment()
        for partition in self.scheduler.idle_partitions():
            if self._stopping.is_set() or partition not in assigned:
                continue
            if self.consumer.lag(partition) is not None:  # the position is known: this does not wait
                self.scheduler.add(partition, (), await self.consumer.position(partition))

    async def _apply_budgets(self) -> None:
        while True:
            await self._budgets_due.wait()
            self._budgets_due.clear()
            self._apply_intake()
            await asyncio.sleep(INTAKE_PAUSE_S)

    def _look_at_budgets(self) -> None:
        self._budgets_due.set()

    def _apply_intake(self) -> None:
        pause, resume = self.scheduler.intake()
        if not (pause or resume):
            return
        assigned = self.consumer.assignment()
        for partition in pause + resume:
            is_paused = partition in pause
            if partition in assigned:
                (self.consumer.pause if is_paused else self.consumer.resume)(partition)
            if self._observer is not None:
                self._observer.on_paused(partition, paused=is_paused)


def _scheduler(config: StreamsConfig) -> Scheduler:
    limits = {name: getattr(config, name) for name in IntakeLimits.__dataclass_fields__}
    return Scheduler(
        config.order,
        batch_size=config.batch_size,
        batch_of_any=config.batch_of == "any",
        limits=IntakeLimits(**limits),
    )


def _check_dead_letters(config: StreamsConfig, topics: tuple[str, ...]) -> None:
    """Refuse a dead-letter topic that is read: a record that always fails would come back for ever."""
    if config.dead_letter_topic in topics:
        raise SettingError(
            f"dead_letter_topic {config.dead_letter_topic!r} is read by this handler, so that failed records "
            "would come back for ever: name another topic"
        )


def _config(config: StreamsConfig | None, settings: dict[str, Any]) -> StreamsConfig:
    config = StreamsConfig.of(**settings) if config is None else config_from(StreamsConfig, config, settings)
    _ = config.group_id  # raises without one
    return config

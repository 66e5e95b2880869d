"""The queue processor: it handles the records of a share group, many at once and in no order (KIP-932)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

from ottla.client.environment import chance, now_ms
from ottla.client.settings import SettingError
from ottla.consumer import (
    AcknowledgementFailed,
    ConsumerStopped,
    ShareConsumer,
    ShareConsumerConfig,
    ShareRecord,
)
from ottla.producer import Producer, ProducerConfig, ProducerRecord
from ottla.streams.errors import HandlerFailed
from ottla.streams.failures.dead_letters import DeadLetters, Send
from ottla.streams.failures.retry_policy import Action, RetryPolicy
from ottla.streams.seams import DeadLetter, FinalFailure, Retry, Skip, Stop

Job: TypeAlias = ShareRecord[Any, Any]
QueueHandler: TypeAlias = Callable[[Job], Awaitable[object] | object]

LOOK_EVERY_MS = 200
RENEWALS_PER_LOCK = 3
"""How often a lock is extended in its own time, so that two lost renewals do no harm."""

log = logging.getLogger(__name__)


class QueueProcessor:
    """Handles the records of a share group: many at once, each by itself.

        async with QueueProcessor(handle, "jobs", group_id="workers", max_concurrency=50) as processor:
            await processor.wait()

    Use it where order does not matter; `Processor` keeps the order of each key. The handler takes a
    `ShareRecord`; a plain function runs on a thread. A record is accepted once the handler has returned, and
    its lock is extended as long as the handler takes. After an exception a member of the group gets it again,
    up to `deliveries` times. Then, or if `on_error` says so for its type, it goes to `dead_letter_topic`, is
    skipped, or stops the processor, as in `StreamsConfig`. Without that topic the last failure stops it.
    """

    def __init__(
        self,
        handler: QueueHandler,
        *topics: str,
        max_concurrency: int = 100,
        deliveries: int = 5,
        on_error: Mapping[type[BaseException], Action] | None = None,
        dead_letter_topic: str | None = None,
        drain_timeout_ms: int = 30_000,
        config: ShareConsumerConfig | None = None,
        **settings: Any,
    ) -> None:
        if not topics:
            raise SettingError(
                'give a processor at least one topic: QueueProcessor(handle, "jobs", group_id="g")'
            )
        if max_concurrency < 1 or deliveries < 1:
            raise SettingError("max_concurrency and deliveries must be at least 1")
        bounds = {"acknowledgement_mode": "explicit", "max_in_flight_records": 2 * max_concurrency + 1_000}
        self.config = config or ShareConsumerConfig.of(
            **bounds | {"max_poll_records": min(max_concurrency, 500)} | settings
        )
        if self.config.acknowledgement_mode != "explicit":
            raise SettingError(
                'a QueueProcessor acknowledges itself: leave acknowledgement_mode at "explicit"'
            )
        self.consumer: ShareConsumer[Any, Any] = ShareConsumer(*topics, config=self.config)
        """The consumer; its metrics are read by observers. Ask it for no records."""
        self.handled = 0
        """How many records were accepted."""
        self.failed = 0
        """How many attempts failed."""
        self._handler = handler
        self._policy = RetryPolicy(
            retries=deliveries - 1,
            on_error=dict(on_error or {}),
            has_dead_letters=dead_letter_topic is not None,
        )
        self._dead_letter_topic = dead_letter_topic
        self._letters: DeadLetters | None = None
        self._drain_timeout_s = drain_timeout_ms / 1_000
        self._slots = asyncio.Semaphore(max_concurrency)
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._ended = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    # --- the life of a processor

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._dead_letter_topic is not None:
                producer = await stack.enter_async_context(
                    Producer(config=ProducerConfig(client=self.config.client))
                )
                send = _sending(producer)
                self._letters = DeadLetters(self._dead_letter_topic, self.config.group, send)
            await stack.enter_async_context(self.consumer)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            self._reading = group.create_task(self._read(group))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take no more records, wait for running handlers within a bound, and release the rest."""
        self._stop_reading()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=self._drain_timeout_s)
        finally:
            for task in self._tasks:
                task.cancel()
            await self._stack.aclose()
        if self._failure is not None and error is None:
            raise self._failure

    async def wait(self) -> None:
        """Wait until the processor ends. Raises what stopped it: HandlerFailed, or the consumer's error."""
        await self._ended.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """End `wait`; the end of the block does the rest."""
        self._stop_reading()
        self._ended.set()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()

    # --- records

    async def _read(self, group: asyncio.TaskGroup) -> None:
        """Give each record to a task of its own as soon as there is a slot for it."""
        try:
            while True:
                await self._slots.acquire()  # before a record is taken: its lock begins then
                try:
                    found = await self.consumer.getmany(timeout_ms=LOOK_EVERY_MS, max_records=1)
                except BaseException:
                    self._slots.release()
                    raise
                if not found:
                    self._slots.release()
                    continue
                ((job,),) = found.values()
                task = group.create_task(self._work(job))
                self._tasks.add(task)
                task.add_done_callback(self._done)
        except ConsumerStopped:
            self._ended.set()
        except Exception as error:
            self._fail(error)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _work(self, job: Job) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                renewing = tasks.create_task(self._renew(job))
                try:
                    await self._attempt(job)
                finally:
                    renewing.cancel()
        except asyncio.CancelledError:
            self._release(job)
            raise

    async def _attempt(self, job: Job) -> None:
        try:
            await self._handle(job)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failed += 1
            await self._settle(job, error)
        else:
            self.handled += 1
            if job.choice is None:  # the handler may have acknowledged it
                job.accept()

    async def _handle(self, job: Job) -> None:
        if inspect.iscoroutinefunction(self._handler):
            await self._handler(job)
            return
        result = await asyncio.to_thread(self._handler, job)
        if inspect.isawaitable(result):
            await result

    async def _renew(self, job: Job) -> None:
        """Extend the lock of a record until cancelled; a lock that is lost is not mended."""
        while job.choice is None and (lock_ms := self.consumer.lock_timeout_ms):
            await asyncio.sleep(lock_ms / 1_000 / RENEWALS_PER_LOCK)
            if job.choice is None:
                with suppress(AcknowledgementFailed):
                    await job.renew()

    # --- failures

    async def _settle(self, job: Job, error: BaseException) -> None:
        facts = {"record": repr(job), "reason": f"{type(error).__name__}: {error}"}
        log.info("a job failed", extra=facts)
        if job.choice is not None:
            return
        match self._policy.decide(error, job.delivery_count, now_ms(), chance()):
            case Retry():
                self._release(job)
            case Skip():
                job.reject()
            case DeadLetter() if self._letters is not None:
                await self._set_aside(job, error)
            case Stop() | DeadLetter():
                self._release(job)
                failed = HandlerFailed(job.topic_partition, job.offset, error, job.delivery_count)
                failed.__cause__ = error
                self._fail(failed)

    async def _set_aside(self, job: Job, error: BaseException) -> None:
        """Send a dead letter, and reject the record once it is acknowledged; else it is delivered again."""
        assert self._letters is not None
        try:
            await self._letters.send([job.record], FinalFailure(error, job.delivery_count))
        except Exception as refused:
            self._release(job)
            self._fail(refused)
        else:
            job.reject()

    def _release(self, job: Job) -> None:
        if job.choice is None:
            job.release()


def _sending(producer: Producer) -> Send:
    async def send(record: ProducerRecord) -> None:
        await producer.send_and_wait(record.topic, record.value, record.key, headers=record.headers)

    return send

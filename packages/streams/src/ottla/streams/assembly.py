"""One handler with everything it needs: producer, outputs, failures, processor and observer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ottla.client.environment import unique_suffix
from ottla.client.metrics import Metrics
from ottla.consumer import Consumer, NotAssigned
from ottla.producer import Producer, ProducerRecord
from ottla.protocol.topics import TopicPartition
from ottla.streams.config import Ordering, StreamsConfig
from ottla.streams.dedupe.guard import Dedupe
from ottla.streams.dedupe.wrapping import Guard
from ottla.streams.environment import environment
from ottla.streams.exactly_once.buffered_outputs import BufferedOutputs
from ottla.streams.exactly_once.settings import check, transactional
from ottla.streams.exactly_once.transactional_commits import TransactionalCommits
from ottla.streams.exactly_once.transactional_failures import TransactionalDeadLetters, TransactionalFailures
from ottla.streams.exactly_once.transactional_outputs import TransactionalOutputs
from ottla.streams.failures.failure_handling import FailureHandling
from ottla.streams.handlers.arguments import Function
from ottla.streams.handlers.direct_outputs import DirectOutputs
from ottla.streams.handlers.function_handler import FunctionHandler
from ottla.streams.language.runtime import TopologyRuntime
from ottla.streams.language.topology import Plan
from ottla.streams.operating.health import Health, HealthLimits, judge
from ottla.streams.operating.observer import ProcessorObserver
from ottla.streams.processing.parts import make_failures, make_function
from ottla.streams.processing.processor import Processor
from ottla.streams.seams import Commits, FailurePolicy, Handler, Outputs, Work


class HandlerProcessor:
    """Runs one handler, or the plan of streams, inside `async with`: opens its producer, its threads or
    processes or stores, and its processor.

    Leaving the block drains. Raises what stopped the processor.
    """

    def __init__(
        self,
        name: str,
        function: Function | Plan,
        topics: Sequence[str],
        config: StreamsConfig,
        *,
        app_id: str | None = None,
        health_limits: HealthLimits,
        dedupe: Dedupe | None = None,
    ) -> None:
        self.name = name
        self.app_id = app_id or config.group_id
        """What the changelogs of streams begin with."""
        self._function = function
        if isinstance(function, Plan):
            config = _for_streams(config)
        self._topics = tuple(topics)
        self.dedupe = dedupe
        self._limits = health_limits
        check(config)
        self.is_exactly_once = config.processing_guarantee == "exactly-once"
        if self.is_exactly_once:
            self._serializing = config.producer
            config = transactional(config, unique_suffix())
        self.config = config
        self.observer = ProcessorObserver(config.group_id, now_ms=self._now_ms)
        self.failure: BaseException | None = None
        self._stack = AsyncExitStack()
        self._producer: Producer | None = None
        self._processor: Processor | None = None
        self._is_stopped = False

    @property
    def group_id(self) -> str:
        """Its group."""
        return self.config.group_id

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._producer = producer = await stack.enter_async_context(
                environment().producer(self.config.producer)
            )
            if self.is_exactly_once:
                parts = _transactional(self, producer)
            else:
                parts = _direct(self, producer, await self._dead_letter_producer(stack, producer))
            function = parts.function
            await stack.enter_async_context(function)
            states = function if isinstance(function, TopologyRuntime) else None
            handler: Handler = _WorkHandler(parts.wrap(function))
            if self.dedupe is not None:
                await stack.enter_async_context(self.dedupe)
                handler = parts.guard(self.dedupe, handler)
            self._processor = processor = await stack.enter_async_context(
                Processor(
                    handler,
                    *self._topics,
                    config=replace(self.config, max_concurrency=self._max_concurrency(function)),
                    failures=parts.failures,
                    outputs=parts.outputs,
                    commits=parts.commits,
                    observer=self.observer,
                    states=states,
                )
            )
            self.observer.watch(_Sizes(processor, parts, self._now_ms, self))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._stack.__aexit__(kind, error, trace)
        except Exception as failure:
            self.failure = failure
            raise
        finally:
            self._is_stopped = True

    async def wait(self) -> None:
        """Wait until the processor stopped: by `stop`, or by a failure, which leaving the block raises."""
        assert self._processor is not None
        await self._processor.wait()

    def stop(self) -> None:
        """Ask it to drain and to stop; return at once."""
        if self._processor is not None:
            self._processor.stop()

    def health(self) -> Health:
        """Return whether it is healthy, and why not."""
        failure = None if self.failure is None else " ".join(str(self.failure).split())
        facts = self.observer.health_facts(failure=failure, is_stopped=self._is_stopped)
        return judge(facts, self._limits)

    def client_metrics(self) -> Sequence[Metrics]:
        """The metrics of its consumer and its producer."""
        found: list[Metrics] = []
        if self._processor is not None:
            found.append(self._processor.consumer.metrics)
        if self._producer is not None:
            found.append(self._producer.metrics)
        return found

    @staticmethod
    def _now_ms() -> float:
        return asyncio.get_running_loop().time() * 1_000

    # --- for the parts

    async def _dead_letter_producer(self, stack: AsyncExitStack, producer: Producer) -> Producer:
        """Return the producer of dead letters, which are bytes: the same one if it has no serializers."""
        plain = replace(self.config.producer, key_serializer=None, value_serializer=None)
        if self.config.dead_letter_topic is None or plain == self.config.producer:
            return producer
        return await stack.enter_async_context(environment().producer(plain))

    def _max_concurrency(self, function: FunctionHandler | TopologyRuntime) -> int:
        """Return how many works may run: a plain function has a thread or a process for each."""
        places = None if isinstance(function, TopologyRuntime) else function.max_calls
        return min(self.config.max_concurrency, places or self.config.max_concurrency)

    def make_function(self, sender: Any, failures: FailureHandling) -> FunctionHandler | TopologyRuntime:
        """Return the handler of the user's function, or of streams."""
        if isinstance(self._function, Plan):
            config = self.config
            return TopologyRuntime(
                self._function, config, sender, app_id=self.app_id, state_dir=config.state_dir
            )
        return make_function(self.config, self._function, sender, failures)

    def make_failures(self, send: Callable[[ProducerRecord], Any]) -> FailureHandling:
        """Return the failure policy, whose dead letters go to `send`."""
        return make_failures(self.config, send)

    @property
    def serializing(self) -> Any:
        """The producer's settings as they were given, with serializers."""
        return self._serializing


def _for_streams(config: StreamsConfig) -> StreamsConfig:
    """Return settings of streams: they have serializers of their own, and state needs an order."""
    plain = replace(config.producer, key_serializer=None, value_serializer=None)
    order: Ordering = "partition" if config.order == "partition" else "key"
    return replace(config, producer=plain, order=order, batch_size=1, batch_of="key")


class _WorkHandler:
    """A handler of works: a processor takes plain functions for handlers of records."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, work: Work) -> None:
        await self._handler(work)


class _Parts:
    """What a processor is made of."""

    def __init__(
        self,
        function: FunctionHandler | TopologyRuntime,
        failures: FailurePolicy,
        outputs: Outputs,
        wrap: Callable[[Handler], Handler],
        commits: Callable[[Consumer], Commits] | None = None,
        buffered: TransactionalOutputs | None = None,
    ) -> None:
        self.function = function
        self.failures = failures
        self.outputs = outputs
        self.wrap = wrap
        self.commits = commits
        self.buffered = buffered

    def guard(self, dedupe: Dedupe, handler: Handler) -> Handler:
        """Put dedupe around the parts; return the handler in place of the given one."""
        guard = Guard(dedupe, handler, self.outputs, self.failures)
        self.outputs, self.failures, commits = guard.outputs, guard.failures, self.commits
        if commits is not None:
            self.commits = guard.after(commits)
        return guard.handler


def _direct(one: HandlerProcessor, producer: Producer, letters: Producer) -> _Parts:
    """Return parts that send at once: at least once. `letters` takes bytes."""

    async def send(record: ProducerRecord) -> None:
        await letters.send_and_wait(*record)

    outputs = DirectOutputs(producer)
    failures = one.make_failures(send)
    return _Parts(one.make_function(outputs, failures), failures, outputs, failures.wrap)


def _transactional(one: HandlerProcessor, producer: Producer) -> _Parts:
    """Return parts that send in transactions: exactly once."""
    finished = BufferedOutputs()
    outputs = TransactionalOutputs(finished, one.serializing, max_bytes=one.config.max_buffered_output_bytes)
    letters = TransactionalDeadLetters(outputs)
    failures = one.make_failures(letters.send)

    def commits(consumer: Consumer) -> Commits:
        return TransactionalCommits(
            producer,
            finished,
            consumer.group_metadata,
            interval_ms=one.config.transaction_interval_ms,
            on_committed=outputs.committed,
        )

    def wrap(handler: Handler) -> Handler:
        return letters.wrap(failures.wrap(handler))

    transactional_failures = TransactionalFailures(failures, outputs)
    function = one.make_function(outputs, failures)
    return _Parts(function, transactional_failures, outputs, wrap, commits, outputs)


class _Sizes:
    """Reads sizes from the parts of a processor (implements `Sizes` of the observer)."""

    def __init__(
        self, processor: Processor, parts: _Parts, now_ms: Callable[[], float], one: HandlerProcessor
    ) -> None:
        self._processor = processor
        self._parts = parts
        self._now_ms = now_ms
        self._observer = one.observer
        self._dedupe = one.dedupe

    def lanes(self) -> int:
        """Lanes with records."""
        return self._processor.scheduler.lane_count

    def buffered_records(self) -> int:
        """Records that wait or are handled."""
        return self._processor.scheduler.totals.buffered

    def buffered_bytes(self) -> int:
        """Bytes of them."""
        return self._processor.scheduler.totals.buffered_bytes

    def dedupe_hits(self) -> int:
        """Records that were duplicates."""
        return 0 if self._dedupe is None else self._dedupe.statistics.duplicates

    def buffered_output_bytes(self) -> int:
        """Bytes of outputs that wait for a transaction."""
        return self._parts.buffered.size_bytes if self._parts.buffered is not None else 0

    def lags(self) -> Mapping[TopicPartition, int]:
        """Records between the committed offset and the end, of each partition."""
        consumer, found = self._processor.consumer, {}
        for partition, state in self._observer.partitions.items():
            try:
                end, lag = consumer.highwater(partition), consumer.lag(partition)
            except NotAssigned:
                continue
            if end is not None and state.offset is not None:
                found[partition] = max(0, end - state.offset)
            elif lag is not None:
                found[partition] = lag
        return found

    def since_intake_ms(self) -> float | None:
        """How long nothing was handled though the broker has records and none are buffered."""
        waits = self.buffered_records() == 0 and any(self.lags().values())
        since_ms = self._observer.last_started_ms
        return self._now_ms() - since_ms if waits and since_ms is not None else None

"""The handlers that an app has declared: how they share one group, and each with all it needs to run.

All handlers are members of one group, whose offsets belong to topics and partitions. So a handler that is
added, removed or renamed leaves the offsets of all others where they are, and its own too. Members of a group
share the partitions of a topic; therefore a topic has one handler in a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from ottla.client.metrics import Metrics
from ottla.consumer import NotAssigned
from ottla.protocol.topics import TopicPartition
from ottla.streams.config import Ordering, StreamsConfig
from ottla.streams.dedupe.guard import Dedupe
from ottla.streams.errors import StreamsError
from ottla.streams.handlers.arguments import Function
from ottla.streams.language.runs import Counters
from ottla.streams.language.runtime import TopologyRuntime
from ottla.streams.language.topology import Plan
from ottla.streams.operating.health import Health, HealthLimits, Standstill, judge
from ottla.streams.operating.observer import ProcessorObserver
from ottla.streams.processing.assembly import SendingOutputs
from ottla.streams.processing.processor import Processor

STREAMS: Final = "streams"
"""The name of all streams of an app in logs and metrics."""


class AppError(StreamsError):
    """An app was declared or used in a way that cannot work; the message says what to change."""


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredHandler:
    """A handler, or all streams, as declared."""

    name: str
    function: Function | Plan
    topics: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    dedupe: Dedupe | None = None

    @property
    def title(self) -> str:
        """How errors name it."""
        return "the streams" if isinstance(self.function, Plan) else f"handler {self.name!r}"


def as_member(config: StreamsConfig, app: StreamsConfig, name: str) -> StreamsConfig:
    """Return the config of a handler by name: the `group_instance_id` of its app gets the handler's name.

    A group has one member of an id. It is the same however many handlers the app has.
    """
    instance = config.consumer.group_instance_id
    if instance is None or instance != app.consumer.group_instance_id:
        return config
    return replace(config, consumer=replace(config.consumer, group_instance_id=f"{instance}-{name}"))


def check_members(handlers: Iterable[tuple[DeclaredHandler, StreamsConfig]]) -> None:
    """Raise AppError if two handlers of a group read the same topic, or use the same transactional id."""
    readers: dict[tuple[str, str], DeclaredHandler] = {}
    writers: dict[str, DeclaredHandler] = {}
    for handler, config in handlers:
        for topic in dict.fromkeys(handler.topics):
            other = readers.setdefault((config.group_id, topic), handler)
            if other is not handler:
                raise AppError(_shared_topic(other, handler, topic, config.group_id))
        transactional_id = config.producer.transactional_id
        if (
            transactional_id is not None
            and (other := writers.setdefault(transactional_id, handler)) is not handler
        ):
            raise AppError(
                f"{other.title} and {handler.title} have the same transactional_id {transactional_id!r}, and "
                "one would fence the other: give each its own, or none at all"
            )


def _shared_topic(handler: DeclaredHandler, other: DeclaredHandler, topic: str, group_id: str) -> str:
    by_hand = handler if isinstance(other.function, Plan) else other
    return (
        f"{handler.title} and {other.title} both read {topic!r} in group {group_id!r}, so each would get a "
        f'part of its records: give {by_hand.title} a group of its own, group_id="{group_id}-{by_hand.name}"'
    )


class HandlerProcessor:
    """Runs one handler, or the plan of streams, inside `async with`.

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
        self._streams: _Streams | None = None
        self._handler: Function | _Streams
        if isinstance(function, Plan):
            self._handler = self._streams = _Streams(function, app_id or config.group_id)
        else:
            self._handler = function
        self._topics = tuple(topics)
        self._dedupe = dedupe
        self._limits = health_limits
        self.config = config if self._streams is None else _for_streams(config)
        self.observer = ProcessorObserver(
            config.group_id, now_ms=self._now_ms, dead_letter_topic=config.dead_letter_topic
        )
        self.failure: BaseException | None = None
        self._stack = AsyncExitStack()
        self._processor: Processor | None = None
        self._is_stopped = False

    @property
    def group_id(self) -> str:
        """Its group."""
        return self.config.group_id

    async def __aenter__(self) -> Self:
        processor = Processor(
            self._handler,
            *self._topics,
            config=self.config,
            observer=self.observer,
            dedupe=self._dedupe,
        )
        counters = Counters() if self._streams is None else self._streams.counters
        self.observer.watch(_Sizes(processor, self.observer, counters, self._now_ms))
        async with AsyncExitStack() as stack:
            self._processor = await stack.enter_async_context(processor)
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
        if self._processor is None:
            return []
        return [self._processor.consumer.metrics, self._processor.parts.producers[0].metrics]

    @staticmethod
    def _now_ms() -> float:
        return asyncio.get_running_loop().time() * 1_000


class _Streams:
    """The streams of an app, for a processor (implements `Program`)."""

    def __init__(self, plan: Plan, app_id: str) -> None:
        self._plan = plan
        self._app_id = app_id
        self.counters = Counters()
        """Counters of records that were dropped."""

    def handler_for(self, config: StreamsConfig, outputs: SendingOutputs) -> TopologyRuntime:
        """Return the handler of their records."""
        return TopologyRuntime(
            self._plan,
            config,
            outputs,
            app_id=self._app_id,
            state_dir=config.state_dir,
            counters=self.counters,
        )


def _for_streams(config: StreamsConfig) -> StreamsConfig:
    """Return settings of streams: they have serializers of their own, and state needs an order."""
    plain = config.producer.of_bytes()
    order: Ordering = "partition" if config.order == "partition" else "key"
    return replace(config, producer=plain, order=order, batch_size=1, batch_of="key")


class _Sizes:
    """Reads sizes from the parts of a processor (implements `Sizes` of the metrics)."""

    def __init__(
        self,
        processor: Processor,
        observer: ProcessorObserver,
        counters: Counters,
        now_ms: Callable[[], float],
    ) -> None:
        self._processor = processor
        self._observer = observer
        self._counters = counters
        self._now_ms = now_ms

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
        dedupe = self._processor.parts.dedupe
        return 0 if dedupe is None else dedupe.statistics.duplicates

    def buffered_output_bytes(self) -> int:
        """Bytes of outputs that wait for a transaction."""
        return self._processor.parts.buffered_output_bytes

    def late(self) -> int:
        """Records of streams that came after their window was closed."""
        return self._counters.late

    def keyless(self) -> int:
        """Records of streams without a key before a join or an aggregate."""
        return self._counters.without_key

    def valueless(self) -> int:
        """Records of streams without a value."""
        return self._counters.without_value

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

    def standing(self) -> Standstill | None:
        """The partition that stands still for the longest time."""
        return self._processor.standstills.longest

    def since_intake_ms(self) -> float | None:
        """How long nothing was handled though the broker has records and none are buffered."""
        waits = self.buffered_records() == 0 and any(self.lags().values())
        since_ms = self._observer.last_started_ms
        return self._now_ms() - since_ms if waits and since_ms is not None else None

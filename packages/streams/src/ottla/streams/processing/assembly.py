"""The parts that a processor's settings choose: its handler, its outputs, and what follows failures."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, cast

from ottla.client.environment import chance
from ottla.client.retry import Backoff
from ottla.producer import Producer, ProducerConfig, ProducerRecord
from ottla.streams.config import StreamsConfig
from ottla.streams.errors import ContextMisused, InvalidHandler
from ottla.streams.failures.dead_letters import DeadLetters
from ottla.streams.failures.failure_handling import FailureHandling
from ottla.streams.failures.poison_keys import PoisonKeys
from ottla.streams.failures.retry_policy import RetryPolicy
from ottla.streams.handlers.arguments import Function
from ottla.streams.handlers.context import Sender
from ottla.streams.handlers.direct_outputs import DirectOutputs
from ottla.streams.handlers.function_handler import FunctionHandler, takes_work
from ottla.streams.seams import FailurePolicy, Handler, Outputs, Work


class Assembly:
    """The handler, failure policy and outputs of a processor, and the producers and processes under them.

    Given parts are used as they are; the others are made by the settings. Raises InvalidHandler for a
    function that cannot be a handler. Producers and processes run inside `async with`.
    """

    def __init__(
        self,
        config: StreamsConfig,
        handler: Handler | Function,
        *,
        failures: FailurePolicy | None = None,
        outputs: Outputs | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        self._config = config
        self._producers: list[Producer] = []
        self._function: FunctionHandler | None = None
        self.outputs: Outputs = DirectOutputs(self._producer(config.producer)) if outputs is None else outputs
        self.failures: FailurePolicy = self._make_failures() if failures is None else failures
        self.max_concurrency: int = config.max_concurrency
        """The most works at once: a plain function has no more than there are threads or processes for it."""
        called = handler if takes_work(handler) else self._make_handler(cast("Function", handler))
        if wrap is not None:
            called = wrap(called)
        self.handler = self.failures.wrap(called) if isinstance(self.failures, FailureHandling) else called
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for each in self._producers:
                await stack.enter_async_context(each)
            if self._function is not None:
                await stack.enter_async_context(self._function)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _make_handler(self, function: Function) -> Handler:
        config = self._config
        processes = config.max_processes or os.cpu_count() or 1
        self._function = made = FunctionHandler(
            function,
            _sender(self.outputs),
            run_on=config.run_on,
            value_format=config.value_format,
            max_threads=config.max_threads,
            max_processes=processes,
            **self._undecodable(),
        )
        if config.batch_size > 1 and not made.arguments.is_batch:
            raise InvalidHandler(
                f"handler {made.name} takes one record, and batch_size is {config.batch_size}; annotate its "
                "parameter list[...], or leave out batch_size"
            )
        if not made.is_async:
            places = processes if config.run_on == "processes" else config.max_threads
            self.max_concurrency = min(self.max_concurrency, places)
        return made

    def _undecodable(self) -> dict[str, Any]:
        if isinstance(self.failures, FailureHandling):
            return {"on_undecodable": self.failures.set_aside_undecodable}
        return {}

    def _make_failures(self) -> FailureHandling:
        config = self._config
        policy = RetryPolicy(
            retries=config.retries,
            backoff=Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, config.retry_jitter),
            on_error=config.on_error,
            has_dead_letters=config.dead_letter_topic is not None,
        )
        aside = PoisonKeys(config.max_poison_keys, config.poison_key_ttl_ms)
        return FailureHandling(
            policy,
            self._make_dead_letters(),
            aside if config.poison_keys == "set-aside" else None,
            chance=chance,
            now_ms=_loop_time_ms,
            uses_lanes=callable(config.order),
        )

    def _make_dead_letters(self) -> DeadLetters | None:
        topic = self._config.dead_letter_topic
        if topic is None:
            return None
        # Dead letters are bytes as they were read, and outside of transactions: they say what no handler did.
        plain = replace(
            self._config.producer, key_serializer=None, value_serializer=None, transactional_id=None
        )
        producer = self._producer(plain)

        async def send(record: ProducerRecord) -> None:
            await producer.send_and_wait(*record)

        return DeadLetters(topic, self._config.group_id, send)

    def _producer(self, config: ProducerConfig) -> Producer:
        """Return a producer with these settings, the same one for the same settings."""
        for each in self._producers:
            if each.config == config:
                return each
        self._producers.append(Producer(config=config))
        return self._producers[-1]


class Wrap(Protocol):
    """Returns a handler around another, such as one that drops duplicates."""

    def __call__(self, handler: Handler, /) -> Handler:
        """Return the outer handler."""


class _NoSender:
    """Stands where outputs were given that take nothing from contexts."""

    async def send(self, work: Work, record: ProducerRecord) -> None:
        """Raise ContextMisused."""
        raise ContextMisused("the outputs of this processor have no send(work, record) for contexts")


def _sender(outputs: Outputs) -> Sender:
    return cast("Sender", outputs) if hasattr(outputs, "send") else _NoSender()


def _loop_time_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)

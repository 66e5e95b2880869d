"""The parts that a processor's settings choose: its handler, its outputs, and what follows failures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, cast

from ottla.consumer import Consumer
from ottla.producer import Producer, ProducerConfig, ProducerRecord
from ottla.streams.config import StreamsConfig
from ottla.streams.environment import environment
from ottla.streams.errors import ContextMisused
from ottla.streams.failures.dead_letters import Send
from ottla.streams.failures.failure_handling import FailureHandling
from ottla.streams.handlers.arguments import Function
from ottla.streams.handlers.context import Sender
from ottla.streams.handlers.direct_outputs import DirectOutputs
from ottla.streams.handlers.function_handler import FunctionHandler, takes_work
from ottla.streams.processing.parts import make_failures, make_function
from ottla.streams.seams import Commits, FailurePolicy, Handler, Outputs, Work

if TYPE_CHECKING:
    from ottla.streams.dedupe.guard import Dedupe
    from ottla.streams.dedupe.wrapping import Guard

MakeCommits = Callable[[Consumer], Commits]


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
        dedupe: Dedupe | None = None,
    ) -> None:
        self._config = config
        self._producers: list[Producer] = []
        self._function: FunctionHandler | None = None
        self.outputs: Outputs = DirectOutputs(self._producer(config.producer)) if outputs is None else outputs
        own: FailureHandling | None = None
        if failures is None:
            failures = own = make_failures(config, self._dead_letter_send())
        self.failures: FailurePolicy = failures
        self.max_concurrency: int = config.max_concurrency
        """The most works at once: a plain function has no more than there are threads or processes for it."""
        called = handler if takes_work(handler) else self._make_handler(cast("Function", handler), own)
        if wrap is not None:
            called = wrap(called)
        self.handler = called if own is None else own.wrap(called)
        self._dedupe, self._guard = dedupe, None if dedupe is None else _guard(dedupe, self)
        self.settling: Outputs = self.outputs
        """The outputs that settle work; `outputs` are those that handlers send through."""
        if self._guard is not None:
            guard = self._guard
            self.handler, self.settling, self.failures = guard.handler, guard.outputs, guard.failures
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._dedupe is not None:
                await stack.enter_async_context(self._dedupe)
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

    def commits(self, make: MakeCommits) -> MakeCommits:
        """Return what makes the commits of transactions; with dedupe, marks are written after them."""
        return make if self._guard is None else self._guard.after(make)

    def _make_handler(self, function: Function, failures: FailureHandling | None) -> Handler:
        self._function = made = make_function(self._config, function, _sender(self.outputs), failures)
        self.max_concurrency = min(self.max_concurrency, made.max_calls or self.max_concurrency)
        return made

    def _dead_letter_send(self) -> Send | None:
        if self._config.dead_letter_topic is None:
            return None
        # Dead letters are bytes as they were read, and outside of transactions: they say what no handler did.
        plain = replace(
            self._config.producer, key_serializer=None, value_serializer=None, transactional_id=None
        )
        producer = self._producer(plain)

        async def send(record: ProducerRecord) -> None:
            await producer.send_and_wait(*record)

        return send

    def _producer(self, config: ProducerConfig) -> Producer:
        """Return a producer with these settings, the same one for the same settings."""
        for each in self._producers:
            if each.config == config:
                return each
        self._producers.append(environment().producer(config))
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


def _guard(dedupe: Dedupe, parts: Assembly) -> Guard:
    from ottla.streams.dedupe.wrapping import Guard  # imported by those who use it

    return Guard(dedupe, parts.handler, parts.outputs, parts.failures)


def _sender(outputs: Outputs) -> Sender:
    return cast("Sender", outputs) if hasattr(outputs, "send") else _NoSender()

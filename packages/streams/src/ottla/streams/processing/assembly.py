"""The parts that a processor's settings choose: its handler, its outputs, its commits, and what follows
failures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast, runtime_checkable

from ottla.client.settings import SettingError
from ottla.consumer import Consumer
from ottla.producer import Producer, ProducerConfig, ProducerRecord
from ottla.protocol.errors import TransactionalIdAuthorizationFailed
from ottla.streams.config import StreamsConfig
from ottla.streams.environment import environment
from ottla.streams.errors import ContextMisused, TransactionsRefused
from ottla.streams.exactly_once.settings import check
from ottla.streams.failures.dead_letters import Send
from ottla.streams.failures.failure_handling import FailureHandling
from ottla.streams.handlers.arguments import Function
from ottla.streams.handlers.context import Sender
from ottla.streams.handlers.direct_outputs import DirectOutputs
from ottla.streams.handlers.function_handler import takes_work
from ottla.streams.processing.committing import ConsumerCommits
from ottla.streams.processing.missing_topics import shown_servers
from ottla.streams.processing.parts import make_failures, make_function
from ottla.streams.processing.transactions import Transactions
from ottla.streams.seams import Commits, FailurePolicy, Handler, Outputs, PartitionStates, Work

if TYPE_CHECKING:
    from ottla.streams.dedupe.guard import Dedupe
    from ottla.streams.dedupe.wrapping import Guard

MakeCommits = Callable[[Consumer], Commits]


class StatefulHandler(Handler, PartitionStates, AbstractAsyncContextManager[Any], Protocol):
    """A handler with state of partitions, which runs inside `async with`."""


class SendingOutputs(Sender, Outputs, Protocol):
    """Outputs that take the records sent for a work."""


@runtime_checkable
class Program(Protocol):
    """Stands for a handler that sends what it makes, such as the streams of an app."""

    def handler_for(self, config: StreamsConfig, outputs: SendingOutputs) -> StatefulHandler:
        """Return the handler; what it sends goes to `outputs`."""


class Assembly:
    """The handler, failure policy, outputs and commits of a processor, and the producers and processes
    under them.

    Given parts are used as they are; the others are made by the settings, for either processing guarantee.
    Raises InvalidHandler for a function that cannot be a handler, and SettingError. Producers, processes and
    dedupe are open inside `async with`.
    """

    def __init__(
        self,
        config: StreamsConfig,
        handler: Handler | Function | Program,
        *,
        failures: FailurePolicy | None = None,
        outputs: Outputs | None = None,
        commits: MakeCommits | None = None,
        wrap: Wrap | None = None,
        dedupe: Dedupe | None = None,
    ) -> None:
        check(config)
        self._transactions = _transactions(config, outputs, commits)
        self.config: StreamsConfig = config if self._transactions is None else self._transactions.config
        """The settings, with those that transactions need."""
        self._make_commits = commits
        self._producers: list[Producer] = []
        self._opened: list[AbstractAsyncContextManager[Any]] = []
        self.outputs: Outputs = self._make_outputs() if outputs is None else outputs
        own = make_failures(self.config, self._dead_letter_send()) if failures is None else None
        if self._transactions is not None:
            self._transactions.use(own)
        self.failures: FailurePolicy = own or cast("FailurePolicy", failures)
        self.max_concurrency: int = config.max_concurrency
        """The most works at once: a plain function has no more than there are threads or processes for it."""
        self.states: PartitionStates | None = None
        """The states that the handler keeps for partitions, if it is one of a program."""
        called = self._make_handler(handler, own)
        if wrap is not None:
            called = wrap(called)
        self.handler: Handler = called if own is None else own.wrap(called)
        self.settling: Outputs = self.outputs
        """The outputs that settle work; `outputs` are those that handlers send through."""
        self.dedupe = dedupe
        self._guard: Guard | None = None
        self._add_guarantees()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self.dedupe is not None:
                await stack.enter_async_context(self.dedupe)
            for producer in self._producers:
                await self._open_producer(stack, producer)
            for opened in self._opened:
                await stack.enter_async_context(opened)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _open_producer(self, stack: AsyncExitStack, producer: Producer) -> None:
        try:
            await stack.enter_async_context(producer)
        except TransactionalIdAuthorizationFailed as error:
            settings = self.config.producer
            servers = shown_servers(settings.client)
            raise TransactionsRefused(settings.transactional_id or "", servers, error) from error

    def commits(self, consumer: Consumer) -> Commits:
        """Return what commits offsets; with dedupe and transactions, marks are written after those."""
        make = self._make_commits
        if self._transactions is not None:
            transactions, (producer, *_) = self._transactions, self._producers
            make = lambda consumer: transactions.commits(consumer, producer)  # noqa: E731
        if make is None:
            return ConsumerCommits(consumer, self.config.commit_interval_ms)
        return (make if self._guard is None else self._guard.after(make))(consumer)

    # --- for observers

    @property
    def producers(self) -> tuple[Producer, ...]:
        """The producers of outputs and of dead letters."""
        return tuple(self._producers)

    @property
    def buffered_output_bytes(self) -> int:
        """The bytes of outputs that wait for a transaction."""
        return 0 if self._transactions is None else self._transactions.outputs.size_bytes

    # --- inside

    def _add_guarantees(self) -> None:
        """Put transactions around handler and failure policy, and dedupe around those."""
        if self._transactions is not None:
            self.failures = self._transactions.failures(self.failures)
            self.handler = self._transactions.wrap(self.handler)
        if self.dedupe is not None:
            self._guard = guard = _guard(self.dedupe, self)
            self.handler, self.settling, self.failures = guard.handler, guard.outputs, guard.failures

    def _make_outputs(self) -> Outputs:
        producer = self._producer(self.config.producer)
        return DirectOutputs(producer) if self._transactions is None else self._transactions.outputs

    def _make_handler(
        self, handler: Handler | Function | Program, failures: FailureHandling | None
    ) -> Handler:
        if isinstance(handler, Program):
            stateful = handler.handler_for(self.config, cast("SendingOutputs", self.outputs))
            self._opened.append(stateful)
            self.states = stateful
            return stateful
        if takes_work(handler):
            return handler
        made = make_function(self.config, cast("Function", handler), _sender(self.outputs), failures)
        self._opened.append(made)
        self.max_concurrency = min(self.max_concurrency, made.max_calls or self.max_concurrency)
        return made

    def _dead_letter_send(self) -> Send | None:
        if self.config.dead_letter_topic is None:
            return None
        if self._transactions is not None:
            return self._transactions.dead_letters.send
        # Dead letters are bytes as they were read; given outputs have transactions of their own.
        plain = replace(
            self.config.producer, key_serializer=None, value_serializer=None, transactional_id=None
        )
        producer = self._producer(plain)

        async def send(record: ProducerRecord) -> None:
            await producer.send_and_wait(*record)

        return send

    def _producer(self, config: ProducerConfig) -> Producer:
        """Return a producer with these settings, the same one for the same settings."""
        for producer in self._producers:
            if producer.config == config:
                return producer
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


def _transactions(
    config: StreamsConfig, outputs: Outputs | None, commits: MakeCommits | None
) -> Transactions | None:
    """Return the parts of exactly once; None without it, or where they are given."""
    if config.processing_guarantee != "exactly-once" or (outputs is not None and commits is not None):
        return None
    if outputs is not None or commits is not None:
        raise SettingError("exactly-once has outputs and commits in one transaction: give both, or neither")
    return Transactions(config)


def _guard(dedupe: Dedupe, parts: Assembly) -> Guard:
    from ottla.streams.dedupe.errors import DedupeMisconfigured
    from ottla.streams.dedupe.guard import Dedupe
    from ottla.streams.dedupe.wrapping import Guard  # imported by those who use it

    if not isinstance(dedupe, Dedupe):
        raise DedupeMisconfigured(
            f"dedupe= needs a Dedupe around a store, such as Dedupe(SqliteStore('marks.db')), not {dedupe!r}"
        )
    return Guard(dedupe, parts.handler, parts.outputs, parts.failures)


def _sender(outputs: Outputs) -> Sender:
    return cast("Sender", outputs) if hasattr(outputs, "send") else _NoSender()

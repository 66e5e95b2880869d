"""The parts of a processor that its settings choose: handler, outputs, commits, failure policy.

Exactly once replaces three of them: outputs and dead letters go into the transaction of offsets.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast, runtime_checkable

from ottla.client.config import ClientConfig, parse_bootstrap_servers
from ottla.client.environment import unique_suffix
from ottla.client.errors import ClientError
from ottla.client.interceptors import Interceptors
from ottla.client.retry import Backoff
from ottla.client.settings import SettingError
from ottla.consumer import Consumer
from ottla.producer import Producer, ProducerConfig, ProducerRecord
from ottla.protocol.errors import KafkaError, TransactionalIdAuthorizationFailed
from ottla.streams.config import StreamsConfig, check, transactional
from ottla.streams.environment import chance, environment
from ottla.streams.errors import (
    ContextMisused,
    InvalidHandler,
    OutputFailed,
    OutputTooLarge,
    TransactionsRefused,
)
from ottla.streams.exactly_once.buffered_outputs import BufferedOutputs, FinishedWork, Output
from ottla.streams.exactly_once.transactional_commits import TransactionalCommits
from ottla.streams.exactly_once.transactional_outputs import (
    TransactionalDeadLetters,
    TransactionalFailures,
    TransactionalOutputs,
)
from ottla.streams.failures.dead_letters import DeadLetters, Send
from ottla.streams.failures.failure_handling import FailureHandling, PoisonKeys
from ottla.streams.failures.retry_policy import RetryPolicy
from ottla.streams.handlers.arguments import Function
from ottla.streams.handlers.context import Sender
from ottla.streams.handlers.direct_outputs import DirectOutputs
from ottla.streams.handlers.function_handler import FunctionHandler, reject_batch, takes_work
from ottla.streams.processing.committing import ConsumerCommits
from ottla.streams.seams import Commits, FailurePolicy, Handler, Outputs, PartitionStates, Work

if TYPE_CHECKING:
    from ottla.streams.dedupe.guard import Dedupe
    from ottla.streams.dedupe.wrapping import Guard


MakeCommits = Callable[[Consumer], Commits]
CREATED_WITHIN_S: Final = 2.0
"""Where brokers create topics when clients ask for them, they have done so by then."""

log = logging.getLogger("ottla.streams")


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
        called = _observed(self._make_handler(handler, own), Interceptors(config.consumer.interceptors))
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
        plain = replace(self.config.producer.of_bytes(), transactional_id=None)
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


def _observed(handler: Handler, interceptors: Interceptors) -> Handler:
    """Return a handler whose calls run inside `on_process` of interceptors; the same one without any."""
    methods = interceptors.methods("on_process")
    if not methods:
        return handler

    async def handle(work: Work) -> None:
        with ExitStack() as stack:
            for method in methods:
                stack.enter_context(method(work.records))
            await handler(work)

    return handle


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


def make_failures(config: StreamsConfig, send: Send | None) -> FailureHandling:
    """Return the failure policy of a config; `send` sends dead letters, None if they have no topic."""
    topic = config.dead_letter_topic
    letters = None if topic is None or send is None else DeadLetters(topic, config.group_id, send)
    policy = RetryPolicy(
        retries=config.retries,
        backoff=Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, config.retry_jitter),
        on_error=config.on_error,
        has_dead_letters=letters is not None,
    )
    aside = PoisonKeys(config.max_poison_keys, config.poison_key_ttl_ms) if config.poison_keys else None
    return FailureHandling(
        policy, letters, aside, chance=chance, now_ms=_loop_time_ms, uses_lanes=callable(config.order)
    )


def make_function(
    config: StreamsConfig, function: Function, sender: Sender, failures: FailureHandling | None
) -> FunctionHandler:
    """Return the handler of a user's function. Raises InvalidHandler if it cannot be one.

    `failures` takes the records of a batch that cannot be decoded; without it they fail the batch.
    """
    made = FunctionHandler(
        function,
        sender,
        run_on=config.run_on,
        value_format=config.value_format,
        max_threads=config.max_threads,
        max_processes=config.max_processes or os.cpu_count() or 1,
        on_undecodable=reject_batch if failures is None else failures.set_aside_undecodable,
    )
    if config.batch_size > 1 and not made.arguments.is_batch:
        raise InvalidHandler(
            f"handler {made.name} takes one record, and batch_size is {config.batch_size}; annotate its "
            "parameter list[...], or leave out batch_size"
        )
    return made


def _loop_time_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1_000)


class Transactions:
    """Outputs, dead letters and commits that share the transactions of one producer."""

    def __init__(self, config: StreamsConfig) -> None:
        self.config = transactional(config, unique_suffix())
        """The settings for this: a transactional id, and read_committed."""
        self._finished = BufferedOutputs()
        self.outputs = TransactionalOutputs(
            self._finished, config.producer, max_bytes=config.max_buffered_output_bytes
        )
        self.dead_letters = TransactionalDeadLetters(self.outputs)
        self._handling: FailureHandling | None = None

    def commits(self, consumer: Consumer, producer: Producer) -> Commits:
        """Return what commits offsets together with outputs."""
        return TransactionalCommits(
            producer,
            self._finished,
            consumer.group_metadata,
            interval_ms=self.config.transaction_interval_ms,
            on_committed=self.outputs.committed,
            letters=self._letters,
        )

    def _letters(self, work: FinishedWork, error: OutputTooLarge) -> tuple[Output, ...] | None:
        """Return the dead letters of work whose output its topic refuses; None if the processor stops."""
        if self._handling is None:
            return None
        failure = OutputFailed(work.partition, work.offsets[0], error)
        made = self._handling.letters_of(work.records, failure, work.attempts, is_short=error.topic)
        return None if made is None else tuple(_output(letter) for letter in made)

    def use(self, handling: FailureHandling | None) -> None:
        """Set aside works whose outputs are refused as a failure policy says; without one they stop."""
        self._handling = handling

    def failures(self, policy: FailurePolicy) -> FailurePolicy:
        """Return a policy in place of one whose dead letters go to `dead_letters`."""
        return TransactionalFailures(policy, self.outputs)

    def wrap(self, handler: Handler) -> Handler:
        """Return a handler in place of one that sends dead letters itself, of records it cannot decode."""
        return self.dead_letters.wrap(handler)


def _output(letter: ProducerRecord) -> Output:
    """Return a dead letter, which is bytes as they were read, as an output."""
    headers = letter.headers.items() if isinstance(letter.headers, Mapping) else letter.headers
    named = tuple((name, data.encode() if isinstance(data, str) else data) for name, data in headers)
    return Output(letter.topic, letter.value, letter.key, headers=named)


async def warn_of_missing_topics(consumer: Consumer, topics: Iterable[str], config: ClientConfig) -> None:
    """Log one warning for each topic that does not exist soon after the consumer has subscribed to it."""
    await asyncio.sleep(CREATED_WITHIN_S)
    for topic in topics:
        try:
            if await consumer.partitions_for_topic(topic):
                continue
        except (ClientError, KafkaError) as error:  # the consumer meets the same error, and tells it
            log.debug("a topic cannot be looked up", extra={"topic": topic, "reason": str(error)})
            continue
        log.warning(
            "a topic does not exist, and no broker creates it: nothing of it is handled until it is created "
            "(ottla topic create), or its name is corrected",
            extra={"topic": topic, "servers": shown_servers(config)},
        )


def shown_servers(config: ClientConfig) -> str:
    """Return the bootstrap servers as messages show them."""
    return ",".join(
        str(parse_bootstrap_server)
        for parse_bootstrap_server in parse_bootstrap_servers(config.bootstrap_servers)
    )

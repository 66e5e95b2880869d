"""The parts of a processor for exactly once: outputs and dead letters go into the transaction of offsets."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.client.environment import unique_suffix
from ottla.consumer import Consumer
from ottla.producer import Producer, ProducerRecord
from ottla.streams.config import StreamsConfig
from ottla.streams.errors import OutputFailed, OutputTooLarge
from ottla.streams.exactly_once.buffered_outputs import BufferedOutputs, FinishedWork, Output
from ottla.streams.exactly_once.settings import transactional
from ottla.streams.exactly_once.transactional_commits import TransactionalCommits
from ottla.streams.exactly_once.transactional_failures import TransactionalDeadLetters, TransactionalFailures
from ottla.streams.exactly_once.transactional_outputs import TransactionalOutputs
from ottla.streams.failures.failure_handling import FailureHandling
from ottla.streams.seams import Commits, FailurePolicy, Handler


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

"""Transactions of outputs and offsets: the shell around `BufferedOutputs`.

A call may be cancelled at any await, for a drain is bounded. What it leaves open is ended by the next call:
an unanswered commit is repeated until the coordinator answers, everything else is aborted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Protocol

from ottla.client.errors import ClientError
from ottla.client.group_metadata import NO_GENERATION, GroupMetadata, OffsetAndMetadata
from ottla.consumer import CommitFailed
from ottla.producer import ProducerLost, TransactionError, TransactionFailed
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition
from ottla.streams.errors import TOO_LARGE, OutputTooLarge
from ottla.streams.exactly_once.buffered_outputs import (
    BufferedOutputs,
    FinishedWork,
    Headers,
    Output,
    Transaction,
)
from ottla.streams.exactly_once.outcome import OutputRejected, TransactionsFenced, cause_of, is_permanent
from ottla.streams.seams import Plan

log = logging.getLogger(__name__)

Letters = Callable[[FinishedWork, OutputTooLarge], tuple[Output, ...] | None]
"""Returns the dead letters of work whose output is too large; None if it has to be written."""


class Sent(Protocol):
    """The acknowledgement of an output."""

    def done(self) -> bool:
        """Return whether it was acknowledged, or failed."""

    def exception(self) -> BaseException | None:
        """Return what it failed with."""


class TransactionalProducer(Protocol):
    """The part of `ottla.producer.Producer` that a transaction needs."""

    async def begin_transaction(self) -> None:
        """Begin a transaction."""

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Sent:
        """Append a record; its failure fails the commit."""

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets with the transaction."""

    async def commit_transaction(self) -> None:
        """Commit; may be called again while the coordinator does not answer."""

    async def abort_transaction(self) -> None:
        """Abort; may be called again while the coordinator does not answer."""


class _Left(Enum):
    """The step that the last transaction still needs."""

    NOTHING = 0
    ABORT = 1
    COMMIT = 2


class TransactionalCommits:
    """Commits finished outputs with the offsets of their records. Implements `Commits` of a processor.

    `group` is the consumer's `group_metadata`: with it the coordinator refuses offsets of a member that has
    lost its partitions (KIP-447).
    """

    def __init__(
        self,
        producer: TransactionalProducer,
        outputs: BufferedOutputs,
        group: Callable[[], GroupMetadata],
        *,
        interval_ms: int,
        on_committed: Callable[[], None] = lambda: None,
        letters: Letters = lambda work, error: None,
    ) -> None:
        self._producer = producer
        self._outputs = outputs
        self._group = group
        self._interval_ms = interval_ms
        self._on_committed = on_committed
        self._letters = letters
        self._sent: list[tuple[FinishedWork, Output, Sent]] = []
        """The outputs of the last transaction."""
        self._one_at_a_time = asyncio.Lock()
        self._left = _Left.NOTHING
        self._fatal: TransactionsFenced | OutputRejected | None = None
        self.committed_total = 0
        """Transactions that were committed."""
        self.aborted_total = 0
        """Transactions that were aborted, and whose outputs were sent again."""

    @property
    def interval_ms(self) -> int:
        """The time between two transactions."""
        return self._interval_ms

    @property
    def is_pending(self) -> bool:
        """Whether the last transaction is open still: cancelled, or without the coordinator's answer."""
        return self._left is not _Left.NOTHING

    @property
    def fatal(self) -> TransactionsFenced | OutputRejected | None:
        """Why no further transaction is possible; None while one is."""
        return self._fatal

    async def commit(self, plans: Sequence[Plan]) -> Sequence[Plan]:
        """Commit plans, and the outputs of works whose records they cover, in one transaction.

        Returns the plans that are committed now: those that `BufferedOutputs` keeps back, since their
        partition's metadata does not name all that is finished, are not among them.

        Without plans only the last transaction is ended, if it is open. After an exception nothing of them is
        committed, and the outputs are kept for the next call. Raises CommitFailed while the consumer is not
        in the group, and TransactionsFenced and OutputRejected, after which every call raises them again.
        """
        # Now, before anything waits: in a later generation others may own the partitions of these plans.
        group = self._group()
        async with self._one_at_a_time:
            if self._fatal is not None:
                raise self._fatal
            await self._end_last()
            if not plans:
                return ()
            if group.generation_id == NO_GENERATION:  # coordinators fence only commits that name a member
                raise CommitFailed(f"the consumer is not in the group {group.group_id!r}, or joins it again")
            transaction = self._outputs.next_transaction({plan.partition: plan for plan in plans})
            if transaction is not None:
                await self._run(transaction, group)
            return self._outputs.committed_among(plans)

    # --- inside

    async def _run(self, transaction: Transaction, group: GroupMetadata) -> None:
        self._left = _Left.ABORT
        try:
            await self._write(transaction, group)
            self._left = _Left.COMMIT
            await self._commit()
        except (ProducerLost, TransactionError) as error:
            raise self._fence(error) from error
        except (ClientError, KafkaError, ValueError) as error:
            if self._left is _Left.ABORT:
                await self._abort(cause_of(error))
            raise

    async def _write(self, transaction: Transaction, group: GroupMetadata) -> None:
        self._sent.clear()
        await self._producer.begin_transaction()
        for work in transaction.works:
            for output in work.outputs:
                sent = await self._producer.send(
                    output.topic, output.value, output.key, output.partition, output.timestamp_ms,
                    output.headers,
                )  # fmt: skip
                self._sent.append((work, output, sent))
        offsets = {
            partition: OffsetAndMetadata(plan.offset, plan.metadata)
            for partition, plan in transaction.plans.items()
        }
        await self._producer.send_offsets(offsets, group)

    async def _end_last(self) -> None:
        """End what a call left open that was cancelled, or to which the coordinator did not answer."""
        try:
            if self._left is _Left.COMMIT:
                await self._commit()
            elif self._left is _Left.ABORT:
                await self._abort(None)
        except (ProducerLost, TransactionError) as error:
            raise self._fence(error) from error
        except TransactionFailed as error:
            await self._abort(cause_of(error))

    async def _commit(self) -> None:
        try:
            await self._producer.commit_transaction()
        except TransactionFailed:
            self._left = _Left.ABORT
            raise
        self._left = _Left.NOTHING
        self._sent.clear()
        self._outputs.committed()
        self.committed_total += 1
        self._on_committed()

    async def _abort(self, cause: BaseException | None) -> None:
        try:
            await self._producer.abort_transaction()
        except (ProducerLost, TransactionError) as error:
            raise self._fence(error) from error
        self._left = _Left.NOTHING
        self._outputs.aborted()
        self.aborted_total += 1
        if cause is not None and is_permanent(cause) and not self._set_aside_too_large():
            self._fatal = OutputRejected(cause)
            raise self._fatal from cause

    def _set_aside_too_large(self) -> bool:
        """Put dead letters in place of outputs that their topic refused for their size, and only those.

        False: none was refused for that, or one has to be written. The next transaction repeats the others.
        """
        refused: dict[FinishedWork, dict[int, OutputTooLarge]] = {}
        for work, output, sent in self._sent:
            error = sent.exception() if sent.done() else None
            if isinstance(error, TOO_LARGE):
                refused.setdefault(work, {})[id(output)] = OutputTooLarge(output.topic, error)
        for work, errors in refused.items():
            error = next(iter(errors.values()))
            letters = None if error.topic in work.changelogs else self._letters(work, error)
            if letters is None:
                return False
            kept = tuple(output for output in work.outputs if id(output) not in errors)
            self._outputs.replace(work, kept + letters)
            log.warning(
                "an output is too large, its record becomes a dead letter",
                extra=work.partition._asdict() | {"offset": work.offsets[0], "reason": str(error)},
            )
        return bool(refused)

    def _fence(self, error: BaseException) -> TransactionsFenced:
        self._fatal = TransactionsFenced(error)
        return self._fatal

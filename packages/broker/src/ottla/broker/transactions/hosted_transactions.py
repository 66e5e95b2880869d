"""The transactions that this broker coordinates: find one, step it, write it, send its markers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from ottla.broker.coordinators.record_writer import RecordWriter
from ottla.broker.coordinators.response_errors import after_failed_transaction_write
from ottla.broker.coordinators.runtime import CoordinatorRuntime, LoadFacts
from ottla.broker.runtime.log_lines import LimitedWarnings
from ottla.broker.runtime.loop_budget import SLICE, Turn
from ottla.broker.transactions.completion_waits import CompletionWaits
from ottla.broker.transactions.events import (
    UNREADABLE,
    Complete,
    Event,
    MarkersWritten,
    Outcome,
    Persisted,
)
from ottla.broker.transactions.marker_queue import EndedTransaction, Partitions, TransactionPartition
from ottla.broker.transactions.marker_sender import MarkerSender
from ottla.broker.transactions.partition_state import TransactionsState
from ottla.broker.transactions.records import TransactionRecord, TransactionRecordCodec
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.coordinators.internal_topic_log import CoordinatorStore
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.background_tasks import BackgroundTasks
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.transactions.events import Write
    from ottla.broker.transactions.marker_sender import Cluster
    from ottla.broker.transactions.transaction import Transaction

log = logging.getLogger(__name__)

COMPLETION_RETRY_S: Final = 0.5


class TransactionMeters:
    """The meters of one coordinator; its gauges call the functions."""

    def __init__(
        self, metrics: Metrics, *, without_leader: Callable[[], int], completions: Callable[[], int]
    ) -> None:
        self.load_time = metrics.histogram(
            "kafka.server", "transaction-coordinator-metrics", "partition-load-time"
        )
        channels = ("kafka.coordinator.transaction", "TransactionMarkerChannelManager")
        metrics.gauge(*channels, "UnknownDestinationQueueSize", without_leader)
        metrics.gauge(*channels, "LogAppendRetryQueueSize", completions)


class HostedTransactions:
    """The transactions in the partitions of `__transaction_state` that this broker leads.

    `step` changes one: it writes the record, delivers the replies, sends the markers. Only `Expiration` steps
    transactions itself, to write many tombstones as one batch, and has to send `Persisted` to each of them.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        metrics: Metrics,
        store: CoordinatorStore,
        cluster: Cluster,
        tasks: BackgroundTasks,
        write_timeout_ms: int,
        level: Callable[[], int],
    ) -> None:
        """`level` returns that of `transaction.version`."""
        clock = self.clock = environment.clock
        self.budget = environment.budget
        codec = TransactionRecordCodec(level)
        self.runtime: CoordinatorRuntime[TransactionsState, TransactionRecord] = CoordinatorRuntime(
            store,
            codec,
            new_state=TransactionsState,
            loaded=self._loaded,
            unloaded=self._unloaded,
            environment=environment,
            tasks=tasks,
        )
        self.writer: RecordWriter[TransactionsState, TransactionRecord] = RecordWriter(
            store, codec, clock, tasks, write_timeout_ms
        )
        self.sender = MarkerSender(
            cluster, environment, tasks, is_hosted=self._is_current, written=self._markers_written
        )
        self.completion_waits = CompletionWaits()
        self._tasks = tasks
        self._warnings = LimitedWarnings(log, clock.monotonic_ms)
        self._completions = 0
        self._meters = TransactionMeters(
            metrics,
            without_leader=lambda: self.sender.queue.deferred,
            completions=lambda: self._completions,
        )

    # ---- finding transactions

    def __iter__(self) -> Iterator[tuple[TransactionPartition, Transaction]]:
        """All transactions with their partitions; safe against changes while iterating."""
        for partition in self.runtime.partitions:
            for transaction in list(partition.state.transactions.values()):
                yield partition, transaction

    @property
    def memory_bytes(self) -> int:
        """About what all transactions take in memory."""
        return sum(partition.state.memory_bytes for partition in self.runtime.partitions)

    def is_hosted(self, partition: TransactionPartition) -> bool:
        """Whether this broker still coordinates the partition, in the same leadership."""
        return self.runtime.partitions.get(partition.number) is partition

    def _is_served(self, partition: TransactionPartition) -> bool:
        return self.runtime.is_active and self.is_hosted(partition)

    def _is_current(self, ended: EndedTransaction) -> bool:
        return self.is_hosted(ended.hosted)

    # ---- steps

    def step(self, partition: TransactionPartition, transaction: Transaction, event: Event) -> Outcome:
        """Step the transaction with one event, and perform its effects."""
        outcome = transaction.step(event, self.clock.now_ms())
        for reply in outcome.replies:
            waiting = cast("asyncio.Future[Any]", reply.token)
            if not waiting.done():
                waiting.set_result(reply.result)
        if outcome.sends_markers:
            self._send_markers(partition, transaction)
        if outcome.completes_later and self._is_served(partition):
            self._completions += 1
            self._tasks.spawn(self._complete_later(partition, transaction), "transaction-completion")
        if outcome.write is not None:
            self._write(partition, transaction, outcome.write)
        self.completion_waits.stepped(transaction)
        return outcome

    def _write(self, partition: TransactionPartition, transaction: Transaction, write: Write) -> None:
        def settled(error: KafkaError | None) -> None:
            self._settled(partition, transaction, error)

        if not self.is_hosted(partition):
            self.step(partition, transaction, Persisted(ErrorCode.NOT_COORDINATOR))
        else:
            record = TransactionRecord(transaction.transactional_id, write.snapshot)
            self.writer.write(partition, [record], settled)

    def _settled(
        self, partition: TransactionPartition, transaction: Transaction, error: KafkaError | None
    ) -> None:
        code = ErrorCode.NONE if error is None else after_failed_transaction_write(error.code)
        if not self.is_hosted(partition):
            # The record is in the log of the next coordinator, which acts on it; this one must not.
            code = ErrorCode.NOT_COORDINATOR
        self.step(partition, transaction, Persisted(code))
        partition.state.drop_if_unused(transaction)

    # ---- markers

    def _send_markers(self, partition: TransactionPartition, transaction: Transaction) -> None:
        if not self._is_served(partition):
            return
        if transaction.unmarked:
            self.sender.send(EndedTransaction.of(transaction, partition))
        else:
            self.step(partition, transaction, Complete())

    def _markers_written(self, ended: EndedTransaction, partitions: Partitions) -> None:
        if self.is_hosted(ended.hosted) and ended.is_decided:
            self.step(ended.hosted, ended.transaction, MarkersWritten(partitions))

    async def _complete_later(self, partition: TransactionPartition, transaction: Transaction) -> None:
        try:
            await asyncio.sleep(COMPLETION_RETRY_S)
        finally:
            self._completions -= 1
        if self.is_hosted(partition):
            self.step(partition, transaction, Complete())

    # ---- loading and unloading

    def _loaded(self, partition: TransactionPartition, facts: LoadFacts) -> None:
        state = partition.state
        # Those of now: the markers of later ones are sent when their records are committed.
        decided = list(state.prepared.values())
        self._tasks.spawn(
            self._resume(partition, decided, list(state.transactions.values())),
            f"transactions-resumed-{partition.number}",
        )
        self._meters.load_time.update(facts.took_ms)
        log.info(
            "transactions loaded",
            extra={"partition": partition.number, "transactional_ids": len(state.transactions),
                   "records": facts.records, "took_ms": round(facts.took_ms)},
        )  # fmt: skip

    async def _resume(
        self, partition: TransactionPartition, decided: list[Transaction], loaded: list[Transaction]
    ) -> None:
        """Send the markers of loaded transactions whose end is decided, and warn of damaged ones."""
        turn = self.budget.turn()
        async for transaction in turn.over(decided):
            self._send_markers(partition, transaction)
        async for transaction in turn.over(loaded):
            if transaction.snapshot is UNREADABLE:
                self._warn(transaction)

    def _warn(self, transaction: Transaction) -> None:
        name = transaction.transactional_id[:200]
        self._warnings.warn(
            name,
            "state of a transactional id damaged: producers can begin to use it; a transaction that it has "
            "open is found with `ottla txn find-hanging` and ended with `ottla txn abort`",
            extra={"transactional_id": name},
        )

    def _unloaded(self, partition: TransactionPartition) -> None:
        """Release the markers; requests that wait are answered when their writes settle."""
        self.sender.unloaded(partition.number)
        if self.runtime.is_active:
            self._tasks.spawn(
                _release(partition.state, self.budget.turn()), f"transactions-released-{partition.number}"
            )


async def _release(state: TransactionsState, turn: Turn) -> None:
    """Free the memory in many turns: in one, 100,000 ids would hold the event loop for 100 ms."""
    while state.release(SLICE):
        await turn.yield_if_spent()

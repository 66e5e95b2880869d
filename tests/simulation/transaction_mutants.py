"""Changed rules of transactions: fencing, decisions, markers, timeouts, and what readers get."""

from __future__ import annotations

from typing import Any

from ottla.broker.api.fetch import reading as fetch_read
from ottla.broker.coordinators.internal_topic_log import AppendedBatch, ReplicatedStore
from ottla.broker.coordinators.record_writer import RecordWriter
from ottla.broker.groups.offsets.partition_state import GroupsState
from ottla.broker.log.state.producer_state import ProducerStates
from ottla.broker.transactions import markers, transaction
from ottla.broker.transactions.coordinator import Expiration, TransactionCoordinator
from ottla.broker.transactions.events import PREPARED, AddPartitions, Reason, TransactionState
from ottla.broker.transactions.hosted_transactions import HostedTransactions
from ottla.broker.transactions.marker_queue import EndedTransaction, Verdict
from ottla.broker.transactions.marker_sender import MarkerSender
from ottla.broker.transactions.transaction import Transaction
from ottla.broker.transactions.verification import Verification
from ottla.protocol.errors import ErrorCode
from ottla.zookeeper.frozen_classes import replace
from simulation.mutants import Patch, mutant


@mutant(transactions=True)
def producer_epoch_not_raised() -> list[Patch]:
    """InitProducerId gives a new producer the epoch of the one before, which is not fenced then."""
    original = Transaction._raise_epoch

    def raise_epoch(self: Any, present: Any, event: Any, now_ms: int, outcome: Any) -> None:
        earlier = replace(present.producer, epoch=present.producer.epoch - 1)
        original(self, replace(present, producer=earlier), event, now_ms, outcome)

    return [(Transaction, "_raise_epoch", raise_epoch)]


@mutant(transactions=True)
def producer_epoch_not_compared() -> list[Patch]:
    """AddPartitionsToTxn, AddOffsetsToTxn and EndTxn of a producer that was fenced are obeyed."""

    def present_one(step: Any) -> Any:
        def changed(self: Any, event: Any, now_ms: int, outcome: Any) -> Any:
            present = self.snapshot
            known = event.producer if present is None else present.producer
            return step(self, replace(event, producer=known), now_ms, outcome)

        return changed

    return [
        (Transaction, "_add", present_one(Transaction._add)),
        (Transaction, "_end", present_one(Transaction._end)),
    ]


@mutant(transactions=True)
def successor_does_not_abort() -> list[Patch]:
    """InitProducerId begins anew while a transaction of the id is open, which gets no marker."""

    def interrupt(self: Any, present: Any, event: Any, now_ms: int, outcome: Any) -> None:
        self.snapshot = replace(present, state=TransactionState.EMPTY)
        self._raise_epoch(self.snapshot, event, now_ms, outcome)

    return [(Transaction, "_interrupt", interrupt)]


@mutant(transactions=True)
def coordinator_acts_before_the_commit() -> list[Patch]:
    """A coordinator takes a record for committed as soon as it is in its own log."""
    original = ReplicatedStore.append

    def append(self: Any, *given: Any, **named: Any) -> AppendedBatch:
        return AppendedBatch(original(self, *given, **named).position, None)

    return [(ReplicatedStore, "append", append)]


@mutant(transactions=True)
def decided_ends_not_resumed() -> list[Patch]:
    """A coordinator that loads a transaction whose end is decided does not send its markers."""

    def loaded(self: Any, partition: Any, facts: Any) -> None:
        self._meters.load_time.update(facts.took_ms)

    return [(HostedTransactions, "_loaded", loaded)]


@mutant(transactions=True)
def markers_sent_once() -> list[Patch]:
    """Markers that a broker did not write are not sent again."""

    async def failed(self: Any, broker_id: int, batch: Any, error: Exception) -> None:
        self.queue.take_all(broker_id)

    def perform(self: Any, ended: Any, verdicts: Any) -> None:
        if self._is_hosted(ended) and verdicts[Verdict.WRITTEN]:
            self._written(ended, frozenset(verdicts[Verdict.WRITTEN]))

    return [(MarkerSender, "_failed", failed), (MarkerSender, "_perform", perform)]


@mutant(transactions=True)
def completed_before_the_markers() -> list[Patch]:
    """A transaction is complete, and the next one may begin, before its markers are written."""
    original = Transaction.replay

    def replay(self: Any, snapshot: Any) -> None:
        original(self, snapshot)
        self.unmarked = frozenset()

    return [(Transaction, "replay", replay)]


@mutant(transactions=True)
def marker_answered_before_the_commit() -> list[Patch]:
    """A broker says that a marker is written when only its own log has it."""

    async def committed(appended: Any) -> None:
        return

    return [(markers, "_committed", committed)]


@mutant(transactions=True)
def timeouts_ignored() -> list[Patch]:
    """A transaction whose producer has gone stays open."""

    async def abort_timed_out(self: Expiration) -> None:
        return

    return [(Expiration, "abort_timed_out", abort_timed_out)]


@mutant(transactions=True)
def timeout_does_not_fence() -> list[Patch]:
    """A transaction that timed out is aborted in the epoch of its producer, who goes on with it."""

    def check_timeout(self: Any, now_ms: int, outcome: Any) -> None:
        present = self.snapshot
        if present is None or self.is_pending or present.state is not TransactionState.ONGOING:
            return
        if present.started_ms + present.timeout_ms < now_ms:
            aborted = replace(present, state=TransactionState.PREPARE_ABORT, updated_ms=now_ms)
            self._write(Reason.ENDED, aborted, None, outcome)

    return [(Transaction, "_check_timeout", check_timeout)]


@mutant(transactions=True)
def partition_forgotten() -> list[Patch]:
    """A partition that is added to an open transaction takes the place of the others."""
    original = Transaction._add

    def add(self: Any, event: Any, now_ms: int, outcome: Any) -> Any:
        answer = original(self, event, now_ms, outcome)
        if outcome.write is not None:
            only = replace(
                outcome.write, snapshot=replace(outcome.write.snapshot, partitions=event.partitions)
            )
            self._pending = outcome.write = only
        return answer

    return [(Transaction, "_add", add)]


@mutant(transactions=True)
def aborted_transactions_not_told() -> list[Patch]:
    """Fetch does not name the aborted transactions among the records."""
    return [(fetch_read, "_aborted", lambda *_: [])]


@mutant(transactions=True)
def committed_reads_up_to_the_watermark() -> list[Patch]:
    """A reader of committed records gets those of open transactions."""
    original = fetch_read._visible_end

    def visible_end(terms: Any, hosted: Any) -> int:
        before, terms.committed_only = terms.committed_only, False
        try:
            return original(terms, hosted)
        finally:
            terms.committed_only = before

    return [(fetch_read, "_visible_end", visible_end)]


@mutant(transactions=True, scenario="late markers")
def coordinator_epoch_not_compared() -> list[Patch]:
    """A marker of a coordinator that was replaced ends the transaction that is open when it arrives."""
    original = ProducerStates.check_marker

    def check_marker(self: Any, header: Any, marker: Any) -> None:
        producer = self.get(header.producer_id)
        if producer is not None:
            marker = marker._replace(
                coordinator_epoch=max(marker.coordinator_epoch, producer.coordinator_epoch)
            )
        original(self, header, marker)

    return [(ProducerStates, "check_marker", check_marker)]


@mutant(transactions=True, scenario="stopped in transactions")
def open_transactions_not_in_snapshots() -> list[Patch]:
    """A broker that starts, or truncates, forgets the open transactions of a snapshot of producers."""
    original = ProducerStates.__init__

    def init(self: Any, entries: Any = (), end_offset: int = 0) -> None:
        none = [one._replace(current_transaction_first_offset=-1) for one in entries]
        original(self, none, end_offset)

    return [(ProducerStates, "__init__", init)]


@mutant(transactions=True)
def late_batches_taken() -> list[Patch]:
    """A batch that arrives behind its marker begins a transaction that nobody ends (KIP-890)."""
    return [(Verification, "is_enabled", property(lambda self: False))]


@mutant(transactions=True)
def marker_ends_nothing() -> list[Patch]:
    """A transaction that has its marker still holds the last stable offset back."""
    original = ProducerStates.apply_marker

    def apply_marker(self: Any, header: Any, base_offset: int, batch: Any) -> Any:
        before = dict(self._open)
        done = original(self, header, base_offset, batch)
        self._open = before
        return done

    return [(ProducerStates, "apply_marker", apply_marker)]


@mutant(transactions=True)
def offsets_visible_at_once() -> list[Patch]:
    """Offsets of an open transaction count as committed."""
    original = GroupsState.replay

    def replay(self: Any, record: Any, position: int, producer_id: int | None) -> None:
        original(self, record, position, None)

    return [(GroupsState, "replay", replay)]


@mutant(transactions=True)
def offsets_of_a_transaction_never_visible() -> list[Patch]:
    """The group coordinator does not hear that a transaction has ended."""
    return [(GroupsState, "end_transaction", lambda self, producer_id, commit: None)]


@mutant(transactions=True, scenario="replaced unnoticed")
def stable_offsets_not_confirmed() -> list[Patch]:
    """A group coordinator that another has replaced unnoticed answers OffsetFetch with its old offsets."""

    async def confirm_leadership(self: Any, partition: Any, unused: Any) -> None:
        return None

    return [(RecordWriter, "confirm_leadership", confirm_leadership)]


# ---- version 2


@mutant(transactions=True)
def epoch_does_not_rise_at_the_end() -> list[Patch]:
    """An EndTxn of version 2 leaves the producer in its epoch, in which a late batch may come."""
    original = transaction._raised

    def raised(present: Any, event: Any, now_ms: int) -> Any:
        return replace(original(present, event, now_ms), producer=present.producer)

    return [(transaction, "_raised", raised)]


@mutant(transactions=True)
def open_in_whichever_epoch() -> list[Patch]:
    """A batch of the next transaction gets into the last one, whose marker has not arrived."""

    def is_open(self: Any, producer_id: int, epoch: int) -> bool:
        return producer_id in self._open

    return [(ProducerStates, "_is_open", is_open)]


@mutant(transactions=True)
def partition_joins_while_markers_are_written() -> list[Patch]:
    """The coordinator adds a partition to the transaction whose end is decided."""
    original = Transaction._add

    def add(self: Any, event: Any, now_ms: int, outcome: Any) -> Any:
        present = self.snapshot
        if present is not None and present.producer == event.producer and present.state in PREPARED:
            return ErrorCode.NONE
        return original(self, event, now_ms, outcome)

    return [(Transaction, "_add", add)]


@mutant(transactions=True)
def joined_before_the_commit() -> list[Patch]:
    """A leader is told that its partition is in the transaction before the coordinator has written that."""
    original = TransactionCoordinator._add_partitions

    async def add_partitions(self: Any, name: str, producer: Any, partitions: Any, version: int) -> Any:
        if version == 0:
            return await original(self, name, producer, partitions, version)
        found = self._find(name)
        if isinstance(found, ErrorCode):
            return found
        answer = self._new_answer()
        self._hosted.step(*found, AddPartitions(answer, producer, partitions, version))
        return answer.result().error if answer.done() else ErrorCode.NONE

    return [(TransactionCoordinator, "_add_partitions", add_partitions)]


@mutant(transactions=True)
def markers_have_the_epoch_of_the_records() -> list[Patch]:
    """The markers of a transaction of version 2 have the epoch before the end: leaders refuse them."""
    original = EndedTransaction.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, transaction: Any, hosted: Any) -> Any:
        ended = original(cls, transaction, hosted)
        if ended.version > 1 and ended.producer.epoch > 0:
            ended.producer = replace(ended.producer, epoch=ended.producer.epoch - 1)
        return ended

    return [(EndedTransaction, "of", classmethod(of)), (EndedTransaction, "is_decided", True)]

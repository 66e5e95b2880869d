"""The pure state machine of one transactional id, as Apache Kafka 4.4 has it.

    InitProducerId             -> Empty; a transaction that is open is aborted first, in a newer epoch
    AddPartitions, AddOffsets  -> Ongoing
    EndTxn, timeout            -> PrepareCommit, PrepareAbort: the decision, final once it is committed
    all markers are written    -> CompleteCommit, CompleteAbort
    long unused                -> removed

A producer of version 2 (KIP-890) gets the next epoch with each EndTxn. Its markers have that epoch, so that a
batch which comes late has an older one than its partition knows. After the last epoch follows another id.

Rules for whoever edits this:

1. The present snapshot changes in `replay` only, once its record is committed. What is on its way to the log
   is `pending`, and excludes every other change: requests get CONCURRENT_TRANSACTIONS and try again.
2. A write that failed may be in the log nevertheless. That is harmless while no coordinator has acted on it:
   the next record of the id replaces it, and a load of the log sees only the last one. So markers are sent,
   and producer ids and epochs given out, only after `Persisted`.
3. After a damaged record the decision is unknown. The id can be initialized, with a new producer id,
   and the old producer is refused; its transaction gets no marker from here, neither a commit nor an abort.
4. A fence raises the epoch in the record that aborts. No client gets that epoch from InitProducerId; one of
   version 2 whose transaction timed out gets it from its own EndTxn, as after any other end.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ottla.broker.transactions.events import (
    COMPLETE,
    EPOCH_RISES_FROM,
    IDLE,
    LAST_EPOCH,
    NO_PRODUCER,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    PREPARED,
    PREVIOUS_STATES,
    UNREADABLE,
    AddPartitions,
    CheckExpiration,
    CheckTimeout,
    Complete,
    End,
    Event,
    Initialize,
    MarkersWritten,
    Outcome,
    Persisted,
    Producer,
    Reason,
    Reply,
    Result,
    Token,
    TransactionSnapshot,
    TransactionState,
    Write,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace

_NOTHING: Final[frozenset[TopicPartition]] = frozenset()


class Transaction:
    """One transactional id: its snapshot, the write in progress, and the partitions that lack the marker."""

    __slots__ = ("_pending", "_token", "snapshot", "transactional_id", "unmarked")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.snapshot: TransactionSnapshot | None = None
        """The state in the last committed record; None before the first record is committed."""
        self.unmarked: frozenset[TopicPartition] = _NOTHING
        """The partitions whose markers are not written yet."""
        self._pending: Write | None = None
        self._token: Token | None = None

    def __str__(self) -> str:
        return self.transactional_id

    @property
    def is_pending(self) -> bool:
        """Whether a write is in progress."""
        return self._pending is not None

    @property
    def state(self) -> TransactionState | None:
        """The committed state, None before there is one."""
        return None if self.snapshot is None else self.snapshot.state

    def replay(self, snapshot: TransactionSnapshot) -> None:
        """Apply a committed record."""
        self.snapshot = snapshot
        self.unmarked = snapshot.partitions if snapshot.state in PREPARED else _NOTHING

    # ---- steps

    def step(self, event: Event, now_ms: int) -> Outcome:
        """Process one event; the caller performs the outcome."""
        outcome = Outcome()
        match event:
            case Initialize():
                self._initialize(event, now_ms, outcome)
            case AddPartitions():
                self._answer(event.token, self._add(event, now_ms, outcome), outcome)
            case End():
                self._answer(event.token, self._end(event, now_ms, outcome), outcome)
            case CheckTimeout():
                self._check_timeout(now_ms, outcome)
            case CheckExpiration():
                self._check_expiration(event.unused_ms, now_ms, outcome)
            case MarkersWritten():
                self.unmarked -= event.partitions
                self._complete(now_ms, outcome)
            case Complete():
                self._complete(now_ms, outcome)
            case Persisted():
                self._persisted(event.error, outcome)
        return outcome

    def _answer(self, token: Token, error: ErrorCode | None, outcome: Outcome) -> None:
        """Answer now, unless the answer waits for the write."""
        if error is not None:
            outcome.replies.append(Reply(token, Result(error)))

    def _write(
        self, reason: Reason, snapshot: TransactionSnapshot | None, token: Token | None, outcome: Outcome
    ) -> None:
        assert self._pending is None, f"{self}: {reason} while {self._pending} is written"
        if snapshot is not None and self.state not in (None, TransactionState.DEAD):
            assert self.state in PREVIOUS_STATES[snapshot.state], f"{self.state} -> {snapshot.state}"
        self._pending = outcome.write = Write(reason, snapshot)
        self._token = token

    # ---- InitProducerId

    def _initialize(self, event: Initialize, now_ms: int, outcome: Outcome) -> None:
        present = self.snapshot
        if self.is_pending:
            self._answer(event.token, ErrorCode.CONCURRENT_TRANSACTIONS, outcome)
        elif present is None or present is UNREADABLE:
            self._begin_anew(event, NO_PRODUCER, now_ms, outcome)
        elif _is_ahead(present, event.expected):
            self._answer(event.token, ErrorCode.CONCURRENT_TRANSACTIONS, outcome)
        elif not _may_initialize(present, event.expected):
            self._answer(event.token, ErrorCode.PRODUCER_FENCED, outcome)
        elif present.state in PREPARED:
            self._answer(event.token, ErrorCode.CONCURRENT_TRANSACTIONS, outcome)
        elif present.state is TransactionState.ONGOING:
            self._interrupt(present, event, now_ms, outcome)
        elif _needs_new_id(present, event.expected):
            previous = NO_PRODUCER if event.expected is None else present.producer
            self._begin_anew(event, previous, now_ms, outcome)
        else:
            self._raise_epoch(present, event, now_ms, outcome)

    def _begin_anew(self, event: Initialize, previous: Producer, now_ms: int, outcome: Outcome) -> None:
        if event.new_id is None:
            outcome.needs_producer_id = True
            return
        snapshot = _empty(Producer(event.new_id, 0), previous, event.timeout_ms, now_ms)
        self._write(Reason.INITIALIZED, snapshot, event.token, outcome)

    def _raise_epoch(
        self, present: TransactionSnapshot, event: Initialize, now_ms: int, outcome: Outcome
    ) -> None:
        producer, previous = Producer(present.producer.id, present.producer.epoch + 1), present.producer
        if event.expected is None:
            previous = NO_PRODUCER
        elif event.expected.epoch != present.producer.epoch:
            if event.expected.epoch != present.previous.epoch:
                self._answer(event.token, ErrorCode.PRODUCER_FENCED, outcome)
                return
            # The repetition of a request that succeeded: the id was not initialized since.
            producer, previous = present.producer, present.previous
        snapshot = _empty(producer, previous, event.timeout_ms, now_ms)
        self._write(Reason.INITIALIZED, snapshot, event.token, outcome)

    def _interrupt(
        self, present: TransactionSnapshot, event: Initialize, now_ms: int, outcome: Outcome
    ) -> None:
        if event.expected is not None and event.expected != present.producer:
            # Kafka compares the epoch only after the abort: a fenced producer could end its successor's work.
            self._answer(event.token, ErrorCode.PRODUCER_FENCED, outcome)
        else:
            self._fence(present, event.token, now_ms, outcome)

    def _fence(
        self, present: TransactionSnapshot, token: Token | None, now_ms: int, outcome: Outcome
    ) -> None:
        """Abort in a newer epoch; the request that asks for it is answered with CONCURRENT_TRANSACTIONS."""
        fenced = Producer(present.producer.id, min(present.producer.epoch + 1, LAST_EPOCH))
        snapshot = replace(
            present,
            producer=fenced,
            previous=Producer(present.producer.id, NO_PRODUCER_EPOCH),
            state=TransactionState.PREPARE_ABORT,
            updated_ms=now_ms,
        )
        self._write(Reason.FENCED, snapshot, token, outcome)

    # ---- AddPartitionsToTxn, AddOffsetsToTxn

    def _add(self, event: AddPartitions, now_ms: int, outcome: Outcome) -> ErrorCode | None:
        present = self.snapshot
        if present is not None and _is_ahead(present, event.producer):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if present is None or present.producer.id != event.producer.id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if present.producer.epoch != event.producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.is_pending or present.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_open = present.state is TransactionState.ONGOING
        if is_open and event.partitions <= present.partitions:
            return ErrorCode.NONE
        snapshot = replace(
            present,
            previous=Producer(present.producer.id, present.previous.epoch),
            state=TransactionState.ONGOING,
            partitions=present.partitions | event.partitions if is_open else event.partitions,
            started_ms=present.started_ms if is_open else now_ms,
            updated_ms=now_ms,
            version=event.version,
        )
        self._write(Reason.PARTITIONS_ADDED, snapshot, event.token, outcome)
        return None

    def verify(
        self, producer: Producer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Return for each partition whether the open transaction of this producer has it (KIP-890).

        A write in progress does not count: a partition belongs to the transaction once that is committed.
        """
        return {partition: self._verified(producer, partition) for partition in partitions}

    def _verified(self, producer: Producer, partition: TopicPartition) -> ErrorCode:
        present = self.snapshot
        if present is not None and _is_ahead(present, producer):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if present is None or present.producer.id != producer.id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if present.producer.epoch != producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        if present.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE if partition in present.partitions else ErrorCode.TRANSACTION_ABORTABLE

    # ---- the end

    def _end(self, event: End, now_ms: int, outcome: Outcome) -> ErrorCode | None:
        if event.version >= EPOCH_RISES_FROM:
            return self._end_raising(event, now_ms, outcome)
        present = self.snapshot
        if present is None or present.producer.id != event.producer.id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if present.producer.epoch != event.producer.epoch:
            return ErrorCode.PRODUCER_FENCED
        if self.is_pending or present.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if present.state is not TransactionState.ONGOING:
            complete = TransactionState.COMPLETE_COMMIT if event.commit else TransactionState.COMPLETE_ABORT
            return ErrorCode.NONE if present.state is complete else ErrorCode.INVALID_TXN_STATE
        decided = TransactionState.PREPARE_COMMIT if event.commit else TransactionState.PREPARE_ABORT
        snapshot = replace(present, state=decided, updated_ms=now_ms, version=event.version)
        self._write(Reason.ENDED, snapshot, event.token, outcome)
        return None

    def _end_raising(self, event: End, now_ms: int, outcome: Outcome) -> ErrorCode | None:
        """End in version 2: the epoch rises, also with the abort of what has no partition yet.

        The same epoch does not mean a repetition there, but the end of the next transaction: a repetition has
        the epoch, or the used up producer, from before the end.
        """
        present = self.snapshot
        if present is not None and _is_ahead(present, event.producer):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if present is None or not _is_or_was(present, event.producer):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_repeated = _has_ended(present, event.producer)
        if is_repeated and present.state in PREPARED | COMPLETE:
            return self._end_again(present, event, outcome)
        if event.producer != present.producer:
            return ErrorCode.PRODUCER_FENCED
        if self.is_pending or present.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if event.commit and present.state is not TransactionState.ONGOING:
            return ErrorCode.INVALID_TXN_STATE
        if is_exhausted(present.producer.epoch) and event.new_id is None:
            outcome.needs_producer_id = True
            return None
        self._write(Reason.ENDED, _raised(present, event, now_ms), event.token, outcome)
        return None

    def _end_again(self, present: TransactionSnapshot, event: End, outcome: Outcome) -> ErrorCode | None:
        """Answer the repetition of an EndTxn that succeeded: with the same end, and the same next epoch."""
        if self.is_pending:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        committed = present.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
        if committed is not event.commit:
            return ErrorCode.INVALID_TXN_STATE
        if present.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        outcome.replies.append(Reply(event.token, Result(ErrorCode.NONE, present.producer)))
        return None

    def _check_timeout(self, now_ms: int, outcome: Outcome) -> None:
        present = self.snapshot
        if present is None or self.is_pending or present.state is not TransactionState.ONGOING:
            return
        if present.started_ms + present.timeout_ms < now_ms:
            self._fence(present, None, now_ms, outcome)

    def _complete(self, now_ms: int, outcome: Outcome) -> None:
        """Write the completion once every marker is written."""
        present = self.snapshot
        if present is None or present.state not in PREPARED or self.unmarked or self.is_pending:
            return
        committed = present.state is TransactionState.PREPARE_COMMIT
        complete = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        previous = present.previous
        if present.next_id != NO_PRODUCER_ID:
            previous = Producer(present.producer.id, LAST_EPOCH - 1)
        snapshot = replace(
            present,
            producer=present.successor,
            previous=previous,
            next_id=NO_PRODUCER_ID,
            state=complete,
            partitions=_NOTHING,
            updated_ms=now_ms,
        )
        self._write(Reason.COMPLETED, snapshot, None, outcome)

    # ---- expiration

    def _check_expiration(self, unused_ms: int, now_ms: int, outcome: Outcome) -> None:
        present = self.snapshot
        if present is None or self.is_pending or present.state not in IDLE:
            return
        if present.updated_ms <= now_ms - unused_ms:
            self._write(Reason.EXPIRED, None, None, outcome)

    # ---- after a write

    def _persisted(self, error: ErrorCode, outcome: Outcome) -> None:
        written, token = self._pending, self._token
        assert written is not None, f"{self}: nothing was written"
        self._pending = self._token = None
        if error is ErrorCode.NONE:
            outcome.sends_markers = written.reason in (Reason.ENDED, Reason.FENCED)
        elif written.reason is Reason.COMPLETED:
            outcome.completes_later = True
        if token is not None:
            outcome.replies.append(Reply(token, _result(written, error)))


def _result(written: Write, error: ErrorCode) -> Result:
    if error is not ErrorCode.NONE:
        return Result(error)
    if written.reason is Reason.FENCED:
        return Result(ErrorCode.CONCURRENT_TRANSACTIONS)
    snapshot = written.snapshot
    if snapshot is not None and written.reason is Reason.INITIALIZED:
        return Result(ErrorCode.NONE, snapshot.producer)
    if snapshot is not None and written.reason is Reason.ENDED and snapshot.version >= EPOCH_RISES_FROM:
        return Result(ErrorCode.NONE, snapshot.successor)
    return Result(ErrorCode.NONE)


def _raised(present: TransactionSnapshot, event: End, now_ms: int) -> TransactionSnapshot:
    """Return the decided end of a transaction in the next epoch of its producer."""
    is_open = present.state is TransactionState.ONGOING
    return replace(
        present,
        producer=Producer(present.producer.id, present.producer.epoch + 1),
        previous=present.producer,
        next_id=NO_PRODUCER_ID if event.new_id is None else event.new_id,
        state=TransactionState.PREPARE_COMMIT if event.commit else TransactionState.PREPARE_ABORT,
        partitions=present.partitions if is_open else _NOTHING,
        started_ms=present.started_ms if is_open else now_ms,
        updated_ms=now_ms,
        version=event.version,
    )


def _is_ahead(present: TransactionSnapshot, producer: Producer | None) -> bool:
    """Return whether a producer has its next id already, which the completion brings."""
    return producer is not None and present.next_id == producer.id != NO_PRODUCER_ID


def _is_or_was(present: TransactionSnapshot, producer: Producer) -> bool:
    return producer.id == present.producer.id or _has_used_up(present, producer)


def _has_used_up(present: TransactionSnapshot, producer: Producer) -> bool:
    """Return whether a producer is the one before the present id, in the last epoch that it was given."""
    is_last = producer.epoch == LAST_EPOCH - 1 and present.producer.epoch == 0
    return is_last and producer.id == present.previous.id != NO_PRODUCER_ID


def _has_ended(present: TransactionSnapshot, producer: Producer) -> bool:
    """Return whether the last end, in version 2, was that of this producer and epoch."""
    is_raised = producer == Producer(present.producer.id, present.producer.epoch - 1)
    return is_raised or _has_used_up(present, producer)


def is_exhausted(epoch: int) -> bool:
    """Return whether no newer epoch can be given to a client: the last one is left for a fence."""
    return epoch >= LAST_EPOCH - 1


def _may_initialize(present: TransactionSnapshot, expected: Producer | None) -> bool:
    """Return whether a producer that names itself is not fenced; its epoch is compared later.

    The previous producer id may be named if its epochs were exhausted: the answer with the new id was lost.
    """
    if expected is None or expected.id == present.producer.id:
        return True
    return expected.id == present.previous.id and is_exhausted(expected.epoch)


def _needs_new_id(present: TransactionSnapshot, expected: Producer | None) -> bool:
    if not is_exhausted(present.producer.epoch):
        return False
    return expected is None or expected.epoch == present.producer.epoch


def _empty(producer: Producer, previous: Producer, timeout_ms: int, now_ms: int) -> TransactionSnapshot:
    return TransactionSnapshot(
        producer=producer,
        previous=previous,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        started_ms=NO_TIME,
        updated_ms=now_ms,
    )

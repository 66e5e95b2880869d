"""The state of idempotent and transactional producers at the end of a log.

Pure: no files, no clock. Batches are checked before they are appended (`check`) and applied afterwards
(`apply`, `apply_marker`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ottla.protocol.errors import (
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from ottla.protocol.records import (
    BatchHeader,
    ControlType,
    EndTransactionMarker,
    read_end_transaction_marker,
)
from ottla.protocol.storage.indexes import AbortedTransaction, ProducerEntry

Buffer = bytes | bytearray | memoryview

KEPT_BATCHES: Final = 5
"""Batches remembered to recognise retries: as many as a producer may have in flight."""
_NONE: Final = -1
_MAX_EPOCH: Final = 0x7FFF
_MAX_SEQUENCE: Final = 2**31 - 1


class KeptBatch(NamedTuple):
    """One of a producer's last batches."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta

    @classmethod
    def appended(cls, header: BatchHeader, base_offset: int) -> KeptBatch:
        """A batch that stands at `base_offset`."""
        delta = header.last_offset_delta
        # The constructor of a NamedTuple takes twice as long.
        return tuple.__new__(
            cls,
            (header.base_sequence, header.last_sequence, base_offset + delta, delta, header.max_timestamp),
        )


class VerificationGuard:
    """Stands for one verification of a producer's transaction in one partition (KIP-890).

    Between the coordinator's answer and the append, a marker may end the transaction: it takes the guard
    away, and an append that comes with the guard then is refused. Each guard is unlike every other, so that
    one of a later transaction does not let the late append in.
    """

    __slots__ = ("begun_ms", "epoch", "joins", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, begun_ms: int, *, joins: bool = False) -> None:
        self.epoch = epoch
        self.joins = joins
        """Whether the partition joins the transaction with it, as in version 2."""
        self.lowest_sequence = lowest_sequence
        """The lowest sequence number that was to be verified: no later one may be appended first."""
        self.begun_ms = begun_ms


NOT_REQUIRED: Final = VerificationGuard(_NONE, _NONE, 0)
"""Lets transactional batches in without a verification."""


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended; `last_offset` is the marker's offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class Producer:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int = _NONE) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.batches: deque[KeptBatch] = deque(maxlen=KEPT_BATCHES)
        self.coordinator_epoch = _NONE
        self.last_timestamp_ms = _NONE
        self.transaction_start = _NONE

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, -1 if this epoch has none."""
        return self.batches[-1].last_sequence if self.batches else _NONE

    def duplicate_of(self, header: BatchHeader) -> KeptBatch | None:
        """The remembered batch that a retry repeats, if it is one."""
        if header.producer_epoch != self.epoch:
            return None
        first, last = header.base_sequence, header.last_sequence
        for batch in self.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        return None

    @property
    def lacks_batches(self) -> bool:
        """Whether the log may hold batches of this epoch that belong before the remembered ones."""
        batches = self.batches
        return bool(batches) and len(batches) < KEPT_BATCHES and batches[0].first_sequence != 0

    def put_before(self, header: BatchHeader) -> None:
        """Remember an earlier batch from the log before the remembered ones, if there is room for it."""
        if (
            self.lacks_batches
            and header.producer_epoch == self.epoch
            and header.last_offset < self.batches[0].last_offset
        ):
            self.batches.appendleft(KeptBatch.appended(header, header.base_offset))

    def snapshot(self) -> ProducerEntry:
        """The entry for a `.snapshot` file."""
        last = self.batches[-1] if self.batches else KeptBatch(_NONE, _NONE, _NONE, 0, _NONE)
        return ProducerEntry(
            self.producer_id,
            self.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            self.last_timestamp_ms,
            self.coordinator_epoch,
            self.transaction_start,
        )

    @classmethod
    def restored(cls, entry: ProducerEntry) -> Producer:
        """Restore a producer from its `snapshot`, which has its last batch only."""
        producer = cls(entry.producer_id, entry.producer_epoch)
        producer.coordinator_epoch = entry.coordinator_epoch
        producer.last_timestamp_ms = entry.timestamp_ms
        producer.transaction_start = entry.current_transaction_first_offset
        if entry.last_sequence != _NONE:
            first = (entry.last_sequence - entry.offset_delta) & _MAX_SEQUENCE
            producer.batches.append(
                KeptBatch(
                    first, entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms
                )
            )
        return producer


class ProducerStates:
    """All producers of one partition, with their open transactions."""

    __slots__ = ("_guards", "_open", "_producers", "end_offset", "unreplicated")

    def __init__(self, entries: Iterable[ProducerEntry] = (), end_offset: int = 0) -> None:
        self._producers: dict[int, Producer] = {}
        self._open: dict[int, int] = {}
        """Producer id -> first offset of its open transaction, the lowest offset first."""
        self.unreplicated: deque[CompletedTransaction] = deque()
        """Completed transactions whose marker may still be above the high watermark (`forget_replicated`)."""
        self._guards: dict[int, VerificationGuard] = {}
        """Producer id -> its verification that no append has used yet."""
        self.end_offset = end_offset
        """All batches below it were applied."""
        for entry in entries:
            self._producers[entry.producer_id] = Producer.restored(entry)
        in_transaction = [producer for producer in self if producer.transaction_start != _NONE]
        in_transaction.sort(key=lambda producer: producer.transaction_start)
        self._open.update((producer.producer_id, producer.transaction_start) for producer in in_transaction)

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> Producer | None:
        """The state of a producer id."""
        return self._producers.get(producer_id)

    def entries(self) -> list[ProducerEntry]:
        """The entries for a `.snapshot` file."""
        return [producer.snapshot() for producer in self._producers.values()]

    @property
    def lacks_batches(self) -> bool:
        """Whether `lacks_batches` holds for any producer."""
        return any(producer.lacks_batches for producer in self._producers.values())

    def put_before(self, header: BatchHeader) -> None:
        """Remember a batch from the log before the snapshot's batches; call with the newest first."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and not header.is_control:
            producer.put_before(header)

    # ---- before an append

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int, *, joins: bool = False
    ) -> VerificationGuard | None:
        """Return the guard for the first append of a transaction; None if the transaction is open already.

        The coordinator has to be asked before the guard is given to an append. `joins` where it is asked to
        add the partition to the transaction, as in version 2.
        """
        if self._is_open(producer_id, epoch):
            return None
        guard = self._guards.get(producer_id)
        if guard is None:
            guard = self._guards[producer_id] = VerificationGuard(epoch, sequence, now_ms, joins=joins)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence, guard.joins = epoch, sequence, joins
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def _is_open(self, producer_id: int, epoch: int) -> bool:
        """Return whether the transaction of an epoch is open: in version 2 the next one has the next epoch.

        Its producer may be told of it before the marker of the last one has arrived here.
        """
        return producer_id in self._open and self._producers[producer_id].epoch >= epoch

    def check(
        self, headers: Sequence[BatchHeader], guard: VerificationGuard | None = NOT_REQUIRED
    ) -> KeptBatch | None:
        """Check the batches of a client; returns the batch that they repeat if they are a retry.

        Raises `InvalidProducerEpoch`, `OutOfOrderSequenceNumber`, and `InvalidTxnState` for records outside
        of the open transaction of their producer, and for the first of a transaction without its guard.
        """
        producers = self._producers
        staged: dict[int, tuple[int, int]] = {}
        """Producer id -> (epoch, last sequence) after the batches checked so far."""
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            producer = producers.get(producer_id)
            if producer is not None:
                duplicate = producer.duplicate_of(header)
                if duplicate is not None:
                    return duplicate
                if not header.is_transactional and producer.transaction_start != _NONE:
                    raise InvalidTxnState(f"producer {producer_id} has a transaction open")
            if header.is_transactional and not self._is_open(producer_id, header.producer_epoch):
                self._check_guard(header, guard)
            known = staged.get(producer_id)
            if known is None and producer is not None:
                known = producer.epoch, producer.last_sequence
            if known is not None:
                _check_sequence(header, *known)
            elif guard is not None and guard.joins:
                _check_first(header)
            staged[producer_id] = header.producer_epoch, header.last_sequence
        return None

    def check_one(
        self, header: BatchHeader, guard: VerificationGuard | None = NOT_REQUIRED
    ) -> KeptBatch | None:
        """`check` for a single batch of an idempotent producer."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return self.check((header,), guard) if header.is_transactional else None
        batches = producer.batches
        if header.producer_epoch == producer.epoch and batches:
            is_open = producer.transaction_start != _NONE
            if header.base_sequence == batches[-1].last_sequence + 1 and header.is_transactional is is_open:
                return None
        return self.check((header,), guard)

    def _check_guard(self, header: BatchHeader, guard: VerificationGuard | None) -> None:
        verified = self._guards.get(header.producer_id)
        # A batch of an earlier epoch has sequence numbers of its own: it is fenced, not out of order.
        is_same = verified is not None and verified.epoch == header.producer_epoch
        if verified is not None and is_same and header.base_sequence > verified.lowest_sequence >= 0:
            raise OutOfOrderSequenceNumber(
                f"producer {header.producer_id} began a transaction with sequence "
                f"{verified.lowest_sequence}, {header.base_sequence} came first"
            )
        if guard is not NOT_REQUIRED and (guard is None or guard is not verified):
            raise InvalidTxnState(f"no transaction of producer {header.producer_id} is verified here")

    def check_of_coordinator(
        self, header: BatchHeader, batch: Buffer, guard: VerificationGuard | None = NOT_REQUIRED
    ) -> None:
        """Check a batch that a coordinator writes for a producer: a marker, or offsets of a transaction.

        Raises what `check_marker` raises, and `InvalidTxnState` for offsets without their guard.
        """
        if header.is_control:
            marker = read_end_transaction_marker(batch)
            if marker is not None:
                self.check_marker(header, marker)
            return
        producer = self._producers.get(header.producer_id)
        if producer is not None:
            _check_epoch(header, producer.epoch)
        if header.is_transactional and not self._is_open(header.producer_id, header.producer_epoch):
            self._check_guard(header, guard)

    def check_marker(self, header: BatchHeader, marker: EndTransactionMarker) -> None:
        """Check a coordinator's end-transaction marker.

        Raises `InvalidProducerEpoch`, and `TransactionCoordinatorFenced` for an earlier coordinator epoch.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return
        _check_epoch(header, producer.epoch)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"a marker of coordinator epoch {marker.coordinator_epoch}, "
                f"{producer.coordinator_epoch} is known"
            )

    def check_marker_of_version_2(self, producer_id: int, epoch: int) -> None:
        """Check a marker of a transaction of version 2, whose epoch rises with its end (KIP-890).

        A marker of the epoch in which the transaction is open belongs to the one before it. Raises
        `InvalidProducerEpoch`.
        """
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            return
        is_repeated = producer.transaction_start == _NONE or epoch == _MAX_EPOCH
        if epoch < producer.epoch or not is_repeated:
            raise InvalidProducerEpoch(
                f"a marker of epoch {epoch} for producer {producer_id}, whose epoch is {producer.epoch}"
            )

    # ---- after an append

    def apply(self, header: BatchHeader, base_offset: int) -> None:
        """Apply a batch of records that was appended at `base_offset`."""
        producer = self._with_epoch(header)
        last_offset = base_offset + header.last_offset_delta
        producer.batches.append(KeptBatch.appended(header, base_offset))
        producer.last_timestamp_ms = header.max_timestamp
        if header.is_transactional and producer.transaction_start == _NONE:
            producer.transaction_start = base_offset
            self._open[producer.producer_id] = base_offset
            self._guards.pop(producer.producer_id, None)
        self.end_offset = last_offset + 1

    def complete(
        self, header: BatchHeader, base_offset: int, marker: EndTransactionMarker, *, committed: bool
    ) -> CompletedTransaction | None:
        """Apply a marker that was appended; returns the transaction it ended, if that has records."""
        self._drop_guard(header)
        producer = self._with_epoch(header)
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        producer.last_timestamp_ms = header.max_timestamp
        first_offset = producer.transaction_start
        self.end_offset = base_offset + 1
        if first_offset == _NONE:
            return None
        producer.transaction_start = _NONE
        del self._open[producer.producer_id]
        completed = CompletedTransaction(producer.producer_id, first_offset, base_offset, not committed)
        self.unreplicated.append(completed)
        return completed

    def _drop_guard(self, marker: BatchHeader) -> None:
        """Take the guard of the transaction that a marker ends.

        In version 2 a producer may begin the next transaction before this marker arrives, in its epoch. The
        coordinator answers for that one once all markers are written: its guard stays.
        """
        guard = self._guards.get(marker.producer_id)
        if guard is None:
            return
        producer = self._producers.get(marker.producer_id)
        is_next = guard.epoch >= marker.producer_epoch and (producer is None or guard.epoch > producer.epoch)
        if not (guard.joins and is_next):
            del self._guards[marker.producer_id]

    def apply_marker(self, header: BatchHeader, base_offset: int, batch: Buffer) -> AbortedTransaction | None:
        """Apply a control batch that was appended; returns the index entry if it aborts a transaction."""
        marker = read_end_transaction_marker(batch)
        if marker is None:
            return None
        committed = marker.type is ControlType.COMMIT
        done = self.complete(header, base_offset, marker, committed=committed)
        if done is None or not done.aborted:
            return None
        stable = self.stable_offset_after(done)
        return AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, stable)

    def _with_epoch(self, header: BatchHeader) -> Producer:
        producer = self._producers.get(header.producer_id)
        if producer is None:
            producer = self._producers[header.producer_id] = Producer(header.producer_id)
        if producer.epoch != header.producer_epoch:
            producer.batches.clear()
            producer.epoch = header.producer_epoch
        return producer

    # ---- transactions

    def stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset after `completed`, for the transaction index."""
        return next(iter(self._open.values()), completed.last_offset + 1)

    @property
    def has_transactions(self) -> bool:
        """Whether the last stable offset may be below the high watermark."""
        return bool(self._open or self.unreplicated)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open, or whose marker is above the high watermark."""
        self.forget_replicated(high_watermark)
        starts = [transaction.first_offset for transaction in self.unreplicated]
        starts += islice(self._open.values(), 1)
        return min(starts, default=None)

    def forget_replicated(self, high_watermark: int) -> None:
        """Forget the completed transactions whose markers are below the high watermark.

        Call it before a marker is applied, too: a follower is never asked for its first unstable offset.
        """
        unreplicated = self.unreplicated
        while unreplicated and unreplicated[0].last_offset < high_watermark:
            unreplicated.popleft()

    # ---- forgetting

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drop producers idle for `expiration_ms` without an open transaction; returns how many."""
        expired = [
            producer_id
            for producer_id, producer in self._producers.items()
            if producer.transaction_start == _NONE and now_ms - producer.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        for producer_id, guard in list(self._guards.items()):
            if now_ms - guard.begun_ms >= expiration_ms:
                del self._guards[producer_id]
        return len(expired)


def _check_epoch(header: BatchHeader, epoch: int) -> None:
    if header.producer_epoch < epoch:
        raise InvalidProducerEpoch(
            f"producer {header.producer_id} has epoch {header.producer_epoch}, epoch {epoch} is known"
        )


def _check_sequence(header: BatchHeader, epoch: int, last_sequence: int) -> None:
    _check_epoch(header, epoch)
    expected = 0 if header.producer_epoch != epoch else (last_sequence + 1) & _MAX_SEQUENCE
    # An entry of a snapshot may lack an epoch; then any sequence number may be the first.
    if header.base_sequence != expected and epoch != _NONE:
        raise OutOfOrderSequenceNumber(
            f"producer {header.producer_id} sent sequence {header.base_sequence}, {expected} is next"
        )


def _check_first(header: BatchHeader) -> None:
    """Check the first batch of a producer that joins, and was not here before: each epoch begins with 0."""
    if header.base_sequence != 0:
        raise OutOfOrderSequenceNumber(
            f"producer {header.producer_id} sent sequence {header.base_sequence}, 0 is the first"
        )

"""The markers that are to be written, by the broker that leads their partitions. Pure.

put -> take: one request to a broker at a time -> written
                                               -> defer -> due: route it again, to its present leader
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.coordinators.coordinator_partitions import CoordinatorPartition
from ottla.broker.transactions.events import PREPARED, Producer, TransactionState
from ottla.broker.transactions.partition_state import TransactionsState
from ottla.broker.transactions.transaction import Transaction
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

FIRST_PAUSE_MS: Final = 20
LONGEST_PAUSE_MS: Final = 1_000
PARTITIONS_IN_A_REQUEST: Final = 100
"""As many as a broker appends markers to in some milliseconds."""
LOOKED_AT_ONCE: Final = 1_000
"""Markers that one call looks at: the event loop has other work, too."""

TransactionPartition: TypeAlias = CoordinatorPartition[TransactionsState]
Partitions: TypeAlias = frozenset[TopicPartition]


@dataclass(slots=True, eq=False)
class EndedTransaction:
    """A transaction whose end is committed, in one leadership of its partition of `__transaction_state`."""

    transaction: Transaction
    hosted: TransactionPartition
    producer: Producer
    commit: bool
    version: int = 0
    """The version of transactions that the producer ended it with."""
    attempts: int = 0
    is_given_up: bool = False
    """Whether a newer coordinator or producer has refused a marker."""

    @classmethod
    def of(cls, transaction: Transaction, hosted: TransactionPartition) -> EndedTransaction:
        """Describe the end that the transaction's snapshot holds."""
        snapshot = transaction.snapshot
        assert snapshot is not None
        assert snapshot.state in PREPARED
        commit = snapshot.state is TransactionState.PREPARE_COMMIT
        return cls(transaction, hosted, snapshot.producer, commit, snapshot.version)

    @property
    def is_decided(self) -> bool:
        """Whether the transaction still waits for these markers."""
        snapshot = self.transaction.snapshot
        return (
            not self.is_given_up
            and snapshot is not None
            and snapshot.state in PREPARED
            and snapshot.producer == self.producer
        )


class Markers(NamedTuple):
    """The markers of one transaction for some of its partitions."""

    ended: EndedTransaction
    partitions: Partitions


class Verdict(Enum):
    """The outcome of a marker in one partition: it is written, sent again, or given up."""

    WRITTEN = "written"
    AGAIN = "again"
    GIVE_UP = "give up"


_WRITTEN: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION}
)
"""A partition whose records have no producers has no record of the transaction either."""
_FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)


def verdict(code: int) -> Verdict:
    """Return the outcome for an error code. Errors that Kafka treats as fatal are retried."""
    if code in _WRITTEN:
        return Verdict.WRITTEN
    return Verdict.GIVE_UP if code in _FENCED else Verdict.AGAIN


class MarkerQueue:
    """Markers by destination, and those that wait for their next attempt."""

    def __init__(self) -> None:
        # In a plain dict the way to the first entry grows with each one that was taken before.
        self._by_broker: dict[int, OrderedDict[EndedTransaction, Partitions]] = {}
        self._deferred: list[tuple[float, int, Markers]] = []
        self._serial = 0

    @property
    def deferred(self) -> int:
        """How many transactions wait for another attempt, counted for each of their leaders."""
        return len(self._deferred)

    def has(self, broker_id: int) -> bool:
        """Return whether anything is queued for a broker."""
        return broker_id in self._by_broker

    def put(self, broker_id: int, markers: Markers) -> None:
        """Queue markers for the next request to a broker."""
        queued = self._by_broker.setdefault(broker_id, OrderedDict())
        queued[markers.ended] = queued.get(markers.ended, frozenset()) | markers.partitions

    def take(
        self,
        broker_id: int,
        is_hosted: Callable[[EndedTransaction], bool],
        most_partitions: int = PARTITIONS_IN_A_REQUEST,
    ) -> list[Markers]:
        """Remove and return what the next request to a broker holds: each transaction once, oldest first.

        Those that are not waited for, or not hosted here any more, are dropped. It may be empty while
        more is queued.
        """
        queued, taken, partitions = self._by_broker.get(broker_id, OrderedDict()), list[Markers](), 0
        for _ in range(min(LOOKED_AT_ONCE, len(queued))):
            if partitions >= most_partitions:
                break
            markers = Markers(*queued.popitem(last=False))
            ended = markers.ended
            if ended.is_decided and is_hosted(ended):
                taken.append(markers)
                partitions += len(markers.partitions)
        if not queued:
            self._by_broker.pop(broker_id, None)
        return taken

    def take_all(self, broker_id: int) -> list[Markers]:
        """Remove and return all that waits for a broker."""
        return [Markers(*queued) for queued in self._by_broker.pop(broker_id, {}).items()]

    def defer(self, markers: Markers, now_ms: float) -> None:
        """Route markers again after a pause, which grows with the attempts of their transaction."""
        ended = markers.ended
        pause_ms = min(FIRST_PAUSE_MS * 2 ** min(ended.attempts, 10), LONGEST_PAUSE_MS)
        ended.attempts += 1
        self._serial += 1
        heapq.heappush(self._deferred, (now_ms + pause_ms, self._serial, markers))

    def next_ms(self) -> float | None:
        """Return when the next deferred markers are due; None without any."""
        return self._deferred[0][0] if self._deferred else None

    def due(self, now_ms: float) -> list[Markers]:
        """Remove and return markers that are due and still wanted; more may be due behind them."""
        due: list[Markers] = []
        for _ in range(LOOKED_AT_ONCE):
            if not self._deferred or self._deferred[0][0] > now_ms:
                break
            markers = heapq.heappop(self._deferred)[2]
            if markers.ended.is_decided:
                due.append(markers)
        return due

"""The state of one partition of `__transaction_state`: its transactional ids."""

from __future__ import annotations

from sys import getsizeof
from typing import Final

from ottla.broker.transactions.events import PREPARED, TransactionState
from ottla.broker.transactions.records import TransactionRecord
from ottla.broker.transactions.transaction import Transaction

_BYTES_PER_ID: Final = 1_000
_BYTES_PER_PARTITION: Final = 250


class TransactionsState:
    """The transactions of one partition by transactional id. They change by replaying committed records."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.transactions: dict[str, Transaction] = {}
        self.ongoing: dict[str, Transaction] = {}
        """Those that are open, which may time out."""
        self.prepared: dict[str, Transaction] = {}
        """Those whose end is decided, but not complete."""
        self.memory_bytes = 0
        """About what the transactions take in memory."""

    def find_or_create(self, transactional_id: str) -> Transaction:
        """Return the transaction of an id; a new one has no snapshot until its first record is committed."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id)
            self.memory_bytes += _size(transaction)
        return transaction

    def drop_if_unused(self, transaction: Transaction) -> None:
        """Forget an id whose first record was not committed."""
        if transaction.snapshot is None and not transaction.is_pending:
            self._forget(transaction.transactional_id)

    def replay(self, record: TransactionRecord, position: int, producer_id: int | None) -> None:
        """Apply one record; nothing in this topic is transactional itself."""
        transactional_id, snapshot = record
        if snapshot is None:
            self._forget(transactional_id)
            return
        transaction = self.find_or_create(transactional_id)
        self.memory_bytes -= _size(transaction)
        transaction.replay(snapshot)
        self.memory_bytes += _size(transaction)
        self._note(transactional_id, transaction, snapshot.state)

    def _note(self, transactional_id: str, transaction: Transaction, state: TransactionState) -> None:
        if state is TransactionState.ONGOING:
            self.ongoing[transactional_id] = transaction
        else:
            self.ongoing.pop(transactional_id, None)
        if state in PREPARED:
            self.prepared[transactional_id] = transaction
        else:
            self.prepared.pop(transactional_id, None)

    def release(self, most: int) -> bool:
        """Release some ids of a partition that is not led here any more; return whether any is left."""
        for _ in range(min(most, len(self.transactions))):
            self._forget(next(reversed(self.transactions)))
        return bool(self.transactions)

    def _forget(self, transactional_id: str) -> None:
        self.ongoing.pop(transactional_id, None)
        self.prepared.pop(transactional_id, None)
        transaction = self.transactions.pop(transactional_id, None)
        if transaction is not None:
            self.memory_bytes -= _size(transaction)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Do nothing: no producer writes to this topic."""

    def complete_load(self) -> None:
        """Do nothing: every record was complete in itself."""


def _size(transaction: Transaction) -> int:
    partitions = 0 if transaction.snapshot is None else len(transaction.snapshot.partitions)
    return _BYTES_PER_ID + getsizeof(transaction.transactional_id) + partitions * _BYTES_PER_PARTITION

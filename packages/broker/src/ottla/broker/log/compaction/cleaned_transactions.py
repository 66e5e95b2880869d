"""Which transactional batches and markers a cleaning may drop, as Kafka's CleanedTransactionMetadata.

Pure. The batches of a log are told in order. Records of aborted transactions are dropped at once. A marker is
kept until no batch of its transaction is left, and then for the retention of tombstones: a consumer that has
read the transaction's records must find how it ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ottla.protocol.records import BatchHeader, Buffer, ControlType, read_end_transaction_marker
from ottla.protocol.storage.indexes import AbortedTransaction


class CleanedTransactions:
    """The transactions of one pass over a log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._to_come = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        """Producer id -> the aborted transaction that is under way."""
        self._seen: set[int] = set()
        """Producers that have had batches in their transaction."""
        self._index: list[AbortedTransaction] = []

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take a batch of records; says whether its transaction was aborted."""
        self._begin(header)
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        return header.producer_id in self._aborted

    def is_empty_at(self, header: BatchHeader, batch: Buffer) -> bool:
        """Take a control batch; says whether it ends a transaction of which no batch was there.

        Raises CorruptRecords for a marker that cannot be read.
        """
        if not header.record_count:
            return True  # it was cleaned before
        self._begin(header)
        marker = read_end_transaction_marker(batch)
        if marker is None:
            return False
        seen = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        if marker.type is ControlType.ABORT:
            aborted = self._aborted.pop(header.producer_id, None)
            if aborted is None:
                return True
            if seen:
                self._index.append(aborted)
        return not seen

    def take_index(self) -> list[AbortedTransaction]:
        """The aborted transactions that ended since the last call and still had batches."""
        taken, self._index = self._index, []
        return taken

    def _begin(self, header: BatchHeader) -> None:
        while self._to_come and self._to_come[0].first_offset <= header.last_offset:
            aborted = self._to_come.popleft()
            if aborted.last_offset >= header.base_offset:  # else it has ended before the pass began
                self._aborted.setdefault(aborted.producer_id, aborted)

"""Passes over all transactions: abort those open for too long, remove unused ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ottla.broker.transactions.events import CheckExpiration, CheckTimeout, Persisted
from ottla.broker.transactions.records import TransactionRecord
from ottla.broker.transactions.response_errors import after_failed_write
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.transactions.hosted_transactions import HostedTransactions
    from ottla.broker.transactions.marker_queue import TransactionPartition
    from ottla.broker.transactions.transaction import Transaction

TOMBSTONES_IN_A_BATCH: Final = 500
TOMBSTONE_BYTES_IN_A_BATCH: Final = 256 * 1024


class Expiration:
    """The two passes. Each visits the transactions of partitions whose state is loaded."""

    def __init__(self, hosted: HostedTransactions, unused_ms: int) -> None:
        """`unused_ms` is `transactional.id.expiration.ms`: older unused ids are removed."""
        self._hosted = hosted
        self._unused_ms = unused_ms

    async def abort_timed_out(self) -> None:
        """Abort every transaction that is open for longer than its timeout, in a newer epoch."""
        for partition in self._hosted.runtime.partitions:
            async for transaction in self._each(partition, partition.state.ongoing):
                self._hosted.step(partition, transaction, CheckTimeout())

    async def remove_unused(self) -> None:
        """Write the tombstones of unused ids, in batches; each batch waits for the one before."""
        for partition in self._hosted.runtime.partitions:
            batch: list[Transaction] = []
            async for transaction in self._each(partition, partition.state.transactions):
                event, now_ms = CheckExpiration(self._unused_ms), self._hosted.clock.now_ms()
                # Not by the hosted `step`, which writes a batch for each; `_remove` sends the `Persisted`.
                if transaction.step(event, now_ms).write is not None:
                    batch.append(transaction)
                if _is_full(batch):
                    await self._remove(partition, batch)
                    batch = []
            if batch:
                await self._remove(partition, batch)

    async def _each(
        self, partition: TransactionPartition, transactions: Mapping[str, Transaction]
    ) -> AsyncIterator[Transaction]:
        async for transaction in self._hosted.budget.turn().over(list(transactions.values())):
            if not partition.loaded or not self._hosted.is_hosted(partition):
                return
            yield transaction

    async def _remove(self, partition: TransactionPartition, batch: Sequence[Transaction]) -> None:
        """Append the tombstones, and forget the ids once they are committed."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled(error: KafkaError | None) -> None:
            code = ErrorCode.NONE if error is None else after_failed_write(error.code)
            for transaction in batch:
                self._hosted.step(partition, transaction, Persisted(code))
            if not done.done():
                done.set_result(None)

        records = [TransactionRecord(transaction.transactional_id, None) for transaction in batch]
        self._hosted.writer.write(partition, records, settled)
        await done


def _is_full(batch: Sequence[Transaction]) -> bool:
    if len(batch) >= TOMBSTONES_IN_A_BATCH:
        return True
    # The longest id has 32 KB: the sizes count only in a batch that could be too large.
    return (
        len(batch) >= 8
        and sum(len(transaction.transactional_id) for transaction in batch) >= TOMBSTONE_BYTES_IN_A_BATCH
    )

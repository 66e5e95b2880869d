"""Requests that wait for the completion of a transaction instead of being sent once more.

A producer begins its next transaction as soon as its commit is decided, while the markers are still written.
Clients send a request that was answered with CONCURRENT_TRANSACTIONS again after 20 ms, and markers seldom
take as long as that. In transactions version 2 the leaders of its partitions ask at the same time, too: each
waits for the write of the one before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ottla.broker.transactions.events import PREPARED

if TYPE_CHECKING:
    from ottla.broker.transactions.transaction import Transaction

MOST_S: Final = 0.1
"""The longest wait: a client has to hear soon that a leader of its partitions is away."""


def is_changing(transaction: Transaction) -> bool:
    """Whether a transaction is being written, or its end is decided and it is not complete."""
    return transaction.is_pending or transaction.state in PREPARED


class CompletionWaits:
    """The transactions that requests wait for."""

    def __init__(self) -> None:
        self._waiting: dict[Transaction, dict[asyncio.Future[None], None]] = {}

    async def wait(self, transaction: Transaction) -> bool:
        """Wait until a transaction does not change any more; return whether that came in time."""
        completed = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(transaction, {})
        waiting[completed] = None  # in the order of their arrival
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(MOST_S):
                    await completed
        finally:
            waiting.pop(completed, None)
            if not waiting and self._waiting.get(transaction) is waiting:
                del self._waiting[transaction]
        return completed.done() and not completed.cancelled()

    def stepped(self, transaction: Transaction) -> None:
        """Wake the waiting requests if the transaction does not change any more."""
        if transaction in self._waiting and not is_changing(transaction):
            for completed in self._waiting.pop(transaction):
                if not completed.done():
                    completed.set_result(None)

"""Begin, prepare, commit and abort transactions, as the application calls it (KIP-98)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from ottla.client.errors import ClientError
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.producer.append.pending_metadata import PendingMetadata
from ottla.producer.append.record_admission import RecordAdmission
from ottla.producer.transactions.coordinator_client import TransactionCoordinatorClient
from ottla.producer.transactions.prepared_transaction import PreparedTransaction
from ottla.producer.transactions.state import Phase, TransactionAborted, TransactionError
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

log = logging.getLogger(__name__)


class UnsentBatches(Protocol):
    """The batches that are not in flight."""

    def drop_unsent(self, error: BaseException) -> None:
        """Fail them."""


class Transactions:
    """One transaction after the other, for a producer with a `transactional_id`.

    `coordinator` is None for a producer without: then every call raises TransactionError. `flush` looks up
    the producer's own method at each call, because a subclass may override it.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinatorClient | None,
        admission: RecordAdmission,
        flush: Callable[[], Awaitable[None]],
        pending: PendingMetadata,
        batches: UnsentBatches,
    ) -> None:
        self._coordinator = coordinator
        self._admission = admission
        self._flush = flush
        self._pending = pending
        self._batches = batches

    async def begin(self) -> None:
        """Begin a transaction, and admit records."""
        await self._required.begin()
        self._admission.update()

    async def commit(self) -> None:
        """Flush, and have the coordinator commit. May be called again when the coordinator did not answer."""
        coordinator = self._required
        self._admission.close_fast_path()
        if coordinator.state.phase is not Phase.COMMITTING:
            coordinator.state.to(Phase.FLUSHING, "commit")  # no record is admitted from here on
            await self._flush()
        await coordinator.commit()

    async def prepare(self) -> PreparedTransaction:
        """Flush, and leave the end of the transaction to `end_prepared`."""
        coordinator = self._required
        self._admission.close_fast_path()
        coordinator.state.to(Phase.FLUSHING, "prepare")
        await self._flush()
        return await coordinator.prepare()

    async def abort(self) -> None:
        """Fail the records that are not in flight, wait for the others, and have the coordinator abort."""
        coordinator = self._required
        coordinator.state.to(Phase.ABORTING, "abort")
        self._admission.close_fast_path()
        aborted = TransactionAborted()
        self._pending.fail_all(aborted)
        self._batches.drop_unsent(aborted)
        # A batch in flight must land before the abort marker: behind it, it would begin a transaction that
        # nothing ends.
        await self._flush()
        await coordinator.abort()

    async def abort_if_open(self, abort: Callable[[], Awaitable[None]], timeout_s: float) -> None:
        """Call `abort` if a transaction is open, within a bound. An error is logged, not raised."""
        if self._coordinator is None or not self._coordinator.state.may_be_aborted:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await abort()
        except (ClientError, KafkaError, TimeoutError) as error:
            # The coordinator aborts it by itself after `transaction_timeout_ms`.
            facts = {"transactional_id": self._coordinator.transactional_id, "error": str(error)}
            log.warning("a transaction was not aborted", extra=facts)

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets of a consumer group with the transaction."""
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        await self._required.send_offsets(offsets, metadata)

    @property
    def _required(self) -> TransactionCoordinatorClient:
        self._admission.check_open()
        if self._coordinator is None:
            raise TransactionError("transactions need a transactional_id: Producer(transactional_id=...)")
        return self._coordinator

"""The transaction coordinator: requests of producers and administrators, and the lifetime of its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, cast

from ottla.broker.coordinators.response_errors import after_failed_transaction_write
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.transactions.completion_waits import MOST_S, is_changing
from ottla.broker.transactions.events import (
    EPOCH_RISES_FROM,
    UNREADABLE,
    AddPartitions,
    CheckExpiration,
    CheckTimeout,
    End,
    Initialize,
    Persisted,
    Producer,
    Result,
    TransactionSnapshot,
    TransactionState,
)
from ottla.broker.transactions.hosted_transactions import HostedTransactions
from ottla.broker.transactions.records import TransactionRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC
from ottla.zookeeper.frozen_classes import frozen, replace

if TYPE_CHECKING:
    from ottla.broker.config import BrokerConfig
    from ottla.broker.coordinators.internal_topic_log import CoordinatorStore
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.transactions.events import Event
    from ottla.broker.transactions.marker_queue import TransactionPartition
    from ottla.broker.transactions.marker_sender import Cluster
    from ottla.broker.transactions.producer_ids import ProducerIds
    from ottla.broker.transactions.transaction import Transaction
    from ottla.protocol.topics import TopicPartition


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
            code = ErrorCode.NONE if error is None else after_failed_transaction_write(error.code)
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


@frozen
class TransactionFilter:
    """The filters of ListTransactions: an empty set and a negative duration admit every transaction."""

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = -1
    matches: Callable[[str], object] | None = None
    """Returns something true for the transactional ids that are listed; None lists all of them."""

    def admits(self, transactional_id: str, snapshot: TransactionSnapshot, now_ms: int) -> bool:
        """Return whether a transaction is listed."""
        return (
            snapshot is not UNREADABLE
            and (self.matches is None or bool(self.matches(transactional_id)))
            and (not self.states or snapshot.state in self.states)
            and (not self.producer_ids or snapshot.producer.id in self.producer_ids)
            and (self.longer_than_ms < 0 or now_ms - snapshot.started_ms > self.longer_than_ms)
        )


class TransactionCoordinator:
    """Coordinates the transactions whose partition of `__transaction_state` this broker leads.

    Own it with `async with`: inside, it loads the partitions it is elected for, sends markers, aborts what is
    open for too long and removes ids that are not used. Every method returns Kafka's error codes and never
    raises them.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        environment: Environment,
        metrics: Metrics,
        store: CoordinatorStore,
        cluster: Cluster,
        producer_ids: ProducerIds,
        level: Callable[[], int] = lambda: 0,
    ) -> None:
        """`level` returns that of `transaction.version`."""
        self.producer_ids = producer_ids
        self._config = config
        self._tasks = BackgroundTasks(metrics, environment.clock)
        self._hosted = HostedTransactions(
            environment=environment,
            metrics=metrics,
            store=store,
            cluster=cluster,
            tasks=self._tasks,
            write_timeout_ms=config.request_timeout_ms,
            level=level,
        )

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        config, hosted, tasks = self._config, self._hosted, self._tasks
        hosted.runtime.start()
        tasks.lasting(hosted.sender.run(), "transaction-markers")
        tasks.lasting(hosted.sender.drop_deleted(), "transaction-markers-of-deleted-partitions")
        expiration = Expiration(hosted, config.transactional_id_expiration_ms)
        tasks.every(
            "transaction-abort",
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            expiration.abort_timed_out,
        )
        tasks.every(
            "transactional-id-expiration",
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            expiration.remove_unused,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hosted.runtime.stop()
        await self._tasks.__aexit__(kind, error, trace)

    def leadership_changed(
        self, elected: Sequence[tuple[TopicPartition, int]], resigned: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        """Take over partitions of `__transaction_state`, and give others up; other topics are ignored."""
        self._hosted.runtime.leadership_changed(elected, resigned)
        for topic_partition, _ in elected:
            if topic_partition.topic == TRANSACTION_STATE_TOPIC:
                self._hosted.sender.epoch_changed(topic_partition.partition)

    # ---- producers

    async def initialize(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None = None
    ) -> Result:
        """Return the producer id and epoch with which a producer may use the id; earlier ones are fenced.

        `expected` is what the producer has, if it goes on after an error.
        """
        if not transactional_id:
            return Result(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return Result(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        result = await self._initialize(transactional_id, timeout_ms, expected, None)
        if result is None:
            try:
                new_id = await self.producer_ids.next_id()
            except KafkaError as error:
                return Result(error.code)
            result = await self._initialize(transactional_id, timeout_ms, expected, new_id)
        assert result is not None, "a producer id was given"
        return result

    async def _initialize(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None, new_id: int | None
    ) -> Result | None:
        """Initialize with the present state; None when that takes a new producer id."""
        partition = self._hosted.runtime.find(transactional_id)
        if isinstance(partition, ErrorCode):
            return Result(partition)
        if transactional_id not in partition.state.transactions and self._is_full:
            return Result(ErrorCode.POLICY_VIOLATION)
        transaction = partition.state.find_or_create(transactional_id)
        answer = self._new_answer()
        event = Initialize(token=answer, timeout_ms=timeout_ms, expected=expected, new_id=new_id)
        outcome = self._hosted.step(partition, transaction, event)
        if outcome.needs_producer_id:
            partition.state.drop_if_unused(transaction)
            return None
        return await answer

    @property
    def _is_full(self) -> bool:
        return self._hosted.memory_bytes >= self._config.transaction_max_memory_bytes

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        version: int = 0,
    ) -> ErrorCode:
        """Make partitions part of the producer's transaction, which begins with the first of them.

        Waits a moment for the completion of the transaction before it. In version 2 leaders ask for their
        partitions, one after the other: a request may also meet the write of another one.
        """
        added = frozenset(partitions)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + MOST_S
        while True:
            error = await self._add_partitions(transactional_id, producer, added, version)
            is_over = error is not ErrorCode.CONCURRENT_TRANSACTIONS or loop.time() >= until_s
            if is_over or not await self._settled(transactional_id):
                return error

    async def _add_partitions(
        self, transactional_id: str, producer: Producer, partitions: frozenset[TopicPartition], version: int
    ) -> ErrorCode:
        answer = self._new_answer()
        event = AddPartitions(answer, producer, partitions, version)
        return (await self._request(transactional_id, event, answer)).error

    async def _settled(self, transactional_id: str) -> bool:
        """Wait while a transaction is ending or being written; return whether that was over in time."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode) or not is_changing(found[1]):
            return False
        return await self._hosted.completion_waits.wait(found[1])

    async def end(self, transactional_id: str, producer: Producer, *, commit: bool) -> ErrorCode:
        """Commit or abort. Once this returns NONE the decision is final; the markers follow."""
        answer = self._new_answer()
        return (await self._request(transactional_id, End(answer, producer, commit), answer)).error

    async def end_raising(
        self, transactional_id: str, producer: Producer, *, commit: bool, version: int = EPOCH_RISES_FROM
    ) -> Result:
        """Commit or abort as in version 2: the result has the producer id and epoch of what follows."""
        answer = self._new_answer()
        event = End(answer, producer, commit, version)
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return Result(found)
        if not self._hosted.step(*found, event).needs_producer_id:
            return await answer
        try:
            new_id = await self.producer_ids.next_id()
        except KafkaError as error:
            return Result(error.code)
        return await self._request(transactional_id, replace(event, new_id=new_id), answer)

    async def _request(self, transactional_id: str, event: Event, answer: asyncio.Future[Result]) -> Result:
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return Result(found)
        self._hosted.step(*found, event)
        return await answer

    def _find(self, transactional_id: str) -> tuple[TransactionPartition, Transaction] | ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        partition = self._hosted.runtime.find(transactional_id)
        if isinstance(partition, ErrorCode):
            return partition
        transaction = partition.state.transactions.get(transactional_id)
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING if transaction is None else (partition, transaction)

    def _new_answer(self) -> asyncio.Future[Result]:
        return cast("asyncio.Future[Result]", asyncio.get_running_loop().create_future())

    # ---- other brokers

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return for each partition whether it is in the producer's open transaction (KIP-890)."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            return dict.fromkeys(partitions, found)
        return found[1].verify(producer, partitions)

    # ---- administration

    def describe(self, transactional_id: str) -> TransactionSnapshot | ErrorCode:
        """Return the committed state of a transactional id."""
        found = self._find(transactional_id)
        if isinstance(found, ErrorCode):
            unknown = found is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if unknown else found
        snapshot = found[1].snapshot
        if snapshot is None or snapshot is UNREADABLE:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return snapshot

    def list_transactions(
        self, filter_: TransactionFilter
    ) -> tuple[ErrorCode, Iterable[tuple[str, TransactionSnapshot]]]:
        """List the transactional ids that this broker coordinates, as they are while they are iterated."""
        runtime = self._hosted.runtime
        if not runtime.is_active:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, ()
        if runtime.partitions.is_loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ()
        now_ms = self._hosted.clock.now_ms()
        return ErrorCode.NONE, (
            (transaction.transactional_id, transaction.snapshot)
            for _, transaction in self._hosted
            if transaction.snapshot is not None
            and filter_.admits(transaction.transactional_id, transaction.snapshot, now_ms)
        )

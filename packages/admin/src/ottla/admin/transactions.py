"""Transactions and the producers of partitions; the abort of a transaction that its coordinator forgot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from ottla.client.cluster import TRANSACTION, Cluster, is_stale, raise_for
from ottla.client.errors import Need, error_about
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, TransactionalIdNotFound
from ottla.protocol.messages import open_transactions
from ottla.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.topics import TopicPartition, by_topic

T = TypeVar("T")

MAX_TIMEOUT_MS: Final = 900_000
"""The longest time that brokers allow a transaction by default (transaction.max.timeout.ms)."""
_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, the broker that coordinates it, and the state of its newest transaction."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id with its transaction; `start_ms` is None and `partitions` empty without one."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """A producer that a partition knows; `start_offset` is where its open transaction begins, or None.

    `coordinator_epoch` is that of the last marker; 0 where there was none.
    """

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition, and the transactional id whose coordinator will end it.

    None: no coordinator has the partition in a transaction of that producer, so the transaction hangs.
    """

    producer: PartitionProducer
    transactional_id: str | None


Producers = list[PartitionProducer]
Results = list[T]  # `Transactions.list` hides the type inside the class


class NoSuchTransaction(ValueError):
    """No open transaction of the partition begins at the offset."""

    def __init__(self, partition: TopicPartition, offset: int, opened: Collection[int]) -> None:
        begins = ", ".join(map(str, sorted(opened)))
        others = f"open ones begin at {begins}" if begins else "none is open there"
        super().__init__(f"no open transaction of {partition} begins at offset {offset}: {others}")


class Transactions:
    """Transactions of a cluster (KIP-664): coordinators are asked, and leaders of partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int | None = None,
    ) -> list[TransactionListing]:
        """Return the transactional ids of all coordinators, sorted; filters leave out the others.

        States are Kafka's: Ongoing, PrepareCommit, CompleteAbort and so on. `longer_than_ms` leaves those
        that have run for longer, and needs brokers since 3.8 (KIP-994): older ones raise UnsupportedByBroker.
        """
        request = open_transactions.ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=_NONE if longer_than_ms is None else longer_than_ms,
        )
        least = None if longer_than_ms is None else 1

        async def ask() -> list[TransactionListing]:
            await self._cluster.refresh([])
            found: list[TransactionListing] = []
            for node_id in sorted(self._cluster.nodes):
                response = await self._cluster.send(
                    node_id, request, open_transactions.ListTransactionsResponse, min_version=least
                )
                raise_for(response.error_code)
                if unknown := response.unknown_state_filters:
                    raise ValueError(f"there is no state {', '.join(map(repr, unknown))} of transactions")
                found += [
                    TransactionListing(
                        state.transactional_id, node_id, state.producer_id, state.transaction_state
                    )
                    for state in response.transaction_states
                ]
            return sorted(found, key=lambda listing: listing.transactional_id)

        return await self._cluster.retry("listing transactions", ask)

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Return the transaction of an id. Raises TransactionalIdNotFound, ValueError for an empty id."""
        if not transactional_id:
            raise ValueError("the transactional id must not be empty")

        async def ask() -> TransactionDescription:
            coordinator = await self._cluster.coordinator(transactional_id, TRANSACTION)
            try:
                return await self._describe_on(coordinator, transactional_id)
            except Exception:
                # It may be gone, or have moved; to look for it again costs one request.
                self._cluster.forget_coordinator(transactional_id, TRANSACTION)
                raise

        return await self._cluster.retry(f"describing transactional id {transactional_id!r}", ask)

    async def _describe_on(self, coordinator: int, transactional_id: str) -> TransactionDescription:
        request = open_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        response = await self._cluster.send(
            coordinator, request, open_transactions.DescribeTransactionsResponse
        )
        (found,) = response.transaction_states
        if found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise TransactionalIdNotFound(f"transactional id {transactional_id!r} does not exist")
        need = Need(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        raise_for(found.error_code, None, need)
        return TransactionDescription(
            found.transactional_id,
            coordinator,
            found.producer_id,
            found.producer_epoch,
            found.transaction_state,
            found.transaction_timeout_ms,
            found.transaction_start_time_ms if found.transaction_start_time_ms >= 0 else None,
            tuple(TopicPartition(topic.topic, index) for topic in found.topics for index in topic.partitions),
        )

    async def producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """Return the producers that the leaders of partitions know, sorted by partition and producer id."""
        wanted = list(partitions)

        async def ask() -> Producers:
            return await self._at_leaders(wanted, self._producers_on)

        found = await self._cluster.retry("describing producers", ask)
        return sorted(found, key=lambda producer: (producer.partition, producer.producer_id))

    async def opened(self, partitions: Iterable[TopicPartition]) -> Results[OpenTransaction]:
        """Return the transactions that are open in partitions, sorted as their producers are."""
        producers = await self.producers(partitions)
        return await self._owned([found for found in producers if found.start_offset is not None])

    async def hanging(
        self, partitions: Iterable[TopicPartition], *, now_ms: int, longer_than_ms: int = MAX_TIMEOUT_MS
    ) -> Producers:
        """Return the producers whose transaction no coordinator will end: the partition stays open for good.

        Such a transaction is open in a partition, had its last record more than `longer_than_ms` ago, and
        its producer's coordinator knows of none in which the partition is.
        """
        old = [
            producer
            for producer in await self.producers(partitions)
            if producer.start_offset is not None and now_ms - producer.last_timestamp_ms > longer_than_ms
        ]
        return [found.producer for found in await self._owned(old) if found.transactional_id is None]

    async def _owned(self, producers: Producers) -> Results[OpenTransaction]:
        """Return open transactions with their transactional ids.

        A coordinator forgets the partitions of a transaction once their markers are written. So one that
        ended since its producer was read looks as if it hung, until the producer is read again.
        """
        if not producers:
            return []
        known = await self._transactions_of({producer.producer_id for producer in producers})
        found = [OpenTransaction(producer, _owner(producer, known)) for producer in producers]
        unowned = [opened.producer for opened in found if opened.transactional_id is None]
        if not unowned:
            return found
        again = await self.producers(sorted({producer.partition for producer in unowned}))
        still = {_place(producer) for producer in again}
        return [
            opened
            for opened in found
            if opened.transactional_id is not None or _place(opened.producer) in still
        ]

    async def _transactions_of(self, producer_ids: Collection[int]) -> dict[int, TransactionDescription]:
        """Return the transactions of producers, as their coordinators have them."""
        known: dict[int, TransactionDescription] = {}
        for listing in await self.list(producer_ids=producer_ids):
            try:
                found = await self.describe(listing.transactional_id)
            except TransactionalIdNotFound:
                continue  # it has expired since
            known[found.producer_id] = found
        return known

    async def abort(self, partition: TopicPartition, start_offset: int) -> PartitionProducer:
        """Abort the open transaction of a partition that begins at an offset; return its producer.

        It writes the marker without the coordinator (WriteTxnMarkers): only for a transaction that hangs.
        Raises NoSuchTransaction.
        """
        opened = {
            producer.start_offset: producer
            for producer in await self.producers([partition])
            if producer.start_offset is not None
        }
        if (found := opened.get(start_offset)) is None:
            raise NoSuchTransaction(partition, start_offset, opened.keys())
        await self.write_abort_marker(found)
        return found

    async def write_abort_marker(self, producer: PartitionProducer) -> None:
        """Write the marker of an aborted transaction into a partition, in the name of its coordinator."""
        partition = producer.partition
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=producer.coordinator_epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])],
        )
        request = WriteTxnMarkersRequest(markers=[marker])

        async def write(leader: int, _: Sequence[TopicPartition]) -> Results[None]:
            connection = await self._cluster.connection_to_leader(leader)
            response = await connection.send(request, WriteTxnMarkersResponse)
            codes = [
                partition.error_code
                for found in response.markers
                for topic in found.topics
                for partition in topic.partitions
            ]
            refused = f"{partition}: the leader refused the marker, {ErrorCode(codes[0]).name}"
            raise_for(codes[0], refused, Need(Operation.CLUSTER_ACTION, ResourceType.CLUSTER))
            return [None]

        await self._cluster.retry(
            f"aborting a transaction of {partition}", lambda: self._at_leaders([partition], write)
        )

    async def _producers_on(self, leader: int, partitions: Sequence[TopicPartition]) -> Producers:
        topics = [
            open_transactions.TopicRequest(
                name=name, partition_indexes=[partition.partition for partition in some]
            )
            for name, some in by_topic(partitions).items()
        ]
        request = open_transactions.DescribeProducersRequest(topics=topics)
        connection = await self._cluster.connection_to_leader(leader)
        response = await connection.send(request, open_transactions.DescribeProducersResponse)
        found = []
        for topic in response.topics:
            for answer in topic.partitions:
                partition = TopicPartition(topic.name, answer.partition_index)
                if answer.error_code != ErrorCode.NONE:
                    need = Need(Operation.READ, ResourceType.TOPIC, topic.name)
                    raise error_about(answer.error_code, answer.error_message or f"{partition}", need)
                found += [_producer(partition, producer) for producer in answer.active_producers]
        return found

    async def _at_leaders(
        self,
        partitions: Sequence[TopicPartition],
        on: Callable[[int, Sequence[TopicPartition]], Awaitable[Results[T]]],
    ) -> Results[T]:
        try:
            results: Results[T] = []
            for leader, some in (await self._by_leader(partitions)).items():
                results += await on(leader, some)
        except Exception as error:
            if is_stale(error):
                self._cluster.forget(*{partition.topic for partition in partitions})
            raise
        return results

    async def _by_leader(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[int, Sequence[TopicPartition]]:
        found: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in partitions:
            leader, _ = await self._cluster.leader(partition)
            found[leader].append(partition)
        return found


def _producer(partition: TopicPartition, given: open_transactions.ProducerState) -> PartitionProducer:
    return PartitionProducer(
        partition,
        given.producer_id,
        given.producer_epoch,
        max(0, given.coordinator_epoch),
        given.last_sequence,
        given.last_timestamp,
        given.current_txn_start_offset if given.current_txn_start_offset >= 0 else None,
    )


def _owner(producer: PartitionProducer, known: Mapping[int, TransactionDescription]) -> str | None:
    found = known.get(producer.producer_id)
    return found.transactional_id if found is not None and producer.partition in found.partitions else None


def _place(producer: PartitionProducer) -> tuple[TopicPartition, int, int | None]:
    return producer.partition, producer.producer_id, producer.start_offset

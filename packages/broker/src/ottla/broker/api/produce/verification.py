"""The verification of transactional batches before they are appended (KIP-890).

A batch of a transaction that is open in its partition needs none. The first one gets a guard, and its
coordinator is asked; the append takes the guard, and is refused if a marker has ended the transaction
meanwhile. In version 2 of transactions the coordinator is asked to add the partition: its producer did not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from ottla.broker.log.state.producer_state import NOT_REQUIRED, VerificationGuard
from ottla.broker.transactions.events import Producer
from ottla.protocol.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    NotEnoughReplicas,
    error_for,
)
from ottla.protocol.records import BATCH_HEADER_SIZE, BatchHeader, magic_at, read_header
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.replication.replicas import Replicas
    from ottla.broker.requests.context import RequestContext
    from ottla.broker.runtime.environment import Environment
    from ottla.broker.transactions.verification import Errors
    from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest

_FIRST_WITH_ABORTABLE: Final = 11
_FIRST_THAT_JOINS: Final = 12
"""The first version whose batches make their partitions part of the transaction (KIP-890)."""
_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors that producers do not retry: they get NOT_ENOUGH_REPLICAS, which they do."""


class Verifier(Protocol):
    """Asks transaction coordinators (`transactions.verification.Verification`)."""

    @property
    def is_enabled(self) -> bool:
        """Whether the first batch of a transaction has to be verified."""
        ...

    def now(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        knows_abortable: bool,
    ) -> Errors | None:
        """Return the error of each partition, or None where another broker has to be asked."""
        ...

    async def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        knows_abortable: bool,
    ) -> Errors:
        """Return the error of each partition: NONE for one in the open transaction of the producer."""
        ...

    async def join(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Errors:
        """Add partitions to the producer's transaction, in version 2; return the error of each."""
        ...


class Needs(Protocol):
    """The parts of the broker that verify transactions."""

    environment: Environment
    replicas: Replicas

    @property
    def verification(self) -> Verifier:
        """Asks transaction coordinators."""
        ...


@dataclass(slots=True)
class Verified:
    """The guards and errors of the partitions of one request."""

    is_required: bool = False
    joins: bool = False
    """Whether the partitions join the transaction with these batches."""
    guards: dict[TopicPartition, VerificationGuard] = field(default_factory=dict)
    errors: dict[TopicPartition, KafkaError] = field(default_factory=dict)
    producer: Producer | None = None

    def guard_of(self, partition: TopicPartition) -> VerificationGuard | None:
        """Return the guard for the append to a partition; raises the error of its verification."""
        if not self.is_required:
            return NOT_REQUIRED
        if (error := self.errors.get(partition)) is not None:
            raise error
        return self.guards.get(partition)

    def take(self, errors: Errors) -> None:
        """Take the errors that the coordinator has answered."""
        self.errors = {
            topic_partition: _refusal(code, joins=self.joins)
            for topic_partition, code in errors.items()
            if code is not ErrorCode.NONE
        }


NOTHING_TO_VERIFY: Final = Verified()


def verified_now(services: Needs, request: ProduceRequest, context: RequestContext) -> Verified | None:
    """Verify the batches of a short request; None if that takes a request to another broker.

    Raises `InvalidProducerIdMapping` for batches of several producers.
    """
    if (verified := _required(services, request, context)) is None:
        return NOTHING_TO_VERIFY
    for topic in request.topic_data:
        for data in topic.partition_data:
            _begin(services, verified, TopicPartition(topic.name, data.index), data)
    return verified if _answered_now(services, verified, request, context) else None


async def verify(services: Needs, request: ProduceRequest, context: RequestContext) -> Verified:
    """Verify the batches of a request, and wait for its coordinator. Raises what `verified_now` raises."""
    if (verified := _required(services, request, context)) is None:
        return NOTHING_TO_VERIFY
    for topic in request.topic_data:
        async for data in context.paced(topic.partition_data):
            _begin(services, verified, TopicPartition(topic.name, data.index), data)
    if not _answered_now(services, verified, request, context):
        verified.take(await _asked(services, verified, request, context))
    return verified


def _required(services: Needs, request: ProduceRequest, context: RequestContext) -> Verified | None:
    """Return the place of the results, None where no batch needs a verification."""
    joins = context.api_version >= _FIRST_THAT_JOINS
    if request.transactional_id is None or not (joins or services.verification.is_enabled):
        return None
    return Verified(is_required=True, joins=joins)


async def _asked(
    services: Needs, verified: Verified, request: ProduceRequest, context: RequestContext
) -> Errors:
    assert verified.producer is not None
    name, partitions = request.transactional_id or "", verified.guards.keys()
    if verified.joins:
        return await services.verification.join(name, verified.producer, partitions)
    return await services.verification.verify(
        name,
        verified.producer,
        partitions,
        knows_abortable=context.api_version >= _FIRST_WITH_ABORTABLE,
    )


def _answered_now(
    services: Needs, verified: Verified, request: ProduceRequest, context: RequestContext
) -> bool:
    """Whether nothing has to be asked, or the coordinator of this broker has answered."""
    if not verified.guards or verified.producer is None:
        return True
    if verified.joins:
        return False  # that takes a write, also on this broker
    errors = services.verification.now(
        request.transactional_id or "",
        verified.producer,
        verified.guards.keys(),
        knows_abortable=context.api_version >= _FIRST_WITH_ABORTABLE,
    )
    if errors is not None:
        verified.take(errors)
    return errors is not None


def _begin(
    services: Needs, verified: Verified, topic_partition: TopicPartition, data: PartitionProduceData
) -> None:
    """Take the guard of one partition, if its batch begins a transaction there."""
    header = _transactional(data.records)
    if header is None:
        return
    producer = Producer(header.producer_id, header.producer_epoch)
    if verified.producer not in (None, producer):
        raise InvalidProducerIdMapping("transactional batches of several producers in one request")
    verified.producer = producer
    partition = services.replicas.hosted(topic_partition)
    if partition is None or not partition.leads:
        return  # the append raises the error
    guard = partition.log.producers.begin_verification(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        services.environment.clock.now_ms(),
        joins=verified.joins,
    )
    if guard is not None:
        verified.guards[topic_partition] = guard


def _transactional(records: bytes | memoryview | None) -> BatchHeader | None:
    """The batch of a partition, if it is transactional. Produce versions with transactions carry one only."""
    if records is None or len(records) < BATCH_HEADER_SIZE or magic_at(records) != 2:
        return None
    try:
        header = read_header(records)
    except CorruptMessage:
        return None  # the append raises the error
    return header if header.is_transactional and header.producer_id >= 0 else None


def is_transactional(records: bytes | memoryview | None) -> bool:
    """Return whether a partition's batch is of a transaction."""
    if records is None or len(records) < BATCH_HEADER_SIZE or magic_at(records) != 2:
        return False
    try:
        return read_header(records).is_transactional
    except CorruptMessage:
        return False


def _refusal(code: ErrorCode, *, joins: bool) -> KafkaError:
    """The error of a partition whose verification failed with `code`.

    Producers of version 2 know CONCURRENT_TRANSACTIONS, which is common there while markers are written.
    """
    if code is ErrorCode.INVALID_TXN_STATE:
        return InvalidTxnState("Partition was not added to the transaction")
    if code in _RETRIED and not (joins and code is ErrorCode.CONCURRENT_TRANSACTIONS):
        return NotEnoughReplicas(f"Unable to verify that the partition is in the transaction: {code.name}")
    return error_for(code)

"""Asks transaction coordinators whether partitions are in an open transaction (KIP-890, AddPartitionsToTxn).

A batch that arrives after the marker of its transaction would open another one that has no end, and the last
stable offset would stand still. So the first batch of a transaction is appended once its coordinator has said
that the partition belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.transactions.events import Producer
from ottla.broker.transactions.metrics import VerificationMeters
from ottla.broker.transactions.verification_requests import Coordinators, VerificationRequests
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.metrics import Metrics
    from ottla.broker.runtime.environment import Clock

Errors = Mapping[TopicPartition, ErrorCode]
VerifyHere = Callable[[str, Producer, Collection[TopicPartition]], Errors]


class Verification:
    """The verification of transactions for one broker's partitions.

    Own it with `async with`: inside, it keeps connections to coordinators as long as they are used.
    """

    def __init__(
        self,
        *,
        metadata: MetadataCache,
        verify_here: VerifyHere,
        coordinators: Coordinators,
        is_enabled: Callable[[], bool],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`verify_here` asks the coordinator of this broker, `coordinators` those of the others."""
        self._metadata = metadata
        self._verify_here = verify_here
        self._is_enabled = is_enabled
        self._monotonic_ms = clock.monotonic_ms
        self._meters = VerificationMeters(metrics)
        self._tasks = BackgroundTasks(metrics, clock)
        self._coordinators = coordinators
        self._requests = VerificationRequests(coordinators.ask, self._tasks)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)
        self._requests.fail_all()
        await self._coordinators.close()

    @property
    def is_enabled(self) -> bool:
        """Whether the first batch of a transaction has to be verified."""
        return self._is_enabled()

    def now(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        knows_abortable: bool,
    ) -> Errors | None:
        """Return the error of each partition, or None where another broker has to be asked."""
        leader = self._coordinator_of(transactional_id)
        if leader is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leader != self._metadata.broker_id:
            return None
        found = self._verify_here(transactional_id, producer, partitions)
        self._meters.note(found, 0.0)
        return _known_errors(found, knows_abortable)

    async def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        knows_abortable: bool,
    ) -> Errors:
        """Return the error of each partition: NONE for one in the open transaction of the producer.

        NETWORK_EXCEPTION when the coordinator does not answer within `request.timeout.ms`. `knows_abortable`
        tells whether the client knows TRANSACTION_ABORTABLE; others get INVALID_TXN_STATE.
        """
        known = self.now(transactional_id, producer, partitions, knows_abortable=knows_abortable)
        if known is not None:
            return known
        leader = self._coordinator_of(transactional_id)
        if leader is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        began_ms = self._monotonic_ms()
        found = await self._requests.verify(leader, transactional_id, producer, partitions)
        self._meters.note(found, self._monotonic_ms() - began_ms)
        return _known_errors(found, knows_abortable)

    def _coordinator_of(self, transactional_id: str) -> int | None:
        count = self._metadata.partition_count(TRANSACTION_STATE_TOPIC)
        if not count:
            return None
        number = partition_for(transactional_id, count)
        return self._metadata.leader_of(TopicPartition(TRANSACTION_STATE_TOPIC, number))


def _known_errors(errors: Errors, knows_abortable: bool) -> Errors:
    """The errors as a producer knows them."""
    return {partition: _known(error, knows_abortable) for partition, error in errors.items()}


def _known(error: ErrorCode, knows_abortable: bool) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error

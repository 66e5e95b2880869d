"""Asks transaction coordinators whether partitions are in an open transaction (KIP-890, AddPartitionsToTxn).

A batch that arrives after the marker of its transaction would open another one that has no end, and the last
stable offset would stand still. So the first batch of a transaction is appended once its coordinator has said
that the partition belongs to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.peers.client import IncompatibleBroker
from ottla.broker.runtime.background_tasks import BackgroundTasks
from ottla.broker.transactions.events import EPOCH_RISES_FROM, Producer
from ottla.protocol.errors import ErrorCode, KafkaError, error_class
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.topics import TRANSACTION_STATE_TOPIC, TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata import MetadataCache
    from ottla.broker.metrics import Metrics
    from ottla.broker.peers.client import Peer
    from ottla.broker.runtime.environment import Clock


log = logging.getLogger(__name__)

MAX_TOGETHER: Final = 1_000
"""Transactions in one request."""
FIRST_BETWEEN_BROKERS: Final = 4
"""The first version of AddPartitionsToTxn that verifies."""

Errors = Mapping[TopicPartition, ErrorCode]


class CoordinatorHere(Protocol):
    """The transaction coordinator of this broker."""

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition], /
    ) -> Errors:
        """Return for each partition whether it is in the producer's open transaction."""
        ...

    async def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        /,
        version: int = 0,
    ) -> ErrorCode:
        """Make partitions part of the producer's transaction."""
        ...


class Coordinators(Protocol):
    """The transaction coordinators on other brokers."""

    async def ask(self, broker_id: int, request: AddPartitionsToTxnRequest, /) -> AddPartitionsToTxnResponse:
        """Send a request to a broker, and wait for its response at most for `request.timeout.ms`.

        Raises IncompatibleBroker for one that verifies nothing, and OSError or a KafkaError when there is
        no response.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class RemoteCoordinators:
    """Asks the coordinators on other brokers, over one connection to each."""

    def __init__(self, connect: Callable[[int], Peer]) -> None:
        self._connect = connect
        self._peers: dict[int, Peer] = {}

    async def ask(self, broker_id: int, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Send a verification. Raises the errors of `Peer.send`."""
        peer = self._peers.get(broker_id)
        if peer is None:
            peer = self._peers[broker_id] = self._connect(broker_id)
        return await peer.send(request, AddPartitionsToTxnResponse, min_version=FIRST_BETWEEN_BROKERS)

    async def close(self) -> None:
        """Close all connections."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.close()


Ask = Callable[[int, AddPartitionsToTxnRequest], Awaitable[AddPartitionsToTxnResponse]]


class _Waiting(NamedTuple):
    """One verification, and where its result goes."""

    transactional_id: str
    producer: Producer
    partitions: Collection[TopicPartition]
    joins: bool
    answer: asyncio.Future[Mapping[TopicPartition, ErrorCode]]

    def settle(self, errors: Mapping[TopicPartition, ErrorCode]) -> None:
        if not self.answer.done():
            self.answer.set_result(errors)

    def settle_all(self, error: ErrorCode) -> None:
        self.settle(dict.fromkeys(self.partitions, error))


class VerificationRequests:
    """Sends one request to each broker at a time; verifications that come meanwhile go with the next one."""

    def __init__(self, ask: Ask, tasks: BackgroundTasks) -> None:
        self._ask = ask
        self._tasks = tasks
        self._queues: dict[int, deque[_Waiting]] = {}
        """Broker -> what waits for the next request; only while a task sends to the broker."""

    async def verify(
        self,
        broker_id: int,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        joins: bool = False,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return the coordinator's error for each partition; NETWORK_EXCEPTION where it gave no answer.

        With `joins` the partitions are added to the transaction.
        """
        answer: asyncio.Future[Mapping[TopicPartition, ErrorCode]]
        answer = asyncio.get_running_loop().create_future()
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = deque()
            self._tasks.spawn(self._serve(broker_id, queue), f"verify-transactions-{broker_id}")
        queue.append(_Waiting(transactional_id, producer, partitions, joins, answer))
        return await answer

    def fail_all(self) -> None:
        """Answer what still waits: the broker stops."""
        for queue in self._queues.values():
            for verification in queue:
                verification.settle_all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._queues.clear()

    async def _serve(self, broker_id: int, queue: deque[_Waiting]) -> None:
        try:
            while batch := _take(queue):
                await self._send(broker_id, batch)
        finally:
            del self._queues[broker_id]
            for verification in queue:
                verification.settle_all(ErrorCode.NETWORK_EXCEPTION)

    async def _send(self, broker_id: int, batch: Sequence[_Waiting]) -> None:
        error = ErrorCode.NETWORK_EXCEPTION
        try:
            response = await self._ask(broker_id, _request(batch))
        except IncompatibleBroker:  # an older broker, which has nothing to verify with, and adds nothing
            for verification in batch:
                verification.settle_all(ErrorCode.INVALID_TXN_STATE if verification.joins else ErrorCode.NONE)
        except (OSError, KafkaError) as failure:
            log.info("transactions not verified", extra={"broker": broker_id, "error": repr(failure)})
        else:
            _settle(batch, response)
            return
        finally:
            for verification in batch:
                verification.settle_all(error)


def _take(queue: deque[_Waiting]) -> list[_Waiting]:
    """Take what goes into one request: one verification of each id, for the response goes by ids."""
    taken: dict[str, _Waiting] = {}
    left: list[_Waiting] = []
    while queue and len(taken) < MAX_TOGETHER:
        verification = queue.popleft()
        if verification.answer.done():
            continue
        if verification.transactional_id in taken:
            left.append(verification)
        else:
            taken[verification.transactional_id] = verification
    queue.extendleft(reversed(left))
    return list(taken.values())


def _request(batch: Sequence[_Waiting]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=verification.transactional_id,
                producer_id=verification.producer.id,
                producer_epoch=verification.producer.epoch,
                verify_only=not verification.joins,
                topics=_topics(verification.partitions),
            )
            for verification in batch
        ]
    )


def _topics(partitions: Collection[TopicPartition]) -> list[AddPartitionsToTxnTopic]:
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return [AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()]


def _settle(batch: Sequence[_Waiting], response: AddPartitionsToTxnResponse) -> None:
    """Give each verification its part of the response."""
    if response.error_code:
        # The coordinator does not take this broker for one: nothing can be verified, and retries do not help.
        for verification in batch:
            verification.settle_all(ErrorCode.INVALID_TXN_STATE)
        return
    found = {
        (transaction.transactional_id, TopicPartition(topic.name, answered.partition_index)): answered
        for transaction in response.results_by_transaction
        for topic in transaction.topic_results
        for answered in topic.results_by_partition
    }
    for verification in batch:
        errors = {}
        for partition in verification.partitions:
            result = found.get((verification.transactional_id, partition))
            errors[partition] = (
                ErrorCode.NETWORK_EXCEPTION if result is None else _code(result.partition_error_code)
            )
        verification.settle(errors)


def _code(code: int) -> ErrorCode:
    return error_class(code).code if code else ErrorCode.NONE


class VerificationMeters:
    """The meters of verifications, those that this broker answers itself among them."""

    def __init__(self, metrics: Metrics) -> None:
        of = ("kafka.server", "AddPartitionsToTxnManager")
        self._time_ms = metrics.histogram(*of, "VerificationTimeMs")
        self._failures = metrics.meter(*of, "VerificationFailureRate")

    def note(self, errors: Mapping[TopicPartition, ErrorCode], took_ms: float) -> None:
        """Count one verification and the partitions that failed it."""
        self._time_ms.update(took_ms)
        failed = sum(1 for error in errors.values() if error is not ErrorCode.NONE)
        if failed:
            self._failures.mark(failed)


class Verification:
    """The verification of transactions for one broker's partitions.

    Own it with `async with`: inside, it keeps connections to coordinators as long as they are used.
    """

    def __init__(
        self,
        *,
        metadata: MetadataCache,
        here: CoordinatorHere,
        coordinators: Coordinators,
        is_enabled: Callable[[], bool],
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        """`here` is the coordinator of this broker, `coordinators` are those of the others."""
        self._metadata = metadata
        self._here = here
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
        found = self._here.verify(transactional_id, producer, partitions)
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

    async def join(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> Errors:
        """Add partitions to the producer's transaction, in version 2; return the error of each.

        NETWORK_EXCEPTION when the coordinator does not answer within `request.timeout.ms`.
        """
        leader = self._coordinator_of(transactional_id)
        if leader is None:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        began_ms = self._monotonic_ms()
        found: Errors
        if leader == self._metadata.broker_id:
            error = await self._here.add_partitions(transactional_id, producer, partitions, EPOCH_RISES_FROM)
            found = dict.fromkeys(partitions, error)
        else:
            found = await self._requests.verify(leader, transactional_id, producer, partitions, joins=True)
        self._meters.note(found, self._monotonic_ms() - began_ms)
        return _known_errors(found, knows_abortable=True)

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

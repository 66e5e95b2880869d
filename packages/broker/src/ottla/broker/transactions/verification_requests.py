"""The verifications that go to other brokers: those that wait for one broker share a request."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.broker.peers.client import IncompatibleBroker
from ottla.broker.transactions.events import Producer
from ottla.protocol.errors import ErrorCode, KafkaError, error_class
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.peers.client import Peer
    from ottla.broker.runtime.background_tasks import BackgroundTasks

log = logging.getLogger(__name__)

MAX_TOGETHER: Final = 1_000
"""Transactions in one request."""
FIRST_BETWEEN_BROKERS: Final = 4
"""The first version of AddPartitionsToTxn that verifies."""


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
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return the coordinator's error for each partition; NETWORK_EXCEPTION where it gave no answer."""
        answer: asyncio.Future[Mapping[TopicPartition, ErrorCode]]
        answer = asyncio.get_running_loop().create_future()
        queue = self._queues.get(broker_id)
        if queue is None:
            queue = self._queues[broker_id] = deque()
            self._tasks.spawn(self._serve(broker_id, queue), f"verify-transactions-{broker_id}")
        queue.append(_Waiting(transactional_id, producer, partitions, answer))
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
        except IncompatibleBroker:  # an older broker, which has nothing to verify with
            error = ErrorCode.NONE
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
                verify_only=True,
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

"""Produce requests and their responses: without a task where nothing needs to be waited for.

A request to a leader with an open connection is encoded natively and written at once, and its response ends
its batches where the event loop delivers it. A request that has to wait, for a connection, a login or the end
of a throttle, gets a task, and so do batches that are to be split. While a leader's request waits, later ones
to it wait behind it: batches of a partition are sent in the order of their sequences.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from ottla.client.api_versions import choose_version
from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.errors import ClientError, UnsupportedByBroker
from ottla.producer.accumulator import Batch
from ottla.producer.config import ProducerConfig
from ottla.producer.metrics import ProducerMetrics
from ottla.producer.sender.batch_completion import BatchCompletion, Responses
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.native import produce_client
from ottla.protocol.native.produce_client import FIRST_VERSION, LAST_VERSION, offsets_of
from ottla.protocol.records import convert_down
from ottla.protocol.topics import TopicPartition

# Produce carries v2 batches from version 3 on; version 2 has magic 1, older ones magic 0.
_MAGIC_BY_VERSION: Final = {0: 0, 1: 0, 2: 1}


class ProduceExchange:
    """Sends Produce requests and ends their batches.

    `required_version` returns the version of Produce that a transaction needs, or None.
    `on_end` is called with the batches of a request when it ended, and again when those did that its response
    left in flight. `on_bug` is called with an exception that is no error of a request; it must not raise.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        metrics: ProducerMetrics,
        completion: BatchCompletion,
        *,
        now_ms: Callable[[], float],
        required_version: Callable[[], int | None] = lambda: None,
        on_end: Callable[[Sequence[Batch]], None],
        on_bug: Callable[[Exception], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._metrics = metrics
        self._completion = completion
        self._now_ms = now_ms
        self._required_version = required_version
        self._on_end, self._on_bug = on_end, on_bug
        self._encoder = ProduceEncoder(config)
        self._may_repeat = config.required_acks != 0
        self._in_flight: dict[int, int] = defaultdict(int)
        self._tasks: asyncio.TaskGroup | None = None
        self._tasks_of_leaders: dict[int, int] = defaultdict(int)

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Send from now on; requests that wait become tasks of this group."""
        self._tasks = tasks
        # A task that was cancelled before its first step, as the last run ended, did not undo its entry here.
        self._in_flight.clear()
        self._tasks_of_leaders.clear()

    def in_flight(self, leader: int) -> int:
        """Requests to a leader without a response yet."""
        return self._in_flight[leader]

    @property
    def all_in_flight(self) -> int:
        """Requests without a response yet."""
        return sum(self._in_flight.values())

    def start(self, leader: int, batches: Sequence[Batch]) -> None:
        """Send numbered batches to the leader of their partitions."""
        assert self._tasks is not None
        self._in_flight[leader] += 1
        if not self._send_now(leader, batches):
            self._tasks_of_leaders[leader] += 1
            self._tasks.create_task(self._deliver(leader, batches))

    # --- without a task

    def _send_now(self, leader: int, batches: Sequence[Batch]) -> bool:
        connection = self._cluster.opened_connection(leader)
        if connection is None or self._tasks_of_leaders[leader] or not self._may_repeat:
            return False
        try:
            version = self._version(connection)
        except UnsupportedByBroker:
            return False  # the task reports it
        if not FIRST_VERSION <= version <= LAST_VERSION:
            return False
        request = _RequestInFlight(self, connection, leader, batches, version, self._now_ms())
        if not connection.send_now(ApiKey.PRODUCE, request.encode, request):
            return False
        self._count(batches, request.began_ms)
        return True

    def _version(self, connection: Connection) -> int:
        """Return the version of the transaction, else the highest. Raises UnsupportedByBroker."""
        needed = self._required_version()
        if needed is None:
            return connection.version_for(ProduceRequest)
        return choose_version(ProduceRequest, connection.versions, min_version=needed, max_version=needed)

    def encode(self, request: _RequestInFlight, correlation_id: int) -> list[bytes]:
        """Return the parts of a framed request."""
        return self._encoder.encode(request.batches, request.version, correlation_id)

    def answered(self, request: _RequestInFlight, frame: memoryview) -> None:
        """End the batches of a request as its response says."""
        try:
            self._in_flight[request.leader] -= 1
            self._settle(request, frame)
            self._on_end(request.batches)
        except Exception as bug:
            self._on_bug(bug)

    def failed(self, request: _RequestInFlight, error: BaseException) -> None:
        """Retry or fail the batches of a request without a response."""
        try:
            self._in_flight[request.leader] -= 1
            assert isinstance(error, ClientError)
            self._completion.all_failed(request.batches, error)
            self._on_end(request.batches)
        except Exception as bug:
            self._on_bug(bug)

    def _settle(self, request: _RequestInFlight, frame: memoryview) -> None:
        latency_ms = self._now_ms() - request.began_ms
        if (found := offsets_of(frame, request.version)) is not None:
            throttle_time_ms, offsets = found
            request.connection.throttle(ApiKey.PRODUCE, request.version, throttle_time_ms)
            self._metrics.answered(latency_ms, throttle_time_ms)
            self._completion.written(request.batches, offsets)
            return
        try:
            response = request.connection.decode(frame, ApiKey.PRODUCE, ProduceResponse, request.version)
        except ClientError as error:
            self._completion.all_failed(request.batches, error)
            return
        request.connection.throttle(ApiKey.PRODUCE, request.version, response.throttle_time_ms)
        self._metrics.answered(latency_ms, response.throttle_time_ms)
        rest = self._completion.answered(request.batches, responses_by_partition(response))
        if rest is not None:
            assert self._tasks is not None
            self._tasks.create_task(self._end_rest(request.batches, rest))

    async def _end_rest(self, batches: Sequence[Batch], rest: Awaitable[None]) -> None:
        try:
            await rest
        finally:
            self._on_end(batches)

    # --- with a task

    async def _deliver(self, leader: int, batches: Sequence[Batch]) -> None:
        try:
            connection = await self._cluster.connection_to_leader(leader)
            await connection.end_of_throttle()
        except (ClientError, KafkaError) as error:
            self._completion.all_failed(batches, error)
        else:
            await self._exchange(connection, [batch for batch in batches if not batch.done])
        finally:
            self._tasks_of_leaders[leader] -= 1
            self._in_flight[leader] -= 1
            self._on_end(batches)

    async def _exchange(self, connection: Connection, batches: Sequence[Batch]) -> None:
        if not batches:
            return  # they expired before they could be sent
        try:
            responses = await self._send(connection, batches)
        except (ClientError, KafkaError) as error:
            # With acks=0 no broker recognizes repetitions: a batch that may be written is not sent again.
            self._completion.all_failed(batches, error, may_repeat=self._may_repeat)
        else:
            rest = self._completion.answered(batches, responses)
            if rest is not None:
                await rest

    async def _send(self, connection: Connection, batches: Sequence[Batch]) -> Responses:
        began_ms = self._now_ms()
        version = connection.versions.get(ApiKey.PRODUCE, (0, 0))[1]
        request = produce_request(batches, self._config, version)
        self._count(batches, began_ms)
        if not self._may_repeat:
            await connection.send_unanswered(request)
            return unanswered(batches)
        needed = self._required_version()
        response = await connection.send(request, ProduceResponse, min_version=needed, max_version=needed)
        self._metrics.answered(self._now_ms() - began_ms, response.throttle_time_ms)
        return responses_by_partition(response)

    def _count(self, batches: Sequence[Batch], now_ms: float) -> None:
        self._metrics.request_total += 1
        for batch in batches:
            self._metrics.batch_sent(
                batch.partition.topic,
                batch.record_count,
                len(batch.data or b""),
                now_ms - batch.created_ms,
                batch.attempts,
            )


class _RequestInFlight:
    """A request without a task: it encodes its batches, and takes the outcome where it is delivered."""

    __slots__ = ("_exchange", "batches", "began_ms", "connection", "leader", "version")

    def __init__(
        self,
        exchange: ProduceExchange,
        connection: Connection,
        leader: int,
        batches: Sequence[Batch],
        version: int,
        began_ms: float,
    ) -> None:
        self._exchange = exchange
        self.connection = connection
        self.leader, self.batches = leader, batches
        self.version, self.began_ms = version, began_ms

    def encode(self, correlation_id: int) -> list[bytes]:
        return self._exchange.encode(self, correlation_id)

    def done(self) -> bool:
        return False  # its batches end with the outcome

    def set_result(self, frame: memoryview, /) -> None:
        self._exchange.answered(self, frame)

    def set_exception(self, error: BaseException, /) -> None:
        self._exchange.failed(self, error)


def produce_request(batches: Sequence[Batch], config: ProducerConfig, version: int) -> ProduceRequest:
    """Return the request for packed batches, in the record format that `version` carries."""
    magic = _MAGIC_BY_VERSION.get(version, 2)
    topics: dict[str, list[PartitionProduceData]] = defaultdict(list)
    for batch in batches:
        data = batch.data or b""
        records = data if magic == 2 else convert_down(data, magic)
        part = PartitionProduceData(index=batch.partition.partition, records=records)
        topics[batch.partition.topic].append(part)
    return ProduceRequest(
        transactional_id=config.transactional_id,
        acks=config.required_acks,
        timeout_ms=config.client.request_timeout_ms,
        topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
    )


class ProduceEncoder:
    """Encodes Produce requests without a message object, for versions that `native.produce_client` knows."""

    def __init__(self, config: ProducerConfig) -> None:
        self._client_id = None if config.client.client_id is None else config.client.client_id.encode()
        self._transactional_id = None if config.transactional_id is None else config.transactional_id.encode()
        self._acks = config.required_acks
        self._timeout_ms = config.client.request_timeout_ms

    def encode(self, batches: Sequence[Batch], version: int, correlation_id: int) -> list[bytes]:
        """Return the parts of a framed request for packed batches."""
        topics: dict[str, list[tuple[int, bytes]]] = {}
        for batch in batches:
            topic, index = batch.partition
            topics.setdefault(topic, []).append((index, batch.data or b""))
        named = [(topic.encode(), partitions) for topic, partitions in topics.items()]
        return produce_client.produce_request(
            version,
            correlation_id,
            self._client_id,
            self._transactional_id,
            self._acks,
            self._timeout_ms,
            named,
        )


def responses_by_partition(
    response: ProduceResponse,
) -> Mapping[TopicPartition, PartitionProduceResponse]:
    """Return the responses of a Produce response by partition."""
    return {
        TopicPartition(topic.name, partition.index): partition
        for topic in response.responses
        for partition in topic.partition_responses
    }


def unanswered(batches: Sequence[Batch]) -> Mapping[TopicPartition, PartitionProduceResponse]:
    """Return the responses that stand for a request with acks=0, which no broker answers."""
    return {batch.partition: PartitionProduceResponse(base_offset=-1) for batch in batches}

"""Producers whose transactions hold one record each, in bare requests: version 1 and version 2 (KIP-890).

`new_protocols.py` runs this beside Apache Kafka. Version 1 adds the partition to the transaction in a request
of its own; in version 2 the Produce request does, and EndTxn returns the epoch of the next transaction. While
a coordinator still ends the transaction before, a producer asks again after 20 ms, as Java's does.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from typing import Final

from contenders import Contender
from ottla.admin import Admin
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from ottla.protocol.records import BatchBuilder

SETTINGS: Final = {"transaction.state.log.num.partitions": "50"}
_VALUE: Final = b"x" * 100
_RETRY_S: Final = 0.02
_TRANSACTION_COORDINATOR: Final = 1
_AGAIN: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    # The topic has just been created:
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
Figures = dict[tuple[str, str], float]


class TransactionalProducer:
    """One producer: its connection, its id and epoch, and the times that its transactions took."""

    def __init__(self, connection: Connection, name: str, topic: str, partition: int, version: int) -> None:
        self.took_ms: list[float] = []
        self._connection = connection
        self._name = name
        self._topic = topic
        self._partition = partition
        self._version = version
        self._id = self._epoch = -1
        self._sequence = 0

    async def begin(self) -> None:
        """Get a producer id, once there is a coordinator."""
        find = FindCoordinatorRequest(key=self._name, key_type=_TRANSACTION_COORDINATOR)
        while (await self._connection.send(find, FindCoordinatorResponse, max_version=3)).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        request = InitProducerIdRequest(transactional_id=self._name, transaction_timeout_ms=60_000)
        response = await self._connection.send(request, InitProducerIdResponse, max_version=5)
        while response.error_code in _AGAIN:
            await asyncio.sleep(0.1)
            response = await self._connection.send(request, InitProducerIdResponse, max_version=5)
        assert not response.error_code, response
        self._id, self._epoch = response.producer_id, response.producer_epoch

    async def run(self, until_s: float) -> None:
        """Commit one transaction after the other."""
        while (begun := time.perf_counter()) < until_s:
            if self._version == 1:
                await self._add_partition()
            await self._produce()
            await self._commit()
            self.took_ms.append((time.perf_counter() - begun) * 1000)

    async def _add_partition(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._name,
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self._topic, partitions=[self._partition])],
        )
        while True:
            response = await self._connection.send(request, AddPartitionsToTxnResponse, max_version=3)
            code = response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if code not in _AGAIN:
                break
            await asyncio.sleep(_RETRY_S)
        assert not code, response

    async def _produce(self) -> None:
        builder = BatchBuilder()
        builder.append(None, _VALUE, int(time.time() * 1000))
        records = builder.build(
            producer_id=self._id,
            producer_epoch=self._epoch,
            base_sequence=self._sequence,
            transactional=True,
        )
        data = TopicProduceData(
            name=self._topic, partition_data=[PartitionProduceData(index=self._partition, records=records)]
        )
        request = ProduceRequest(transactional_id=self._name, acks=-1, timeout_ms=30_000, topic_data=[data])
        newest = 11 if self._version == 1 else 12
        while True:
            response = await self._connection.send(request, ProduceResponse, max_version=newest)
            code = response.responses[0].partition_responses[0].error_code
            if code not in _AGAIN:
                break
            await asyncio.sleep(_RETRY_S)
        assert not code, response
        self._sequence += 1

    async def _commit(self) -> None:
        request = EndTxnRequest(
            transactional_id=self._name, producer_id=self._id, producer_epoch=self._epoch, committed=True
        )
        newest = 4 if self._version == 1 else 5
        while True:
            response = await self._connection.send(request, EndTxnResponse, max_version=newest)
            if response.error_code not in _AGAIN:
                break
            await asyncio.sleep(_RETRY_S)
        assert not response.error_code, response
        if self._version == 2 and (response.producer_id, response.producer_epoch) != (self._id, self._epoch):
            self._id, self._epoch, self._sequence = response.producer_id, response.producer_epoch, 0


async def measure(contender: Contender, run: str, producers: int, seconds: float) -> Figures:
    """Measure both versions, each with so many producers, each with a partition of its own."""
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.topics.create(run, partitions=producers)
    figures: Figures = {}
    for version in (1, 2):
        figures |= await _measure(contender, run, version, producers, seconds)
    async with Admin(contender.bootstrap_servers) as admin:
        await admin.topics.delete(run)
    return figures


async def _measure(contender: Contender, run: str, version: int, count: int, seconds: float) -> Figures:
    async with AsyncExitStack() as stack:
        producers = []
        for number in range(count):
            connection = Connection(Address("127.0.0.1", contender.port), ClientConfig(client_id="txn"))
            await connection.connect()
            stack.push_async_callback(connection.close)
            name = f"{run}-{version}-{number}"
            producers.append(TransactionalProducer(connection, name, run, number, version))
        await asyncio.gather(*[producer.begin() for producer in producers])
        begun, cpu = time.perf_counter(), contender.cpu_seconds()
        await asyncio.gather(*[producer.run(begun + seconds) for producer in producers])
        took_s, cpu_s = time.perf_counter() - begun, contender.cpu_seconds() - cpu
    times_ms = [took for producer in producers for took in producer.took_ms]
    percentiles = statistics.quantiles(times_ms, n=100)
    name = f"version {version}"
    return {
        (f"{name}: transactions", "1/s"): len(times_ms) / took_s,
        (f"{name}: a transaction, p50", "ms"): percentiles[49],
        (f"{name}: a transaction, p99", "ms"): percentiles[98],
        (f"{name}: broker's CPU for each", "ms"): cpu_s / len(times_ms) * 1000,
    }

"""One producer of a worker: its transactions, from InitProducerId until it is fenced or ends.

Each transaction is of version 1, whose partitions the producer announces, or of version 2 (KIP-890), as
chance has it: a producer learns of a changed level between two of them. Before the first of version 2 it
raises its epoch, as clients have to: leaders cannot tell the transactions of one epoch apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.records import (
    BatchBuilder,
)
from ottla.protocol.schema import Message
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from simulation.committed_reads import ANSWER_WITHIN_S, Connections, committed_records, fetch_committed
from simulation.transaction_history import Attempt, Ending, Output

if TYPE_CHECKING:
    from simulation.transactional_clients import TransactionalClients

R = TypeVar("R", bound=Message)

COORDINATORS: Final = 2
"""Partitions of the coordinators' topics."""
OUTPUTS: Final = (TopicPartition("out", 0), TopicPartition("out", 1))
TIMEOUT_MS: Final = 3_000
"""After this time the coordinator aborts a transaction."""
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
TRIES: Final = 40
OF_VERSION_2: Final = 0.5
"""The part of transactions that are of version 2."""
VERSIONS: Final = {
    1: {ProduceRequest: 11, TxnOffsetCommitRequest: 4, EndTxnRequest: 4},
    2: {ProduceRequest: 12, TxnOffsetCommitRequest: 5, EndTxnRequest: 5},
}
"""The newest version of the requests by that of the transaction."""
ABORTED_INSTEAD: Final = 0.2
"""The part of transactions that their producers abort."""
MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)  # fmt: skip
"""Errors after which the coordinator or the leader is looked for once more."""
REPEATED: Final = MOVED | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
}  # fmt: skip
FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)  # fmt: skip
"""Errors that a producer gets whose transaction has timed out, or who has a successor."""


class LifeEnded(Exception):
    """A worker cannot go on under its producer epoch."""


class Life:
    """One producer of a worker, from InitProducerId to its end."""

    def __init__(self, clients: TransactionalClients, worker: int, who: str) -> None:
        self._clients = clients
        self._cluster = clients.cluster
        self._worker = worker
        self._id = f"t{worker}"
        self._group = f"g{worker}"
        self._input = TopicPartition("events", worker)
        self._connections = Connections(clients.cluster, who)
        self._coordinators: dict[tuple[int, str], int] = {}
        self._producer = (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._version = 2
        """Of the present transaction, or the last one; there is none before the first."""
        self.sleep_s = 0.0
        """How long it sleeps before its next request: it does not know that there is another life."""

    @property
    def has_begun(self) -> bool:
        """Whether it has a producer id and epoch."""
        return self._producer[0] >= 0

    async def run(self) -> None:
        """Take record after record through transactions, until it is fenced or its time is over."""
        try:
            await self._initialize()
            position = await self.position()
            while not self._clients.stopping:
                position = await self._work_on(position)
        except LifeEnded:
            return

    # ---- requests

    async def _ask(
        self,
        where: Callable[[], Any],
        request: Message,
        response_type: type[R],
        code_of: Callable[[R], int],
        *,
        max_version: int | None = None,
        for_ever: bool = False,
    ) -> R:
        """Send a request until it is answered for good. Raises `LifeEnded`."""
        for tried in range(1 << 30):
            if not for_ever and (tried == TRIES or self._clients.stopping):
                break
            pause_s, self.sleep_s = self.sleep_s, 0.0
            await asyncio.sleep(pause_s + self._cluster.chance.uniform(0.0, 0.02 + 0.3 * (tried > 0)))
            try:
                broker_id = await where()
                connection = await self._connections.to(broker_id)
                newest = VERSIONS[self._version].get(type(request), max_version)
                response = await connection.send(
                    request, response_type, timeout_s=ANSWER_WITHIN_S, max_version=newest
                )
            except ClientError:
                self._coordinators.clear()
                continue
            code = code_of(response)
            if not code:
                return response
            if code in MOVED:
                self._coordinators.clear()
            if code not in REPEATED and not self._is_outdated(request, broker_id, code):
                self._refused(request, code)
        raise LifeEnded

    def _is_outdated(self, request: Message, broker_id: int, code: int) -> bool:
        """Whether a former leader has refused a batch because it does not know the batches before."""
        if code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or not isinstance(request, ProduceRequest):
            return False
        topic = request.topic_data[0]
        state = self._cluster.state(TopicPartition(topic.name, topic.partition_data[0].index))
        return state is None or state.leader != broker_id

    def _refused(self, request: Message, code: int) -> None:
        if code not in FENCED:
            what = type(request).__name__
            self._clients.violated(f"I10 {what} of {self._id} is refused with {ErrorCode(code).name}")
        raise LifeEnded

    async def _coordinator(self, kind: int, key: str) -> int:
        known = self._coordinators.get((kind, key))
        if known is None:
            known = self._coordinators[kind, key] = await self._found(kind, key)
        return known

    async def _found(self, kind: int, key: str) -> int:
        topic = TRANSACTION_STATE_TOPIC if kind == TRANSACTION_KEY else GROUP_METADATA_TOPIC
        if self._cluster.chance.random() < 0.8:  # asking a broker that sleeps takes its time
            return self._connections.leader(TopicPartition(topic, partition_for(key, COORDINATORS)))
        connection = await self._connections.to(self._cluster.chance.choice(self._cluster.ids))
        request = FindCoordinatorRequest(key=key, key_type=kind)
        response = await connection.send(
            request, FindCoordinatorResponse, timeout_s=ANSWER_WITHIN_S, max_version=3
        )
        is_told = not response.error_code
        return response.node_id if is_told else self._cluster.chance.choice(self._cluster.ids)

    async def _transactions(self) -> int:
        return await self._coordinator(TRANSACTION_KEY, self._id)

    async def _offsets(self) -> int:
        return await self._coordinator(GROUP_KEY, self._group)

    # ---- beginning

    async def _initialize(self, present: tuple[int, int] = (-1, -1)) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=present[0],
            producer_epoch=present[1],
        )
        response = await self._ask(
            self._transactions, request, InitProducerIdResponse, lambda one: one.error_code
        )
        self._producer = response.producer_id, response.producer_epoch
        self._sequences.clear()
        self._cluster.note(f"producer {self._id} {self._producer}")

    async def _choose_version(self) -> None:
        before, self._version = self._version, 2 if self._cluster.chance.random() < OF_VERSION_2 else 1
        if before < self._version:
            await self._initialize(self._producer)

    async def position(self, *, for_ever: bool = False) -> int:
        """Return the committed offset of the input. Raises `LifeEnded`."""
        topic = OffsetFetchRequestTopic(name=self._input.topic, partition_indexes=[self._input.partition])
        request = OffsetFetchRequest(group_id=self._group, topics=[topic], require_stable=True)
        response = await self._ask(
            self._offsets,
            request,
            OffsetFetchResponse,
            lambda one: one.error_code or one.topics[0].partitions[0].error_code,
            max_version=7,
            for_ever=for_ever,
        )
        return max(0, response.topics[0].partitions[0].committed_offset)

    # ---- transactions

    async def _work_on(self, position: int) -> int:
        """Process some records in one transaction; return the position behind what is committed."""
        chance = self._cluster.chance
        records = await self._consume(position)
        if not records:
            await asyncio.sleep(chance.uniform(0.05, 0.2))
            return position
        records = records[: chance.randint(1, 4)]
        await self._choose_version()
        attempt = self._clients.history.begin(self._worker)
        by_partition: dict[TopicPartition, list[Output]] = {}
        for offset, value in records:
            output = Output(self._worker, attempt.number, offset, value)
            by_partition.setdefault(chance.choice(OUTPUTS), []).append(output)
        for partition, outputs in by_partition.items():
            if self._version == 1:
                await self._add_partition(partition)
            if chance.random() < 0.04:
                await self._leave_behind(partition, outputs)
            await self._produce(attempt, partition, outputs)
        commit = chance.random() >= ABORTED_INSTEAD
        if commit:
            await self._commit_offset(records[-1][0] + 1)
        await self._end(attempt, commit=commit)
        return records[-1][0] + 1 if commit else position

    async def _consume(self, position: int) -> list[tuple[int, bytes]]:
        try:
            answer = await fetch_committed(self._connections, self._input, position)
        except ClientError:
            return []
        return committed_records(answer, position)[0] if answer is not None else []

    async def _add_partition(self, partition: TopicPartition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self._producer[0],
            v3_and_below_producer_epoch=self._producer[1],
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=partition.topic, partitions=[partition.partition])
            ],
        )
        await self._ask(
            self._transactions,
            request,
            AddPartitionsToTxnResponse,
            lambda one: one.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
            max_version=3,
        )

    async def _produce(self, attempt: Attempt, partition: TopicPartition, outputs: list[Output]) -> None:
        async def leader() -> int:
            return self._connections.leader(partition)

        await self._ask(
            leader,
            self._produce_request(partition, outputs),
            ProduceResponse,
            lambda one: one.responses[0].partition_responses[0].error_code,
        )
        self._sequences[partition] = self._sequences.get(partition, 0) + len(outputs)
        attempt.sent.setdefault(partition, []).extend(one.encode() for one in outputs)

    def _produce_request(self, partition: TopicPartition, outputs: list[Output]) -> ProduceRequest:
        builder = BatchBuilder(1 << 20)
        for output in outputs:
            builder.append(None, output.encode(), int(self._cluster.world.now_s * 1000))
        batch = builder.build(
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequences.get(partition, 0),
            transactional=True,
        )
        data = PartitionProduceData(index=partition.partition, records=batch)
        topic = TopicProduceData(name=partition.topic, partition_data=[data])
        return ProduceRequest(transactional_id=self._id, acks=-1, timeout_ms=1_500, topic_data=[topic])

    async def _leave_behind(self, partition: TopicPartition, outputs: list[Output]) -> None:
        """Abort while a batch is on its way: it may arrive behind the marker (KIP-890)."""
        request = self._produce_request(partition, outputs)
        task = self._cluster.outside.create_task(self._send_late(partition, request))
        await self._end(None, commit=False)
        await asyncio.wait([task])
        raise LifeEnded

    async def _send_late(self, partition: TopicPartition, request: ProduceRequest) -> None:
        newest = VERSIONS[self._version][ProduceRequest]
        try:
            await asyncio.sleep(self._cluster.chance.uniform(0.0, 0.2))
            connection = await self._connections.to(self._connections.leader(partition))
            await connection.send(request, ProduceResponse, timeout_s=ANSWER_WITHIN_S, max_version=newest)
        except ClientError:
            return

    async def _commit_offset(self, offset: int) -> None:
        producer_id, producer_epoch = self._producer
        add = AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            group_id=self._group,
        )
        if self._version == 1:
            await self._ask(self._transactions, add, AddOffsetsToTxnResponse, lambda one: one.error_code)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=self._input.partition, committed_offset=offset, committed_metadata=None
        )
        commit = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=self._group,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(name=self._input.topic, partitions=[partition])],
        )
        await self._ask(
            self._offsets,
            commit,
            TxnOffsetCommitResponse,
            lambda one: one.topics[0].partitions[0].error_code,
        )

    async def _end(self, attempt: Attempt | None, *, commit: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            committed=commit,
        )
        response = await self._ask(self._transactions, request, EndTxnResponse, lambda one: one.error_code)
        if self._version > 1:
            self._producer = response.producer_id, response.producer_epoch
            self._sequences.clear()
        if attempt is not None:
            attempt.told = Ending.COMMITTED if commit else Ending.ABORTED
            self._cluster.note(f"transaction {attempt.number} {attempt.told.value}")

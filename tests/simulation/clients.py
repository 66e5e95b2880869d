"""Producers that note what was acknowledged, and readers that note what was committed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from ottla.client.config import Address
from ottla.client.errors import ClientError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition
from simulation.broker_process import PORT
from simulation.invariant_violated import InvariantViolated
from simulation.log_copies import Entry, entries_of
from simulation.network import SimulatedConnection, client_config

if TYPE_CHECKING:
    from simulation.cluster import Cluster

OF_TRANSACTIONS: Final = ("__", "out")
"""The names of topics in which only transactions write begin with these."""
RIGHT_LEADER: Final = 0.75
"""How often a client asks the leader that ZooKeeper names; else it asks any broker, also a former leader."""
REJECTED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)  # fmt: skip


class Topic(NamedTuple):
    """A partition of one life of a topic: a topic that is created again is another one."""

    partition: TopicPartition
    id: UUID


@dataclass
class History:
    """Answers that clients were given, by topic."""

    acked: dict[Topic, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Offset and value of acknowledged records, in the order of their acknowledgement."""
    committed: dict[Topic, dict[int, Entry]] = field(default_factory=dict)
    """Records that readers saw, by offset."""
    ends: dict[Topic, dict[int, int]] = field(default_factory=dict)
    """By leader epoch the highest offset that clients know to be committed in it."""
    reads: int = 0
    unknown: int = 0
    """Produce requests whose outcome is not known."""

    def note_end(self, topic: Topic, leader_epoch: int, offset: int) -> None:
        """Remember that all below an offset is committed in a leader epoch."""
        ends = self.ends.setdefault(topic, {})
        ends[leader_epoch] = max(offset, ends.get(leader_epoch, 0))

    @property
    def acks(self) -> int:
        """The number of acknowledged records."""
        return sum(len(one) for one in self.acked.values())


class Clients:
    """All clients, in one process."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.history = History()
        self.stopping = False
        self.violation: InvariantViolated | None = None
        self._connections: dict[tuple[str, int], SimulatedConnection] = {}
        self._values = 0
        self._asked = 0

    def start(self) -> None:
        """Begin to produce and to read."""
        loop = self.cluster.outside
        works = [self._produce(number, idempotent=number % 2 == 0) for number in range(3)]
        for work in (*works, self._read(0), self._read(1)):
            loop.post(0.5, loop.create_task, work)

    # ---- choosing

    def _topic(self) -> Topic | None:
        topics = [
            Topic(TopicPartition(name, number), node.topic_id)
            for name, node in self.cluster.assignments().items()
            for number in node.partitions
            if node.topic_id is not None and not name.startswith(OF_TRANSACTIONS)
        ]
        return self.cluster.chance.choice(topics) if topics else None

    def _broker(self, partition: TopicPartition) -> int:
        chance, state = self.cluster.chance, self.cluster.state(partition)
        if state is not None and state.leader >= 0 and chance.random() < RIGHT_LEADER:
            return state.leader
        return chance.choice(self.cluster.ids)

    async def _connected(self, who: str, broker_id: int) -> SimulatedConnection:
        connection = self._connections.get((who, broker_id))
        if connection is None or not connection.is_open:
            connection = SimulatedConnection(Address(f"b{broker_id}", PORT), client_config(who))
            self._connections[who, broker_id] = connection
            await connection.connect()
        return connection

    # ---- producing

    async def _produce(self, number: int, *, idempotent: bool) -> None:
        chance = self.cluster.chance
        sequences: dict[Topic, int] = {}
        while not self.stopping:
            topic = self._topic()
            if topic is not None:
                sequence = sequences.get(topic, 0) if idempotent else -1
                values = self._new_values()
                done = await self._send(f"p{number}", topic, values, 100 + number, sequence)
                while idempotent and not done and not self.stopping and self._exists(topic):
                    await asyncio.sleep(chance.uniform(0.02, 0.3))
                    done = await self._send(f"p{number}", topic, values, 100 + number, sequence)
                if idempotent:
                    sequences[topic] = sequence + len(values)
            await asyncio.sleep(chance.uniform(0.01, 0.25))

    def _exists(self, topic: Topic) -> bool:
        found = self.cluster.assignments().get(topic.partition.topic)
        return found is not None and found.topic_id == topic.id

    def _new_values(self) -> list[bytes]:
        self._values += 1
        return [
            b"%d.%d %s" % (self._values, one, b"x" * 20) for one in range(self.cluster.chance.randint(1, 3))
        ]

    async def _send(
        self, who: str, topic: Topic, values: list[bytes], producer_id: int, sequence: int
    ) -> bool:
        """Send a batch once; return whether it was acknowledged."""
        builder = BatchBuilder(1 << 20)
        for value in values:
            builder.append(None, value, int(self.cluster.world.now_s * 1000))
        idempotent = sequence >= 0
        batch = builder.build(
            producer_id=producer_id if idempotent else -1,
            producer_epoch=0 if idempotent else -1,
            base_sequence=sequence,
        )
        try:
            connection = await self._connected(who, self._broker(topic.partition))
            response = await connection.send(
                _produce_request(topic.partition, batch), ProduceResponse, timeout_s=2.0
            )
        except ClientError:
            self.history.unknown += 1
            return False
        return self._answered(topic, values, response.responses[0].partition_responses[0])

    def _answered(self, topic: Topic, values: list[bytes], answer: PartitionProduceResponse) -> bool:
        code = answer.error_code
        if code:
            self.history.unknown += code not in REJECTED
            return False
        if self._exists(topic):
            acked = self.history.acked.setdefault(topic, [])
            acked += [(answer.base_offset + number, value) for number, value in enumerate(values)]
            state = self.cluster.state(topic.partition)
            if state is not None:  # of this epoch, or of an earlier one
                self.history.note_end(topic, state.leader_epoch, answer.base_offset + len(values))
            self.cluster.note(f"acked {topic.partition} {answer.base_offset}+{len(values)}")
        return True

    # ---- reading

    async def _read(self, number: int) -> None:
        chance = self.cluster.chance
        while True:
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            topic = self._topic()
            if topic is None:
                continue
            try:
                connection = await self._connected(f"r{number}", self._broker(topic.partition))
                if chance.random() < 0.7:
                    await self._fetch(connection, topic)
                else:
                    await self._latest(connection, topic)
            except ClientError:
                continue
            except InvariantViolated as error:
                self.violation = self.violation or error

    async def _fetch(self, connection: SimulatedConnection, topic: Topic) -> None:
        seen = self.history.committed.setdefault(topic, {})
        end = max(seen, default=-1) + 1
        offset = max(0, end - self.cluster.chance.choice((0, 0, 3, 20)))
        wanted = FetchPartition(
            partition=topic.partition.partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=topic.partition.topic, topic_id=topic.id, partitions=[wanted])],
        )
        response = await connection.send(request, FetchResponse, timeout_s=2.0)
        if not response.responses:
            return
        answer = response.responses[0].partitions[0]
        if answer.error_code or not answer.records or not self._exists(topic):
            return
        self.history.reads += 1
        data = bytes(answer.records)
        first = int.from_bytes(data[:8], "big")
        for at, entry in enumerate(entries_of(data), first):
            if seen.setdefault(at, entry) != entry:
                self._violated(f"I4 {topic.partition} had {seen[at]} at offset {at}, and has {entry}")

    async def _latest(self, connection: SimulatedConnection, topic: Topic) -> None:
        before = dict(self.history.ends.get(topic, {}))
        self._asked += 1
        state = self.cluster.state(topic.partition)
        named = state.leader_epoch if state is not None and self._asked % 2 else -1
        asked = ListOffsetsPartition(
            partition_index=topic.partition.partition, timestamp=-1, current_leader_epoch=named
        )
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic.partition.topic, partitions=[asked])]
        )
        response = await connection.send(request, ListOffsetsResponse, timeout_s=2.0)
        answer = response.topics[0].partitions[0]
        if answer.error_code or not self._exists(topic):
            return
        if named not in (-1, answer.leader_epoch):
            self._violated(
                f"I15 {topic.partition} was asked in epoch {named}, and answered in {answer.leader_epoch}"
            )
        for epoch, offset in before.items():
            if epoch <= answer.leader_epoch and offset > answer.offset:
                self._violated(
                    f"I4 the end of {topic.partition} was {offset} in epoch {epoch}, "
                    f"and is {answer.offset} in {answer.leader_epoch}"
                )
        self.history.note_end(topic, answer.leader_epoch, answer.offset)

    def _violated(self, what: str) -> None:
        self.violation = self.violation or InvariantViolated(what)


def _produce_request(partition: TopicPartition, batch: bytes) -> ProduceRequest:
    data = PartitionProduceData(index=partition.partition, records=batch)
    return ProduceRequest(
        acks=-1, timeout_ms=1_500, topic_data=[TopicProduceData(name=partition.topic, partition_data=[data])]
    )

"""Clients of transactions: workers that consume, transform and produce, and readers of committed records.

A worker is one life after the other under the same transactional id. A life may be cut short, or sleep while
the next one has begun: it is a zombie then, which the coordinator has to fence.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from ottla.client.errors import ClientError
from ottla.protocol.messages.fetch import (
    PartitionData,
)
from ottla.protocol.topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from simulation.invariant_violated import InvariantViolated
from simulation.transaction_history import TransactionHistory

if TYPE_CHECKING:
    from simulation.cluster import Cluster

from simulation.committed_reads import Connections, committed_records, fetch_committed
from simulation.transactional_producer import OUTPUTS, Life

WORKERS: Final = 2


def create_topics(cluster: Cluster) -> None:
    """Create the topics of transactions and of their outputs, with three replicas everywhere."""
    cluster.create_topic(TRANSACTION_STATE_TOPIC, [(0, 1, 2), (1, 2, 0)])
    cluster.create_topic(GROUP_METADATA_TOPIC, [(2, 0, 1), (0, 1, 2)])
    cluster.create_topic("out", [(1, 2, 0), (2, 1, 0)])


class TransactionalClients:
    """All clients of transactions, in the process of the other clients."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.history = TransactionHistory()
        self.stopping = False
        self.violation: InvariantViolated | None = None
        self._lives = 0

    def start(self) -> None:
        """Begin to work and to read."""
        loop = self.cluster.outside
        for work in (*(self._work(number) for number in range(WORKERS)), self._read(0)):
            loop.post(0.7, loop.create_task, work)

    @property
    def has_ended(self) -> bool:
        """Whether every worker has stopped, and its committed offset is known."""
        return len(self.history.positions) == WORKERS

    def violated(self, what: str) -> None:
        """Remember the first violation, for the schedule to raise."""
        self.violation = self.violation or InvariantViolated(what)

    async def _work(self, number: int) -> None:
        """Live one life after the other; sometimes the one before goes on for a while."""
        chance, tasks = self.cluster.chance, list[asyncio.Task[None]]()
        while not self.stopping:
            self._lives += 1
            life = Life(self, number, f"t{number}.{self._lives}")
            task = self.cluster.outside.create_task(life.run())
            tasks.append(task)
            await asyncio.wait([task], timeout=chance.uniform(2.0, 10.0))
            if not task.done() and (not life.has_begun or chance.random() < 0.5):
                task.cancel()
            life.sleep_s = chance.uniform(0.0, 4.0)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
        await asyncio.wait(tasks)
        self.history.positions[number] = await Life(self, number, f"end{number}").position(for_ever=True)

    # ---- reading what is committed

    async def _read(self, number: int) -> None:
        chance, at = self.cluster.chance, dict.fromkeys(OUTPUTS, 0)
        connections = Connections(self.cluster, f"c{number}")
        while True:
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            partition = chance.choice(OUTPUTS)
            begin = max(0, at[partition] - chance.choice((0, 0, 5, 30)))
            try:
                answer = await fetch_committed(connections, partition, begin)
            except ClientError:
                continue
            if answer is not None:
                at[partition] = max(at[partition], self._deliver(partition, begin, answer))

    def _deliver(self, partition: TopicPartition, begin: int, answer: PartitionData) -> int:
        delivered = self.history.delivered.setdefault(partition, {})
        records, end = committed_records(answer, begin)
        if begin < end > answer.last_stable_offset:
            self.violated(f"I11 {partition} is read to {end}, its LSO is {answer.last_stable_offset}")
        for offset, value in records:
            if delivered.setdefault(offset, value) != value:
                self.violated(f"I11 {partition} had {delivered[offset]!r} at {offset}, and has {value!r}")
        return end

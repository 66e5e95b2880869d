"""A group through storms: sessions expire, answers get lost, members and partitions come and go. Seeded."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from ottla.consumer.errors import ConsumerClosed
from ottla.consumer.zookeeper import ConsumerRebalanceFailed, MessageStream, ZookeeperConsumerConnector
from ottla.consumer.zookeeper.testing import MemoryGroup
from ottla.zookeeper.session import SessionState
from ottla.zookeeper.testing import MemorySession

NAMES = "abcd"
STEPS = 60
BOUND_S = 60.0


class Storm:
    """The events that a seed inflicts on a group, and the records that its members saw."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.group = MemoryGroup()
        self.partitions = 3
        self.written: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        self.members: dict[str, ZookeeperConsumerConnector] = {}
        self.ended: list[asyncio.Task[None]] = []
        self.away: list[MemorySession] = []

    async def rage(self, tasks: asyncio.TaskGroup) -> None:
        """Do one thing after the other."""
        await self.group.prepare(t=self.partitions)
        for _ in range(STEPS):
            await self.random.choice((self.write, self.come, self.go, self.grow, self.fault))(tasks)
            if self.random.random() < 0.2:
                self.come_back()
            await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.01)))
        self.come_back()
        for session in self.group.sessions.values():
            session.fault = None

    async def write(self, _: object) -> None:
        for number in range(self.random.randrange(1, 8)):
            partition = self.random.randrange(self.partitions)
            value = b"%d-%d-%d" % (partition, len(self.written), number)
            self.written.add(value)
            self.group.logs.append("t", partition, value)

    async def come(self, tasks: asyncio.TaskGroup) -> None:
        name = self.random.choice(NAMES)
        if name not in self.members:
            settings = {"rebalance_max_retries": 3, "rebalance_backoff_ms": 10, "auto_commit_interval_ms": 5}
            connector = self.members[name] = self.group.connector(name, **settings)
            await connector.start()
            tasks.create_task(self.read(connector))

    async def go(self, tasks: asyncio.TaskGroup) -> None:
        if len(self.members) > 1:
            name = self.random.choice(sorted(self.members))
            self.ended.append(tasks.create_task(self.members.pop(name).shutdown()))

    async def grow(self, _: object) -> None:
        if self.partitions < 8:
            self.partitions += 1
            await self.group.make_topic("t", self.partitions)

    async def fault(self, _: object) -> None:
        if not self.members:
            return
        session, ensemble = self.group.sessions[self.random.choice(sorted(self.members))], self.group.ensemble
        match self.random.randrange(6):
            case 0:
                ensemble.expire(session)
            case 1:
                ensemble.disconnect(session)
                ensemble.reconnect(session)
            case 2:
                ensemble.lose_next_reply(session)
            case 3:
                ensemble.lose_next_request(session)
            case 4:  # away for a while, and what it owns stays with it
                ensemble.disconnect(session)
                self.away.append(session)
            case 5:  # away for so long that others take over while it still reads
                ensemble.disconnect(session)
                ensemble.expire(session)
                self.away.append(session)

    def come_back(self) -> None:
        """Reconnect the sessions that were away."""
        away, self.away = self.away, []
        for session in away:
            if not session.connected and session.state is not SessionState.CLOSED:
                self.group.ensemble.reconnect(session)

    async def read(self, connector: ZookeeperConsumerConnector) -> None:
        stream = None
        while stream is None:
            try:
                (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
            except ConsumerRebalanceFailed:
                continue
            except ConsumerClosed:
                return
        await self.drain(stream)

    async def drain(self, stream: MessageStream) -> None:
        while True:
            try:
                async for record in stream:
                    self.seen[record.value or b""] += 1
                return
            except ConsumerRebalanceFailed:
                continue

    async def is_over(self) -> bool:
        """Whether all was read, and every partition is read by one member, who has claimed it."""
        owned = [
            (each.partition, f"{member.consumer_id}-0")
            for member in self.members.values()
            for each in member.assignment
        ]
        owners = await self.group.owners("t", self.partitions)
        complete = self.seen.keys() == self.written
        return complete and len(owned) == self.partitions and dict(owned) == owners


@pytest.mark.parametrize("seed", range(25))
async def test_no_record_is_lost_and_each_partition_has_one_owner_when_the_storm_is_over(seed: int) -> None:
    storm = Storm(seed)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        await storm.rage(tasks)
        while not storm.members:
            await storm.come(tasks)
        while not await storm.is_over():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
        for member in storm.members.values():
            await member.shutdown()

    assert storm.seen.keys() == storm.written
    assert await storm.group.owners("t", storm.partitions) == {}
    storm.group.admin.close()

"""Consumers of the chaos rounds, and a record of what their group has handled."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ottla.client.errors import ClientError
from ottla.consumer import Consumer, RebalanceListener
from ottla.protocol.errors import KafkaError
from ottla.protocol.topics import TopicPartition

# The bound for committing, the listener and leaving, also if the broker does not answer.
CLOSE_BOUND_S = 12.0


class Handled:
    """The records that a group's members have handled, in order, and the commits seen meanwhile."""

    def __init__(self) -> None:
        self.offsets: dict[int, set[int]] = {}
        self._order: dict[int, list[int]] = {}
        self._commits: dict[int, list[tuple[int, int]]] = {}

    def add(self, partition: int, offset: int) -> None:
        self.offsets.setdefault(partition, set()).add(offset)
        self._order.setdefault(partition, []).append(offset)

    def holds(self, partition: int, offset: int) -> bool:
        return offset in self.offsets.get(partition, ())

    def saw_commit(self, partition: int, offset: int) -> None:
        """Note a committed offset: everything below it must be handled by now."""
        handled = len(self._order.get(partition, ()))
        self._commits.setdefault(partition, []).append((handled, offset))

    def ahead(self, partition: int, there: Iterable[int]) -> list[str]:
        """Return the commits that were ahead of the handled records; `there` are the partition's offsets."""
        order, done, below, wrong = self._order.get(partition, []), set[int](), 0, list[str]()
        offsets = sorted(there)
        taken = 0
        for handled, committed in self._commits.get(partition, []):
            done.update(order[taken:handled])
            taken = handled
            while below < len(offsets) and offsets[below] in done:
                below += 1
            first = offsets[below] if below < len(offsets) else committed
            if committed > first:
                wrong.append(f"{committed} of partition {partition} was committed, {first} not handled")
        return wrong[:3]


class Watching(RebalanceListener):
    """Resets the expected order of newly assigned partitions, which begin again at the committed offset."""

    def __init__(self, member: Member) -> None:
        self._member = member

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await asyncio.sleep(self._member.rng.choice((0, 0.01)))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        for partition in assigned:
            self._member.last.pop(partition.partition, None)


@dataclass
class Member:
    """A member of a group that reads in one way until it is cancelled."""

    name: str
    way: str
    topic: str
    handled: Handled
    settings: dict[str, Any]
    rng: random.Random
    commits_by_hand: bool
    last: dict[int, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    given: int = 0
    closing_s: float = 0.0
    consumer: Consumer | None = None

    def __str__(self) -> str:
        place = {}
        if self.consumer is not None:
            place = {each.partition: self.consumer.lag(each) for each in self.consumer.assignment()}
        return f"{self.name}: {self.way}, {self.given} given, lags {place}, {self.settings}"

    async def run(self) -> None:
        self.consumer = consumer = Consumer(**self.settings)
        consumer.subscribe([self.topic], listener=Watching(self))
        await consumer.start()
        try:
            await WAYS[self.way](self, consumer)
        except (ClientError, KafkaError) as error:
            self.wrong.append(f"{self.name} ({self.way}) ended with {error!r}")
        finally:
            begun = time.monotonic()
            await consumer.stop()
            self.closing_s = time.monotonic() - begun
            if self.closing_s > CLOSE_BOUND_S:
                self.wrong.append(f"{self.name} ({self.way}) took {self.closing_s:.1f} s to close")

    async def handle(self, partition: int, offset: int) -> None:
        """Handle a record; a delay may pass between its delivery and this."""
        self.given += 1
        last = self.last.get(partition, -1)
        if offset <= last:
            self.wrong.append(f"{self.name} ({self.way}) was given {partition}:{offset} after {last}")
        self.last[partition] = offset
        if self.rng.random() < 0.002:
            await asyncio.sleep(0.05)
        self.handled.add(partition, offset)

    async def commit(self, consumer: Consumer) -> None:
        """Commit manually at intervals; a rebalance or a fault may interfere."""
        if not self.commits_by_hand or self.rng.random() > 0.05:
            return
        try:
            await consumer.commit()
        except (ClientError, KafkaError):
            return  # a rebalance removed this member, or the broker is down: the records are read again


async def _iterate(member: Member, consumer: Consumer) -> None:
    async for record in consumer:
        await member.handle(record.partition, record.offset)
        await member.commit(consumer)


async def _getmany(member: Member, consumer: Consumer) -> None:
    while True:
        limit = member.rng.choice((None, 1, 10, 500))
        given = await consumer.getmany(timeout_ms=member.rng.choice((0, 10, 200)), max_records=limit)
        if not given:
            await asyncio.sleep(0.01)
        for partition, records in given.items():
            for record in records:
                await member.handle(partition.partition, record.offset)
        await member.commit(consumer)


async def _batches(member: Member, consumer: Consumer) -> None:
    async for batch in consumer.batches():
        for record in batch:
            await member.handle(batch.partition, record.offset)
        await member.commit(consumer)


async def _arrow(member: Member, consumer: Consumer) -> None:
    async for batch in consumer.arrow_batches():
        places = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
        for partition, offset in places:
            await member.handle(partition, offset)
        await member.commit(consumer)


WAYS: dict[str, Callable[[Member, Consumer], Awaitable[None]]] = {
    "async for": _iterate,
    "getmany": _getmany,
    "batches": _batches,
    "arrow": _arrow,
}
_NEEDS = {"getmany": "getmany", "batches": "batches", "arrow": "arrow_batches"}


def available_ways() -> list[str]:
    """Return the ways to read that the consumer has."""
    return [way for way in WAYS if hasattr(Consumer, _NEEDS.get(way, "__anext__"))]


async def follow(topic: str, partitions: int, settings: dict[str, Any], seen: dict[int, list[int]]) -> None:
    """Read all partitions without a group from the beginning until cancelled; `seen` gets every offset."""
    async with Consumer(**settings) as consumer:
        consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
        async for record in consumer:
            seen.setdefault(record.partition, []).append(record.offset)

"""A member of a group, as a program: KIND SERVERS GROUP TOPIC ASSIGNOR.

It prints `owns PARTITIONS` when that changes and `read PARTITION OFFSET` for each record, until its standard
input ends; then it leaves. Kinds are `ottla`, `aiokafka` and `confluent`; `GroupMember.java` is the fourth.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

SESSION_TIMEOUT_MS, HEARTBEAT_MS, AUTO_COMMIT_MS, METADATA_MAX_AGE_MS = 6_000, 500, 500, 1_000


class _Owned:
    """The owned partitions, printed at each change."""

    def __init__(self) -> None:
        self._partitions: set[int] = set()

    def add(self, partitions: Iterable[Any]) -> None:
        self._partitions |= {each.partition for each in partitions}
        self._tell()

    def remove(self, partitions: Iterable[Any]) -> None:
        self._partitions -= {each.partition for each in partitions}
        self._tell()

    def _tell(self) -> None:
        print("owns", *sorted(self._partitions), flush=True)


def _tell_read(partition: int, offset: int) -> None:
    print("read", partition, offset, flush=True)


async def _ottla(servers: str, group: str, topic: str, assignor: str, until: asyncio.Event) -> None:
    from ottla.consumer import Consumer, RebalanceListener

    owned = _Owned()

    class Listener(RebalanceListener):
        def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
            owned.remove(revoked)

        def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
            owned.add(assigned)

    consumer = Consumer(
        bootstrap_servers=servers,
        group_id=group,
        partition_assignment_strategy=[assignor],
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_commit_interval_ms=AUTO_COMMIT_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )
    consumer.subscribe([topic], listener=Listener())
    async with consumer:
        await _read_until(until, consumer.getmany)


async def _aiokafka(servers: str, group: str, topic: str, assignor: str, until: asyncio.Event) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.abc import ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    kinds = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    owned = _Owned()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
            owned.remove(revoked)

        def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
            owned.add(assigned)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers,
        group_id=group,
        partition_assignment_strategy=[kinds[assignor]],
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        auto_commit_interval_ms=AUTO_COMMIT_MS,
        metadata_max_age_ms=METADATA_MAX_AGE_MS,
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    try:
        await _read_until(until, consumer.getmany)
    finally:
        await consumer.stop()


async def _read_until(until: asyncio.Event, getmany: Callable[..., Awaitable[dict[Any, list[Any]]]]) -> None:
    while not until.is_set():
        for partition, records in (await getmany(timeout_ms=100)).items():
            for record in records:
                _tell_read(partition.partition, record.offset)


def _confluent(servers: str, group: str, topic: str, assignor: str, until: threading.Event) -> None:
    from confluent_kafka import Consumer

    owned = _Owned()
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "partition.assignment.strategy": assignor,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "auto.commit.interval.ms": AUTO_COMMIT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
    }
    consumer = Consumer(settings)
    consumer.subscribe(
        [topic],
        on_assign=lambda _consumer, partitions: owned.add(partitions),
        on_revoke=lambda _consumer, partitions: owned.remove(partitions),
    )
    while not until.is_set():
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            _tell_read(record.partition(), record.offset())
    consumer.close()


def _wait_for_end(done: Callable[[], object]) -> None:
    def wait() -> None:
        sys.stdin.read()
        done()

    threading.Thread(target=wait, daemon=True).start()


async def _main_async(kind: Callable[..., Awaitable[None]], arguments: list[str]) -> None:
    until, loop = asyncio.Event(), asyncio.get_running_loop()
    _wait_for_end(lambda: loop.call_soon_threadsafe(until.set))
    await kind(*arguments, until)


def main() -> None:
    kind, *arguments = sys.argv[1:]
    if kind == "confluent":
        until = threading.Event()
        _wait_for_end(until.set)
        _confluent(*arguments, until)  # type: ignore[arg-type, call-arg]
    else:
        asyncio.run(_main_async({"ottla": _ottla, "aiokafka": _aiokafka}[kind], arguments))


if __name__ == "__main__":
    main()

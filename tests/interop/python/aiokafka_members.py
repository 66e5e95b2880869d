"""Classic members by aiokafka of any release since 0.7: SERVERS GROUP TOPIC, as `hosted_members` says."""

from __future__ import annotations

import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from interop.python.hosted_members import BATCH, HEARTBEAT_MS, POLL_S, Member, host, in_a_loop


class _Revocations(ConsumerRebalanceListener):  # type: ignore[misc]
    """Commits before partitions are given up."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str, member: Member) -> None:
        self._consumer = consumer
        self._topic = topic
        self._member = member

    async def on_partitions_revoked(self, revoked: Any) -> None:
        await self.commit()
        self._member.lost(found.partition for found in revoked)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        pass

    async def commit(self) -> None:
        positions = dict(self._member.positions)
        if not positions:
            return
        try:
            await self._consumer.commit(
                {TopicPartition(self._topic, index): offset for index, offset in positions.items()}
            )
        except KafkaError as error:  # they stay uncommitted
            print(self._member.name, "could not commit:", repr(error), file=sys.stderr, flush=True)
        else:
            self._member.committed(positions)


async def classic(servers: str, group: str, topic: str, member: Member) -> None:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, group_id=group, client_id=member.name, auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=HEARTBEAT_MS,
    )  # fmt: skip
    revocations = _Revocations(consumer, topic, member)
    consumer.subscribe([topic], listener=revocations)
    await consumer.start()
    try:
        while not member.until.is_set():
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1_000), max_records=BATCH)
            for partition, records in found.items():
                for record in records:
                    member.took(partition.partition, record.offset)
            if member.is_due:
                await revocations.commit()
            member.owns(found.partition for found in consumer.assignment())
        await revocations.commit()
    finally:
        await consumer.stop()


def work(servers: str, group: str, topic: str, member: Member) -> None:
    in_a_loop(classic, servers, group, topic, member)


if __name__ == "__main__":
    host(work)

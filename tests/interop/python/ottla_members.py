"""Members by aiokafka (classic) and by Ottla (consumer): SERVERS GROUP TOPIC, as `hosted_members` says."""

from __future__ import annotations

import sys
from collections.abc import Collection

from interop.python.aiokafka_members import classic
from interop.python.hosted_members import BATCH, POLL_S, Member, host, in_a_loop
from ottla.consumer import CommitFailed, Consumer, RebalanceListener
from ottla.protocol.topics import TopicPartition


class _Revocations(RebalanceListener):
    """Commits before partitions are given up."""

    def __init__(self, consumer: Consumer, topic: str, member: Member) -> None:
        self._consumer = consumer
        self._topic = topic
        self._member = member

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self.commit()
        self.on_partitions_lost(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._member.lost(found.partition for found in lost)

    async def commit(self) -> None:
        positions = dict(self._member.positions)
        if not positions:
            return
        try:
            await self._consumer.commit(
                {TopicPartition(self._topic, index): offset for index, offset in positions.items()}
            )
        except CommitFailed as error:  # they stay uncommitted
            print(self._member.name, "could not commit:", error, file=sys.stderr, flush=True)
        else:
            self._member.committed(positions)


async def modern(servers: str, group: str, topic: str, member: Member) -> None:
    consumer = Consumer(
        bootstrap_servers=servers, group_id=group, client_id=member.name, group_protocol="consumer",
        auto_offset_reset="earliest", enable_auto_commit=False,
    )  # fmt: skip
    revocations = _Revocations(consumer, topic, member)
    consumer.subscribe([topic], listener=revocations)
    async with consumer:
        while not member.until.is_set():
            found = await consumer.getmany(timeout_ms=int(POLL_S * 1_000), max_records=BATCH)
            for partition, records in found.items():
                for record in records:
                    member.took(partition.partition, record.offset)
            if member.is_due:
                await revocations.commit()
            member.owns(found.partition for found in consumer.assignment())
        await revocations.commit()


def work(servers: str, group: str, topic: str, member: Member) -> None:
    in_a_loop(modern if member.protocol == "consumer" else classic, servers, group, topic, member)


if __name__ == "__main__":
    host(work)

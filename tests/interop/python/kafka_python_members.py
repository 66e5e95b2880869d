"""Classic members by kafka-python of any release since 2.0: SERVERS GROUP TOPIC, as `hosted_members` says."""

from __future__ import annotations

import sys
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from interop.python.hosted_members import BATCH, HEARTBEAT_MS, POLL_S, Member, host

LEADER_EPOCH = [-1] if "leader_epoch" in OffsetAndMetadata._fields else []


class _Revocations(ConsumerRebalanceListener):  # type: ignore[misc]
    """Commits before partitions are given up."""

    def __init__(self, consumer: KafkaConsumer, topic: str, member: Member) -> None:
        self._consumer = consumer
        self._topic = topic
        self._member = member

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.commit()
        self._member.lost(found.partition for found in revoked)

    def on_partitions_assigned(self, assigned: Any) -> None:
        pass

    def commit(self) -> None:
        positions = dict(self._member.positions)
        if not positions:
            return
        offsets = {
            TopicPartition(self._topic, index): OffsetAndMetadata(offset, "", *LEADER_EPOCH)
            for index, offset in positions.items()
        }
        try:
            self._consumer.commit(offsets)
        except KafkaError as error:  # they stay uncommitted
            print(self._member.name, "could not commit:", repr(error), file=sys.stderr, flush=True)
        else:
            self._member.committed(positions)


def work(servers: str, group: str, topic: str, member: Member) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id=group, client_id=member.name, auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=HEARTBEAT_MS, max_poll_records=BATCH,
    )  # fmt: skip
    revocations = _Revocations(consumer, topic, member)
    consumer.subscribe([topic], listener=revocations)
    while not member.until.is_set():
        for partition, records in consumer.poll(timeout_ms=int(POLL_S * 1_000)).items():
            for record in records:
                member.took(partition.partition, record.offset)
        if member.is_due:
            revocations.commit()
        member.owns(found.partition for found in consumer.assignment())
    revocations.commit()
    consumer.close(autocommit=False)


if __name__ == "__main__":
    host(work)

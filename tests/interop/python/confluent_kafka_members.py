"""Members by confluent-kafka, of both protocols: SERVERS GROUP TOPIC, as `hosted_members` says."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaException, TopicPartition

from interop.python.hosted_members import BATCH, HEARTBEAT_MS, POLL_S, Member, host


def work(servers: str, group: str, topic: str, member: Member) -> None:
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "client.id": member.name,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if member.protocol == "consumer":
        settings["group.protocol"] = "consumer"
    else:
        settings["partition.assignment.strategy"] = "range"
        settings["heartbeat.interval.ms"] = HEARTBEAT_MS

    def commit(consumer: Consumer) -> None:
        offsets = [TopicPartition(topic, index, offset) for index, offset in member.positions.items()]
        if not offsets:
            return
        try:
            answers = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:  # they stay uncommitted
            print(member.name, "could not commit:", error, file=sys.stderr, flush=True)
            return
        member.committed({answer.partition: answer.offset for answer in answers if answer.error is None})

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        commit(consumer)
        lost(consumer, partitions)

    def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
        member.lost(found.partition for found in partitions)

    consumer = Consumer(settings)
    consumer.subscribe([topic], on_revoke=revoked, on_lost=lost)
    while not member.until.is_set():
        for message in consumer.consume(BATCH, POLL_S):
            error = message.error()
            if error is None:
                member.took(message.partition(), message.offset())
            elif error.fatal():
                raise KafkaException(error)
        if member.is_due:
            commit(consumer)
        member.owns(found.partition for found in consumer.assignment())
    commit(consumer)
    consumer.close()


if __name__ == "__main__":
    host(work)

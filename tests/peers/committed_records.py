"""The committed records of a topic, read by confluent-kafka."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition


def read_committed(servers: str, topic: str) -> list[Message]:
    """Read what is committed in a topic; the records of each partition are in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        return _to_the_ends(consumer, set(partitions))
    finally:
        consumer.close()


def _to_the_ends(consumer: Consumer, reading: set[int]) -> list[Message]:
    found: list[Message] = []
    while reading:
        for message in consumer.consume(10_000, timeout=1):
            if (error := message.error()) is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                reading.discard(message.partition())
            else:
                raise RuntimeError(f"reading {message.topic()} failed: {error}")
    return found

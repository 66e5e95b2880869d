"""One round of a client by confluent-kafka: SERVERS TOPIC GROUP, as `test_client_versions.py` asks for it."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

PARTITIONS = 3
RECORDS = 30
FIRST_MS = 1_600_000_000_000
BOUND_S = 60


def produce(servers: str, topic: str) -> None:
    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise SystemExit(str(error))
        print("produced", message.partition(), message.offset(), message.value().decode())

    for codec, numbers in (("none", range(RECORDS // 2)), ("gzip", range(RECORDS // 2, RECORDS))):
        settings = {"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True}
        producer = Producer({**settings, "compression.type": codec})
        for number in numbers:
            producer.produce(
                topic,
                str(number),
                partition=number % PARTITIONS,
                timestamp=FIRST_MS + number,
                on_delivery=delivered,
            )
        producer.flush(BOUND_S)


def read(consumer: Consumer, kind: str) -> None:
    count, deadline = 0, time.monotonic() + BOUND_S
    while count < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(RECORDS, timeout=0.5):
            if message.error() is not None:
                raise SystemExit(str(message.error()))
            print(kind, message.partition(), message.offset(), message.value().decode())
            count += 1


def main(servers: str, topic: str, group: str) -> None:
    settings = {"bootstrap.servers": servers, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    produce(servers, topic)
    with closing(Consumer({**settings, "group.id": "nobody", "check.crcs": True})) as consumer:
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
        read(consumer, "read")
        times = [TopicPartition(topic, index, FIRST_MS + RECORDS // 2) for index in range(PARTITIONS)]
        for found in consumer.offsets_for_times(times, timeout=BOUND_S):
            print("at", found.partition, found.offset)
        for partition in partitions:
            print("end", partition.partition, consumer.get_watermark_offsets(partition, timeout=BOUND_S)[1])
    with closing(Consumer({**settings, "group.id": group})) as consumer:
        consumer.subscribe([topic])
        read(consumer, "member")
        consumer.commit(asynchronous=False)
    with closing(Consumer({**settings, "group.id": group})) as consumer:
        for found in consumer.committed(partitions, timeout=BOUND_S):
            print("committed", found.partition, found.offset)


if __name__ == "__main__":
    main(*sys.argv[1:])

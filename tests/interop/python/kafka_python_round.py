"""One round of a client by kafka-python: SERVERS TOPIC GROUP, as `test_client_versions.py` asks for it."""

from __future__ import annotations

import sys
import time
from contextlib import closing

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

PARTITIONS = 3
RECORDS = 30
FIRST_MS = 1_600_000_000_000
BOUND_S = 60


def produce(servers: str, topic: str) -> None:
    for codec, numbers in ((None, range(RECORDS // 2)), ("gzip", range(RECORDS // 2, RECORDS))):
        with closing(
            KafkaProducer(bootstrap_servers=servers, linger_ms=20, compression_type=codec)
        ) as producer:
            sent = [
                producer.send(
                    topic, b"%d" % number, partition=number % PARTITIONS, timestamp_ms=FIRST_MS + number
                )
                for number in numbers
            ]
            for number, future in zip(numbers, sent, strict=True):
                print("produced", future.get(BOUND_S).partition, future.get(BOUND_S).offset, number)


def read(consumer: KafkaConsumer, kind: str) -> None:
    count, deadline = 0, time.monotonic() + BOUND_S
    while count < RECORDS and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                print(kind, record.partition, record.offset, record.value.decode())
                count += 1


def main(servers: str, topic: str, group: str) -> None:
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    produce(servers, topic)
    settings = {"bootstrap_servers": servers, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with closing(KafkaConsumer(group_id=None, **settings)) as consumer:
        consumer.assign(partitions)
        read(consumer, "read")
        times = dict.fromkeys(partitions, FIRST_MS + RECORDS // 2)
        for partition, found in consumer.offsets_for_times(times).items():
            print("at", partition.partition, found.offset)
        for partition, end in consumer.end_offsets(partitions).items():
            print("end", partition.partition, end)
    with closing(KafkaConsumer(topic, group_id=group, **settings)) as consumer:
        read(consumer, "member")
        consumer.commit()
    with closing(KafkaConsumer(group_id=group, **settings)) as consumer:
        for partition in partitions:
            print("committed", partition.partition, consumer.committed(partition))


if __name__ == "__main__":
    main(*sys.argv[1:])

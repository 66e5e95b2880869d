"""One round of a client by aiokafka: SERVERS TOPIC GROUP, as `test_client_versions.py` asks for it."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

PARTITIONS = 3
RECORDS = 30
FIRST_MS = 1_600_000_000_000
BOUND_S = 60


async def produce(servers: str, topic: str) -> None:
    for codec, numbers in ((None, range(RECORDS // 2)), ("gzip", range(RECORDS // 2, RECORDS))):
        async with AIOKafkaProducer(
            bootstrap_servers=servers, linger_ms=20, compression_type=codec, enable_idempotence=True
        ) as producer:
            sent = [
                await producer.send(
                    topic, b"%d" % number, partition=number % PARTITIONS, timestamp_ms=FIRST_MS + number
                )
                for number in numbers
            ]
            for number, future in zip(numbers, sent, strict=True):
                written = await future
                print("produced", written.partition, written.offset, number)


async def read(consumer: AIOKafkaConsumer, kind: str) -> None:
    for _ in range(RECORDS):
        record = await consumer.getone()
        print(kind, record.partition, record.offset, record.value.decode())


async def main(servers: str, topic: str, group: str) -> None:
    partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    await produce(servers, topic)
    settings = {"bootstrap_servers": servers, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with AIOKafkaConsumer(group_id=None, **settings) as consumer:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        await read(consumer, "read")
        times = dict.fromkeys(partitions, FIRST_MS + RECORDS // 2)
        for partition, found in (await consumer.offsets_for_times(times)).items():
            print("at", partition.partition, found.offset)
        for partition, end in (await consumer.end_offsets(partitions)).items():
            print("end", partition.partition, end)
    async with AIOKafkaConsumer(topic, group_id=group, **settings) as consumer:
        await read(consumer, "member")
        await consumer.commit()
    async with AIOKafkaConsumer(group_id=group, **settings) as consumer:
        for partition in partitions:
            print("committed", partition.partition, await consumer.committed(partition))


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 2 * BOUND_S))

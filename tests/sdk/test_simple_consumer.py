"""The stateless consumer of one broker."""

from __future__ import annotations

import secrets
from typing import Protocol

import pytest

from ottla.admin import Admin
from ottla.consumer.simple import EARLIEST, LATEST, FetchFrom, SimpleConsumer, find_leader
from ottla.producer import Producer
from ottla.protocol.errors import OffsetOutOfRange, UnknownTopicOrPartition
from ottla.protocol.topics import TopicPartition


class Cluster(Protocol):
    """The parts of a cluster that these tests need."""

    @property
    def bootstrap_servers(self) -> str: ...


async def filled(cluster: Cluster, partitions: int = 1, records: int = 10, **configs: str) -> str:
    """Make a topic with records 0, 1, 2, … in every partition; return its name."""
    topic = f"simple-{secrets.token_hex(4)}"
    async with Admin(cluster.bootstrap_servers) as admin:
        given = {name.replace("_", "."): value for name, value in configs.items()}
        await admin.topics.create(topic, partitions=partitions, replication_factor=1, configs=given)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(records):
            for partition in range(partitions):
                await producer.send_and_wait(topic, b"%d" % number, partition=partition)
    return topic


async def test_whoever_keeps_the_offset_reads_a_partition_from_end_to_end(cluster: Cluster) -> None:
    topic = await filled(cluster)
    leader = await find_leader(cluster.bootstrap_servers, topic, 0)

    values: list[bytes | None] = []
    async with SimpleConsumer(leader.address) as consumer:
        (offset,) = await consumer.offsets_before(topic, 0, EARLIEST)
        (end,) = await consumer.offsets_before(topic, 0, LATEST)
        while offset < end:
            fetched = await consumer.fetch(topic, 0, offset, max_bytes=200)
            values += [record.value for record in fetched]
            offset = fetched.next_offset
        at_the_end = await consumer.fetch(topic, 0, end)

    assert values == [b"%d" % number for number in range(10)]
    assert (len(at_the_end), at_the_end.next_offset, at_the_end.high_watermark) == (0, end, end)


async def test_a_fetch_from_the_middle_of_a_batch_begins_there(cluster: Cluster) -> None:
    topic = await filled(cluster, records=0)
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=50) as producer:
        for number in range(20):
            await producer.send(topic, b"%d" % number, partition=0)

    async with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        fetched = await consumer.fetch(topic, 0, 7)

    assert [record.offset for record in fetched] == list(range(7, 20))


async def test_an_offset_that_vanished_or_never_was_is_out_of_range(cluster: Cluster) -> None:
    topic = await filled(cluster)
    async with Admin(cluster.bootstrap_servers) as admin:
        await admin.offsets.delete_records({TopicPartition(topic, 0): 4})

    async with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        for offset in (3, 11):
            with pytest.raises(OffsetOutOfRange, match=f"offset {offset}"):
                await consumer.fetch(topic, 0, offset)
        assert await consumer.offsets_before(topic, 0, EARLIEST) == [4]
        assert next(iter(await consumer.fetch(topic, 0, 4))).offset == 4


async def test_one_request_fetches_from_several_partitions_and_tells_errors_apart(cluster: Cluster) -> None:
    topic = await filled(cluster, partitions=2, records=3)

    async with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        first, second, beyond, missing = await consumer.multi_fetch(
            [
                FetchFrom(topic, 1, 1),
                FetchFrom(topic, 0, 0),
                FetchFrom(f"{topic}-no", 0, 0),
                FetchFrom(topic, 7, 0),
            ]
        )

    assert [record.value for record in first] == [b"1", b"2"]
    assert [record.offset for record in second] == [0, 1, 2]
    assert isinstance(beyond.error, UnknownTopicOrPartition)
    with pytest.raises(UnknownTopicOrPartition):
        list(missing)


async def test_offsets_before_give_the_beginnings_of_segments_newest_first(cluster: Cluster) -> None:
    topic = await filled(cluster, records=6, segment_bytes="1048576", segment_ms="604800000")

    async with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        found = await consumer.offsets_before(topic, 0, LATEST, 5)
        long_ago = await consumer.offsets_before(topic, 0, 1_000, 5)

    assert found == [6, 0]
    assert set(long_ago) <= {0}


async def test_metadata_say_where_partitions_are(cluster: Cluster) -> None:
    topic = await filled(cluster, partitions=3, records=0)

    async with SimpleConsumer(cluster.bootstrap_servers) as consumer:
        known = await consumer.topic_metadata(topic, f"{topic}-no")
        leader = await consumer.find_leader(topic, 2)
        everything = await consumer.topic_metadata()
        with pytest.raises(UnknownTopicOrPartition):
            await consumer.find_leader(topic, 3)

    assert list(known) == [topic]
    assert known[topic].partitions[2].leader == leader.id
    assert topic in everything


async def test_an_address_has_to_be_one() -> None:
    with pytest.raises(ValueError, match="one broker"):
        SimpleConsumer("127.0.0.1:9092,127.0.0.1:9093")

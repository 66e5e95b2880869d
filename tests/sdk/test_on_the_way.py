"""Records on their way: serializers, partitioners, interceptors, metrics, settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.client.group_metadata import OffsetAndMetadata
from ottla.consumer import (
    Consumer,
    ConsumerConfig,
    ConsumerInterceptor,
    ConsumerRecord,
    RecordDeserializationFailed,
)
from ottla.producer import (
    Producer,
    ProducerConfig,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    SerializationFailed,
    TopicPartition,
)


class Watching(ProducerInterceptor):
    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        self.heard.append(("send", record.value))
        return record._replace(value={**record.value, "seen": True})

    def on_enqueue(self, partition: TopicPartition, record: ProducerRecord) -> None:
        self.heard.append(("enqueue", (partition.partition, record.key, record.value)))

    def on_batch(self, partition: TopicPartition, record_count: int, size_bytes: int) -> None:
        self.heard.append(("batch", (partition.partition, record_count, size_bytes > 60)))

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self.heard.append(("acknowledgement", (metadata.offset if metadata else None, error)))


class Dropping(ConsumerInterceptor):
    """Leaves out what is odd, and hears of commits."""

    def __init__(self) -> None:
        self.committed: list[Mapping[TopicPartition, OffsetAndMetadata]] = []

    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        return [each for each in records if each.offset % 2 == 0]

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.append(offsets)


class Failing:
    def on_send(self, record: ProducerRecord) -> None:
        raise RuntimeError("not today")

    def on_consume(self, records: Sequence[ConsumerRecord]) -> None:
        raise RuntimeError("not today either")


async def test_interceptors_of_a_producer_see_every_step(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic, watching = fresh("steps"), Watching()
    async with Producer(
        cluster.bootstrap_servers, interceptors=[watching], value_serializer="json"
    ) as producer:
        await producer.send_and_wait(topic, {"n": 1}, key="k", partition=0)

    assert watching.heard == [
        ("send", {"n": 1}),
        ("enqueue", (0, b"k", b'{"n":1,"seen":true}')),
        ("batch", (0, 1, True)),
        ("acknowledgement", (0, None)),
    ]


@pytest.mark.parametrize("way", ["iterate", "getmany", "batches"])
async def test_interceptors_of_a_consumer_may_leave_records_out_and_hear_of_commits(
    cluster: Any, fresh: Callable[[str], str], way: str
) -> None:
    topic, group, dropping = fresh("dropping"), fresh("group"), Dropping()
    place = TopicPartition(topic, 0)
    async with Producer(cluster.bootstrap_servers) as producer:
        await (await producer.send_many(topic, [b"%d" % number for number in range(5)], partition=0))

    values: list[bytes] = []
    async with Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        interceptors=[dropping],
    ) as consumer:
        while len(values) < 3:
            if way == "iterate":
                values.append((await anext(consumer)).value)
            elif way == "getmany":
                for records in (await consumer.getmany(timeout_ms=1_000)).values():
                    values += [record.value for record in records]
            else:
                async for batch in consumer.batches():
                    values += [record.value for record in batch]
                    break
        await consumer.commit()

    assert values == [b"0", b"2", b"4"]
    assert [offsets[place].offset for offsets in dropping.committed] == [5]


async def test_interceptors_that_fail_break_nothing(
    cluster: Any, fresh: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    topic = fresh("failing")
    with caplog.at_level(logging.ERROR):
        async with Producer(cluster.bootstrap_servers, interceptors=[Failing()]) as producer:
            await producer.send_and_wait(topic, b"a")
            await producer.send_and_wait(topic, b"b")
        async with Consumer(
            topic,
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            interceptors=[Failing()],
        ) as consumer:
            assert sorted([(await anext(consumer)).value for _ in range(2)]) == [b"a", b"b"]

    assert [record.exc_info is not None for record in caplog.records] == [True, True]


async def test_values_of_python_arrive_as_they_were(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic = fresh("values")
    values = [{"a": [1, 2.5, None, True]}, "text", b"bytes", 7, None]
    async with Producer(cluster.bootstrap_servers, value_serializer="msgpack") as producer:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)

    async with Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer="msgpack",
    ) as consumer:
        assert [(await anext(consumer)).value for _ in values] == values


async def test_what_cannot_be_serialized_is_refused_and_nothing_of_it_is_queued(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic = fresh("unserializable")
    async with Producer(cluster.bootstrap_servers) as producer:
        with pytest.raises(SerializationFailed, match="the value of a record for 'unserializable"):
            await producer.send(topic, {"a": object()})
        with pytest.raises(SerializationFailed, match="a key must be bytes or str"):
            producer.send_nowait(topic, b"x", key=7)  # type: ignore[arg-type]
        assert (await producer.send_and_wait(topic, b"fine", partition=0)).offset == 0


async def test_a_record_that_cannot_be_read_says_where_it_is_and_can_be_left_out(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    topic = fresh("unreadable")
    async with Producer(cluster.bootstrap_servers) as producer:
        for value in (b"1", b"{", b"3"):
            await producer.send_and_wait(topic, value, partition=0)

    async with Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer="json",
    ) as consumer:
        assert (await anext(consumer)).value == 1
        for _ in range(2):
            with pytest.raises(RecordDeserializationFailed) as failed:
                await anext(consumer)
            assert (failed.value.partition, failed.value.offset) == (TopicPartition(topic, 0), 1)
        consumer.seek(failed.value.partition, failed.value.offset + 1)
        assert (await anext(consumer)).value == 3


@pytest.mark.parametrize(
    "name", ["murmur2_random", "consistent_random", "fnv1a_random", "random_for_ten_minutes"]
)
async def test_records_with_one_key_go_to_one_partition(
    cluster: Any, fresh: Callable[[str], str], admin: Admin, name: str
) -> None:
    topic = fresh("keys")
    await admin.topics.create(topic, partitions=8)
    async with Producer(cluster.bootstrap_servers, partitioner=name) as producer:
        partitions = {(await producer.send_and_wait(topic, b"x", key="josef")).partition for _ in range(10)}

    assert len(partitions) == 1


async def test_round_robin_uses_all_partitions(
    cluster: Any, fresh: Callable[[str], str], admin: Admin
) -> None:
    topic = fresh("turns")
    await admin.topics.create(topic, partitions=4)
    async with Producer(cluster.bootstrap_servers, partitioner="round_robin") as producer:
        partitions = [(await producer.send_and_wait(topic, b"x", key="josef")).partition for _ in range(8)]

    assert sorted(partitions) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert partitions[:4] == partitions[4:]


async def test_metrics_count_what_was_done(cluster: Any, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("metrics"), fresh("group")
    async with Producer(cluster.bootstrap_servers) as producer:
        await (await producer.send_many(topic, [b"x" * 100] * 50, partition=0))
        sent = producer.metrics
        assert (sent.record_send_total, sent.topics[topic].record_send_total) == (50, 50)
        assert sent.byte_total > 5_000
        assert sent.request_latency_max > 0
        assert sent.buffer_available_bytes == sent.buffer_total_bytes
        assert sent.requests_in_flight == 0
        assert sent.record_error_total == 0

    async with Consumer(
        topic, bootstrap_servers=cluster.bootstrap_servers, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        await anext(consumer)
        read = consumer.metrics
        assert (read.records_consumed_total, read.topics[topic].records_consumed_total) == (50, 50)
        assert read.bytes_consumed_total > 5_000
        assert read.records_lag_max == 49
        assert read.fetch_total >= 1
        assert read.rebalance_total >= 1
        await consumer.commit()
        assert read.commit_total >= 1


async def test_a_client_is_made_of_a_properties_file(
    cluster: Any, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    topic = fresh("file")
    file = tmp_path / "client.properties"
    file.write_text(f"metadata.broker.list={cluster.bootstrap_servers}\nsocket.timeout.ms=20000\n")

    async with Producer(config=ProducerConfig.from_properties(file, compression_type="gzip")) as producer:
        await producer.send_and_wait(topic, "by file")
    config = ConsumerConfig.from_properties(file, auto_offset_reset="earliest", value_deserializer="str")
    async with Consumer(topic, config=config) as consumer:
        assert (await anext(consumer)).value == "by file"


async def test_only_the_topics_that_are_named_are_compressed(
    cluster: Any, fresh: Callable[[str], str]
) -> None:
    small, large = fresh("compressed"), fresh("plain")
    async with Producer(
        cluster.bootstrap_servers, compression_type="gzip", compressed_topics=[small]
    ) as producer:
        for topic in (small, large):
            await (await producer.send_many(topic, [b"x" * 1_000] * 20, partition=0))
        sent = producer.metrics.topics

    assert sent[small].byte_total < 2_000
    assert sent[large].byte_total > 20_000

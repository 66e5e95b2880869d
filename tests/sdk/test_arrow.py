"""Columns in, columns out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from ottla.admin import Admin
from ottla.consumer import Consumer
from ottla.producer import Producer, RecordTooLarge
from ottla.producer.config import CompressionType
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from sdk.conftest import Cluster


@pytest.fixture
async def topic(admin: Admin, fresh: Callable[[str], str]) -> str:
    name = fresh("columns")
    await admin.topics.create(name, partitions=3, replication_factor=1)
    return name


def reader(cluster: Cluster, topic: str, **settings: Any) -> Consumer[Any, Any]:
    return Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        **settings,
    )


async def read(consumer: Consumer, count: int, **options: object) -> pa.Table:
    """Read until there are `count` rows."""
    batches: list[pa.RecordBatch] = []
    async with asyncio.timeout(30):
        while sum(batch.num_rows for batch in batches) < count:
            batch = await consumer.fetch_arrow(timeout_ms=5_000, **options)  # type: ignore[arg-type]
            if batch.num_rows:
                batches.append(batch)
    return pa.Table.from_batches(batches)


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_columns_come_back_as_they_were_sent(
    cluster: Cluster, topic: str, compression: CompressionType
) -> None:
    sent = pa.table(
        {
            "key": [b"a", None, b"c", b""],
            "value": [b"1", b"2", None, b"4"],
            "timestamp": pa.array([1_000, 2_000, 3_000, 4_000], pa.timestamp("ms", "UTC")),
            "partition": pa.array([0, 0, 2, 0], pa.int32()),
            "headers": [[{"key": "h", "value": b"x"}], [], None, [{"key": "e", "value": None}]],
        },
        schema=pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("timestamp", pa.timestamp("ms", "UTC")),
                ("partition", pa.int32()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )
    async with Producer(cluster.bootstrap_servers, compression_type=compression) as producer:
        acknowledgements = await producer.send_arrow(topic, sent)
        await acknowledgements
        assert [(each.result().partition, each.result().offset) for each in acknowledgements] == [
            (0, 0),
            (0, 1),
            (2, 0),
            (0, 2),
        ]

    async with reader(cluster, topic) as consumer:
        columns = ["key", "value", "partition", "timestamp", "headers"]
        table = await read(consumer, 4, columns=columns)
    rows = sorted(table.to_pylist(), key=lambda row: row["timestamp"])
    assert [row["key"] for row in rows] == [b"a", None, b"c", b""]
    assert [row["value"] for row in rows] == [b"1", b"2", None, b"4"]
    assert [row["partition"] for row in rows] == [0, 0, 2, 0]
    assert [row["headers"] for row in rows] == [
        [{"key": "h", "value": b"x"}],
        [],
        [],
        [{"key": "e", "value": None}],
    ]


async def test_keys_go_where_those_of_records_go(cluster: Cluster, topic: str) -> None:
    keys = [b"key %d" % number for number in range(50)]
    async with Producer(cluster.bootstrap_servers) as producer:
        one_by_one = [await producer.send(topic, b"", key=key) for key in keys]
        together = await producer.send_arrow(topic, pa.table({"key": keys, "value": keys}))
        await together
        assert [(await each).partition for each in one_by_one] == [
            each.result().partition for each in together
        ]


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view()],
)
async def test_values_of_all_kinds_of_bytes_and_text_are_taken(
    cluster: Cluster, topic: str, kind: pa.DataType
) -> None:
    values = ["short", "a value that is longer than twelve bytes", "", None]
    column = pa.array(values, pa.string()).cast(kind)
    partitions = pa.array([1, 1, 1], pa.int32())
    batch = pa.record_batch({"value": column.slice(1), "partition": partitions})
    async with Producer(cluster.bootstrap_servers) as producer:
        await (await producer.send_arrow(topic, batch))

    async with reader(cluster, topic) as consumer:
        table = await read(consumer, 3, columns=["value", "offset"])
    found = [row["value"] for row in table.sort_by("offset").to_pylist()]
    assert found == [b"a value that is longer than twelve bytes", b"", None]


async def test_a_column_that_is_no_bytes_says_what_to_do(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        with pytest.raises(TypeError, match=r"column 'value' is of the Arrow format 'l': cast it to binary"):
            await producer.send_arrow(topic, pa.table({"value": [1, 2]}))
        with pytest.raises(ValueError, match="no column 'value'; there are 'text'"):
            await producer.send_arrow(topic, pa.table({"text": ["x"]}))
        with pytest.raises(TypeError, match="Arrow"):
            await producer.send_arrow(topic, [1, 2])
        await (await producer.send_arrow(topic, pa.table({"text": ["x"]}), value="text"))


async def test_rows_beyond_the_buffer_wait_for_room(cluster: Cluster, topic: str) -> None:
    count = 20_000
    values = pa.array([b"%0100d" % number for number in range(count)])
    async with Producer(cluster.bootstrap_servers, buffer_memory=200_000, batch_size=20_000) as producer:
        acknowledgements = await producer.send_arrow(topic, pa.table({"value": values}))
        await acknowledgements
        assert len(acknowledgements) == count

    async with reader(cluster, topic) as consumer:
        table = await read(consumer, count, columns=["value"])
    assert sorted(table.column("value").to_pylist()) == values.to_pylist()


async def test_a_row_that_is_too_large_is_refused_before_it_is_queued(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.bootstrap_servers, max_request_size=10_000) as producer:
        with pytest.raises(RecordTooLarge):
            await producer.send_arrow(topic, pa.table({"value": [b"x" * 20_000]}))


async def test_positions_are_exact_whatever_is_taken_of_a_batch(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        await (await producer.send_many(topic, [b"%d" % number for number in range(100)], partition=1))
    partition = TopicPartition(topic, 1)

    async with reader(cluster, topic) as consumer:
        first = await read(consumer, 1, max_records=30)
        assert (first.num_rows, await consumer.position(partition)) == (30, 30)
        rows = (await consumer.getmany(timeout_ms=5_000, max_records=20))[partition]
        assert [rows[0].offset, rows[-1].offset] == [30, 49]
        consumer.seek(partition, 90)
        rest = await read(consumer, 10, columns=["offset"])
        assert rest.column("offset").to_pylist() == list(range(90, 100))
        assert await consumer.position(partition) == 100


async def test_a_batch_is_finished_when_the_next_is_asked_for(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers) as producer:
        await (await producer.send_many(topic, [b"x"] * 10, partition=0))
    group, partition = fresh("group"), TopicPartition(topic, 0)

    async with reader(cluster, topic, group_id=group, enable_auto_commit=True) as consumer:
        await read(consumer, 1, max_records=4)
        await read(consumer, 1, max_records=4)
    async with reader(cluster, topic, group_id=group) as consumer:
        assert await consumer.committed(partition) == 4


async def test_nothing_comes_as_an_empty_batch(cluster: Cluster, topic: str) -> None:
    async with reader(cluster, topic) as consumer:
        batch = await consumer.fetch_arrow(timeout_ms=50, columns=["value", "offset"])
    assert (batch.num_rows, batch.schema.names) == (0, ["value", "offset"])


async def test_aborted_records_are_left_out(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        for number in range(4):
            await producer.begin_transaction()
            table = pa.table({"value": [b"%d" % number], "partition": pa.array([0], pa.int32())})
            await (await producer.send_arrow(topic, table))
            if number % 2:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()

    async with reader(cluster, topic, isolation_level="read_committed") as consumer:
        table = await read(consumer, 2, columns=["value"])
    assert table.column("value").to_pylist() == [b"1", b"3"]


async def test_reading_ends_where_it_is_told_to(cluster: Cluster, topic: str) -> None:
    place = TopicPartition(topic, 0)
    async with Producer(cluster.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"only", partition=0)

    async with reader(cluster, topic) as consumer:
        first = await consumer.fetch_arrow(timeout_ms=None, until={place: 1})
        # Without a timeout: it would wait for ever, were the end not noticed.
        async with asyncio.timeout(30):
            second = await consumer.fetch_arrow(timeout_ms=None, until={place: 1})
    assert (first.num_rows, second.num_rows) == (1, 0)


async def test_reading_ends_also_behind_what_holds_no_records(
    cluster: Cluster, topic: str, fresh: Callable[[str], str]
) -> None:
    place = TopicPartition(topic, 0)
    async with Producer(cluster.bootstrap_servers, transactional_id=fresh("id")) as producer:
        async with producer.transaction():
            await producer.send(topic, b"only", partition=0)

    async with reader(cluster, topic) as consumer, asyncio.timeout(30):
        until = {place: 2}  # the record, and the marker, which the broker writes after it answered the commit
        while await consumer.end_offsets([place]) != until:  # noqa: ASYNC110  the broker has no event for it
            await asyncio.sleep(0.05)
        counts = [(await consumer.fetch_arrow(timeout_ms=None, until=until)).num_rows for _ in range(2)]
        position = await consumer.position(place)
    assert (counts, position) == ([1, 0], 2)

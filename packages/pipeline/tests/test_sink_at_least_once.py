"""Writes of tasks to a broker, and topics that are not there, without Spark."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerThread
from ottla.consumer import Consumer
from ottla.pipeline.sink.at_least_once import write_rows
from ottla.pipeline.sink.config import SinkConfig
from ottla.pipeline.sink.errors import NoTransactions, RowsUnfit
from ottla.pipeline.sink.exactly_once import write_exactly_once
from ottla.pipeline.sink.tasks import Columns, TaskIdentity
from ottla.pipeline.source.config import SourceConfig
from ottla.pipeline.source.topic_offsets import BrokerTopicOffsets
from ottla.protocol.errors import UnknownTopicOrPartition
from peers.denied_transactions import denied_transactions

PLACE = TaskIdentity("q", 7, 3)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
async def topic(broker: BrokerThread) -> str:
    name = f"rows-{secrets.token_hex(4)}"
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create(name, partitions=3, replication_factor=1)
    return name


def config(broker: BrokerThread, **options: str) -> SinkConfig:
    return SinkConfig.of({"kafka.bootstrap.servers": broker.bootstrap_servers, **options})


def batches(*parts: list[str], **columns: pa.Array) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield pa.record_batch({"value": pa.array(part, pa.string()), **columns})


async def read(broker: BrokerThread, topic: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with (
        Consumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(30),
    ):
        while len(found) < count:
            batch = await consumer.fetch_arrow(
                timeout_ms=5_000, columns=["value", "key", "partition", "headers", "topic"]
            )
            found += batch.to_pylist()
    return found


async def test_all_rows_of_a_task_are_written_before_it_ends(broker: BrokerThread, topic: str) -> None:
    settings = config(broker, **{"kafka.linger.ms": "60000"})
    columns = Columns(("value", "partition"), topic)
    parts = [[str(part * 100 + row) for row in range(100)] for part in range(20)]

    def task() -> int:
        return write_rows(batches(*parts, partition=pa.array([1] * 100, pa.int32())), columns, settings, None)

    assert await asyncio.to_thread(task) == 2_000
    assert await asyncio.to_thread(task) == 2_000  # the producer stays open
    found = await read(broker, topic, 4_000)
    assert [row["value"] for row in found] == [b"%d" % number for number in range(2_000)] * 2
    assert {row["partition"] for row in found} == {1}


async def test_rows_of_several_topics_have_ids_that_their_order_does_not_change(
    broker: BrokerThread, topic: str
) -> None:
    names = pa.array([topic, f"{topic}-b", topic], pa.string())
    turned = pa.array([f"{topic}-b", topic, topic], pa.string())
    for rows in (
        batches(["0", "1", "2"], ["0", "1", "2"], topic=names),
        batches(["1", "2", "0"], ["1", "0", "2"], topic=turned),
    ):
        await asyncio.to_thread(write_rows, rows, Columns(("value",), None), config(broker), PLACE)

    found = await read(broker, topic, 8) + await read(broker, f"{topic}-b", 4)
    ids = [{each["key"]: each["value"].decode() for each in row["headers"]} for row in found]
    named = [own.pop("ottla-row") for own in ids]
    of_row = Counter((row["topic"], row["value"], name) for row, name in zip(found, named, strict=True))
    assert set(of_row.values()) == {2}  # each row is there twice, with the same id
    assert len({name for _, _, name in of_row}) == 6
    assert Counter((topic, value) for topic, value, _ in of_row) == {
        (topic, b"0"): 2,
        (topic, b"2"): 2,
        (f"{topic}-b", b"1"): 2,
    }
    assert ids == [{"ottla-query": "q", "ottla-batch": "7", "ottla-partition": "3"}] * 12


async def test_a_row_that_is_not_written_fails_its_task_and_not_the_next(
    broker: BrokerThread, topic: str
) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        await admin.topics.create(
            f"{topic}-small", partitions=1, replication_factor=1, configs={"max.message.bytes": "1000"}
        )
    settings, columns = config(broker), Columns(("value",), f"{topic}-small")

    with pytest.raises(RowsUnfit, match=r"^a row is a record that is larger than the topic's max\.message"):
        await asyncio.to_thread(lambda: write_rows(batches(["x" * 5_000]), columns, settings, None))
    with pytest.raises(RowsUnfit, match=r"option kafka\.max\.request\.size allows 1,048,576, and"):
        await asyncio.to_thread(lambda: write_rows(batches(["x" * 2_000_000]), columns, settings, None))
    with pytest.raises(ValueError, match="partitions 0 to 0"):
        wrong = batches(["x"], partition=pa.array([7], pa.int32()))
        columns_of = Columns(("value", "partition"), f"{topic}-small")
        impatient = config(broker, **{"kafka.max.block.ms": "1000"})  # while it looks whether the topic grows
        await asyncio.to_thread(lambda: write_rows(wrong, columns_of, impatient, None))
    await asyncio.to_thread(lambda: write_rows(batches(["small"]), columns, settings, None))

    assert [row["value"] for row in await read(broker, f"{topic}-small", 1)] == [b"small"]


async def test_a_null_topic_fails_the_task(broker: BrokerThread) -> None:
    rows = batches(["x"], topic=pa.array([None], pa.string()))

    with pytest.raises(RowsUnfit, match="null in column 'topic'"):
        await asyncio.to_thread(lambda: write_rows(rows, Columns(("value",), None), config(broker), None))


async def test_a_broker_without_transactions_is_named_as_such() -> None:
    words = "^delivery=exactly-once needs transactions, which these brokers do not have. With delivery=dedupe"
    async with denied_transactions() as servers:
        settings = SinkConfig.of({"kafka.bootstrap.servers": servers, "delivery": "exactly-once"})
        columns = Columns(("value",), "rows")
        with pytest.raises(NoTransactions, match=words) as failure:
            await asyncio.to_thread(
                lambda: write_exactly_once(batches(["x"]), columns, settings, PLACE, "run")
            )
    assert failure.value.__suppress_context__, "no talk of authorization, which is how brokers say it"


async def test_a_topic_that_does_not_exist_is_named_with_the_nearest(
    broker: BrokerThread, topic: str
) -> None:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "fetchOffset.numRetries": "0"}
    lookup = BrokerTopicOffsets(SourceConfig.of({**given, "subscribe": f"{topic}s"}, streaming=False))
    far = BrokerTopicOffsets(SourceConfig.of({**given, "subscribe": "visits"}, streaming=False))

    try:
        with pytest.raises(
            UnknownTopicOrPartition, match=f"'{topic}s' does not exist; did you mean '{topic}'"
        ):
            await asyncio.to_thread(lookup.selected)
        with pytest.raises(UnknownTopicOrPartition, match=r"^topic 'visits' does not exist$"):
            await asyncio.to_thread(far.selected)
    finally:
        await asyncio.to_thread(lookup.close)
        await asyncio.to_thread(far.close)

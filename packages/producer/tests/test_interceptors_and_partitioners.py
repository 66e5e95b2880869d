"""Records that an interceptor sees, or that a custom partitioner places."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.errors import ClientError, DeadlineExceeded
from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    Producer,
    ProducerInterceptor,
    RecordMetadata,
)
from ottla.protocol.records import decode_records
from peers.accepting_broker import batches, serving


def values(broker: ScriptedBroker) -> list[bytes | None]:
    return [record.value for batch in batches(broker) for record in decode_records(batch)]


class Hearing(ProducerInterceptor):
    """Records the outcomes it sees."""

    def __init__(self) -> None:
        self.heard: list[tuple[int | None, type[BaseException] | None]] = []

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self.heard.append((metadata.offset if metadata else None, type(error) if error else None))


async def test_interceptors_are_called_once_for_each_record_even_without_its_topic() -> None:
    hearing = Hearing()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, max_block_ms=50, interceptors=[hearing]) as producer:
            first = producer.send_nowait("t", b"x")
            await first
            second = producer.send_nowait("t", b"y")
            await second
            lost = producer.send_nowait("other", b"z")
            with pytest.raises(DeadlineExceeded):
                await lost

    assert hearing.heard == [(100, None), (100, None), (None, DeadlineExceeded)]


async def test_a_filled_batch_is_rejected_where_an_interceptor_sees_records() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[Hearing()]) as producer:
            batch = producer.create_batch()
            batch.append(value=b"x")
            with pytest.raises(ClientError, match="send_batch takes no interceptors"):
                await producer.send_batch(batch, "t", partition=0)
            with pytest.raises(ClientError, match=r"send_arrow takes no interceptors.*: use send_many"):
                await producer.send_arrow("t", pa.table({"value": [b"x"]}))


async def test_an_interceptor_that_returns_no_record_is_logged_and_the_record_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Mistaken:
        def on_send(self, record: Any) -> Any:
            return record.value.upper()

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[Mistaken()]) as producer:
            await producer.send_and_wait("t", b"x")

    assert values(broker) == [b"x"]
    assert "it returned bytes, not ProducerRecord" in caplog.text


async def test_send_many_calls_interceptors_for_each_record() -> None:
    class Marking(Hearing):
        def on_send(self, record: Any) -> Any:
            return record._replace(value=record.value + b"!")

    hearing = Marking()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, interceptors=[hearing]) as producer:
            sent = await producer.send_many("t", [b"a", b"b"], headers=iter([("h", b"1")]))
            await sent

    records = [record for batch in batches(broker) for record in decode_records(batch)]
    assert [record.value for record in records] == [b"a!", b"b!"]
    assert [len(record.headers) for record in records] == [1, 1]
    assert [each.offset for each in sent] == [100, 101]
    assert len(hearing.heard) == 2


class ByLength:
    """Records the keys it is called with, and chooses partition 0."""

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []

    def partition(self, topic: str, key: bytes | None, partitions: int, available: Any) -> int:
        self.keys.append(key)
        return 0


async def test_a_custom_partitioner_is_called_for_records_without_a_partition() -> None:
    asked = ByLength()
    named = pa.table({"value": [b"x", b"y", b"z"], "key": [b"k", None, b"l"], "partition": [None, None, 0]})

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, partitioner=asked) as producer:
            await producer.send_many("t", [b"a"], keys=[b"not asked"], partition=0)
            await producer.send_many("t", [b"b", b"c"], keys=[b"1", None])
            await producer.send_arrow("t", named)

    assert asked.keys == [b"1", None, b"k", None]
    assert values(broker) == [b"a", b"b", b"c", b"x", b"y", b"z"]


async def test_a_partitioner_is_told_of_batches_that_rows_filled() -> None:
    class Told(ByLength):
        full = 0

        def batch_full(self, topic: str) -> None:
            self.full += 1

    told = Told()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, partitioner=told, batch_size=1_000) as producer:
            await producer.send_arrow("t", pa.table({"value": [bytes(400)] * 6}))

    assert told.full > 1


def test_the_old_module_of_the_interceptor_imports_it_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"interceptors is now ottla\.producer\.record"):
        old = import_module("ottla.producer.interceptors")

    assert old.ProducerInterceptor is ProducerInterceptor

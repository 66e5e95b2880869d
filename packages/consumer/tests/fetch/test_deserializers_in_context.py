"""Deserializers that see the record, and those that must wait before their first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ottla.client.config import ClientConfig
from ottla.client.field_types import optional
from ottla.client.serialization import DeserializationContext, PreparationNeeded
from ottla.client.settings import SettingError
from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    Consumer,
    ConsumerConfig,
    RecordDeserializationFailed,
    SyncConsumer,
    TopicPartition,
)
from ottla.consumer._records import RecordCursor
from ottla.consumer.fetch.decoding import RecordDecoder
from ottla.protocol.records import BatchBuilder
from ottla.protocol.records.legacy import LegacyRecord, encode_set
from peers.scripted_topic import FAST, A, Log, reader, take

BOUND_S = 60


class Registered:
    """Reads `id:text`; the text of an id must be looked up first."""

    def __init__(self, look_up: Callable[[bytes], Awaitable[object]] | None = None) -> None:
        self.names: dict[bytes, str] = {}
        self.lookups: list[bytes] = []
        self._look_up = look_up

    def deserialize(self, data: bytes, context: DeserializationContext) -> str:
        schema, _, text = data.partition(b":")
        if schema not in self.names:
            raise PreparationNeeded(lambda: self._find(schema))
        return f"{self.names[schema]} {text.decode()} {context.field} {context.offset}"

    async def _find(self, schema: bytes) -> None:
        self.lookups.append(schema)
        await asyncio.sleep(0)
        if self._look_up is not None:
            await self._look_up(schema)
        self.names[schema] = f"schema{schema.decode()}"


def reading(broker: ScriptedBroker, deserializer: Registered) -> Consumer[Any, Any]:
    return reader(broker, replace(FAST, value_deserializer=deserializer))


def test_a_deserializer_sees_topic_offset_field_and_headers() -> None:
    seen: list[DeserializationContext] = []

    class Seeing:
        def deserialize(self, data: bytes, context: DeserializationContext) -> bytes:
            seen.append(context)
            return data.upper()

    builder = BatchBuilder(1 << 20)
    builder.append(b"k", b"a", 5, [("h", b"1")])
    builder.append(None, b"b", 5)
    decoder = RecordDecoder(replace(FAST, key_deserializer=Seeing(), value_deserializer=Seeing()))
    cursor = decoder.cursor(TopicPartition("t", 3), builder.build(base_offset=7), 7, None)

    found = [(record.key, record.value, record.headers) for record in cursor.take(10)]

    assert found == [(b"K", b"A", (("h", b"1"),)), (None, b"B", ())]
    assert seen == [
        ("t", 3, 7, "key", (("h", b"1"),)), ("t", 3, 7, "value", (("h", b"1"),)), ("t", 3, 8, "value", ())
    ]  # fmt: skip


def modern() -> bytes:
    builder = BatchBuilder(1 << 20)
    for value in (b"1:a", b"2:b"):
        builder.append(None, value, 5)
    return builder.build()


def legacy() -> bytes:
    return encode_set([LegacyRecord(0, 5, None, b"1:a"), LegacyRecord(1, 5, None, b"2:b")], magic=1)


@pytest.mark.parametrize("data", [modern(), legacy()], ids=["batch", "message set"])
def test_a_cursor_stays_before_a_record_whose_deserializer_must_wait(data: bytes) -> None:
    decoder = RecordDecoder(replace(FAST, value_deserializer=(deserializer := Registered())))
    deserializer.names[b"1"] = "known"
    cursor: RecordCursor = decoder.cursor(A, data, 0, None)

    assert [record.value for record in cursor.take(10)] == ["known a value 0"]
    assert cursor.position == 1
    deserializer.names[b"2"] = "known, too"
    assert [record.value for record in cursor.take(10)] == ["known, too b value 1"]


VALUES = (b"1:a", b"1:b", b"2:c", b"1:d")
READ = ["schema1 a value 0", "schema1 b value 1", "schema2 c value 2", "schema1 d value 3"]


async def test_preparations_are_awaited_while_records_are_read_one_by_one(broker: ScriptedBroker) -> None:
    deserializer = Registered()
    Log(broker).add(*VALUES)
    async with reading(broker, deserializer) as consumer:
        assert [(await consumer.getone()).value for _ in VALUES] == READ

    assert deserializer.lookups == [b"1", b"2"]


async def test_preparations_are_awaited_while_records_are_read_in_lists(broker: ScriptedBroker) -> None:
    deserializer = Registered()
    Log(broker).add(*VALUES)
    async with reading(broker, deserializer) as consumer:
        found: list[str] = []
        while len(found) < len(VALUES):
            for records in (await consumer.getmany(timeout_ms=None)).values():
                found += [record.value for record in records]

    assert (found, deserializer.lookups) == (READ, [b"1", b"2"])


async def test_preparations_are_awaited_while_records_are_read_in_batches(broker: ScriptedBroker) -> None:
    deserializer = Registered()
    Log(broker).add(*VALUES)
    found: list[str] = []
    async with reading(broker, deserializer) as consumer:
        async for batch in consumer.batches():
            found += [record.value for record in batch]
            if len(found) == len(VALUES):
                break

    assert (found, deserializer.lookups) == (READ, [b"1", b"2"])


async def test_preparations_are_awaited_for_threads(broker: ScriptedBroker) -> None:
    deserializer = Registered()
    Log(broker).add(*VALUES)

    def read() -> list[str]:
        config = replace(FAST, value_deserializer=deserializer)
        config = replace(config, client=replace(FAST.client, bootstrap_servers=broker.bootstrap_servers))
        with SyncConsumer(config=config) as consumer:
            consumer.assign([A])
            return [next(consumer).value for _ in VALUES]

    assert await asyncio.to_thread(read) == READ
    assert deserializer.lookups == [b"1", b"2"]


async def test_a_call_for_a_list_may_follow_an_iteration_that_must_wait(broker: ScriptedBroker) -> None:
    deserializer = Registered()
    Log(broker).add(*VALUES)
    async with reading(broker, deserializer) as consumer:
        assert (await consumer.getone()).value == READ[0]
        assert (await consumer.getone()).value == READ[1]
        assert consumer._delivery._next_buffered() is None
        deserializer.names[b"2"] = "schema2"
        (records,) = (await consumer.getmany(timeout_ms=None)).values()
        assert [str(record.value) for record in records] == READ[2:]
    assert deserializer.lookups == [b"1"]


async def test_a_seek_during_a_preparation_counts(broker: ScriptedBroker) -> None:
    async def seek(schema: bytes) -> None:
        if schema == b"1":
            consumer.seek(A, 2)

    deserializer = Registered(seek)
    Log(broker).add(*VALUES)
    async with reading(broker, deserializer) as consumer:
        assert list[object](await take(consumer, 2)) == READ[2:]


async def test_a_failed_preparation_says_where_and_is_tried_again_when_asked_again(
    broker: ScriptedBroker,
) -> None:
    answers = [ConnectionError("the registry is\naway"), ConnectionError("still away"), None]

    async def answer(_: bytes) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    Log(broker).add(*VALUES)
    async with reading(broker, Registered(answer)) as consumer:
        words = "value of t-0 at offset 0 cannot be deserialized: the registry is away"
        with pytest.raises(RecordDeserializationFailed, match=words) as failed:
            await consumer.getone()
        with pytest.raises(RecordDeserializationFailed, match="still away"):
            await consumer.getmany(timeout_ms=None)
        answers.append(None)
        assert (failed.value.partition, failed.value.offset) == (A, 0)
        assert [(await consumer.getone()).value for _ in VALUES] == READ


async def test_a_preparation_ends_after_default_api_timeout_ms(broker: ScriptedBroker) -> None:
    async def stick(_: bytes) -> None:
        await asyncio.get_running_loop().create_future()

    Log(broker).add(*VALUES)
    client = ClientConfig(default_api_timeout_ms=1_000, request_timeout_ms=1_000)
    config = replace(FAST, value_deserializer=Registered(stick), client=client)
    async with reader(broker, config) as consumer:
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(RecordDeserializationFailed, match="cannot be deserialized: TimeoutError"):
                await consumer.getone()


async def test_preparations_that_never_suffice_end(broker: ScriptedBroker) -> None:
    deserializer = Registered()
    deserializer.names = type("Nothing", (dict,), {"__setitem__": lambda *_: None})()
    Log(broker).add(*VALUES)
    async with reading(broker, deserializer) as consumer:
        with pytest.raises(RecordDeserializationFailed, match="16 preparations did not suffice"):
            await consumer.getone()

    assert len(deserializer.lookups) == 16


@dataclass
class Order:
    drink: str
    price: float


async def test_records_have_values_of_a_type_and_poison_records_say_where_they_are(
    broker: ScriptedBroker,
) -> None:
    log = Log(broker)
    log.key = b"josef"
    log.add(b'{"drink":"tea","price":2}', b'{"drink":"tea"}', b'{"drink":"coffee","price":3}')
    typed: Consumer[Any, Any] = reader(broker, replace(FAST, key_type=str, value_type=Order))
    async with typed as consumer:
        record = await consumer.getone()
        assert (record.key, record.value) == ("josef", Order("tea", 2.0))
        words = "t-0 at offset 1 cannot be deserialized: no Order in JSON: .* missing required field `price`"
        with pytest.raises(RecordDeserializationFailed, match=words) as failed:
            await consumer.getone()
        assert "\n" not in str(failed.value)
        consumer.seek(A, failed.value.offset + 1)
        record = await consumer.getone()
        assert record.value == Order("coffee", 3.0)


def test_records_without_key_or_value_need_an_optional_type() -> None:
    builder = BatchBuilder(1 << 20)
    builder.append(b"k", None, 5)
    builder.append(None, b'{"drink":"tea","price":2}', 5)
    data = builder.build()

    def values(**types: Any) -> list[tuple[Any, Any]]:
        cursor = RecordDecoder(replace(FAST, **types)).cursor(A, data, 0, None)
        return [(record.key, record.value) for record in (*cursor.take(1), *cursor.take(1))]

    assert values(value_type=optional(Order)) == [(b"k", None), (None, Order("tea", 2.0))]
    with pytest.raises(RecordDeserializationFailed, match=r"there is none, and Order \| None would take"):
        values(value_type=Order)
    with pytest.raises(RecordDeserializationFailed, match=r"the key of t-0 at offset 1 .*: there is none"):
        values(key_type=str)
    assert values(key_type=optional(str)) == [("k", None), (None, b'{"drink":"tea","price":2}')]


def test_a_type_and_a_deserializer_exclude_each_other() -> None:
    with pytest.raises(SettingError, match="value_type brings its own value_deserializer: give one of"):
        Consumer("t", value_type=Order, value_deserializer="json")
    with pytest.raises(SettingError, match="value_type: 'shop:Order' cannot be imported"):
        ConsumerConfig(value_type="shop:Order")

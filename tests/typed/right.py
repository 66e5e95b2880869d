"""Typed records as type checkers must accept them; `tests/typed/wrong.py` has what they must reject."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
from pydantic import BaseModel

from ottla.client.field_types import FieldType, optional
from ottla.client.serialization import DeserializationContext, SerializationContext
from ottla.consumer import Consumer, ConsumerConfig, ConsumerRecord, Record, RecordBatch, SyncConsumer
from ottla.producer import Producer, ProducerConfig, SyncProducer
from ottla.streams import App


@dataclass
class Order:
    drink: str
    price: float


class Guest(TypedDict):
    name: str


class Bill(msgspec.Struct):
    total: float


class Visit(BaseModel):
    table: int


class Registry:
    """A serializer and deserializer of orders that sees records."""

    def serialize(self, value: Order, context: SerializationContext) -> bytes:
        return value.drink.encode()

    def deserialize(self, data: bytes, context: DeserializationContext) -> Order:
        return Order(data.decode(), 1.0)


def length(data: bytes) -> int:
    return len(data)


async def consumers(settings: dict[str, Any]) -> None:
    assert_type(Consumer(), Consumer[bytes, bytes])
    assert_type(Consumer("orders", group_id="bar"), Consumer[bytes, bytes])
    assert_type(Consumer("orders", value_type=Order), Consumer[bytes, Order])
    assert_type(Consumer("orders", key_type=str, value_type=Guest), Consumer[str, Guest])
    assert_type(Consumer("orders", value_type=Bill), Consumer[bytes, Bill])
    assert_type(Consumer("orders", value_type=Visit), Consumer[bytes, Visit])
    assert_type(Consumer("orders", value_type=list[Order]), Consumer[bytes, list[Order]])
    assert_type(Consumer("orders", value_type=optional(Order)), Consumer[bytes, Order | None])
    assert_type(
        Consumer("orders", value_type=FieldType(Order, wire_format="msgpack")), Consumer[bytes, Order]
    )
    assert_type(Consumer("orders", value_deserializer=length), Consumer[bytes, int])
    assert_type(Consumer("orders", value_deserializer=Registry()), Consumer[bytes, Order])
    assert_type(Consumer("orders", value_deserializer="json"), Consumer[Any, Any])
    assert_type(Consumer("orders", config=ConsumerConfig(value_type=Order)), Consumer[Any, Any])
    assert_type(Consumer("orders", **settings), Consumer[Any, Any])

    async with Consumer("orders", key_type=str, value_type=Order) as consumer:
        async for record in consumer:
            assert_type(record, ConsumerRecord[str, Order])
            assert_type(record.key, str)
            assert_type(record.value.price, float)
        assert_type((await consumer.getone()).value, Order)
        for records in (await consumer.getmany()).values():
            assert_type(records, list[ConsumerRecord[str, Order]])
        async for batch in consumer.batches():
            assert_type(batch, RecordBatch[str, Order])
            assert_type([record.value.drink for record in batch], list[str])

    with SyncConsumer("orders", value_type=Order) as threaded:
        assert_type(next(threaded).value, Order)


async def producers(order: Order, guest: Guest) -> None:
    plain = Producer("localhost:9092")
    await plain.send("orders", "text", key=b"josef")
    await plain.send("orders", {"any": ["value", 1]})

    async with Producer("localhost:9092", key_type=str, value_type=Order) as producer:
        assert_type(producer, Producer[str, Order])
        await producer.send("orders", order, key="josef")
        await producer.send_and_wait("orders", None, key="josef")
        await producer.send_many("orders", [order, order], keys=["a", "b"])
        producer.send_nowait("orders", order)

    assert_type(Producer(value_serializer=Registry(), key_type=str), Producer[str, Order])
    assert_type(Producer(config=ProducerConfig(value_type=Order)), Producer[Any, Any])
    with SyncProducer("localhost:9092", value_type=Guest) as threaded:
        threaded.send("guests", guest, key="josef")


async def total(orders: AsyncIterator[Record[bytes, Order]]) -> float:
    return sum([record.value.price async for record in orders])


def plain(consumer: Consumer) -> None:
    assert_type(consumer, Consumer[bytes, bytes])


async def functions() -> None:
    plain(Consumer("orders"))
    plain(Consumer("orders", value_deserializer="json"))
    await total(aiter(Consumer("orders", value_type=Order)))


app = App("bar")


@app.handle("orders")
async def handle(record: Record[str, Order]) -> None:
    assert_type(record.value.price, float)

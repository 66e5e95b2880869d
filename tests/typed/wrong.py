"""Typed records as type checkers must reject them: an error in each line that says so, and in no other."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.client.field_types import optional
from ottla.client.serialization import DeserializationContext
from ottla.consumer import Consumer, Record, SyncConsumer
from ottla.producer import Producer, SyncProducer


@dataclass
class Order:
    drink: str
    price: float


class ToOrder:
    def deserialize(self, data: bytes, context: DeserializationContext) -> Order:
        return Order("tea", 1.0)


async def consumers() -> None:
    async with Consumer("orders", key_type=str, value_type=Order) as consumer:
        async for record in consumer:
            print(record.value.prize)  # expect-error
            print(record.value + 1)  # expect-error
            record.key.decode()  # expect-error
            record.value = Order("tea", 1.0)  # expect-error
        price: str = (await consumer.getone()).value.price  # expect-error
        print(price)
        async for batch in consumer.batches():
            print(batch[0].value.prize)  # expect-error

    async with Consumer("orders", value_type=optional(Order)) as tombstones:
        print((await tombstones.getone()).value.price)  # expect-error

    async with Consumer("orders", value_deserializer=ToOrder()) as registered:
        (await registered.getone()).value.decode()  # expect-error

    async with Consumer("orders") as plain:
        print((await plain.getone()).value.price)  # expect-error

    with SyncConsumer("orders", value_type=Order) as threaded:
        print(next(threaded).value.prize)  # expect-error


async def producers(order: Order) -> None:
    async with Producer("localhost:9092", key_type=str, value_type=Order) as producer:
        await producer.send("orders", {"drink": "tea"}, key="josef")  # expect-error
        await producer.send("orders", order, key=b"josef")  # expect-error
        await producer.send_many("orders", [order, "tea"])  # expect-error
        producer.send_nowait("orders", 1)  # expect-error

    async with Producer("localhost:9092") as plain:
        await plain.send("orders", b"tea", key=7)  # expect-error

    with SyncProducer("localhost:9092", value_type=Order) as threaded:
        threaded.send("orders", "tea")  # expect-error


def settings() -> None:
    Consumer("orders", value_typ=Order)  # expect-error
    Consumer("orders", value_type=Order("tea", 1.0))  # expect-error
    Consumer("orders", group_id=7)  # expect-error
    Producer("localhost:9092", value_serializer=7)  # expect-error


def names(record: Record[bytes, str]) -> str:
    return record.value


def functions(record: Record[bytes, Order]) -> None:
    names(record)  # expect-error

"""Serializers that see the record, and those that must wait before their first use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ottla.client.serialization import PreparationNeeded, SerializationContext, SerializerUnprepared
from ottla.client.testing import ScriptedBroker
from ottla.producer import Producer, SerializationFailed, SyncProducer
from ottla.protocol.records import Record, decode_records
from peers.accepting_broker import batches, serving

BOUND_S = 60


class Signing:
    """Writes text, and adds a header that names the topic and the field."""

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        context.headers.append((f"{context.field}-of", context.topic))
        return f"{value}/{len(context.headers)}".encode()


class Registered:
    """Writes the id of a topic's schema, which it must look up first."""

    def __init__(self, look_up: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)) -> None:
        self.ids: dict[str, int] = {}
        self.lookups = 0
        self._look_up = look_up

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        known = self.ids.get(f"{context.topic}-{context.field}")
        if known is None:
            raise PreparationNeeded(lambda: self._find(f"{context.topic}-{context.field}"))
        return f"{known}:{value}".encode()

    async def _find(self, subject: str) -> None:
        self.lookups += 1
        await self._look_up()
        self.ids.setdefault(subject, len(self.ids) + 1)


def records(broker: ScriptedBroker) -> list[Record]:
    return [record for batch in batches(broker) for record in decode_records(batch)]


async def test_a_serializer_sees_topic_and_field_and_adds_headers_to_its_record_alone() -> None:
    given: list[tuple[str, bytes | str | None]] = [("mine", b"1")]
    settings: dict[str, Any] = {"key_serializer": Signing(), "value_serializer": Signing()}
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, **settings) as producer:
            await producer.send("t", "a", key="k", headers=given)
            producer.send_nowait("t", "b", headers={"mine": "2"})
            await producer.send_many("t", ["c", None])

    sent = records(broker)
    both = (("key-of", b"t"), ("value-of", b"t"))
    assert [(record.key, record.value) for record in sent] == [
        (b"k/2", b"a/3"), (None, b"b/2"), (None, b"c/1"), (None, None)
    ]  # fmt: skip
    assert [tuple(record.headers) for record in sent] == [
        (("mine", b"1"), *both), (("mine", b"2"), both[1]), (both[1],), ()
    ]  # fmt: skip
    assert given == [("mine", b"1")]


async def test_a_preparation_is_awaited_once_and_later_records_do_not_wait() -> None:
    serializer = Registered()
    settings: dict[str, Any] = {"key_serializer": serializer, "value_serializer": serializer}
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, **settings) as producer:
            with pytest.raises(SerializerUnprepared, match="its serializer must wait first; await send once"):
                producer.send_nowait("t", "x")
            await producer.send("t", "a", key="k")
            later = producer.send("t", "b", key="k")
            with pytest.raises(StopIteration):  # it ends without waiting
                later.send(None)
            producer.send_nowait("t", "c")
            await producer.send_many("t", ["d"], keys=["k"])

    assert [record.value for record in records(broker)] == [b"2:a", b"2:b", b"2:c", b"2:d"]
    assert serializer.lookups == 2


async def test_headers_of_a_call_that_must_wait_are_not_added_twice() -> None:
    settings: dict[str, Any] = {"key_serializer": Signing(), "value_serializer": Registered()}
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, **settings) as producer:
            await producer.send("t", "a", key="k")

    (record,) = records(broker)
    assert (record.key, tuple(record.headers)) == (b"k/1", (("key-of", b"t"),))


async def test_a_failed_preparation_fails_its_record_and_the_next_record_tries_again() -> None:
    answers = [ConnectionError("the registry is\naway"), None]

    async def answer() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, value_serializer=Registered(answer)) as producer:
            with pytest.raises(SerializationFailed, match=r"cannot be serialized: the registry is away$"):
                await producer.send("t", "a")
            await producer.send("t", "b")

    assert [record.value for record in records(broker)] == [b"1:b"]


async def test_preparations_end_after_max_block_ms() -> None:
    stuck = Registered(lambda: asyncio.get_running_loop().create_future())
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, value_serializer=stuck, max_block_ms=20) as producer:
            async with asyncio.timeout(BOUND_S):
                with pytest.raises(SerializationFailed, match="cannot be serialized: TimeoutError"):
                    await producer.send("t", "a")


async def test_preparations_that_never_suffice_end() -> None:
    endless = Registered()
    endless.ids = type("Nothing", (dict,), {"setdefault": lambda *_: None})()
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, value_serializer=endless) as producer:
            with pytest.raises(SerializationFailed, match="16 preparations did not suffice"):
                await producer.send("t", "a")

    assert endless.lookups == 16


@dataclass
class Order:
    drink: str
    price: float


async def test_values_of_a_type_are_written_and_others_refused() -> None:
    order: Any = Order("tea", 2.0)
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, key_type=str, value_type=Order) as producer:
            await producer.send("t", order, key="josef")
            await producer.send_many("t", [order, None], keys=["a", "b"])
            with pytest.raises(
                SerializationFailed, match=r"value of a record for 't' .*: Order is wanted, not dict"
            ):
                await producer.send("t", {"drink": "tea"})  # type: ignore[arg-type]
            with pytest.raises(
                SerializationFailed, match=r"key of a record for 't' .*: str is wanted, not bytes"
            ):
                await producer.send("t", order, key=b"josef")  # type: ignore[arg-type]

    tea = b'{"drink":"tea","price":2.0}'
    assert [(record.key, record.value) for record in records(broker)] == [
        (b"josef", tea), (b"a", tea), (b"b", None)
    ]  # fmt: skip


async def test_records_of_a_sync_producer_wait_for_preparations_in_order() -> None:
    serializer = Registered()

    def send(servers: str) -> None:
        with SyncProducer(servers, value_serializer=serializer) as producer:
            sent = [producer.send("t", f"{number}") for number in range(5)]
            for acknowledgement in sent:
                acknowledgement.result(BOUND_S)

    async with serving(ScriptedBroker()) as broker:
        await asyncio.to_thread(send, broker.bootstrap_servers)

    assert [record.value for record in records(broker)] == [b"1:%d" % number for number in range(5)]
    assert serializer.lookups == 1

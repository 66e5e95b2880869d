"""Dedupe of a running processor on a real broker, with each store."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerThread
from ottla.consumer import ConsumerRecord
from ottla.producer import Producer
from ottla.streams import Processor
from ottla.streams.dedupe import Dedupe, DedupeStore, MessageIds, SqliteStore
from ottla.streams.errors import HandlerFailed
from peers.dedupe_work import until

MakeStore = Callable[..., DedupeStore]


@pytest.fixture
def topic() -> str:
    return f"orders-{secrets.token_hex(4)}"


async def send(broker: BrokerThread, topic: str, ids: list[str]) -> None:
    async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for each in ids:
            await producer.send(topic, each.encode(), key=each.encode(), headers=[("message-id", each)])


def processor(
    broker: BrokerThread, topic: str, handle: Callable[[ConsumerRecord], object], dedupe: Dedupe
) -> Processor:
    return Processor(
        handle,
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=topic,
        dedupe=dedupe,
        commit_interval_ms=50,
        retries=0,
    )


async def test_copies_of_messages_are_handled_once_across_a_restart(
    broker: BrokerThread, topic: str, make_store: MakeStore, kind: str
) -> None:
    handled: list[bytes] = []
    finished = 0

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0)
        handled.append(record.value)

    names = [f"{n}" for n in range(300)]
    for round_ in range(2):
        await send(broker, topic, [*names, *names[::-1], *names[:50]])
        dedupe = Dedupe(make_store())
        async with processor(broker, topic, handle, dedupe):
            finished = 650
            await until(lambda: dedupe.statistics.handled + dedupe.statistics.duplicates == finished)  # noqa: B023
        if round_ == 0:
            assert sorted(handled) == sorted(each.encode() for each in names)

    repeated = 300 if kind == "memory" else 0
    assert len(handled) == 300 + repeated


async def test_two_members_and_a_rebalance_handle_each_message_once(
    broker: BrokerThread, topic: str, make_store: MakeStore, kind: str
) -> None:
    if kind == "memory":
        pytest.skip("a store in memory knows nothing of other members")
    handled: Counter[bytes] = Counter()

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0.001)
        handled[record.value] += 1

    names = [f"{n}" for n in range(400)]
    await send(broker, topic, names)
    async with processor(broker, topic, handle, Dedupe(make_store())):
        await until(lambda: len(handled) > 100)
        async with processor(broker, topic, handle, Dedupe(make_store())):
            await send(broker, topic, names)
            await until(lambda: len(handled) == 400)
        await send(broker, topic, [*names, "last"])
        await until(lambda: handled[b"last"] == 1)

    assert set(handled.values()) == {1}


async def test_stamped_messages_that_are_sent_twice_are_handled_once(
    broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    handled: list[bytes] = []

    async def handle(record: ConsumerRecord) -> None:
        handled.append(record.value)

    async with Producer(bootstrap_servers=broker.bootstrap_servers, interceptors=[MessageIds()]) as producer:
        for _ in range(3):  # three messages, which happen to be equal
            await producer.send(topic, b"coffee", partition=0)
        for _ in range(3):  # one message, sent again by an application that saw an error
            await producer.send(topic, b"tea", partition=0, headers=[("message-id", b"order-7")])
        await producer.send(topic, b"last", partition=0)
    async with processor(broker, topic, handle, Dedupe(SqliteStore(tmp_path / "marks.db"))):
        await until(lambda: b"last" in handled)

    assert Counter(handled) == {b"coffee": 3, b"tea": 1, b"last": 1}


async def test_a_failing_record_is_not_marked(broker: BrokerThread, topic: str, tmp_path: Path) -> None:
    await send(broker, topic, ["a"])

    async def fail(record: ConsumerRecord) -> None:
        raise ValueError("no")

    with pytest.raises(HandlerFailed):
        async with processor(broker, topic, fail, Dedupe(SqliteStore(tmp_path / "marks.db"))) as failing:
            await failing.wait()
    handled: list[bytes] = []

    async def handle(record: ConsumerRecord) -> None:
        handled.append(record.value)

    async with processor(broker, topic, handle, Dedupe(SqliteStore(tmp_path / "marks.db"))):
        await until(lambda: handled == [b"a"])

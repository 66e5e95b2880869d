"""Streams that an app declares."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerThread
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.streams import App, AppError, TopologyError
from ottla.streams.operating.status import AppPages

WAIT_S = 60


class Order(msgspec.Struct):
    """The value of the records of orders."""

    item: str
    amount: int


def shop(broker: BrokerThread, state_dir: Path) -> App:
    app = App(
        "shop",
        bootstrap_servers=broker.bootstrap_servers,
        state_store="sqlite",
        state_dir=str(state_dir),
        value_serializer="json",  # for handlers; streams have serdes
    )
    items = app.table("items", key=str, value=str)
    orders = app.stream("orders", key=str, value=Order).filter(lambda order: order.amount > 0)
    by_item = orders.key_by(lambda order: order.item).through("by-item", key=str, value=Order)
    by_item.join(items, lambda order, label: f"{order.amount} {label}").to("priced", value=str)
    by_item.count().to("counts", value=int)
    return app


async def prepare(broker: BrokerThread) -> None:
    async with Admin(broker.bootstrap_servers) as admin:
        for topic in ("orders", "items", "priced", "counts"):
            await admin.topics.create(topic, partitions=2)
    async with Producer(broker.bootstrap_servers) as producer:
        await producer.send("items", "tea leaves", "tea")
        for amount in (0, 1, 2):
            await producer.send("orders", msgspec.json.encode(Order("tea", amount)), f"customer {amount}")


async def read(broker: BrokerThread, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "auto_offset_reset": "earliest",
    }
    async with asyncio.timeout(WAIT_S), Consumer(topic, **settings) as consumer:
        while len(found) < count:
            record = await consumer.getone()
            found.append((record.key, record.value))
    return found


async def test_an_app_runs_its_streams(ottla_broker: BrokerThread, tmp_path: Path) -> None:
    await prepare(ottla_broker)

    async with shop(ottla_broker, tmp_path):
        priced = await read(ottla_broker, "priced", 2)
        counts = await read(ottla_broker, "counts", 2)

    assert sorted(priced) == [(b"tea", b"1 tea leaves"), (b"tea", b"2 tea leaves")]
    assert counts == [(b"tea", b"1"), (b"tea", b"2")]
    assert sorted(path.name for path in (tmp_path / "shop").iterdir()) == [
        "items",
        "shop-by-item-count-changelog",
    ]


async def test_streams_and_handlers_run_side_by_side(ottla_broker: BrokerThread, tmp_path: Path) -> None:
    await prepare(ottla_broker)
    app, handled = shop(ottla_broker, tmp_path), asyncio.Event()

    @app.handle("priced")
    async def priced(text: str) -> None:
        handled.set()

    async with asyncio.timeout(WAIT_S), app:
        await handled.wait()

    assert {name: config.group_id for name, config in app.configs().items()} == {
        "priced": "shop",
        "streams": "shop",
    }


def test_a_topic_of_streams_and_of_a_handler_is_refused_in_one_group() -> None:
    app = App("shop")
    app.stream("orders", key=str, value=Order).to("copies")

    @app.handle("orders")
    async def count(order: Order) -> None: ...

    with pytest.raises(AppError, match="give handler 'count' a group of its own"):
        app.configs()


async def test_an_app_says_what_does_not_fit(ottla_broker: BrokerThread, tmp_path: Path) -> None:
    app = shop(ottla_broker, tmp_path)  # no topic exists

    with pytest.raises(TopologyError, match="the topic 'orders' of a stream does not exist"):
        async with app:
            pass


async def test_what_cannot_be_decoded_is_set_aside_and_the_others_go_on(ottla_broker: BrokerThread) -> None:
    async with Admin(ottla_broker.bootstrap_servers) as admin:
        for topic in ("orders", "copies", "orders.failed"):
            await admin.topics.create(topic, partitions=1)
    async with Producer(ottla_broker.bootstrap_servers) as producer:
        await producer.send("orders", b"no JSON", "a")
        await producer.send("orders", None, "a")
        await producer.send("orders", msgspec.json.encode(Order("tea", 1)), "a")
    app = App(
        "shop", bootstrap_servers=ottla_broker.bootstrap_servers, dead_letter_topic="orders.failed", retries=3
    )
    app.stream("orders", key=str, value=Order).to("copies")

    async with app:
        copies = await read(ottla_broker, "copies", 1)
        failed = await read(ottla_broker, "orders.failed", 1)
        (status,) = AppPages(app.name, lambda: app._running, lambda: 0.0).document()["processors"]

    assert copies == [(b"a", b'{"item":"tea","amount":1}')]
    assert failed == [(b"a", b"no JSON")]
    assert (status["valueless_total"], status["keyless_total"], status["late_total"]) == (1, 0, 0)

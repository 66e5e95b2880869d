from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.security import SecurityConfig
from ottla.client.settings import SettingError
from ottla.consumer import Consumer, ConsumerRecord
from ottla.producer import Producer
from ottla.protocol.topics import TopicPartition
from ottla.streams import App, AppError, Context, HealthLimits
from ottla.streams.dedupe import Dedupe, MemoryStore, by_key
from ottla.streams.dedupe.store import Scope
from ottla.streams.errors import HandlerFailed

Fresh = Callable[[str], str]
LOGIN: dict[str, Any] = {
    "sasl_mechanism": "PLAIN",
    "sasl_username": "josef",
    "sasl_password": "of the profile",
}


@dataclass
class Order:
    """The value of the tests' records."""

    number: int


async def fill(servers: str, topic: str, count: int) -> None:
    async with Producer(servers) as producer:
        values = [b'{"number": %d}' % each for each in range(count)]
        await (await producer.send_many(topic, values, keys=[b"k%d" % (each % 7) for each in range(count)]))


async def read(servers: str, topic: str, count: int) -> list[ConsumerRecord]:
    found: list[ConsumerRecord] = []
    async with Consumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(60):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=1_000)).values():
                    found += records
    return found


async def page(url: str) -> tuple[int, Any]:
    def get() -> tuple[int, Any]:
        try:
            with urlopen(url, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    return await asyncio.to_thread(get)


async def test_handlers_get_typed_values_and_send_and_everything_is_committed(
    broker: BrokerProcess, fresh: Fresh
) -> None:
    servers, source, target = broker.bootstrap_servers, fresh("orders"), fresh("charged")
    await fill(servers, source, 100)
    name = fresh("billing")
    app, said = App(name, servers), list[str]()

    @app.on_startup
    async def open_things() -> None:
        said.append("open")

    @app.on_shutdown
    async def close_things() -> None:
        said.append("close")

    @app.handle(source)
    async def charge(order: Order, context: Context) -> None:
        await context.send(target, b"%d" % order.number, key=context.record.key)

    async with app:
        found = await read(servers, target, 100)
        assert said == ["open"]

    assert sorted(int(each.value) for each in found) == list(range(100))
    assert said == ["open", "close"]
    async with Admin(servers) as admin:
        (committed,) = await admin.groups.offsets(name, [TopicPartition(source, 0)])
    assert committed.offset == 100


async def test_handlers_of_one_topic_have_groups_of_their_own_and_each_reads_everything(
    broker: BrokerProcess, fresh: Fresh
) -> None:
    servers, source, name = broker.bootstrap_servers, fresh("orders"), fresh("billing")
    await fill(servers, source, 10)
    app, seen = App(name, servers), {"first": asyncio.Semaphore(0), "second": asyncio.Semaphore(0)}

    @app.handle(source)
    async def first(record: ConsumerRecord) -> None:
        seen["first"].release()

    @app.handle(source, name="second", group_id=f"{name}-own")
    def on_a_thread(record: ConsumerRecord) -> None:
        loop.call_soon_threadsafe(seen["second"].release)

    loop = asyncio.get_running_loop()
    groups = {name: config.group_id for name, config in app.configs().items()}
    assert groups == {"first": name, "second": f"{name}-own"}
    async with app, asyncio.timeout(60):
        for _ in range(10):
            await seen["first"].acquire()
            await seen["second"].acquire()


async def test_a_failing_handler_stops_the_app_and_is_raised(broker: BrokerProcess, fresh: Fresh) -> None:
    servers, source = broker.bootstrap_servers, fresh("orders")
    await fill(servers, source, 3)
    app, closed = App(fresh("billing"), servers, retries=0), list[bool]()

    @app.handle(source)
    async def charge(order: Order) -> None:
        raise ValueError(f"cannot charge {order.number}")

    @app.handle(f"{source}-more")
    async def count(order: Order) -> None:
        pass

    @app.on_shutdown
    async def close() -> None:
        closed.append(True)

    with pytest.raises(HandlerFailed, match=r"offset 0\): ValueError: cannot charge 0"):
        async with asyncio.timeout(60):
            await app.run_async()
    assert closed == [True]


async def test_status_health_and_metrics_are_served(broker: BrokerProcess, fresh: Fresh) -> None:
    servers, source, name = broker.bootstrap_servers, fresh("orders"), fresh("billing")
    await fill(servers, source, 5)
    limits = HealthLimits(stuck_handler_ms=50)
    app = App(name, servers, status="127.0.0.1:0", health=limits)
    running, release = asyncio.Semaphore(0), asyncio.Event()

    @app.handle(source)
    async def charge(order: Order) -> None:
        running.release()
        await release.wait()

    async with app, asyncio.timeout(60):
        await running.acquire()
        await asyncio.sleep(0.1)  # longer than a handler may run
        sick = await page(f"{app.status_url}/health")
        _, status = await page(f"{app.status_url}/status")
        with await asyncio.to_thread(urlopen, f"{app.status_url}/metrics", None, 30) as answer:
            metrics = answer.read().decode()
        release.set()
        while (await page(f"{app.status_url}/health"))[0] != 200:
            pass

    assert sick[0] == 503
    assert sick[1]["reasons"][0].startswith("charge: a handler has run for 0 s: ")
    (processor,) = status["processors"]
    assert (processor["group"], processor["lanes"] > 0, processor["in_flight"] > 0) == (name, True, True)
    assert processor["partitions"][0]["oldest"]["key_hash"]
    assert f'kafka_streams_in_flight{{group="{name}",handler="charge"}}' in metrics
    assert f'kafka_consumer_records_consumed_total{{group="{name}",handler="charge"}}' in metrics


class NeverMarking(MemoryStore):
    """A store whose marks are never written: a handled record is not finished, and nothing runs."""

    is_remote = True

    async def mark(self, scope: Scope, identities: Collection[bytes]) -> None:
        await asyncio.Event().wait()


@pytest.mark.long
async def test_health_names_a_partition_that_stands_still_while_work_waits(
    broker: BrokerProcess, fresh: Fresh
) -> None:
    servers, source = broker.bootstrap_servers, fresh("orders")
    await fill(servers, source, 1)
    limits = HealthLimits(standing_partition_ms=1)
    app = App(fresh("billing"), servers, status="127.0.0.1:0", health=limits, drain_timeout_ms=100)

    @app.handle(source, dedupe=Dedupe(NeverMarking(), by_key()))
    async def charge(order: Order) -> None: ...

    async with app, asyncio.timeout(60):
        while (found := await page(f"{app.status_url}/health"))[0] == 200:  # noqa: ASYNC110 - a server's page
            await asyncio.sleep(0.1)

    (reason,) = found[1]["reasons"]
    assert reason.startswith("charge: a partition has stood still for")
    assert reason.endswith(f"{source}-0 at offset 0, 1 records unfinished")


async def test_a_handler_with_dedupe_handles_each_identity_once(broker: BrokerProcess, fresh: Fresh) -> None:
    servers, source = broker.bootstrap_servers, fresh("orders")
    for _ in range(2):
        await fill(servers, source, 7)
    app, seen = App(fresh("billing"), servers, status="127.0.0.1:0"), list[bytes]()

    @app.handle(source, dedupe=Dedupe(MemoryStore(), by_key()))
    async def charge(record: ConsumerRecord) -> None:
        seen.append(record.key)

    async with app, asyncio.timeout(60):
        while (await page(f"{app.status_url}/status"))[1]["processors"][0]["dedupe_hit_total"] < 7:
            pass

    assert sorted(seen) == [b"k%d" % each for each in range(7)]


async def test_mistakes_are_told_where_they_are_made() -> None:
    app = App("billing")

    async def handle(record: ConsumerRecord) -> None:
        pass

    with pytest.raises(AppError, match=r'write @app.handle\("orders"\)'):
        app.handle(handle)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="did you mean 'max_concurrency'"):
        app.handle("orders", max_concurency=3)
    with pytest.raises(SettingError, match="did you mean"):
        App("billing", retrys=3)
    with pytest.raises(AppError, match="needs a name"):
        App("")
    with pytest.raises(AppError, match=r"no handler: declare one with @app\.handle"):
        await app.run_async()
    with pytest.raises(AppError, match="async def"):
        app.on_startup(lambda: None)  # type: ignore[arg-type, return-value]
    app.handle("orders")(handle)
    with pytest.raises(AppError, match="a handler 'handle' already; give one of them a name="):
        app.handle("others")(handle)
    with pytest.raises(AppError, match=r"both read 'orders' in group 'billing'.*group_id=\"billing-again\""):
        app.handle("more", "orders", name="again")(handle)
    with pytest.raises(AppError, match='loop must be "asyncio" or "uvloop"'):
        app.run(loop="trio")  # type: ignore[arg-type]
    with pytest.raises(AppError, match=r"have the same transactional_id 'x'.*give each its own"):
        writing = App("billing", processing_guarantee="exactly-once", transactional_id="x")
        writing.handle("orders")(handle)
        writing.handle("others", name="other")(handle)
    with pytest.raises(SettingError, match="transactional_id needs processing_guarantee"):
        App("billing", transactional_id="x")
    with pytest.raises(SettingError, match="exactly-once needs commit_metadata_max_bytes"):
        App("billing", processing_guarantee="exactly-once", commit_metadata_max_bytes=0)


def test_a_login_of_the_command_line_replaces_all_of_the_programs() -> None:
    app = App(
        "billing", "there:1", security_protocol="SASL_SSL", ssl_check_hostname=False,
        sasl_plain_username="program", sasl_plain_password="of the program", retries=3,
    )  # fmt: skip

    @app.handle("orders", sasl_mechanism="SCRAM-SHA-256", max_concurrency=7)
    async def charge(order: Order) -> None: ...

    app.override(security=SecurityConfig(security_protocol="SASL_PLAINTEXT", **LOGIN), client_id="me")

    (config,) = app.configs().values()
    for client in (config.consumer.client, config.producer.client):
        assert (client.bootstrap_servers, client.client_id) == ("there:1", "me")
        assert client.security == SecurityConfig(security_protocol="SASL_PLAINTEXT", **LOGIN)
    assert (config.retries, config.max_concurrency) == (3, 7)

"""Mistakes that programs make first: each is told in one line that says what to change."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.broker.testing import BrokerProcess
from ottla.client.log_formats import facts_of
from ottla.consumer import ConsumerRecord
from ottla.producer import Producer
from ottla.streams import App, AppError, Context, HandlerFailed
from ottla.streams.dedupe import Dedupe, DedupeMisconfigured, MemoryStore, SqliteStore, by_key
from ottla.streams.operating.loop_watch import LoopWatch

Fresh = Callable[[str], str]


class Lines(logging.Handler):
    """Keeps lines of the log; `written` is set by each of at least a level, from any thread."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.lines: list[logging.LogRecord] = []
        self.written = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)
        self.written.set()


@pytest.fixture
def warnings() -> Iterator[Lines]:
    """Keep the warnings and errors of streams."""
    lines = Lines(logging.WARNING)
    logging.getLogger("ottla.streams").addHandler(lines)
    yield lines
    logging.getLogger("ottla.streams").removeHandler(lines)


async def send(servers: str, topic: str, *values: bytes) -> None:
    async with Producer(servers) as producer:
        await (await producer.send_many(topic, list(values), keys=[b"k"] * len(values)))


async def test_a_topic_that_no_broker_creates_is_warned_of(
    tmp_path: Path, fresh: Fresh, warnings: Lines
) -> None:
    topic = fresh("ordres")
    with BrokerProcess(tmp_path, {"auto.create.topics.enable": "false"}) as broker:
        app = App("billing", broker.bootstrap_servers)

        @app.handle(topic)
        async def charge(record: ConsumerRecord) -> None: ...

        async with app:
            await asyncio.to_thread(warnings.written.wait, 60)

        (line,) = warnings.lines
        assert facts_of(line) == {"topic": topic, "servers": broker.bootstrap_servers}
        assert line.getMessage() == (
            "a topic does not exist, and no broker creates it: nothing of it is handled until it is created "
            "(ottla topic create), or its name is corrected"
        )


async def test_a_send_that_is_not_awaited_stops_the_app_and_names_the_record(
    broker: BrokerProcess, fresh: Fresh
) -> None:
    topic = fresh("orders")
    await send(broker.bootstrap_servers, topic, b"1")
    app = App(fresh("billing"), broker.bootstrap_servers)

    @app.handle(topic)
    async def charge(record: ConsumerRecord, context: Context) -> None:
        context.send("charged", b"1")

    expected = rf"'charged' was not awaited for the record of topic {topic}, partition 0, offset 0.*await"
    with pytest.raises(HandlerFailed, match=expected):
        await asyncio.wait_for(app.run_async(), 60)


async def test_a_handler_that_blocks_the_loop_is_named_while_it_does(
    broker: BrokerProcess, fresh: Fresh, warnings: Lines
) -> None:
    topic = fresh("orders")
    await send(broker.bootstrap_servers, topic, b"1")
    app, done = App(fresh("billing"), broker.bootstrap_servers), asyncio.Event()

    @app.handle(topic)
    async def charge(record: ConsumerRecord) -> None:
        await asyncio.sleep(0)
        warnings.written.wait(60)
        done.set()

    with LoopWatch():
        async with app:
            await asyncio.wait_for(done.wait(), 90)

    (line,) = warnings.lines
    facts = facts_of(line)
    assert "charge" in facts["handler"]
    assert facts["blocked_ms"] >= 200
    assert f"{Path(__file__).name}:" in facts["line"] or "threading.py:" in facts["line"]
    assert "declare the handler with def" in line.getMessage()


async def test_an_idle_loop_is_blocked_by_nobody(warnings: Lines) -> None:
    with LoopWatch():
        await asyncio.sleep(0.6)

    assert not warnings.lines


async def test_a_dedupe_file_in_a_folder_that_does_not_exist_is_refused_at_the_start(
    broker: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    file = tmp_path / "missing" / "marks.db"
    app = App(fresh("billing"), broker.bootstrap_servers)

    @app.handle(fresh("orders"), dedupe=Dedupe(SqliteStore(file)))
    async def charge(record: ConsumerRecord) -> None: ...

    with pytest.raises(DedupeMisconfigured, match=r"missing/marks.db does not exist: make it, or choose"):
        await asyncio.wait_for(app.run_async(), 60)


async def test_a_test_puts_dedupe_of_its_own_in_the_place_of_the_declared_one(
    broker: BrokerProcess, fresh: Fresh, tmp_path: Path
) -> None:
    topic, handled = fresh("orders"), asyncio.Event()
    await send(broker.bootstrap_servers, topic, b"1")
    app = App(fresh("billing"), broker.bootstrap_servers)

    @app.handle(topic, dedupe=Dedupe(SqliteStore(tmp_path / "declared.db"), by_key()))
    async def charge(record: ConsumerRecord) -> None:
        handled.set()

    app.override(dedupe={"charge": Dedupe(MemoryStore(), by_key())})
    async with app, asyncio.timeout(60):
        await handled.wait()

    assert not (tmp_path / "declared.db").exists()
    with pytest.raises(AppError, match="no handler 'chagre' whose dedupe could be replaced, only charge"):
        app.override(dedupe={"chagre": None})

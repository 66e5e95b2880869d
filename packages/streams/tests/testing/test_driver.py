"""StreamsTest: apps and processors without a broker, in virtual time."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ottla.client.serialization import PreparationNeeded, SerializationContext
from ottla.consumer import ConsumerRecord, Record
from ottla.streams import App, Context, Processor
from ottla.streams.dedupe import Dedupe, MemoryStore, SqliteStore, TopicStore, by_key
from ottla.streams.errors import HandlerFailed
from ottla.streams.language.windows import tumbling
from ottla.streams.testing import DriverMisused, StreamsTest
from ottla.streams.testing.driver import START_MS
from peers.stream_apps import Order, pricing
from peers.stream_handlers import double


def app_of(handler: Callable[..., Any], **settings: Any) -> App:
    app = App("app")
    app.handle("orders", **settings)(handler)
    return app


# --- time


def test_settle_does_all_that_needs_no_time_and_advance_what_is_due() -> None:
    with StreamsTest(pricing(commit_interval_ms=1_000)) as test:
        test.send("orders", {"amount": 3}, key="anna")
        test.settle()
        assert test.received("priced") == [{"price": 9}]
        assert test.committed("orders") is None
        test.advance(ms=999)
        assert test.committed("orders") is None
        test.advance(ms=1)
        assert test.committed("orders") == 1


def test_hours_of_back_off_pass_at_once_and_only_when_the_test_says_so() -> None:
    attempts: list[int] = []
    hour_ms = 3_600_000
    settings = {"retry_backoff_ms": hour_ms, "retry_backoff_max_ms": hour_ms, "retry_jitter": 0.0}

    async def fail(value: bytes) -> None:
        attempts.append(test.now_ms)
        raise ValueError(value)

    app = app_of(fail, retries=3, dead_letter_topic="failed", commit_interval_ms=60_000, **settings)
    with StreamsTest(app, start_ms=0) as test:
        test.send("orders", b"x", key="anna")
        test.settle()
        test.advance(hours=2)
        assert test.dead_letters("failed") == []
        test.advance(hours=2)

    assert [round(at_ms / hour_ms, 3) for at_ms in attempts] == [0, 1, 2, 3]
    (letter,) = test.dead_letters("failed")
    assert (letter.key, letter.value) == (b"anna", b"x")
    assert (letter.exception, letter.message, letter.attempts) == ("builtins.ValueError", "b'x'", 4)
    assert (letter.topic, letter.partition, letter.offset) == ("orders", 0, 0)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_dead_letters_are_bytes_whatever_serializers_the_app_has(guarantee: str) -> None:
    with StreamsTest(pricing(processing_guarantee=guarantee, retries=0)) as test:
        test.send("orders", b'{"amount": -1}', key="anna")
        test.send("orders", b"no JSON", key="bert")
        test.advance(seconds=1)

        assert test.received("orders.failed", of=bytes) == [b'{"amount": -1}', b"no JSON"]
        assert test.committed("orders") == 2


def test_a_handler_timeout_is_virtual_too() -> None:
    async def hang(value: bytes) -> None:
        await asyncio.sleep(10**9)

    app = app_of(hang, handler_timeout_ms=86_400_000, retries=0, dead_letter_topic="failed")
    app.override(commit_interval_ms=60_000)
    with StreamsTest(app) as test:
        test.send("orders", b"x", key="anna")
        test.advance(hours=23)
        assert test.dead_letters("failed") == []
        test.advance(hours=2)

        assert test.dead_letters("failed")[0].exception.endswith("HandlerTimedOut")


def test_a_retry_that_is_due_while_all_workers_are_busy_waits_for_one_of_them() -> None:
    """It is no busy loop until then: time would not pass, and the driver says so."""
    attempts: list[int] = []

    async def handle(value: bytes) -> None:
        if value == b"fails" and not attempts:
            attempts.append(test.now_ms)
            raise ValueError(value)
        await asyncio.sleep(1)
        attempts.append(test.now_ms)

    app = app_of(handle, max_concurrency=1, retry_backoff_ms=50, retry_jitter=0.0)
    with StreamsTest(app, start_ms=0) as test:
        test.send("orders", b"fails", key="anna")
        test.send("orders", b"slow", key="bert")
        test.advance(seconds=5)

        assert attempts == [0, 1_000, 2_000]


def test_two_runs_are_the_same() -> None:
    def run() -> list[Any]:
        times: list[Any] = []

        async def fail(record: ConsumerRecord) -> None:
            times.append((test.now_ms, record.key))
            raise ValueError

        app = app_of(fail, retries=5, dead_letter_topic="failed")
        with StreamsTest(app, seed=7) as test:
            for key in "abcdef":
                test.send("orders", b"", key=key)
            test.advance(hours=1)
        return times

    assert run() == run()


# --- members


def test_a_killed_member_commits_and_sends_nothing_more_and_its_records_run_again() -> None:
    seen: list[bytes] = []

    async def slow(record: ConsumerRecord, context: Context) -> None:
        seen.append(record.key)
        if record.key == b"b" and len(seen) < 4:
            await asyncio.sleep(30)
        await context.send("copies", record.value, key=record.key)

    with StreamsTest(app_of(slow)) as test:
        for key in "abc":
            test.send("orders", key.encode(), key=key)
        test.advance(seconds=2)
        assert (test.committed("orders"), bool(test.committed_metadata("orders"))) == (1, True)
        test.kill_member()
        assert test.members == ()
        test.advance(minutes=5)
        assert test.received("copies", of=str) == ["a", "c"]
        test.start_member()
        test.advance(minutes=1)

        assert test.received("copies", of=str) == ["a", "c", "b"]
        assert test.committed("orders") == 3
    assert seen == [b"a", b"b", b"c", b"b"]


def test_a_stop_drains_what_runs() -> None:
    async def slow(record: ConsumerRecord, context: Context) -> None:
        await asyncio.sleep(20)
        await context.send("copies", record.value)

    with StreamsTest(app_of(slow)) as test:
        test.send("orders", b"x", key="a")
        test.settle()
        before_ms = test.now_ms
        test.stop_member()

        assert test.now_ms - before_ms == 20_000
        assert test.received("copies", of=bytes) == [b"x"]
        assert test.committed("orders") == 1


def test_members_share_partitions_and_hand_over_in_a_rebalance() -> None:
    by_member: dict[int, list[int]] = {}
    made = iter(range(1, 10))

    def make() -> Processor:
        number = next(made)

        async def note(record: ConsumerRecord) -> None:
            by_member.setdefault(number, []).append(record.partition)

        return Processor(note, "orders", group_id="g")

    with StreamsTest(make, partitions=2, members=2) as test:
        for _ in range(3):
            for partition in (0, 1):
                test.send("orders", b"", partition=partition)
            test.settle()
            test.rebalance()
        assert by_member == {1: [0, 1, 0], 2: [1, 0, 1]}
        test.kill_member(1)
        test.send("orders", b"", partition=0)
        test.send("orders", b"", partition=1)
        test.settle()

    assert sorted(by_member[2][3:]) == [0, 1]


def test_a_failure_is_raised_where_it_happens() -> None:
    with StreamsTest(pricing()) as test:
        test.send("orders", {"amount": 13}, key="a")
        with pytest.raises(HandlerFailed, match="no 13"):
            test.settle()
        assert test.members == ()


# --- exactly once


def test_outputs_of_a_transaction_are_seen_when_it_is_committed_with_its_offsets() -> None:
    settings = {"processing_guarantee": "exactly-once", "transaction_interval_ms": 100}
    with StreamsTest(pricing(**settings)) as test:
        test.send("orders", {"amount": 3}, key="anna")
        test.settle()
        assert (test.received("priced"), test.committed("orders")) == ([], None)
        test.kill_member()
        test.start_member()
        test.settle()
        assert test.received("priced") == []
        test.advance(ms=100)

        assert (test.received("priced"), test.committed("orders")) == ([{"price": 9}], 1)


# --- streams


def test_state_survives_a_crash_in_its_changelog() -> None:
    app = App("shop")
    app.stream("orders", key=str, value=Order).count().to("counts", value=int)
    with StreamsTest(app) as test:
        for _ in range(2):
            test.send("orders", Order(1), key="anna")
        test.advance(seconds=1)
        test.kill_member()
        test.start_member()
        test.send("orders", Order(1), key="anna")
        test.advance(seconds=1)

        assert test.received("counts", of=int) == [1, 2, 3]


def test_windows_close_by_the_time_of_records() -> None:
    app = App("shop")
    orders = app.stream("orders", key=str, value=Order)
    orders.window(tumbling(60_000)).final().count().map_values(lambda each: each.value).to("n", value=int)
    with StreamsTest(app) as test:
        for at_ms in (0, 59_999, 60_000, 200_000):
            test.send("orders", Order(1), key="anna", timestamp_ms=at_ms)
        test.advance(seconds=2)

        assert test.received("n", of=int) == [2, 1]


def test_files_of_state_are_waited_for(tmp_path: Path) -> None:
    app = App("shop", state_store="sqlite", state_dir=str(tmp_path))
    app.stream("orders", key=str, value=Order).count().to("counts", value=int)
    with StreamsTest(app) as test:
        test.send("orders", Order(1), key="anna")
        test.settle()
        test.rebalance()
        test.send("orders", Order(1), key="anna")
        test.settle()

        assert test.received("counts", of=int) == [1, 2]

    (file,) = tmp_path.rglob("*.sqlite")
    with closing(sqlite3.connect(file)) as database:
        ((used_ms,),) = database.execute("SELECT value FROM facts WHERE name = 'used_ms'")
    assert START_MS <= used_ms < START_MS + 60_000  # virtual on the thread, too


# --- dedupe


@pytest.mark.parametrize("kind", ["memory", "sqlite", "topic"])
def test_the_window_of_dedupe_is_virtual(kind: str, tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def note(value: bytes) -> None:
        seen.append(value)

    day_ms = 86_400_000
    stores: dict[str, Callable[[], Any]] = {
        "memory": lambda: MemoryStore(ttl_ms=day_ms),
        "sqlite": lambda: SqliteStore(tmp_path / "marks.db", ttl_ms=day_ms),
        "topic": lambda: TopicStore("127.0.0.1:1", name="app", ttl_ms=day_ms),
    }
    dedupe = Dedupe(stores[kind](), by_key())
    app = app_of(note, dedupe=dedupe, commit_interval_ms=60_000, order="partition")
    with StreamsTest(app) as test:
        for value, hours in ((b"new", 1), (b"again", 22), (b"still", 2), (b"late", 1)):
            test.send("orders", value, key="anna")
            test.advance(hours=hours)

    assert seen == [b"new", b"late"]


def test_dedupe_marks_what_a_transaction_has_committed() -> None:
    async def copy(record: ConsumerRecord, context: Context) -> None:
        await context.send("copies", record.value)

    dedupe = Dedupe(MemoryStore(), by_key())
    with StreamsTest(app_of(copy, dedupe=dedupe, processing_guarantee="exactly-once")) as test:
        for value in (b"new", b"again"):
            test.send("orders", value, key="anna")
            test.advance(seconds=1)

        assert test.received("copies", of=bytes) == [b"new"]
        assert test.committed("orders") == 2


def test_an_async_function_may_run_several_things() -> None:
    seen: list[bytes] = []

    async def note(record: ConsumerRecord) -> None:
        seen.append(record.value)

    async def main() -> None:
        async with Processor(note, "orders", group_id="g") as one, Processor(note, "others", group_id="h"):
            await one.wait()

    with StreamsTest(main) as test:
        test.settle()
        test.send("orders", b"x", key="a")
        test.send("others", b"y", key="a")
        test.advance(seconds=1)
        assert sorted(seen) == [b"x", b"y"]
        assert (test.committed("orders", group="g"), test.committed("others", group="h")) == (1, 1)


# --- threads and processes


def test_threads_run_really_and_time_stands_still_for_them() -> None:
    def work(value: bytes) -> None:
        time.sleep(0.05)
        threads.append(threading.current_thread() is not threading.main_thread())

    threads: list[bool] = []
    with StreamsTest(app_of(work)) as test:
        for _ in range(4):
            test.send("orders", b"x")
        before_ms = test.now_ms
        test.settle()
        assert (threads, test.now_ms) == ([True] * 4, before_ms)


def test_time_passes_for_a_thread_that_hangs_longer_than_the_patience() -> None:
    gate = threading.Event()

    def hang(value: bytes) -> None:
        gate.wait(60)

    app = app_of(hang, handler_timeout_ms=60_000, retries=0, dead_letter_topic="failed")
    with StreamsTest(app, patience_s=0.05) as test:
        test.send("orders", b"x", key="anna")
        test.advance(minutes=2)

        (letter,) = test.dead_letters("failed")
        assert letter.exception.endswith("HandlerTimedOut")
        gate.set()


@pytest.mark.slow
def test_processes_run_really() -> None:
    app = app_of(double, run_on="processes", max_processes=1)
    with StreamsTest(app) as test:
        test.send("orders", 21, key="anna")
        test.settle()

        assert test.received("doubled") == [42]


# --- mistakes


async def test_it_says_that_it_has_a_loop_of_its_own() -> None:
    with pytest.raises(DriverMisused, match="use it in def, not in async def"), StreamsTest(pricing()):
        pass


def test_mistakes_are_one_line() -> None:
    with pytest.raises(DriverMisused, match=r"StreamsTest\(lambda: Processor"):
        StreamsTest(Processor(print, "orders", group_id="g"))  # type: ignore[arg-type]
    with pytest.raises(DriverMisused, match=r"not None; app.override\(...\) changes the app"):
        StreamsTest(pricing().override(max_concurrency=1))  # type: ignore[arg-type, func-returns-value]
    with pytest.raises(DriverMisused, match="give a function that makes one, for several members"):
        StreamsTest(pricing(), members=2)
    with StreamsTest(pricing()) as test:
        test.send("orders", b"plain text", key="a")
        with pytest.raises(DriverMisused, match="say what the values are: of=bytes"):
            test.received("orders")
        with pytest.raises(DriverMisused, match=r"one of \[1\]"):
            test.kill_member(7)
    with pytest.raises(DriverMisused, match="inside its with block"):
        test.settle()


class Registered:
    """Writes text with the id of a schema, which it must look up first."""

    schema: int | None = None

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        if self.schema is None:
            raise PreparationNeeded(self._find)
        return f"{self.schema} {value} for {context.topic}".encode()

    async def _find(self) -> None:
        await asyncio.sleep(3)
        self.schema = 17


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_serializers_of_an_app_may_wait(guarantee: str) -> None:
    async def shout(value: str, context: Context) -> None:
        await context.send("loud", value.upper())

    app = app_of(shout, processing_guarantee=guarantee, value_serializer=Registered())
    with StreamsTest(app) as test:
        test.send("orders", b"x", key="anna")
        test.advance(seconds=10)

        assert test.received("loud", of=bytes) == [b"17 X for loud"]


class Drink(msgspec.Struct):
    name: str


def test_handlers_get_records_with_key_and_value_of_their_types() -> None:
    seen: list[tuple[str, Drink, int, tuple[tuple[str, bytes | None], ...]]] = []

    async def note(record: Record[str, Drink]) -> None:
        seen.append((record.key, record.value, record.offset, record.headers))

    with StreamsTest(app_of(note, dead_letter_topic="failed", retries=0)) as test:
        test.send("orders", {"name": "tea"}, key="anna", headers={"h": "1"})
        test.send("orders", {"nome": "tea"}, key="anna")
        test.send("orders", {"name": "tea"})
        test.advance(seconds=1)

        assert seen == [("anna", Drink("tea"), 0, (("h", b"1"),))]
        assert {letter.message.split(" (")[0] for letter in test.dead_letters("failed")} == {
            "the value of a record cannot be decoded as Drink from JSON or msgpack",
            "the key of a record cannot be decoded as UTF-8 text",
        }

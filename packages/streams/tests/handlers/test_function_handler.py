"""Functions of every kind are called, and what they send is sent."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from typing import Any

import pytest

from ottla.consumer import ConsumerRecord
from ottla.producer import ProducerRecord
from ottla.streams.errors import ContextMisused, InvalidHandler, RecordUndecodable
from ottla.streams.handlers.context import Context
from ottla.streams.handlers.function_handler import FunctionHandler, takes_work
from ottla.streams.seams import Work
from peers.stream_works import OneWork


class Sent:
    """Keeps what handlers send."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    async def send(self, work: object, record: ProducerRecord) -> None:
        self.values.append(record.value)


def work(*values: bytes) -> OneWork:
    return OneWork([ConsumerRecord("orders", 0, at, 1, b"k", value) for at, value in enumerate(values)])


async def test_async_functions_run_on_the_loop_and_plain_ones_on_threads() -> None:
    threads: dict[str, int] = {}

    async def on_loop(value: str) -> None:
        threads["async"] = threading.get_ident()

    def on_thread(value: str) -> None:
        threads["plain"] = threading.get_ident()

    class Charging:
        async def __call__(self, value: str) -> None:
            threads["object"] = threading.get_ident()

        async def charge(self, limit: int, value: str) -> None:
            threads["partial"] = threading.get_ident()

    for function in (on_loop, on_thread, Charging(), functools.partial(Charging().charge, 3)):
        async with FunctionHandler(function, Sent()) as handler:
            await handler(work(b"v"))

    here = threading.get_ident()
    assert threads == {"async": here, "plain": threads["plain"], "object": here, "partial": here}
    assert threads["plain"] != here


async def test_what_is_sent_goes_at_once_and_what_is_emitted_after_a_success() -> None:
    sent = Sent()

    async def handle(value: str, context: Context) -> None:
        context.emit("out", "emitted")
        await context.send("out", "sent")
        if value == "bad":
            raise ValueError(value)

    async with FunctionHandler(handle, sent) as handler:
        with pytest.raises(ValueError, match="bad"):
            await handler(work(b"bad"))
        await handler(work(b"good"))

    assert sent.values == ["sent", "sent", "emitted"]


async def test_a_plain_function_emits_and_cannot_send() -> None:
    sent = Sent()

    def emits(value: str, context: Context) -> None:
        context.emit("out", value)

    def sends(value: str, context: Context) -> None:
        context.send("out", value)

    async with FunctionHandler(emits, sent) as handler:
        await handler(work(b"v"))
    async with FunctionHandler(sends, sent) as handler:
        with pytest.raises(ContextMisused, match=r"in a plain function call context.emit"):
            await handler(work(b"v"))

    assert sent.values == ["v"]


async def test_the_context_knows_the_record_the_attempt_and_never_logs_the_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[object] = []

    def handle(context: Context) -> None:
        seen.append((context.attempt, context.record.offset, str(context.partition), len(context.records)))
        context.log.warning("charged")

    one = OneWork([ConsumerRecord("orders", 2, 9, 1, b"josef@example.com", b"v")], attempt=3)
    async with FunctionHandler(handle, Sent()) as handler:
        with caplog.at_level(logging.INFO):
            await handler(one)

    (line,) = [each for each in caplog.records if each.name == "ottla.streams.handler"]
    assert seen == [(3, 9, "orders-2", 1)]
    fields = {name: getattr(line, name) for name in ("topic", "partition", "offset", "attempt", "key_hash")}
    assert fields == {
        "topic": "orders",
        "partition": 2,
        "offset": 9,
        "attempt": 3,
        "key_hash": "ed6c580dd99d947f",
    }
    assert "josef" not in str(vars(line))


async def test_a_plain_function_that_returns_a_coroutine_is_an_error_in_its_declaration() -> None:
    async def charge(value: str) -> None: ...

    def handle(value: str) -> Any:
        return charge(value)

    async with FunctionHandler(handle, Sent()) as handler:
        with pytest.raises(InvalidHandler, match="returned an awaitable; declare it as async def"):
            await handler(work(b"v"))


async def test_records_of_a_batch_that_cannot_be_decoded_are_left_out_once_they_are_dealt_with() -> None:
    batches: list[list[int]] = []
    bad: list[int] = []

    async def handle(values: list[int]) -> None:
        batches.append(values)

    async def deal_with(work: Work, errors: Any) -> None:
        assert not batches or bad
        bad.extend(each.offset for each in errors)

    async with FunctionHandler(handle, Sent(), on_undecodable=deal_with) as handler:
        await handler(work(b"1", b"x", b"3", b"y"))
        await handler(work(b"x"))
    async with FunctionHandler(handle, Sent()) as strict:
        with pytest.raises(RecordUndecodable, match="offset 1"):
            await strict(work(b"1", b"x"))

    assert batches == [[1, 3]]
    assert bad == [1, 3, 0]


async def test_a_cancelled_call_of_a_thread_is_given_up_at_once() -> None:
    release = threading.Event()

    def hang(value: str) -> None:
        release.wait(60)

    async with FunctionHandler(hang, Sent()) as handler:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await handler(work(b"v"))
        assert handler.lost_threads == 1
    release.set()


def test_a_function_that_takes_work_is_a_handler_already() -> None:
    async def handler(work: Work) -> None: ...
    async def function(record: ConsumerRecord) -> None: ...

    assert takes_work(handler)
    assert takes_work(FunctionHandler(function, Sent()))
    assert not takes_work(function)
    assert not takes_work(lambda record: None)

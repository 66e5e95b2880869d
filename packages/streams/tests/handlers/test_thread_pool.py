"""Plain functions run on bounded threads; those that hang are counted, replaced, and limited."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from contextvars import ContextVar

import pytest

from ottla.streams.errors import ThreadsExhausted
from ottla.streams.handlers.thread_pool import ThreadPool

WAIT_S = 30.0


async def test_functions_run_beside_the_loop_on_few_threads_that_are_kept() -> None:
    pool = ThreadPool("charge", max_threads=2)

    names = await asyncio.gather(*(pool.run(threading.get_ident) for _ in range(50)))
    pool.close()

    assert len(set(names)) <= 2
    assert threading.get_ident() not in names


async def test_a_function_sees_the_context_variables_of_its_caller() -> None:
    variable: ContextVar[str] = ContextVar("variable")
    variable.set("given")
    pool = ThreadPool("charge")

    def change() -> str:
        seen = variable.get()
        variable.set("changed")
        return seen

    assert await pool.run(change) == "given"
    assert variable.get() == "given"
    pool.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration("end")])
async def test_what_a_function_raises_its_caller_gets(error: BaseException) -> None:
    pool = ThreadPool("charge", max_threads=1)

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) if not isinstance(error, StopIteration) else pytest.raises(RuntimeError):
        await pool.run(fail)
    assert await pool.run(lambda: 1) == 1
    pool.close()


async def test_a_thread_that_hangs_is_counted_and_replaced_up_to_the_limit_and_found_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = ThreadPool("charge", max_threads=2)
    release = threading.Event()
    found = asyncio.Event()
    loop = asyncio.get_running_loop()

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(WAIT_S) as bound:

                    def hang(bound: asyncio.Timeout = bound) -> None:
                        loop.call_soon_threadsafe(bound.reschedule, loop.time())
                        release.wait(WAIT_S)

                    await pool.run(hang)
            if pool.lost_threads == 1:
                assert await pool.run(lambda: "another thread") == "another thread"

    assert pool.lost_threads == 2
    assert [each.lost_threads for each in caplog.records] == [1, 2]  # type: ignore[attr-defined]
    with pytest.raises(ThreadsExhausted, match=r"2 threads hang in handler charge.*run_on='processes'"):
        await pool.run(lambda: None)

    release.set()
    async with asyncio.timeout(WAIT_S):
        while pool.lost_threads:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await found.wait()
    assert await pool.run(lambda: "works again") == "works again"
    pool.close()


async def test_a_call_that_is_given_up_when_its_function_has_just_ended_loses_no_thread() -> None:
    pool, loop = ThreadPool("charge", max_threads=1), asyncio.get_running_loop()
    may_end, ended = threading.Event(), threading.Event()

    def end() -> None:
        may_end.wait(WAIT_S)
        ended.set()

    call = asyncio.create_task(pool.run(end))
    await asyncio.sleep(0)
    may_end.set()
    ended.wait(WAIT_S)
    time.sleep(0.1)  # noqa: ASYNC251 - the loop stands still, so that the end is queued before the cancellation
    loop.call_soon(call.cancel)
    with pytest.raises(asyncio.CancelledError):
        await call

    async with asyncio.timeout(WAIT_S):
        while pool.lost_threads:  # noqa: ASYNC110 - on a slow machine the thread is lost first
            await asyncio.sleep(0.01)
    pool.close()


async def test_a_call_that_is_given_up_before_its_thread_got_the_processor_never_begins() -> None:
    pool, called = ThreadPool("charge", max_threads=1), list[str]()
    await pool.run(lambda: None)  # the thread is there, and waits for a job
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60)  # no other thread runs until this one waits
    try:
        call = pool.run(lambda: called.append("late"))
        call.send(None)
        with pytest.raises(asyncio.CancelledError):
            call.throw(asyncio.CancelledError())
    finally:
        sys.setswitchinterval(interval_s)

    assert pool.lost_threads == 0
    await pool.run(lambda: called.append("next"))
    assert called == ["next"]

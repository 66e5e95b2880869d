from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.client.blocking import Call, Forked, LoopThread, NotRunning


class Client:
    """An async context manager that can open, fail and hang."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.is_open = False
        self.cancelled = threading.Event()
        self.broken = asyncio.Event()

    async def double(self, number: int) -> int:
        await asyncio.sleep(0)
        self.calls.append(number)
        return 2 * number

    async def hang(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def fail(self) -> None:
        raise LookupError("not there")


@asynccontextmanager
async def opened() -> AsyncIterator[Client]:
    client = Client()
    client.is_open = True
    yield client
    client.is_open = False


@asynccontextmanager
async def unopenable() -> AsyncIterator[Client]:
    if not Client().is_open:
        raise ConnectionRefusedError("nobody there")
    yield Client()


@asynccontextmanager
async def never_open() -> AsyncIterator[Client]:
    await asyncio.Event().wait()
    yield Client()


@asynccontextmanager
async def never_closed() -> AsyncIterator[Client]:
    yield Client()
    await asyncio.Event().wait()


@asynccontextmanager
async def failing_at_the_end() -> AsyncIterator[Client]:
    yield Client()
    raise LookupError("could not say goodbye")


@asynccontextmanager
async def breaking() -> AsyncIterator[Client]:
    async with asyncio.TaskGroup() as tasks:
        client = Client()

        async def work() -> None:
            await client.broken.wait()
            raise LookupError("the machine stopped")

        tasks.create_task(work())
        yield client


def test_calls_of_many_threads_are_answered_each_with_its_own() -> None:
    thread = LoopThread(opened, name="a client")
    client = thread.start()

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: thread.call(lambda: client.double(n)), range(200)))

    assert answers == [2 * number for number in range(200)]
    thread.close()
    assert not client.is_open
    assert not thread.is_running


def test_what_a_call_raises_is_raised_where_it_was_called() -> None:
    thread = LoopThread(opened, name="a client")
    client = thread.start()

    with pytest.raises(LookupError, match="not there"):
        thread.call(client.fail)
    assert thread.call(lambda: client.double(1)) == 2
    thread.close()


def test_a_call_that_takes_too_long_is_cancelled() -> None:
    thread = LoopThread(opened, name="a client")
    client = thread.start()

    with pytest.raises(TimeoutError):
        thread.call(client.hang, timeout_s=0.01)

    assert client.cancelled.wait(5)
    thread.close()


def test_closing_ends_calls_that_wait() -> None:
    thread = LoopThread(opened, name="a client")
    client = thread.start()
    call = thread.submit(client.hang)
    thread.call(lambda: client.double(1))

    thread.close()

    with pytest.raises(NotRunning, match="closed"):
        call.result(5)


def test_a_call_that_arrives_together_with_close_gets_a_result() -> None:
    thread = LoopThread(opened, name="the client")
    client = thread.start()
    goes_on = threading.Event()
    thread.post(goes_on.wait)
    thread._end(cancel=False)
    call = thread.submit(lambda: client.double(1))  # the loop runs it in the iteration that ends the client
    goes_on.set()

    with pytest.raises(NotRunning):
        call.result(10)
    thread.close()


def test_a_call_that_arrives_while_others_are_cancelled_is_cancelled_too() -> None:
    thread = LoopThread(opened, name="the client")
    client = thread.start()
    before = thread.submit(client.hang)
    thread.call(lambda: client.double(1))
    late: list[Call[None]] = []

    def end() -> None:
        thread._end(cancel=False)  # the next iteration wakes the thread's own task, which cancels the calls,
        thread.post(lambda: late.append(thread.submit(client.hang)))  # and runs this after it

    thread.post(end)
    thread.close(10)

    for call in (before, *late):
        with pytest.raises(NotRunning):
            call.result(10)
    assert len(late) == 1


def test_nothing_can_be_called_before_the_start_and_after_the_end() -> None:
    thread = LoopThread(opened, name="a client")
    with pytest.raises(NotRunning, match="a client is not running; use it inside `with`"):
        thread.call(Client().fail)
    thread.start()
    thread.close()
    thread.close()

    with pytest.raises(NotRunning, match="a client is not running"):
        thread.call(Client().fail)


def test_a_client_that_cannot_be_opened_says_why_at_the_start() -> None:
    thread = LoopThread(unopenable, name="a client")

    with pytest.raises(ConnectionRefusedError, match="nobody there"):
        thread.start()


def test_what_fails_while_closing_is_raised_there() -> None:
    thread = LoopThread(failing_at_the_end, name="a client")
    thread.start()

    with pytest.raises(LookupError, match="goodbye"):
        thread.close()


def test_a_client_that_was_ended_by_force_can_be_closed_again() -> None:
    thread = LoopThread(never_closed, name="a client")
    thread.start()

    with pytest.raises(TimeoutError, match="did not close"):
        thread.close(0.01)
    thread.close(10)

    with pytest.raises(NotRunning):
        thread.check()


def test_the_next_call_of_a_failed_client_raises_its_error() -> None:
    thread = LoopThread(breaking, name="a client")
    client = thread.start()
    waiting = thread.submit(client.hang)
    thread.post(client.broken.set)

    with pytest.raises(NotRunning):
        waiting.result(5)
    ended = time.monotonic() + 5
    while thread.is_running and time.monotonic() < ended:
        threading.Event().wait(0.001)

    with pytest.raises(NotRunning, match="a client ended: the machine stopped"):
        thread.call(client.fail)
    with pytest.raises(LookupError, match="the machine stopped"):
        thread.close()


def test_a_callback_on_the_loops_own_thread_may_not_wait_for_it() -> None:
    thread = LoopThread(opened, name="a client")
    client = thread.start()

    async def calls_itself() -> Any:
        return thread.call(lambda: client.double(1))

    with pytest.raises(RuntimeError, match="hand the work to another thread"):
        thread.call(calls_itself)
    thread.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_call_in_a_forked_process_raises_forked() -> None:
    done = run(
        """
        thread = LoopThread(opened, name="a client")
        client = thread.start()
        child = os.fork()
        if child == 0:
            try:
                thread.call(lambda: client.double(1))
            except Forked as error:
                print(error, flush=True)
            thread.close()
            os._exit(0)
        os.waitpid(child, 0)
        print(thread.call(lambda: client.double(4)))
        thread.close()
        """
    )

    assert "this client was started by process" in done.stdout
    assert "start clients after forking, in each worker" in done.stdout
    assert done.stdout.endswith("8\n")
    assert Forked(1)


def test_ctrl_c_ends_a_call_and_the_client_goes_on() -> None:
    done = run(
        """
        thread = LoopThread(opened, name="a client")
        client = thread.start()
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            thread.call(client.hang)
        except KeyboardInterrupt:
            print("interrupted", client.cancelled.wait(5), thread.call(lambda: client.double(3)))
        thread.close()
        """
    )

    assert done.stdout == "interrupted True 6\n"


def test_ctrl_c_ends_a_start_that_never_ends() -> None:
    done = run(
        """
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            LoopThread(never_open, name="a client").start()
        except KeyboardInterrupt:
            print("interrupted", threading.active_count() <= 2)
        """
    )

    assert done.stdout == "interrupted True\n"


def test_a_client_that_nobody_closed_is_closed_at_exit() -> None:
    done = run(
        """
        @asynccontextmanager
        async def saying_goodbye():
            yield Client()
            print("goodbye")

        LoopThread(saying_goodbye, name="a client").start()
        """
    )

    assert done.stdout == "goodbye\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with the names of this module."""
    preamble = f"""
import importlib.util, os, signal, sys, threading
spec = importlib.util.spec_from_file_location("here", {__file__!r})
here = importlib.util.module_from_spec(spec)
sys.modules["here"] = here
spec.loader.exec_module(here)
globals().update(vars(here))
"""
    done = subprocess.run(
        [sys.executable, "-c", preamble + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_thread_that_is_closed_before_its_loop_runs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread(opened, name="test")
    run, about_to_run, may_run = asyncio.run, threading.Event(), threading.Event()

    def late(main: Any) -> None:
        about_to_run.set()
        assert may_run.wait(10)
        run(main)

    monkeypatch.setattr(asyncio, "run", late)
    with ThreadPoolExecutor(2) as pool:
        starting = pool.submit(thread.start)
        assert about_to_run.wait(10)
        closing = pool.submit(thread.close, 5)
        while not thread._is_closing:
            time.sleep(0.001)
        may_run.set()

        closing.result(10)
        with pytest.raises(NotRunning, match="did not start"):
            starting.result(10)


def test_a_result_is_freed_with_its_last_reference_and_waits_for_no_collector() -> None:
    class Batch:
        """Megabytes, in earnest."""

    async def fetch() -> Batch:
        return Batch()

    thread = LoopThread(opened, name="a client")
    thread.start()
    gc.disable()
    try:
        batches = [weakref.ref(thread.call(fetch)) for _ in range(3)]
        thread.call(lambda: asyncio.sleep(0))  # the loop has let go of the calls before

        assert [batch() for batch in batches] == [None, None, None]
    finally:
        gc.enable()
        thread.close()

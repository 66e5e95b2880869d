"""`num.io.threads` may change while the broker runs, as the other keys of threads do in Kafka."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ottla.broker.config import BrokerConfig, keys_of
from ottla.broker.runtime.threads import TOKEN_THREADS, IoThreads, LoginThreads


async def at_once(count: int) -> int:
    """Return how many of `count` calls ran at the same time."""
    lock, running, most, go_on = threading.Lock(), 0, 0, threading.Event()

    def call() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go_on.wait(0.5)
        with lock:
            running -= 1

    await asyncio.gather(*(asyncio.to_thread(call) for _ in range(count)))
    return most


async def test_later_work_runs_on_the_changed_number_of_threads() -> None:
    threads = IoThreads(1)
    assert await at_once(2) == 1

    threads.resize(2)

    assert await at_once(2) == 2


async def test_work_that_waits_when_the_number_changes_is_done() -> None:
    threads, go_on = IoThreads(1), threading.Event()
    waiting = [asyncio.ensure_future(asyncio.to_thread(go_on.wait, 60)) for _ in range(3)]
    await asyncio.sleep(0)

    threads.resize(4)
    go_on.set()

    assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_server_of_tokens_that_hangs_stops_no_login() -> None:
    threads, go_on = LoginThreads(), threading.Event()
    hanging = [asyncio.ensure_future(threads.fetch(lambda: go_on.wait(60))) for _ in range(3 * TOKEN_THREADS)]
    await asyncio.sleep(0)

    assert await asyncio.wait_for(threads.run(lambda: "logged in"), 30) == "logged in"

    go_on.set()
    assert all(await asyncio.gather(*hanging))
    threads.close()


@pytest.mark.parametrize(
    "key",
    [
        "log.cleaner.threads",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "num.io.threads",
        "num.network.threads",
        "num.replica.fetchers",
        "num.recovery.threads.per.data.dir",
        "background.threads",
        "compression.zstd.level",
    ],
)
def test_keys_that_are_dynamic_in_kafka_are_dynamic(key: str) -> None:
    assert keys_of(BrokerConfig)[key].update == "cluster-wide"

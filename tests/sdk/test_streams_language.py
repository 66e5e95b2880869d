"""State of streams exactly once: what a killed program has counted is counted once, in both of its parts."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.client.admin import Admin
from ottla.consumer import Consumer
from ottla.producer import Producer

if TYPE_CHECKING:
    from sdk.conftest import Cluster

WORKER = Path(__file__).with_name("streams_language_worker.py")
RECORDS, KEYS = 600, 40


async def started(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), *arguments, stdout=PIPE, limit=1024
    )


async def handled(worker: Process, count: int) -> None:
    assert worker.stdout is not None
    async with asyncio.timeout(90):
        async for line in worker.stdout:
            if int(line) >= count:
                return
    raise AssertionError(f"the worker ended with {await worker.wait()}")


async def committed(cluster: Cluster, topic: str, count: int) -> dict[str, list[str]]:
    """Read `count` committed values by their keys, and see that no more come."""
    found: dict[str, list[str]] = defaultdict(list)
    async with Consumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    ) as consumer:
        async with asyncio.timeout(150):
            while sum(map(len, found.values())) < count:
                for records in (await consumer.getmany(timeout_ms=1_000)).values():
                    for record in records:
                        found[record.key.decode()].append(record.value.decode())
        assert not await consumer.getmany(timeout_ms=1_000)
    return found


@pytest.mark.timeout(300)
async def test_counts_of_a_program_that_is_killed_are_exact(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    if not cluster.has_transactions:
        pytest.skip("this cluster has no transactions")
    source, between, target = fresh("in"), fresh("between"), fresh("out")
    for name in (source, target):
        await admin.topics.create(name, partitions=3, replication_factor=1)
    async with Producer(cluster.bootstrap_servers) as producer:
        for number in range(RECORDS):
            await producer.send(source, b"%d" % number, b"k%d" % (number % KEYS))
    arguments = (cluster.bootstrap_servers, fresh("app"), source, between, target, str(tmp_path))

    for kill_after in (60, 150, 100):
        worker = await started(*arguments)
        await handled(worker, kill_after)
        worker.kill()
        await worker.wait()
    last = await started(*arguments)
    reading = asyncio.create_task(last.communicate())
    try:
        counts = await committed(cluster, target, 2 * RECORDS)
    finally:
        last.send_signal(signal.SIGTERM)
        await reading

    per_key, per_digit = RECORDS // KEYS, RECORDS // 10
    expected = {f"k{key}": [f"key {each}" for each in range(1, per_key + 1)] for key in range(KEYS)}
    expected |= {str(digit): [f"digit {each}" for each in range(1, per_digit + 1)] for digit in range(10)}
    assert counts == expected
    assert last.returncode == 0

"""State of streams exactly once: what a killed program has counted is counted once, in both of its parts."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.admin import Admin
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


async def handled_all(worker: Process) -> None:
    """Read what a worker says until it ends."""
    assert worker.stdout is not None
    while await worker.stdout.read(1024):
        pass
    await worker.wait()


async def ended(worker: Process) -> None:
    """Kill a worker that runs, or is stopped."""
    if worker.returncode is None:
        worker.kill()
    await worker.wait()


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


def expected() -> dict[str, list[str]]:
    """Return what is written of each key of both parts of the program."""
    per_key, per_digit = RECORDS // KEYS, RECORDS // 10
    sums = [(each, each * (each + 1) // 2) for each in range(1, per_key + 1)]
    of_keys = [line for count, total in sums for line in (f"key {count}", f"sum {total}")]
    digits = {str(digit): [f"digit {each}" for each in range(1, per_digit + 1)] for digit in range(10)}
    return {f"k{key}": of_keys for key in range(KEYS)} | digits


async def written(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str], state_dir: Path
) -> tuple[str, ...]:
    """Write records to a new topic; return the arguments of workers, the last but one being the target."""
    source, between, target = fresh("in"), fresh("between"), fresh("out")
    for name in (source, target):
        await admin.topics.create(name, partitions=3, replication_factor=1)
    async with Producer(cluster.bootstrap_servers) as producer:
        for number in range(RECORDS):
            await producer.send(source, b"%d" % number, b"k%d" % (number % KEYS))
    return cluster.bootstrap_servers, fresh("app"), source, between, target, str(state_dir)


@pytest.mark.timeout(300)
async def test_a_member_that_wakes_up_after_others_went_on_changes_nothing(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    arguments = await written(cluster, admin, fresh, tmp_path / "first")
    async with AsyncExitStack() as stack:
        zombie = await started(*arguments)
        stack.push_async_callback(ended, zombie)
        await handled(zombie, 100)
        zombie.send_signal(signal.SIGSTOP)
        heir = await started(*arguments[:-1], str(tmp_path / "second"), "two")
        stack.push_async_callback(ended, heir)
        await handled(heir, 60)
        zombie.send_signal(signal.SIGCONT)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for each in (zombie, heir):
            tasks.create_task(handled_all(each))
        found = await committed(cluster, arguments[-2], 3 * RECORDS)
        for each in (zombie, heir):
            if each.returncode is None:
                each.send_signal(signal.SIGTERM)

    assert found == expected()
    assert heir.returncode == 0


@pytest.mark.timeout(300)
async def test_counts_of_a_program_that_is_killed_are_exact(
    cluster: Cluster, admin: Admin, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    arguments = await written(cluster, admin, fresh, tmp_path)

    for kill_after in (60, 150, 100):
        worker = await started(*arguments)
        await handled(worker, kill_after)
        worker.kill()
        await worker.wait()
    last = await started(*arguments)
    reading = asyncio.create_task(last.communicate())
    try:
        counts = await committed(cluster, arguments[-2], 3 * RECORDS)
    finally:
        last.send_signal(signal.SIGTERM)
        await reading

    assert counts == expected()
    assert last.returncode == 0

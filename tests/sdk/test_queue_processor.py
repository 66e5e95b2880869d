"""A processor on a share group: jobs at once, retries, dead letters, and the end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ottla.admin import GROUP, Admin
from ottla.broker.testing import BrokerProcess
from ottla.client.settings import SettingError
from ottla.consumer import Consumer
from ottla.producer import Producer
from ottla.streams import HandlerFailed, QueueProcessor

BOUND_S = 60.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    settings = {"group.share.min.heartbeat.interval.ms": "100", "group.share.heartbeat.interval.ms": "100"}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running.bootstrap_servers


async def jobs(servers: str, topic: str, *values: str) -> dict[str, Any]:
    """Write jobs to a new topic; return the settings of a group that reads them from the first."""
    async with Admin(servers) as admin:
        await admin.topics.create(topic, partitions=1)
        await admin.configs.alter(GROUP, topic, {"share.auto.offset.reset": "earliest"})
    async with Producer(bootstrap_servers=servers) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)
    return {"bootstrap_servers": servers, "group_id": topic, "value_type": str}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_jobs_of_one_partition_are_handled_at_once_and_each_once(servers: str) -> None:
    settings = await jobs(servers, "at-once", *map(str, range(30)))
    seen: Counter[str] = Counter()
    running = most = 0

    async def handle(job: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        seen[job.value] += 1

    async with QueueProcessor(handle, "at-once", max_concurrency=8, **settings) as processor:
        await until(lambda: processor.handled == 30)

    assert seen == Counter(map(str, range(30)))
    assert 1 < most <= 8


async def test_a_job_that_fails_is_handled_again_and_its_last_failure_makes_a_dead_letter(
    servers: str,
) -> None:
    settings = await jobs(servers, "retried", "good", "late", "bad")
    attempts: Counter[str] = Counter()

    def handle(job: Any) -> None:  # on a thread
        attempts[job.value] += 1
        if job.value == "bad" or (job.value == "late" and job.delivery_count < 3):
            raise RuntimeError("not yet")

    async with Admin(servers) as admin:
        await admin.topics.create("retried-dead", partitions=1)
    async with QueueProcessor(
        handle, "retried", deliveries=4, dead_letter_topic="retried-dead", **settings
    ) as processor:
        await until(lambda: processor.handled == 2 and processor.failed == 6)
        async with Consumer(
            "retried-dead", bootstrap_servers=servers, auto_offset_reset="earliest"
        ) as letters:
            letter = await letters.getone()

    assert attempts == {"good": 1, "late": 3, "bad": 4}
    assert letter.value == b"bad"


async def test_a_failure_that_nothing_takes_stops_the_processor(servers: str) -> None:
    settings = await jobs(servers, "stopped", "bad")

    async def handle(_: Any) -> None:
        raise KeyError("none")

    async with QueueProcessor(handle, "stopped", deliveries=2, **settings) as processor:
        with pytest.raises(HandlerFailed, match="attempt 2"):
            async with asyncio.timeout(BOUND_S):
                await processor.wait()

    async with QueueProcessor(handle, "stopped", on_error={KeyError: "skip"}, **settings) as processor:
        await until(lambda: processor.failed == 1)


async def test_a_handler_that_takes_longer_than_a_lock_keeps_its_job(servers: str) -> None:
    settings = await jobs(servers, "slow", "job")
    counts: list[int] = []

    async def handle(job: Any) -> None:
        counts.append(job.delivery_count)
        await job.renew()
        await asyncio.sleep(0.2)

    async with QueueProcessor(handle, "slow", **settings) as processor:
        await until(lambda: processor.handled == 1)

    assert counts == [1]


async def test_running_handlers_end_before_the_block_does(servers: str) -> None:
    settings = await jobs(servers, "drained", "a")
    began, ended = asyncio.Event(), asyncio.Event()

    async def handle(_: Any) -> None:
        began.set()
        await asyncio.sleep(0.1)
        ended.set()

    async with asyncio.timeout(BOUND_S), QueueProcessor(handle, "drained", **settings):
        await began.wait()

    assert ended.is_set()


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="at least one topic"):
        QueueProcessor(print, group_id="g")
    with pytest.raises(SettingError, match="acknowledges itself"):
        QueueProcessor(print, "t", group_id="g", acknowledgement_mode="implicit")

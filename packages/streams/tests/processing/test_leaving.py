"""The end of a processor's block: by cancellations, and what is refused before it begins."""

from __future__ import annotations

import asyncio
import sys

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerThread
from ottla.client.settings import SettingError
from ottla.consumer import ConsumerRecord
from ottla.producer import Producer
from ottla.streams import Processor


async def test_a_second_cancellation_ends_the_drain_at_once(ottla_broker: BrokerThread) -> None:
    async with Admin(bootstrap_servers=ottla_broker.bootstrap_servers) as admin:
        await admin.topics.create("orders")
    async with Producer(bootstrap_servers=ottla_broker.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"", b"key")
    began, drains = asyncio.Event(), asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        began.set()
        await asyncio.Event().wait()

    async def run() -> None:
        servers = ottla_broker.bootstrap_servers
        async with Processor(
            handle, "orders", group_id="g", bootstrap_servers=servers, drain_timeout_ms=250_000,
            close_timeout_ms=300_000,
        ):  # fmt: skip
            try:
                await asyncio.Event().wait()
            finally:
                drains.set()

    async with asyncio.timeout(60):
        before = asyncio.all_tasks()
        running = asyncio.get_running_loop().create_task(run())
        await began.wait()
        running.cancel()
        await drains.wait()
        await asyncio.sleep(0)  # it waits for the drain now
        running.cancel()
        await asyncio.wait([running], timeout=30)

    assert running.cancelled()
    assert asyncio.all_tasks() == before


PROGRAM = """
import asyncio, sys
from ottla.streams import Processor

async def main():
    began = asyncio.Event()

    async def handle(record):
        began.set()
        await asyncio.Event().wait()

    running = Processor(handle, "orders", group_id="g", bootstrap_servers=sys.argv[1])
    entered = asyncio.get_running_loop().create_task(running.run())
    await began.wait()
    raise RuntimeError("of the application")

asyncio.run(main())
"""


async def test_a_program_that_fails_beside_a_processor_ends(ottla_broker: BrokerThread) -> None:
    """`asyncio.run` cancels all tasks at once when its main function raises, also those that drain."""
    async with Admin(bootstrap_servers=ottla_broker.bootstrap_servers) as admin:
        await admin.topics.create("orders")
    async with Producer(bootstrap_servers=ottla_broker.bootstrap_servers) as producer:
        await producer.send_and_wait("orders", b"", b"key")

    program = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "always", "-c", PROGRAM, ottla_broker.bootstrap_servers,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            _, said = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()

    assert b"RuntimeError: of the application" in said
    assert b"unclosed" not in said, said.decode()


def test_a_processor_without_topics_is_refused_when_it_is_made() -> None:
    with pytest.raises(SettingError, match="at least one topic"):
        Processor(lambda record: None, group_id="g")

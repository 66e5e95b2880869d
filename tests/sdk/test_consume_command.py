"""`ottla consume --group`: several of them share the partitions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from ottla.admin import Admin
from ottla.protocol.topics import TopicPartition

PARTITIONS = 4
PATIENCE_S = 60.0


class Servers(Protocol):
    """A cluster under test."""

    bootstrap_servers: str


@asynccontextmanager
async def consuming(servers: str, topic: str, group: str, *options: str) -> AsyncIterator[list[str]]:
    """Run the command; give the lines it prints, and interrupt it in the end, as Ctrl-C does."""
    ottla = Path(sys.executable).with_name("ottla")
    process = await asyncio.create_subprocess_exec(
        ottla, "consume", topic, "--group", group, "--from-beginning", "--format", "{partition}:{offset}",
        "--bootstrap-server", servers, *options,
        stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    lines: list[str] = []

    async def read() -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            lines.append(line.decode().strip())  # noqa: PERF401  # whoever waits looks at them meanwhile

    reading = asyncio.ensure_future(read())
    try:
        yield lines
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), PATIENCE_S)
        await reading
    finally:
        if process.returncode is None:
            process.kill()
        reading.cancel()


async def eventually(holds: Callable[[], bool], what: object) -> None:
    """Wait until something holds, within a bound."""
    for _ in range(int(PATIENCE_S / 0.02)):
        if holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not come about: {what}")


class Writer:
    """Writes to all partitions, and knows how much it wrote."""

    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self.written = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})

    def write(self) -> None:
        """Write a record to each partition."""
        for partition in range(PARTITIONS):
            self._producer.produce(self._topic, b"value", partition=partition)
        assert self._producer.flush(PATIENCE_S) == 0
        self.written += PARTITIONS


async def test_two_commands_share_a_topic_and_keep_the_place(
    cluster: Servers, fresh: Callable[[str], str]
) -> None:
    servers, topic, group = cluster.bootstrap_servers, fresh("consume"), fresh("consume")
    writer = Writer(servers, topic)

    def write_until(lines: list[str]) -> bool:
        writer.write()
        return bool(lines)

    async with Admin(servers) as admin:
        await admin.topics.create(topic, partitions=PARTITIONS)
        async with consuming(servers, topic, group) as first:
            await eventually(lambda: write_until(first), first)
            async with consuming(servers, topic, group) as second:
                await eventually(lambda: write_until(second), (first, second))
            await eventually(lambda: len(first) + len(second) >= writer.written, (first, second))

        committed = await admin.groups.offsets(group)

    assert len({*first, *second}) == len([*first, *second]) == writer.written
    assert {each.partition for each in committed} == {TopicPartition(topic, n) for n in range(PARTITIONS)}
    assert [each.lag for each in committed] == [0] * PARTITIONS

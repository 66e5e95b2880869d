"""Copies a topic into another exactly once; says before each commit how many records it has copied."""

from __future__ import annotations

import asyncio
import sys

from ottla.consumer import Consumer
from ottla.producer import Producer

IDLE_MS = 8_000


async def main(servers: str, source: str, target: str, group: str) -> None:
    copied = 0
    async with (
        Consumer(
            source,
            bootstrap_servers=servers,
            group_id=group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
        ) as consumer,
        Producer(servers, transactional_id=f"copier-of-{group}", transaction_timeout_ms=10_000) as producer,
    ):
        while batch := await consumer.getmany(timeout_ms=IDLE_MS, max_records=20):
            async with producer.transaction():
                for records in batch.values():
                    for record in records:
                        await producer.send(target, record.value)
                        copied += 1
                offsets = {partition: records[-1].offset + 1 for partition, records in batch.items()}
                await producer.send_offsets(offsets, consumer.group_metadata())
                await producer.flush()
                print(copied, flush=True)


asyncio.run(main(*sys.argv[1:]))

"""A member that notes each record when its handler starts, one after the other: a test lets it stand still.

Arguments: bootstrap servers, and the file of notes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ottla.consumer import ConsumerRecord
from ottla.streams import Processor


async def main(servers: str, notes: Path) -> None:
    """Run until killed."""

    async def handle(record: ConsumerRecord) -> None:
        with notes.open("a") as file:
            file.write(f"{record.partition} {record.offset}\n")
        await asyncio.sleep(0.02)

    async with Processor(
        handle, "orders", group_id="g", bootstrap_servers=servers, max_concurrency=1, commit_interval_ms=20,
        heartbeat_interval_ms=500, session_timeout_ms=6_000,
    ) as processor:  # fmt: skip
        await processor.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

"""Tests of the cleaner: logs that are compacted, and their records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.files.file_system import Files
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.testing import SMALL_INDEX_BYTES, batch, commit
from ottla.broker.runtime.environment import Environment

DIRECTORY = Path("/logs")


@asynccontextmanager
async def registry(
    files: Files | None = None,
    directory: Path = DIRECTORY,
    environment: Environment | None = None,
    **settings: Any,
) -> AsyncIterator[LogRegistry]:
    """Open logs that are compacted in segments of 1,000 bytes; `settings` are those of the broker."""
    defaults: dict[str, Any] = {
        "log_dirs": (str(directory),),
        "log_segment_bytes": 1_000,
        "log_index_interval_bytes": 200,
        "log_index_size_max_bytes": SMALL_INDEX_BYTES,
        "log_cleanup_policy": ("compact",),
        "log_segment_delete_delay_ms": 0,
        "log_cleaner_backoff_ms": 10,
    }
    config = BrokerConfig(**defaults | settings)
    logs = LogRegistry(config, environment or Environment(), files=files or MemoryFiles())
    await logs.lock()
    await logs.open(lambda _: LogConfig.from_broker(config))
    try:
        yield logs
    finally:
        await logs.close()
        await logs.unlock()


def fill(log: Log, records: int, *, keys: int = 5, start: int = 0) -> None:
    """Append records of few keys, one a batch; the values are their numbers."""
    for number in range(start, start + records):
        data = batch(b"%d" % number, keys=[b"key %d" % (number % keys)], timestamp_ms=1_000 + number)
        log.append(data, leader_epoch=number // 40, now_ms=0)
    commit(log)
    log.flush()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what threads bring about."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - threads work meanwhile
            await asyncio.sleep(0.01)


async def clean(logs: LogRegistry, now_ms: int = 10_000) -> int:
    """Clean until nothing is due; returns how many cleanings there were."""
    cleaner, count = Cleaner(logs), 0
    while await cleaner.clean_next(now_ms):
        count += 1
    return count

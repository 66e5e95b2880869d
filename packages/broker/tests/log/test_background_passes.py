"""The background passes: each is a task of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from threading import Event

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.files.file_system import File
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.retention.passes import LogPasses
from ottla.broker.log.testing import PARTITION, append
from ottla.broker.runtime.environment import Environment
from ottla.protocol.storage.checkpoints import RECOVERY_POINTS_FILE


class SlowCheckpoints(MemoryFiles):
    """A disk on which the checkpoint of recovery points is not written before `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = Event()

    def open(self, path: Path, *, create: bool = False) -> File:  # type: ignore[override]
        if path.name.startswith(RECOVERY_POINTS_FILE) and create:
            assert self.go_on.wait(10)
        return super().open(path, create=create)


async def test_a_pass_that_waits_for_the_disk_holds_up_no_other() -> None:
    files = SlowCheckpoints()
    logs = LogRegistry(BrokerConfig(log_dirs=("/data",)), Environment(), files=files)
    await logs.lock()
    await logs.open()
    log = logs.create(PARTITION, config=LogConfig(segment_bytes=200, retention_bytes=0))
    for _ in range(3):
        append(log, b"x" * 60)
    passes = LogPasses(logs)

    slow = asyncio.ensure_future(passes.checkpoint_recovery_points(0))
    await asyncio.sleep(0)

    assert await passes.retain(0) == 3
    assert not slow.done()
    files.go_on.set()
    assert await slow == []
    await logs.close()


def test_every_pass_has_a_name_and_an_interval_of_its_own() -> None:
    config = BrokerConfig(log_dirs=("/data",), log_retention_check_interval_ms=7)
    logs = LogRegistry(config, Environment(), files=MemoryFiles())

    scheduled = {one.name: one.interval_ms for one in LogPasses(logs).scheduled()}

    assert len(scheduled) == 6
    assert scheduled["log-retention"] == 7


@pytest.mark.parametrize("name", ["log-retention", "log-flusher", "delete-logs"])
async def test_a_scheduled_pass_runs_with_the_brokers_clock(name: str) -> None:
    logs = LogRegistry(BrokerConfig(log_dirs=("/data",)), Environment(), files=MemoryFiles())
    await logs.lock()
    await logs.open()

    found = next(one for one in LogPasses(logs).scheduled() if one.name == name)

    assert await found.run() == 0
    await logs.close()

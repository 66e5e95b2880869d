"""Leaderships that move: at a controlled shutdown as the broker sees it, and off a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.cluster.metadata import MetadataCache
from ottla.broker.config import BrokerConfig
from ottla.broker.peers.controller_requests import Answers
from ottla.broker.server.leadership_handover import (
    FIRST_PAUSE_MS,
    MAX_PAUSE_MS,
    FullDirectoryHandover,
    LeadershipHandover,
)
from ottla.protocol.messages.control_requests import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

LEAVING, OTHER = 1, 2


class Controller:
    """Moves all leaderships at once; its requests to brokers come later."""

    broker_epoch = 7

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, _: object) -> Answers:
        self.asked += 1
        return Answers()


def tell(metadata: MetadataCache, leader: int, replicas: list[int], alive: list[int]) -> None:
    state = UpdateMetadataPartitionState(partition_index=0, leader=leader, replicas=replicas, isr=replicas)
    metadata.update(
        UpdateMetadataRequest(
            live_brokers=[UpdateMetadataBroker(id=node) for node in alive],
            topic_states=[UpdateMetadataTopicState(topic_name="t", partition_states=[state])],
        )
    )


def leaving(metadata: MetadataCache) -> tuple[LeadershipHandover, Controller]:
    controller: Any = Controller()
    session: Any = None  # asked for only before a repetition
    config = BrokerConfig(log_dir="/nowhere")
    return LeadershipHandover(config, metadata, controller, controller, session, LEAVING), controller


async def test_a_broker_that_leaves_waits_until_it_is_told_that_others_lead() -> None:
    metadata = MetadataCache(LEAVING)
    tell(metadata, LEAVING, [LEAVING, OTHER], [LEAVING, OTHER])
    handover, controller = leaving(metadata)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        leaves = tasks.create_task(handover.run())
        for _ in range(10):
            await asyncio.sleep(0)
        assert controller.asked == 1
        assert not leaves.done()

        tell(metadata, OTHER, [LEAVING, OTHER], [LEAVING, OTHER])


@pytest.mark.parametrize(
    ("replicas", "alive"),
    [([LEAVING], [LEAVING, OTHER]), ([LEAVING, OTHER], [LEAVING]), ([LEAVING, 3], [1, 2])],
)
async def test_partitions_that_nobody_else_can_lead_are_not_waited_for(
    replicas: list[int], alive: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.server.leadership_handover.TOLD_WITHIN_MS", 3_600_000.0)
    metadata = MetadataCache(LEAVING)
    tell(metadata, LEAVING, replicas, alive)
    handover, _ = leaving(metadata)

    async with asyncio.timeout(60):
        await handover.run()


class FullDisk:
    """Logs and replicas of a broker whose disk has news while `news` is set; it counts the announcements."""

    def __init__(self) -> None:
        self.news = False
        self.now_ms = 0.0
        self.announced_ms: list[float] = []
        self.announced = asyncio.Event()
        self.copied: list[Path] = []
        self.with_room: list[Path] = []
        self.on_room_changed: list[Callable[[Path, bool], None]] = []
        disk: Any = self
        self.handover = FullDirectoryHandover(disk, disk, self.announce, lambda: self.now_ms)

    def announce(self) -> None:
        self.announced_ms.append(self.now_ms)
        self.announced.set()

    @property
    def full_directories(self) -> FullDisk:
        return self

    def note(self, directory: Path, *, is_full: bool) -> None:
        self.news = True

    def note_room(self, directories: list[Path]) -> None:
        self.with_room = directories

    async def copy_where_room_is(self, directory: Path) -> None:
        self.copied.append(directory)

    async def has_news_of_room(self) -> bool:
        return self.news

    async def look_for_room(self) -> list[Path]:
        return [Path("/data")]

    async def change(self, *, is_full: bool) -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.handover.run())
            for listener in self.on_room_changed:
                listener(Path("/data"), is_full)
            self.announced.clear()
            await self.announced.wait()
            running.cancel()

    async def look_until(self, end_ms: float) -> None:
        while self.now_ms < end_ms:
            self.now_ms += 1_000
            await self.handover.look()


async def test_the_controller_is_told_of_a_full_disk_at_once_and_once() -> None:
    disk = FullDisk()

    await disk.change(is_full=True)
    disk.news = False
    await disk.look_until(60_000)
    await disk.change(is_full=False)

    assert disk.announced_ms == [0, 60_000]
    assert disk.copied == [Path("/data"), Path("/data")]


async def test_a_controller_that_does_not_act_is_told_again_after_longer_and_longer_pauses() -> None:
    disk = FullDisk()
    await disk.change(is_full=True)

    await disk.look_until(600_000)

    pauses = [after - before for before, after in zip(disk.announced_ms, disk.announced_ms[1:], strict=False)]
    assert pauses[:4] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS, 8 * FIRST_PAUSE_MS]
    assert set(pauses[5:]) == {MAX_PAUSE_MS}


async def test_a_look_finds_the_full_directories_that_take_writes_again() -> None:
    disk = FullDisk()

    await disk.look_until(1_000)

    assert disk.with_room == [Path("/data")]


async def test_news_that_come_later_are_told_when_they_are_seen() -> None:
    disk = FullDisk()
    await disk.look_until(10_000)
    disk.news = True

    await disk.look_until(11_000)

    assert disk.announced_ms == [11_000]

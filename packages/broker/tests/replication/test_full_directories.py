"""Replicas on a full disk: what the controller is answered about them, and when it is to ask."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.broker.api.testing import BROKER_ID, DataPlane, topic_id_of
from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.metrics import Metrics
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.broker.replication.log_moves import LogMoves
from ottla.broker.replication.partition import Assignment, Role
from ottla.broker.replication.replicas import DELETE_EPOCH, Replicas
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import SLICE, LoopBudget
from ottla.protocol.errors import ErrorCode, KafkaStorageError
from ottla.protocol.topics import TopicPartition

ME, OTHER, THIRD = BROKER_ID, BROKER_ID + 1, BROKER_ID + 2
T0 = TopicPartition("t", 0)
NONE, KNOWN, GIVEN_UP = ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR


class Copying:
    """Notes which partitions are copied, from whom, and how often that began."""

    def __init__(self) -> None:
        self.begun = 0
        self.leaders: dict[TopicPartition, int] = {}

    def follow(self, partition: HostedPartition, leader: int) -> None:
        self.leaders[partition.topic_partition] = leader
        self.begun += 1

    def unfollow(self, topic_partition: TopicPartition) -> None:
        self.leaders.pop(topic_partition, None)


class CountedPath(type(Path())):  # type: ignore[misc]
    """Counts the comparisons and hashes of paths, which cost more than all else that is done for a log."""

    uses = 0

    def __hash__(self) -> int:
        type(self).uses += 1
        return super().__hash__()  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        type(self).uses += 1
        return super().__eq__(other)  # type: ignore[no-any-return]


class Disk:
    """The replicas of a broker on one disk, of which `dead` other brokers are not registered."""

    def __init__(self, folder: Path, budget: LoopBudget | None = None) -> None:
        plane = DataPlane(folder, budget=budget)
        self.folder = folder
        self.logs = plane.logs
        self.dead: set[int] = set()
        self.copying = Copying()
        self.proposed: list[tuple[int, ...]] = []
        self.replicas = Replicas(
            broker_id=ME,
            config=plane.config,
            environment=plane.environment,
            logs=plane.logs,  # type: ignore[arg-type]
            log_config=lambda _: LogConfig.from_broker(plane.config),
            metrics=Metrics(),
            followers=self.copying,
            propose_isr=lambda _, proposal: self.proposed.append(proposal.isr),
            is_alive=lambda broker: broker not in self.dead,
        )

    async def assigned(
        self, leader: int, leader_epoch: int, isr: tuple[int, ...], partition: TopicPartition = T0
    ) -> ErrorCode:
        """The answer to an assignment of the controller."""
        assignment = Assignment(
            controller_epoch=1,
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=leader_epoch,
            isr=isr,
            replicas=(ME, OTHER, THIRD),
        )
        answers = await self.replicas.apply([(partition, topic_id_of(partition.topic), assignment)])
        return answers[partition]

    async def fill(self) -> None:
        await self.changed(is_full=True)

    async def free(self) -> None:
        await self.changed(is_full=False)

    async def changed(self, *, is_full: bool) -> None:
        self.replicas.full_directories.note(self.folder, is_full=is_full)
        await self.replicas.copy_where_room_is(self.folder)

    @property
    def role(self) -> Role:
        hosted = self.replicas.hosted(T0)
        assert hosted is not None
        return hosted.core.role


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


async def test_a_leader_with_a_full_disk_is_given_up_and_taken_back_with_the_room(disk: Disk) -> None:
    assert await disk.assigned(ME, 1, (ME, OTHER)) is NONE
    assert not await disk.replicas.has_news_of_room()
    await disk.fill()
    assert await disk.replicas.has_news_of_room()

    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP
    assert await disk.replicas.has_news_of_room()  # until another one leads
    assert await disk.assigned(OTHER, 2, (OTHER,)) is GIVEN_UP

    assert disk.role is Role.FOLLOWER
    assert disk.copying.leaders == {}
    assert not await disk.replicas.has_news_of_room()
    await disk.free()
    assert disk.copying.leaders == {T0: OTHER}
    assert await disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 2, (OTHER,)) is NONE
    assert not await disk.replicas.has_news_of_room()
    # Its answer may be lost, and the request comes again.
    assert await disk.assigned(OTHER, 2, (OTHER,)) is NONE
    assert await disk.assigned(OTHER, 3, (OTHER, ME)) is NONE
    assert await disk.assigned(OTHER, 3, (OTHER, ME)) is KNOWN


async def test_a_follower_with_a_full_disk_leaves_the_isr_at_once(disk: Disk) -> None:
    assert await disk.assigned(OTHER, 1, (OTHER, ME)) is NONE
    assert disk.copying.leaders == {T0: OTHER}
    await disk.fill()

    assert disk.copying.leaders == {}
    assert await disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 1, (OTHER, ME)) is GIVEN_UP
    assert not await disk.replicas.has_news_of_room()


@pytest.mark.parametrize("isr", [(ME,), (ME, OTHER)])
async def test_the_last_live_member_of_an_isr_leads_on(disk: Disk, isr: tuple[int, ...]) -> None:
    disk.dead.add(OTHER)
    await disk.assigned(ME, 1, isr)
    await disk.fill()

    assert not await disk.replicas.has_news_of_room()
    assert await disk.assigned(ME, 1, isr) is KNOWN
    assert await disk.assigned(ME, 2, isr) is NONE
    assert disk.role is Role.LEADER


async def test_a_leader_is_given_up_once_another_replica_is_in_sync(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME,))
    await disk.fill()
    assert not await disk.replicas.has_news_of_room()

    disk.replicas.isr_read(T0, 1, (ME, OTHER), 2)

    assert await disk.replicas.has_news_of_room()


async def test_a_leader_waits_for_the_answer_to_the_isr_that_it_has_proposed(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    hosted = disk.replicas.hosted(T0)
    assert hosted is not None
    hosted.perform(hosted.core.fetched(THIRD, 0, 0, 0))
    assert disk.proposed == [(ME, OTHER, THIRD)]
    await disk.fill()

    assert not await disk.replicas.has_news_of_room()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is KNOWN

    disk.replicas.isr_answered(T0, 1, (ME, OTHER, THIRD), 2)
    assert await disk.replicas.has_news_of_room()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP


async def test_a_leader_with_a_full_disk_proposes_no_smaller_isr(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    hosted = disk.replicas.hosted(T0)
    assert hosted is not None
    hosted.core.max_lag_ms = -1
    hosted.core.log_end_offset = 5
    await disk.fill()

    disk.replicas.shrink_isrs()
    assert disk.proposed == []

    await disk.free()
    disk.replicas.shrink_isrs()
    assert disk.proposed == [(ME,)]


async def test_a_leader_that_takes_writes_again_waits_for_no_follower_that_lags(disk: Disk) -> None:
    """The directory counts as full for `log.dir.full.backoff.ms` after there is room."""
    disk.dead.add(OTHER)
    await disk.assigned(ME, 1, (ME, OTHER))
    hosted = disk.replicas.hosted(T0)
    assert hosted is not None
    hosted.core.max_lag_ms = -1
    hosted.core.log_end_offset = 5
    await disk.fill()
    full = disk.replicas.full_directories
    full.note_room([disk.folder])
    full.note(disk.folder, is_full=True)  # once more

    disk.replicas.shrink_isrs()
    assert disk.proposed == []
    full.note_room([disk.folder])
    disk.replicas.shrink_isrs()
    assert disk.proposed == [(ME,)]


async def test_a_leader_that_was_given_up_proposes_no_smaller_isr_though_it_takes_writes(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    hosted = disk.replicas.hosted(T0)
    assert hosted is not None
    hosted.core.max_lag_ms = -1
    hosted.core.log_end_offset = 5
    await disk.fill()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP
    disk.replicas.full_directories.note_room([disk.folder])

    disk.replicas.shrink_isrs()
    assert disk.proposed == []


async def test_a_replica_outside_the_isr_stays_given_up_without_a_leader(disk: Disk) -> None:
    await disk.assigned(OTHER, 1, (OTHER,))
    await disk.fill()
    assert await disk.assigned(OTHER, 1, (OTHER,)) is GIVEN_UP
    disk.dead.add(OTHER)

    assert await disk.assigned(-1, 2, (OTHER,)) is GIVEN_UP
    assert not await disk.replicas.has_news_of_room()


async def test_the_last_member_of_the_isr_asks_for_its_leadership_back(disk: Disk) -> None:
    """Two disks that fill up at once are both given up: the controller finds no leader."""
    await disk.assigned(ME, 1, (ME, OTHER))
    await disk.fill()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP

    assert await disk.assigned(-1, 2, (ME,)) is NONE


@pytest.mark.parametrize("isr", [(ME,), (ME, OTHER)])
async def test_a_member_of_the_isr_is_not_given_up_where_no_replica_leads(
    disk: Disk, isr: tuple[int, ...]
) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    await disk.fill()

    assert await disk.assigned(-1, 2, isr) is NONE
    assert not await disk.replicas.has_news_of_room()
    assert await disk.assigned(ME, 3, isr) is (NONE if isr == (ME,) else GIVEN_UP)


async def test_a_replica_that_was_stopped_meanwhile_is_assigned_again(disk: Disk) -> None:
    """A controller of Apache Kafka stops the replicas that it has taken out of the ISR."""
    follower = TopicPartition("t", 1)
    await disk.assigned(ME, 1, (ME, OTHER))
    await disk.assigned(OTHER, 1, (OTHER,), follower)
    await disk.fill()
    assert await disk.assigned(ME, 1, (ME, OTHER)) is GIVEN_UP
    assert await disk.assigned(OTHER, 1, (OTHER,), follower) is GIVEN_UP

    stopped = await disk.replicas.stop([(T0, 2, False), (follower, 1, False)])

    assert set(stopped.values()) == {NONE}
    assert disk.role is Role.NONE
    assert not await disk.replicas.has_news_of_room()
    await disk.free()
    assert await disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 2, (OTHER,)) is NONE
    assert await disk.assigned(OTHER, 1, (OTHER,), follower) is NONE
    assert disk.copying.leaders == {T0: OTHER, follower: OTHER}


async def test_a_deleted_partition_is_no_news(disk: Disk) -> None:
    await disk.assigned(ME, 1, (ME, OTHER))
    await disk.fill()
    await disk.assigned(ME, 1, (ME, OTHER))
    await disk.replicas.stop([(T0, DELETE_EPOCH, True)])
    await disk.free()

    assert not await disk.replicas.has_news_of_room()


async def test_a_log_that_found_no_room_is_created_once_there_is_some(disk: Disk) -> None:
    """The controller has it for lost, until it is told to ask again."""
    create, disk.logs.create = disk.logs.create, no_room  # type: ignore[method-assign]
    await disk.fill()
    assert await disk.assigned(OTHER, 1, (OTHER,)) is GIVEN_UP
    assert not await disk.replicas.has_news_of_room()
    disk.logs.create = create  # type: ignore[method-assign]

    await disk.free()

    assert await disk.replicas.has_news_of_room()
    assert await disk.assigned(OTHER, 1, (OTHER,)) is NONE
    assert not await disk.replicas.has_news_of_room()
    assert disk.copying.leaders == {T0: OTHER}


async def test_a_log_that_is_never_assigned_again_is_asked_for_twice(disk: Disk) -> None:
    """Its topic may have been deleted, or moved, while the disk was full."""
    create, disk.logs.create = disk.logs.create, no_room  # type: ignore[method-assign]
    await disk.fill()
    assert await disk.assigned(OTHER, 1, (OTHER,)) is GIVEN_UP
    disk.logs.create = create  # type: ignore[method-assign]
    await disk.free()

    asked = [await disk.replicas.has_news_of_room() for _ in range(4)]

    assert asked == [True, True, False, False]


async def test_a_full_disk_compares_no_path_of_its_partitions(tmp_path: Path) -> None:
    disk = Disk(CountedPath(tmp_path))
    for number in range(50):
        await disk.assigned(OTHER, 1, (OTHER, ME), TopicPartition("t", number))
    CountedPath.uses = 0

    await disk.fill()
    assert await disk.replicas.has_news_of_room()
    disk.replicas.shrink_isrs()
    for number in range(50):
        assert await disk.assigned(OTHER, 1, (OTHER, ME), TopicPartition("t", number)) is GIVEN_UP
    assert not await disk.replicas.has_news_of_room()

    assert CountedPath.uses < 50


async def test_the_partitions_of_a_full_disk_are_looked_at_in_turns_of_the_loop(tmp_path: Path) -> None:
    ticks = itertools.count()
    disk = Disk(tmp_path, LoopBudget(lambda: float(next(ticks)), background_ms=2.0))
    for number in range(3 * SLICE):
        await disk.assigned(ME, 1, (ME,), TopicPartition("t", number))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    await disk.fill()
    after_change, turns = turns, 0
    assert not await disk.replicas.has_news_of_room()
    counting.cancel()

    assert after_change > 3
    assert turns >= 2


A, B = Path("/a"), Path("/b")


class TwoDisks:
    """A follower of broker `OTHER` on one of two disks, A first, and its moves."""

    def __init__(self, logs: LogRegistry) -> None:
        self.logs = logs
        self.copying = Copying()
        self.replicas = Replicas(
            broker_id=ME,
            config=logs.config,
            environment=logs.environment,
            logs=logs,
            log_config=lambda _: LogConfig(),
            followers=self.copying,
        )
        self.moves = LogMoves(logs, self.replicas, lambda: 1_000)

    async def follow(self) -> ErrorCode:
        """The answer to the assignment of the controller, always the same."""
        assigned = Assignment(
            controller_epoch=1,
            leader=OTHER,
            leader_epoch=1,
            partition_epoch=1,
            isr=(ME, OTHER),
            replicas=(ME, OTHER),
        )
        return (await self.replicas.apply([(T0, None, assigned)]))[T0]

    async def room_changed(self, directory: Path, *, is_full: bool) -> None:
        self.replicas.full_directories.note(directory, is_full=is_full)
        await self.replicas.copy_where_room_is(directory)

    async def moved(self, to: Path) -> None:
        self.moves.move(T0, str(to))
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.moves.run())
            while list(self.logs.futures):  # noqa: ASYNC110 - the task has no event
                await asyncio.sleep(0.001)
            running.cancel()


@asynccontextmanager
async def two_disks() -> AsyncIterator[TwoDisks]:
    config = BrokerConfig(log_dirs=(str(A), str(B)), log_segment_delete_delay_ms=0)
    logs = LogRegistry(config, Environment(), files=MemoryFiles())
    async with logs:
        yield TwoDisks(logs)


async def test_a_follower_that_moves_off_a_full_directory_is_copied_again() -> None:
    async with two_disks() as world:
        await world.follow()
        await world.room_changed(A, is_full=True)
        assert await world.follow() is ErrorCode.KAFKA_STORAGE_ERROR
        assert world.copying.leaders == {}

        await world.moved(B)

        assert world.copying.leaders == {T0: OTHER}
        assert await world.replicas.has_news_of_room()
        assert await world.follow() is ErrorCode.NONE
        assert not await world.replicas.has_news_of_room()


async def test_a_follower_that_moves_into_a_full_directory_is_given_up() -> None:
    async with two_disks() as world:
        await world.follow()
        await world.room_changed(B, is_full=True)
        assert not await world.replicas.has_news_of_room()
        assert world.copying.leaders == {T0: OTHER}

        await world.moved(B)

        assert world.copying.leaders == {}
        assert await world.replicas.has_news_of_room()
        assert await world.follow() is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_follower_that_moves_between_directories_with_room_is_copied_without_a_break() -> None:
    async with two_disks() as world:
        await world.follow()

        await world.moved(B)

        assert world.copying.begun == 1


def no_room(*_: object, **__: object) -> Log:
    raise KafkaStorageError

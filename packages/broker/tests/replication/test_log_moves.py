"""Replicas move between log directories, under load, over truncations, and through losses of power."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.fake_files import MemoryFiles, PowerLoss
from ottla.broker.log.files.file_system import DiskFiles, Files
from ottla.broker.log.hosting.future_logs import MARKER
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.testing import batch, records_of
from ottla.broker.quotas.replication import ReplicationQuota
from ottla.broker.replication import log_moves
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.broker.replication.log_moves import LogMoves
from ottla.broker.replication.partition import Assignment
from ottla.broker.replication.replicas import Replicas
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import (
    InvalidTopicException,
    KafkaError,
    KafkaStorageError,
    LogDirNotFound,
    ReplicaNotAvailable,
)
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("topic", 0)
BOUND_S = 60
STATES = int(os.environ.get("CRASH_STATES", "120"))
A, B = Path("/a"), Path("/b")


class World:
    """One broker's logs in two directories, and its moves."""

    def __init__(self, logs: LogRegistry, **settings: int) -> None:
        self.logs = logs
        self.replicas = Replicas(
            broker_id=1,
            config=logs.config,
            environment=logs.environment,
            logs=logs,
            log_config=lambda _: LogConfig(**settings),  # type: ignore[arg-type]
        )
        self.moves = LogMoves(logs, self.replicas, lambda: 1_000)

    async def lead(self, partition: TopicPartition = PARTITION, epoch: int = 1) -> HostedPartition:
        assigned = Assignment(
            controller_epoch=1,
            leader=1,
            leader_epoch=epoch,
            partition_epoch=epoch,
            isr=(1,),
            replicas=(1,),
            is_new=True,
        )
        await self.replicas.apply([(partition, None, assigned)])
        return self.replicas.leader(partition)

    async def moved(self, to: Path) -> None:
        """Move the partition, and wait until nothing is left to do."""
        self.moves.move(PARTITION, str(to))
        await self.until_settled()

    async def until_settled(self) -> None:
        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.moves.run())
            while list(self.logs.futures) or self._is_marked():  # noqa: ASYNC110 - the task has no event
                await asyncio.sleep(0.001)
            running.cancel()

    def _is_marked(self) -> bool:
        found = self.logs.get(PARTITION)
        return found is not None and (found.directory / MARKER).exists()


@asynccontextmanager
async def opened(*directories: Path, files: Files | None = None, **settings: int) -> AsyncIterator[World]:
    config = BrokerConfig(log_dirs=tuple(map(str, directories)), log_segment_delete_delay_ms=0)
    logs = LogRegistry(config, Environment(), files=files)
    async with logs:
        yield World(logs, **settings)


def append(partition: HostedPartition, *values: bytes) -> None:
    partition.append(batch(*values), now_ms=1_000)


def values(log: Log | None) -> list[bytes | None]:
    assert log is not None
    return [one.value for one in records_of(log)]


def two(folder: Path) -> tuple[Path, Path]:
    return folder / "a", folder / "b"


async def test_a_replica_moves_and_is_there_after_a_restart(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    written = [b"%d" % number for number in range(1_000)]
    async with opened(first, second, segment_bytes=3_000) as world:
        partition = await world.lead()
        for value in written:
            append(partition, value)
        assert partition.log.directory == first / "topic-0"

        await world.moved(second)

        assert partition.log.directory == second / "topic-0"
        append(partition, b"later")
        assert partition.high_watermark == len(written) + 1
        assert not (first / "topic-0").exists()
    async with opened(first, second) as world:
        assert values(world.logs.get(PARTITION)) == [*written, b"later"]


async def test_a_replica_moves_while_it_is_written(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    written: list[bytes] = []
    async with opened(first, second, segment_bytes=20_000) as world:
        partition = await world.lead()

        async def write() -> None:
            while True:
                written.append(b"%d" % len(written) * 50)
                append(partition, written[-1])
                if len(written) % 10 == 0:
                    await partition.log.durable()
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            for target in (second, first, second):
                await world.moved(target)
                assert partition.log.directory.parent == target
            writing.cancel()

        assert values(partition.log) == written
        assert partition.high_watermark == len(written)


async def test_a_copy_that_a_restart_finds_goes_on(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        append(await world.lead(), b"x")
        world.moves.move(PARTITION, str(second))  # and nobody carries it out
        assert [one.name.endswith("-future") for one in second.glob("topic-0*")] == [True]
    async with opened(first, second) as world:
        append(await world.lead(epoch=2), b"y")
        (described,) = [one for one in world.logs.describe() if one.path == second]
        assert [one.is_future for one in described.partitions] == [True]

        await world.until_settled()

        log = world.replicas.leader(PARTITION).log
        assert (log.directory, values(log)) == (second / "topic-0", [b"x", b"y"])


async def test_a_truncation_of_the_log_truncates_the_copy(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        partition = await world.lead()
        for value in (b"a", b"b", b"c"):
            append(partition, value)
        world.moves.move(PARTITION, str(second))
        copy = world.logs.futures.get(PARTITION)
        assert copy is not None
        copy.append_as_follower(partition.log.read(0, 10_000, up_to=3).read(), 1_000)
        await partition.truncate_to(1)
        await world.lead(epoch=5)
        append(partition, b"B")

        await world.until_settled()

        assert partition.log.directory.parent == second
        assert values(partition.log) == [b"a", b"B"]
        assert [tuple(one) for one in partition.log.leader_epochs.entries] == [(1, 0), (5, 1)]


async def test_records_that_were_deleted_are_not_in_the_copy(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        partition = await world.lead()
        for value in (b"a", b"b", b"c"):
            append(partition, value)
        partition.log.advance_log_start(2)
        await world.moved(second)
        assert (partition.log.log_start_offset, values(partition.log)) == (2, [b"c"])
    async with opened(first, second) as world:
        found = world.logs.get(PARTITION)
        assert found is not None
        assert found.log_start_offset == 2


async def test_a_move_back_ends_the_move(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        await world.lead()
        world.moves.move(PARTITION, str(second))

        world.moves.move(PARTITION, str(first))

        assert world.logs.futures.get(PARTITION) is None
        assert not [*second.glob("*-future")]


async def test_a_deleted_partition_leaves_no_copy(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        await world.lead()
        world.moves.move(PARTITION, str(second))
        await world.replicas.stop([(PARTITION, -2, True)])
        assert not list(world.logs.futures)
    async with opened(first, second) as world:
        assert not list(world.logs.futures)


@pytest.mark.parametrize(
    ("partition", "path", "error"),
    [
        (PARTITION, "elsewhere", LogDirNotFound),
        (PARTITION, "/a\0b", LogDirNotFound),
        (TopicPartition("other", 0), "b", ReplicaNotAvailable),
        (TopicPartition("l" * 240, 0), "b", InvalidTopicException),
    ],
)
async def test_what_cannot_be_moved_is_refused(
    tmp_path: Path, partition: TopicPartition, path: str, error: type[KafkaError]
) -> None:
    async with opened(*two(tmp_path)) as world:
        await world.lead()
        if len(partition.topic) > 100:
            await world.lead(partition)
            path = "a" if world.replicas.leader(partition).log.directory.parent.name == "b" else "b"

        with pytest.raises(error):
            world.moves.move(partition, str(tmp_path / path))

        assert not list(world.logs.futures)


async def test_a_partition_is_created_where_it_was_to_move_before(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        with pytest.raises(ReplicaNotAvailable):
            world.moves.move(PARTITION, str(second))

        assert (await world.lead()).log.directory.parent == second


async def test_the_replica_stays_when_the_other_directory_fails(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        partition = await world.lead()
        append(partition, b"x")
        world.moves.move(PARTITION, str(second))
        target = world.logs.log_directories.named(str(second))

        world.logs.directory_failed(target, OSError(5, "broken"))

        assert not list(world.logs.futures)
        assert values(partition.log) == [b"x"]
        with pytest.raises(KafkaStorageError):
            world.moves.move(PARTITION, str(second))


async def test_a_marked_copy_is_not_served_while_its_older_log_may_be_offline(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        partition = await world.lead()
        append(partition, b"x")
        await world.moved(second)
    (second / "topic-0" / MARKER).touch()
    first.rename(tmp_path / "gone")
    first.write_text("no directory")

    async with opened(second, first) as world:
        assert world.logs.get(PARTITION) is None
    first.unlink()
    async with opened(second, first) as world:
        assert values(world.logs.get(PARTITION)) == [b"x"]
        assert not (second / "topic-0" / MARKER).exists()


async def test_a_directory_that_failed_behind_a_move_may_return(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        partition = await world.lead()
        append(partition, b"x")
        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            moving = tasks.create_task(world.moves.run())
            world.moves.move(PARTITION, str(second))
            while partition.log.directory.parent != second:  # noqa: ASYNC110
                await asyncio.sleep(0)
            world.logs.directory_failed(world.logs.log_directories.named(str(first)), OSError(5, "broken"))
            while world.logs.futures.replaced:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            moving.cancel()
        append(partition, b"y")
    assert (first / "topic-0").is_dir()
    first.rename(tmp_path / "gone")
    first.write_text("no directory")

    async with opened(first, second) as world:  # the directory is still offline
        assert values(world.logs.get(PARTITION)) == [b"x", b"y"]
    first.unlink()
    (tmp_path / "gone").rename(first)
    async with opened(first, second) as world:
        assert values(world.logs.get(PARTITION)) == [b"x", b"y"]
        assert not (first / "topic-0").exists()
        assert not (second / "topic-0" / MARKER).exists()


# ---- what happens meanwhile


async def test_a_partition_that_is_deleted_right_after_its_move_leaves_no_older_log(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        partition = await world.lead()

        async def write() -> None:
            while True:
                append(partition, b"x")  # so that the disk has not all of the copy when it takes the place
                await asyncio.sleep(0)

        async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
            writing, moving = tasks.create_task(write()), tasks.create_task(world.moves.run())
            world.moves.move(PARTITION, str(second))
            while partition.log.directory.parent != second:  # noqa: ASYNC110
                await asyncio.sleep(0)
            writing.cancel()

            await world.replicas.stop([(PARTITION, -2, True)])

            while (first / "topic-0").exists() or (second / "topic-0").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            moving.cancel()
    async with opened(first, second) as world:
        assert world.logs.get(PARTITION) is None


class FullOnce(DiskFiles):
    """A disk without room for the removal of the first marker."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def unlink(self, path: Path) -> None:
        if path.name == MARKER and not self.failures:
            self.failures += 1
            raise OSError(errno.ENOSPC, "no space left", str(path))
        super().unlink(path)


async def test_a_move_whose_end_fails_is_ended_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_moves, "FAILED_PAUSE_S", 0.001)
    first, second = two(tmp_path)
    files = FullOnce()
    async with opened(first, second, files=files) as world:
        partition = await world.lead()
        append(partition, b"x")
        await world.moved(second)
        assert files.failures == 1

        await world.moved(first)

        assert partition.log.directory == first / "topic-0"
        assert values(partition.log) == [b"x"]
        assert not (second / "topic-0").exists()


async def test_deleted_records_stay_deleted_when_a_crash_leaves_the_log_and_its_copy(tmp_path: Path) -> None:
    first, second = two(tmp_path / "before")
    async with opened(first, second) as world:
        partition = await world.lead()
        for value in (b"a", b"b", b"c"):
            append(partition, value)
        world.moves.move(PARTITION, str(second))
        copy = world.logs.futures.get(PARTITION)
        assert copy is not None
        copy.append_as_follower(partition.log.read(0, 10_000, up_to=3).read(), 1_000)
        await world.logs.futures.give_name(copy)
        partition.log.advance_log_start(2)
        world.logs.log_directories.named(str(first)).write_checkpoints()
        shutil.copytree(tmp_path / "before", tmp_path / "after", ignore=shutil.ignore_patterns(".lock"))

    async with opened(*two(tmp_path / "after")) as world:
        found = world.logs.get(PARTITION)
        assert found is not None
        assert found.directory.parent == tmp_path / "after" / "b"
        assert (found.log_start_offset, values(found)) == (2, [b"c"])


async def test_a_copy_that_has_its_name_is_not_cut_but_made_anew(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    async with opened(first, second) as world:
        partition = await world.lead()
        for value in (b"a", b"b", b"c"):
            append(partition, value)
        world.moves.move(PARTITION, str(second))
        copy = world.logs.futures.get(PARTITION)
        assert copy is not None
        copy.append_as_follower(partition.log.read(0, 10_000, up_to=3).read(), 1_000)
        await world.logs.futures.give_name(copy)
        await partition.truncate_to(1)

        await world.until_settled()

        assert (partition.log.directory, values(partition.log)) == (second / "topic-0", [b"a"])
        assert copy.directory.name.endswith("-delete")


# ---- losses of power


async def _live(files: MemoryFiles, durable: list[bytes], written: list[bytes]) -> None:
    """Append and move until it is done, or until the power is lost."""
    async with opened(A, B, files=files, segment_bytes=400) as world:
        partition = await world.lead()
        world.moves.move(PARTITION, str(B))

        async def write() -> None:
            for number in range(8):
                written.append(b"%d" % number * 40)
                append(partition, written[-1])
                await partition.log.durable()
                durable[:] = written[: number + 1]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            moving = tasks.create_task(world.moves.run())
            while list(world.logs.futures) or world.logs.futures.replaced:  # noqa: ASYNC110
                await asyncio.sleep(0)
            moving.cancel()


async def _steps_of_a_move() -> int:
    files = MemoryFiles()
    await _live(files, [], [])
    return files.steps


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_loss_of_power_at_any_moment_of_a_move_loses_nothing_that_was_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_moves, "FAILED_PAUSE_S", 0.001)
    monkeypatch.setattr(log_moves, "PAUSE_S", 0.001)
    steps = await _steps_of_a_move()
    for state in range(STATES):
        chance = Random(state)
        files, durable, written = MemoryFiles(), list[bytes](), list[bytes]()
        files.fail_after(chance.randrange(steps), chance)
        with suppress(BaseExceptionGroup, PowerLoss, KafkaError):
            await _live(files, durable, written)
        after = files.crash(chance)
        async with opened(A, B, files=after, segment_bytes=400) as world:
            found = world.logs.get(PARTITION)
            survived = values(found) if found is not None else []
            assert survived == written[: len(survived)], state
            assert len(survived) >= len(durable), state
            names = [name for at in (A, B) for name in after.list(at) if name == "topic-0"]
            assert len(names) == (found is not None), state


async def test_a_move_takes_the_time_that_its_throttle_asks_for(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    now_ms = 0.0

    def passing_ms() -> float:
        nonlocal now_ms
        now_ms += 100
        return now_ms

    async with opened(first, second) as world:
        quota = ReplicationQuota(1, 11, passing_ms)
        quota.bytes_per_s = 1_000_000
        world.moves = LogMoves(world.logs, world.replicas, lambda: 1_000, quota)
        partition = await world.lead()
        for number in range(60):
            append(partition, b"%02d" % number * 50_000)

        await world.moved(first if partition.log.directory.parent == second else second)

        assert now_ms >= 4_000  # of 6 MB; the last steps of up to 1 MiB do not wait for themselves
        assert len(values(partition.log)) == 60

"""Hosted partitions: roles from controllers, listeners, checkpoints, over real logs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.log.files.file_system import DiskFiles
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.truncation import TruncationPlan
from ottla.broker.metrics import Metrics
from ottla.broker.replication.high_watermark_checkpoints import read_high_watermarks
from ottla.broker.replication.replicas import Replicas
from ottla.broker.runtime.environment import Environment
from ottla.broker.runtime.loop_budget import LoopBudget
from ottla.protocol.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.protocol.messages.control_requests import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from ottla.protocol.topics import TopicPartition

T0 = TopicPartition("t", 0)
TOPIC_ID = UUID(int=7)


@pytest.fixture
def plane(tmp_path: Path) -> DataPlane:
    return DataPlane(tmp_path)


class Listening:
    def __init__(self) -> None:
        self.heard: list[tuple[list[tuple[TopicPartition, int]], list[tuple[TopicPartition, int]]]] = []

    def leadership_changed(
        self,
        elected: Sequence[tuple[TopicPartition, int]],
        resigned: Sequence[tuple[TopicPartition, int]],
    ) -> None:
        self.heard.append((list(elected), list(resigned)))


def lead_request(
    leader_epoch: int = 1, leader: int = 1, controller_epoch: int = 1, topic_id: UUID = TOPIC_ID
) -> LeaderAndIsrRequest:
    state = LeaderAndIsrPartitionState(
        partition_index=0,
        controller_epoch=controller_epoch,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=[1, 2],
        partition_epoch=leader_epoch,
        replicas=[1, 2],
        is_new=True,
    )
    topic = LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[state])
    return LeaderAndIsrRequest(controller_epoch=controller_epoch, topic_states=[topic])


def stop_request(leader_epoch: int = 1, *, delete: bool = False) -> StopReplicaRequest:
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=leader_epoch, delete_partition=delete)
    return StopReplicaRequest(
        controller_epoch=1, topic_states=[StopReplicaTopicState(topic_name="t", partition_states=[state])]
    )


async def role(plane: DataPlane, request: LeaderAndIsrRequest) -> ErrorCode:
    response = await plane.replicas.become_leader_or_follower(request)
    response.encode(5)
    if response.error_code:
        return ErrorCode(response.error_code)
    return ErrorCode(response.topics[0].partition_errors[0].error_code)


async def stopped(plane: DataPlane, request: StopReplicaRequest) -> ErrorCode:
    response = await plane.replicas.stop_replicas(request)
    response.encode(3)
    return ErrorCode(response.partition_errors[0].error_code)


async def test_a_controller_makes_a_leader(plane: DataPlane) -> None:
    assert await role(plane, lead_request()) is ErrorCode.NONE

    partition = plane.replicas.leader(T0)
    assert (partition.leader_epoch, partition.log.topic_id) == (1, TOPIC_ID)
    assert [one.topic_partition for one in plane.replicas.leaders()] == [T0]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (lead_request(leader_epoch=5), ErrorCode.STALE_CONTROLLER_EPOCH),
        (lead_request(leader_epoch=4), ErrorCode.STALE_CONTROLLER_EPOCH),
        (lead_request(leader_epoch=6, controller_epoch=0), ErrorCode.STALE_CONTROLLER_EPOCH),
        (lead_request(leader_epoch=6, topic_id=UUID(int=8)), ErrorCode.INCONSISTENT_TOPIC_ID),
        (lead_request(leader_epoch=6), ErrorCode.NONE),
    ],
)
async def test_what_is_older_or_of_another_topic_is_refused(
    plane: DataPlane, request_: LeaderAndIsrRequest, error: ErrorCode
) -> None:
    await role(plane, lead_request(leader_epoch=5))

    assert await role(plane, request_) is error
    assert plane.replicas.leader(T0).leader_epoch == (5 if error else 6)


async def test_a_request_for_an_earlier_life_of_the_broker_is_refused(plane: DataPlane) -> None:
    plane.replicas.broker_epoch = 10
    request = lead_request()
    request.broker_epoch = 9

    assert await role(plane, request) is ErrorCode.STALE_BROKER_EPOCH


async def test_leaders_are_found_by_epoch(plane: DataPlane) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        plane.replicas.leader(T0)
    await role(plane, lead_request(leader_epoch=3))
    with pytest.raises(FencedLeaderEpoch):
        plane.replicas.leader(T0, 2)
    with pytest.raises(UnknownLeaderEpoch):
        plane.replicas.leader(T0, 4)
    await role(plane, lead_request(leader_epoch=4, leader=2))
    with pytest.raises(NotLeaderOrFollower):
        plane.replicas.leader(T0)
    plane.replicas.directory_failed([T0])
    with pytest.raises(KafkaStorageError):
        plane.replicas.leader(T0)


async def test_listeners_hear_of_every_leadership(plane: DataPlane) -> None:
    listening = Listening()
    plane.replicas.subscribe(listening)

    await role(plane, lead_request(leader_epoch=1))
    await role(plane, lead_request(leader_epoch=2))
    await role(plane, lead_request(leader_epoch=3, leader=2))
    await role(plane, lead_request(leader_epoch=4))
    await stopped(plane, stop_request(leader_epoch=4))

    assert listening.heard == [
        ([(T0, 1)], []),
        ([(T0, 2)], []),
        ([], [(T0, 3)]),
        ([(T0, 4)], []),
        ([], [(T0, 4)]),
    ]


def heard_to_lead(listening: Listening) -> dict[TopicPartition, int]:
    """The epochs of the leaderships that a listener knows."""
    led: dict[TopicPartition, int] = {}
    for elected, resigned in listening.heard:
        for gone, _ in resigned:
            led.pop(gone, None)
        led.update(elected)
    return led


async def test_listeners_know_every_leadership_that_other_tasks_see(tmp_path: Path) -> None:
    plane = DataPlane(tmp_path, budget=LoopBudget(background_ms=0.0))  # it yields at each partition
    listening, seen = Listening(), []
    plane.replicas.subscribe(listening)

    async def look() -> None:
        while True:
            led = {one.topic_partition: one.leader_epoch for one in plane.replicas.leaders()}
            assert heard_to_lead(listening) == led
            seen.append(led)
            await asyncio.sleep(0)

    looking = asyncio.get_running_loop().create_task(look())
    requests = [lead_request(1), lead_request(2), lead_request(3, leader=2), lead_request(4)]
    for request in requests:
        (state,) = request.topic_states[0].partition_states
        request.topic_states[0].partition_states = [numbered(state, n) for n in range(3)]
        assert await role(plane, request) is ErrorCode.NONE
    stop = stop_request(leader_epoch=4, delete=True)
    (deletion,) = stop.topic_states[0].partition_states
    stop.topic_states[0].partition_states = [numbered(deletion, n) for n in range(3)]
    assert await stopped(plane, stop) is ErrorCode.NONE

    assert not looking.done()
    looking.cancel()
    second = TopicPartition("t", 1)
    assert {T0: 2, second: 1, TopicPartition("t", 2): 1} in seen


async def test_a_late_stop_does_not_stop_a_later_leader(plane: DataPlane) -> None:
    await role(plane, lead_request(leader_epoch=5))

    assert await stopped(plane, stop_request(leader_epoch=4, delete=True)) is ErrorCode.FENCED_LEADER_EPOCH
    assert plane.replicas.leader(T0).leads


@pytest.mark.parametrize("leader_epoch", [-2, -1, 5])
async def test_a_stop_with_deletion_removes_the_log(plane: DataPlane, leader_epoch: int) -> None:
    await role(plane, lead_request(leader_epoch=5))

    assert await stopped(plane, stop_request(leader_epoch, delete=True)) is ErrorCode.NONE
    assert plane.replicas.hosted(T0) is None
    assert plane.logs.get(T0) is None


def replicas_over(logs: LogRegistry) -> Replicas:
    config = BrokerConfig()
    return Replicas(
        broker_id=1,
        config=config,
        environment=Environment(),
        logs=logs,
        log_config=lambda _: LogConfig.from_broker(config),
        metrics=Metrics(),
    )


async def held_truncation(
    logs: LogRegistry, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, asyncio.Future[int]]:
    """A follower with three records truncates to one; its thread is held until the event is set."""
    await replicas.become_leader_or_follower(lead_request())
    for _ in range(3):
        replicas.leader(T0).append(batch_of(b"x"), now_ms=0)
    await replicas.become_leader_or_follower(lead_request(leader_epoch=2, leader=2))
    partition = replicas.hosted(T0)
    assert partition is not None
    go_on, run = threading.Event(), TruncationPlan.run

    def held(plan: TruncationPlan) -> None:
        assert go_on.wait(10)
        run(plan)

    monkeypatch.setattr(TruncationPlan, "run", held)
    truncation = asyncio.ensure_future(partition.truncate_to(1))
    await asyncio.sleep(0)
    assert partition.log.is_truncating
    return go_on, truncation


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[LogRegistry]:
    async with LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment()) as logs:
        yield logs


async def test_a_leader_starts_from_the_log_end_that_a_truncation_leaves(
    logs: LogRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = replicas_over(logs)
    go_on, truncation = await held_truncation(logs, replicas, monkeypatch)

    led = asyncio.ensure_future(replicas.become_leader_or_follower(lead_request(leader_epoch=3)))
    await asyncio.sleep(0.05)
    assert not led.done()
    go_on.set()
    await led

    partition = replicas.leader(T0)
    assert await truncation == partition.log.log_end_offset == 1
    assert (partition.core.epoch_start_offset, partition.high_watermark) == (1, 0)


async def test_a_partition_that_is_deleted_and_created_again_during_a_truncation_keeps_its_files(
    logs: LogRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = replicas_over(logs)
    go_on, truncation = await held_truncation(logs, replicas, monkeypatch)

    stopped = asyncio.ensure_future(replicas.stop_replicas(stop_request(-2, delete=True)))
    again = asyncio.ensure_future(replicas.become_leader_or_follower(lead_request()))
    await asyncio.sleep(0.05)
    go_on.set()

    assert [one.error_code for one in (await stopped).partition_errors] == [0]
    await again
    await asyncio.gather(truncation, return_exceptions=True)
    new = replicas.leader(T0)
    new.append(batch_of(b"new"), now_ms=0)
    assert (new.log.log_end_offset, new.log.offline) == (1, None)
    assert (new.log.directory / "00000000000000000000.log").stat().st_size == new.log.log_end.position


async def test_high_watermarks_survive_a_restart(plane: DataPlane) -> None:
    await role(plane, lead_request())
    partition = plane.replicas.leader(T0)
    partition.append(batch_of(b"a", b"b", b"c"), now_ms=1)
    partition.fetched(2, 2, 0, now_ms=plane.environment.clock.now_ms())
    await plane.replicas.checkpoint_high_watermarks()
    assert read_high_watermarks(DiskFiles(), [plane.logs.root]) == {T0: 2}
    plane.logs.close()

    again = DataPlane(plane.logs.root)
    await again.replicas.load()
    await role(again, lead_request(leader_epoch=2))

    assert again.replicas.leader(T0).high_watermark == 2
    assert again.replicas.leader(T0).log.log_end_offset == 3


async def test_checkpoints_of_high_watermarks_are_written_one_at_a_time_and_the_newest_stays(
    plane: DataPlane, caplog: pytest.LogCaptureFixture
) -> None:
    await role(plane, lead_request())
    partition = plane.replicas.leader(T0)
    partition.append(batch_of(b"a", b"b", b"c"), now_ms=1)
    passes = [asyncio.ensure_future(plane.replicas.checkpoint_high_watermarks()) for _ in range(40)]
    await asyncio.sleep(0)
    for one in passes[::2]:
        one.cancel()  # its thread goes on
    partition.fetched(2, 3, 0, now_ms=plane.environment.clock.now_ms())
    assert partition.high_watermark == 3

    await plane.replicas.checkpoint_high_watermarks()
    await asyncio.gather(*passes, return_exceptions=True)

    assert [one.getMessage() for one in caplog.records] == []
    assert read_high_watermarks(DiskFiles(), [plane.logs.root]) == {T0: 3}


class CheckpointCount(DiskFiles):
    """Counts the checkpoints of high watermarks that were written."""

    written = 0

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.written += target.name == "replication-offset-checkpoint"


async def test_a_checkpoint_of_high_watermarks_is_written_when_one_has_changed(tmp_path: Path) -> None:
    files = CheckpointCount()
    plane = DataPlane(tmp_path, files=files)
    await role(plane, lead_request())
    partition = plane.replicas.leader(T0)
    for _ in range(3):
        await plane.replicas.checkpoint_high_watermarks()
    assert files.written == 1

    partition.append(batch_of(b"a"), required_acks=1, now_ms=1)
    await plane.replicas.checkpoint_high_watermarks()
    assert files.written == 1, "it is not committed"
    partition.fetched(2, 1, 0, now_ms=plane.environment.clock.now_ms())
    for _ in range(2):
        await plane.replicas.checkpoint_high_watermarks()

    assert files.written == 2
    assert read_high_watermarks(files, [plane.logs.root]) == {T0: 1}


async def test_a_damaged_checkpoint_is_ignored(plane: DataPlane) -> None:
    (plane.logs.root / "replication-offset-checkpoint").write_bytes(b"0\n1\nnonsense\n")

    assert read_high_watermarks(DiskFiles(), [plane.logs.root]) == {}


async def again(logs: LogRegistry, request: LeaderAndIsrRequest) -> tuple[ErrorCode, Replicas]:
    """What a controller hears when this broker has been started again on its logs."""
    replicas = replicas_over(logs)
    response = await replicas.become_leader_or_follower(request)
    return ErrorCode(response.topics[0].partition_errors[0].error_code), replicas


async def test_data_of_a_deleted_topic_does_not_come_back_in_a_new_one_of_its_name(tmp_path: Path) -> None:
    async with LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment()) as logs:
        _, replicas = await again(logs, lead_request())
        replicas.leader(T0).append(batch_of(b"of the deleted topic"), required_acks=1, now_ms=0)
        other = lead_request(topic_id=UUID(int=8))
        other.topic_states[0].partition_states[0].is_new = False

        error, _ = await again(logs, other)
        assert error is ErrorCode.INCONSISTENT_TOPIC_ID
        error, replicas = await again(logs, lead_request(topic_id=UUID(int=8)))

        assert error is ErrorCode.NONE
        assert replicas.leader(T0).log.log_end_offset == 0
        assert any(name.endswith("-stray") for name in os.listdir(tmp_path))


def numbered(state: Any, number: int) -> Any:
    made = copy(state)
    made.partition_index = number
    return made


async def test_the_event_loop_goes_on_while_many_roles_are_taken_and_given_up(tmp_path: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    request, stop = lead_request(), stop_request(delete=True)
    states = request.topic_states[0].partition_states
    request.topic_states[0].partition_states = [numbered(states[0], n) for n in range(100)]
    deletions = stop.topic_states[0].partition_states
    stop.topic_states[0].partition_states = [numbered(deletions[0], n) for n in range(100)]
    async with LogRegistry(BrokerConfig(log_dirs=(str(tmp_path),)), Environment()) as logs:
        counting = asyncio.get_running_loop().create_task(count())
        _, replicas = await again(logs, request)
        while_taking, turns = turns, 0
        await replicas.stop_replicas(stop)
        counting.cancel()

    assert while_taking >= 3

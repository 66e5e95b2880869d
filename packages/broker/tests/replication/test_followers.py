"""Followers over real logs, which copy from the handlers of a leader in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import list_offsets, offset_for_leader_epoch
from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.response import FetchAnswer
from ottla.broker.api.testing import DataPlane, OneDirectory, batch_of
from ottla.broker.config import BrokerConfig, LogConfig
from ottla.broker.metrics import Gauge, Metrics
from ottla.broker.quotas.replication import ReplicaQuota
from ottla.broker.replication.followers import Followers
from ottla.broker.replication.partition import Assignment
from ottla.broker.replication.replicas import HostedPartition, Replicas
from ottla.broker.runtime.environment import Environment
from ottla.protocol.errors import BrokerNotAvailable, ErrorCode
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.log_offsets import ListOffsetsRequest
from ottla.protocol.topics import TopicPartition

BOUND_S = 30.0
LEADER, FOLLOWER = 1, 2
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Peer:
    """A connection that ends in the leader's handlers; `change` may replace a Fetch response."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.is_down = False
        self.closed = 0
        self.asked: list[Any] = []
        self.change: Callable[[FetchResponse], FetchResponse] = lambda response: response

    async def send(self, request: Any, response_type: Any) -> Any:
        self.asked.append(request)
        if self.is_down:
            raise ConnectionError("refused")
        context = self.plane.context(request.API_KEY, 12)
        if isinstance(request, FetchRequest):
            answer = fetch.handle(self.plane.services, request, context)
            answer = answer if isinstance(answer, FetchAnswer) else await answer
            parts = answer.encode_parts(12)
            body = b"".join(one if isinstance(one, bytes) else one.read() for one in parts)
            return self.change(FetchResponse.decode(memoryview(body), 12))
        context = self.plane.context(request.API_KEY, 6)
        if isinstance(request, ListOffsetsRequest):
            return await list_offsets.handle(self.plane.services, request, context)
        return await offset_for_leader_epoch.handle(self.plane.services, request, context)

    async def close(self) -> None:
        self.closed += 1


class World:
    """A leader and a follower of the partitions of topic `t`."""

    def __init__(self, root: Path, fetch_wait_max_ms: int = 20) -> None:
        self.leader = DataPlane(root / "leader")
        self.peer, self.metrics = Peer(self.leader), Metrics()
        self.config = BrokerConfig(replica_fetch_wait_max_ms=fetch_wait_max_ms, replica_fetch_backoff_ms=100)
        self.logs = OneDirectory(root / "follower")
        self.flushes = False
        self.throttled: tuple[str, ...] = ()
        self.now_ms = 0.0
        self.quota = ReplicaQuota(FOLLOWER, 1, 11, lambda: self.now_ms)
        self.followers = Followers(
            broker_id=FOLLOWER,
            config=self.config,
            environment=Environment(),
            connect=self._connect,
            metrics=self.metrics,
            quota=self.quota,
        )
        self.replicas = Replicas(
            broker_id=FOLLOWER,
            config=self.config,
            environment=Environment(),
            logs=self.logs,  # type: ignore[arg-type]
            log_config=lambda _: LogConfig(
                flush_before_acknowledge=self.flushes,
                follower_replication_throttled_replicas=self.throttled,
            ),
            metrics=self.metrics,
            followers=self.followers,
        )

    def _connect(self, leader: int) -> Peer:
        if leader != LEADER:
            raise BrokerNotAvailable
        return self.peer

    async def lead(self, partition: int = 0, epoch: int = 0) -> HostedPartition:
        return await self.leader.lead(
            "t", partition, leader_epoch=epoch, isr=(LEADER,), replicas=(LEADER, FOLLOWER)
        )

    async def follow(
        self, partition: int = 0, epoch: int = 0, leader: int = LEADER, adding: tuple[int, ...] = ()
    ) -> HostedPartition:
        name = TopicPartition("t", partition)
        role = Assignment(
            controller_epoch=1,
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=epoch,
            isr=(LEADER,),
            replicas=(LEADER, FOLLOWER),
            adding_replicas=adding,
        )
        await self.replicas.apply([(name, None, role)])
        found = self.replicas.hosted(name)
        assert found is not None
        return found

    def gauge(self, name: str) -> float:
        found = self.metrics.get("kafka.server", "ReplicaFetcherManager", name, clientId="Replica")
        assert isinstance(found, Gauge)
        return found.value


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    async with world.followers:
        yield world


@pytest.fixture
async def waiting_world(tmp_path: Path) -> AsyncIterator[World]:
    """A world whose follower waits at the leader for longer than a test does."""
    world = World(tmp_path, fetch_wait_max_ms=1_000 * int(4 * BOUND_S))
    async with world.followers:
        yield world


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def append(partition: HostedPartition, count: int, value: bytes = b"x") -> None:
    for _ in range(count):
        partition.append(batch_of(value), required_acks=1, now_ms=1)


def content(partition: HostedPartition) -> bytes:
    return b"".join(
        one.read_bytes() for one in sorted(partition.log.directory.glob("*.log")) if one.stat().st_size
    )


async def alike(leader: HostedPartition, follower: HostedPartition) -> None:
    """Wait until both logs end at one offset, and compare them."""
    await until(lambda: leader.log.log_end_offset == follower.log.log_end_offset)
    assert content(leader) == content(follower)
    assert leader.log.leader_epochs.entries == follower.log.leader_epochs.entries


async def test_a_follower_copies_the_log_and_learns_what_is_committed(world: World) -> None:
    leader, follower = await world.lead(), await world.follow()
    append(leader, 50)

    await alike(leader, follower)
    await until(lambda: follower.high_watermark == 50)

    append(leader, 1)
    await until(lambda: follower.high_watermark == 51)
    assert world.gauge("MaxLag") == 0
    assert leader.core.followers[FOLLOWER].log_end_offset == 51


async def test_bytes_that_a_new_replica_copies_are_counted_as_reassigned(world: World) -> None:
    leader, follower = await world.lead(), await world.follow(adding=(FOLLOWER,))
    leader.core.adding_replicas = (FOLLOWER,)
    append(leader, 50)

    await alike(leader, follower)

    bytes_in = world.metrics.meter("kafka.server", "BrokerTopicMetrics", "ReassignmentBytesInPerSec")
    bytes_out = world.leader.services.topic_metrics.reassignment_bytes_out
    assert bytes_in.count == bytes_out.count == leader.log.segments.size_bytes > 0
    assert world.gauge("DeadThreadCount") == 0


async def test_records_that_only_an_earlier_leader_had_are_cut_off(world: World) -> None:
    leader, follower = await world.lead(), await world.follow()
    append(leader, 10)
    await alike(leader, follower)
    await world.follow(epoch=1, leader=FOLLOWER)  # it leads, alone, and writes
    append(follower, 5, b"lost")
    await world.lead(epoch=2)
    append(leader, 3, b"kept")

    await world.follow(epoch=2)

    await alike(leader, follower)
    assert b"lost" not in content(follower)
    assert [one.epoch for one in follower.log.leader_epochs.entries] == [0, 2]


async def test_an_epoch_led_without_a_write_does_not_stop_a_follower(world: World) -> None:
    leader, follower = await world.lead(), await world.follow()
    append(leader, 10)
    await alike(leader, follower)
    await world.follow(epoch=1, leader=FOLLOWER)
    await world.lead(epoch=2)

    await world.follow(epoch=2)
    append(leader, 1)

    await alike(leader, follower)


async def test_a_log_that_the_leader_has_deleted_up_to_a_later_offset_starts_there(world: World) -> None:
    leader = await world.lead()
    append(leader, 20)
    leader.core.followers.clear()
    leader.core.appended_alone(20)
    await leader.truncate_fully_and_start_at(20)
    await world.lead(epoch=1)
    append(leader, 5)

    follower = await world.follow(epoch=1)

    await until(lambda: follower.log.log_end_offset == 25)
    assert follower.log.log_start_offset == 20
    assert content(leader) == content(follower)


async def test_the_log_start_follows_the_leaders(world: World) -> None:
    leader, follower = await world.lead(), await world.follow()
    append(leader, 20)
    await until(lambda: follower.high_watermark == 20)

    leader.log.advance_log_start(7)
    leader.core.log_start_moved(7)

    await until(lambda: follower.log.log_start_offset == 7)
    await until(lambda: leader.core.low_watermark == 7)


async def test_damaged_records_are_asked_for_again_and_do_not_stop_others(world: World) -> None:
    leaders = [await world.lead(0), await world.lead(1)]
    followers = [await world.follow(0), await world.follow(1)]

    def damage(response: FetchResponse) -> FetchResponse:
        for topic in response.responses:
            for one in topic.partitions:
                if one.partition_index == 0 and one.records:
                    one.records = bytes(one.records[:-1]) + bytes([one.records[-1] ^ 1])
        return response

    world.peer.change = damage
    for leader in leaders:
        append(leader, 3)
    await alike(leaders[1], followers[1])
    assert followers[0].log.log_end_offset == 0

    world.peer.change = lambda response: response
    await alike(leaders[0], followers[0])
    assert world.gauge("FailedPartitionsCount") == 0


async def test_a_log_that_cannot_be_written_is_given_up_and_does_not_stop_others(world: World) -> None:
    leaders = [await world.lead(0), await world.lead(1)]
    followers = [await world.follow(0), await world.follow(1)]
    followers[0].log.fail(OSError(5, "Input/output error"))

    for leader in leaders:
        append(leader, 3)

    await alike(leaders[1], followers[1])
    await until(lambda: world.gauge("FailedPartitionsCount") == 1)


async def test_an_error_of_one_partition_does_not_stop_others(world: World) -> None:
    await world.lead(0, epoch=3)
    leader = await world.lead(1)
    await world.follow(0, epoch=7)  # of an epoch that the leader does not know yet
    follower = await world.follow(1)

    append(leader, 3)
    await alike(leader, follower)

    behind = await world.lead(0, epoch=7)
    append(behind, 1)
    await until(lambda: world.replicas.hosted(T0).log.log_end_offset == 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(("code", "closed"), [(9_999, 0), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)])
async def test_an_unknown_code_or_a_refusal_is_an_error_of_one_partition(
    world: World, code: int, closed: int
) -> None:
    leaders = [await world.lead(number) for number in (0, 1)]
    unknown = [0]

    def refused(response: FetchResponse) -> FetchResponse:
        for topic in response.responses:
            for one in topic.partitions:
                if one.partition_index == 0 and not unknown[0]:
                    one.error_code, unknown[0] = code, 1
        return response

    world.peer.change = refused
    followers = [await world.follow(number) for number in (0, 1)]
    for one in leaders:
        append(one, 3)

    for leader, follower in zip(leaders, followers, strict=True):
        await alike(leader, follower)
    assert (unknown, world.peer.closed) == ([1], closed)


async def test_an_answer_that_breaks_a_rule_of_the_code_does_not_end_the_fetcher(world: World) -> None:
    leader = await world.lead()
    broken = [0]

    def fail(response: FetchResponse) -> FetchResponse:
        broken[0] += 1
        if broken[0] == 1:
            raise RuntimeError("a defect")
        return response

    world.peer.change = fail
    follower = await world.follow()
    append(leader, 3)

    await alike(leader, follower)


async def test_a_leader_that_does_not_answer_is_asked_until_it_does(world: World) -> None:
    leader = await world.lead()
    world.peer.is_down = True
    follower = await world.follow()
    append(leader, 3)
    await until(lambda: len(world.peer.asked) > 2)

    world.peer.is_down = False

    await alike(leader, follower)


async def waits(world: World, partition: HostedPartition) -> None:
    """Wait until the fetch of a partition waits at the leader."""
    await until(lambda: bool(partition.watchers))


async def test_an_added_partition_does_not_wait_for_the_fetch_of_the_others(waiting_world: World) -> None:
    world = waiting_world
    leaders = [await world.lead(0), await world.lead(1)]
    await world.follow(0)
    await waits(world, leaders[0])
    append(leaders[1], 3)

    added = await world.follow(1)

    await alike(leaders[1], added)


async def test_a_paused_partition_does_not_wait_for_the_fetch_of_the_others(waiting_world: World) -> None:
    world = waiting_world
    waiting, later = await world.lead(0), await world.follow(1)
    await until(lambda: len(world.peer.asked) > 1)
    await world.follow(0)
    await waits(world, waiting)

    leader = await world.lead(1)
    append(leader, 3)

    await alike(leader, later)


async def test_requests_say_only_what_changed(world: World) -> None:
    leaders = [await world.lead(0), await world.lead(1)]
    followers = [await world.follow(0), await world.follow(1)]
    append(leaders[0], 1)
    await alike(leaders[0], followers[0])
    await until(lambda: world.peer.asked[-1].session_epoch > 2)
    world.peer.asked.clear()

    append(leaders[1], 1)
    await alike(leaders[1], followers[1])
    await until(lambda: len(world.peer.asked) > 3)

    named = {
        one.partition for asked in world.peer.asked for topic in asked.topics for one in topic.partitions
    }
    assert named == {1}


async def test_fetchers_end_when_nothing_is_followed_and_begin_again(world: World) -> None:
    leader, follower = await world.lead(), await world.follow()
    append(leader, 3)
    await alike(leader, follower)

    await world.follow(epoch=1, leader=-1)
    await world.lead(epoch=2)
    append(leader, 3)
    await until(lambda: not any("FetcherThread" in str(name) for name in world.metrics.names()))
    assert follower.log.log_end_offset == 3

    await world.follow(epoch=2)
    await alike(leader, follower)
    assert any("ReplicaFetcherThread-0-1" in str(name) for name in world.metrics.names())


async def test_a_cut_off_batch_at_the_end_of_an_answer_is_left_for_the_next_one(world: World) -> None:
    leader, follower = await world.lead(), await world.follow()
    torn = []

    def tear(response: FetchResponse) -> FetchResponse:
        for topic in response.responses:
            for one in topic.partitions:
                if one.records and len(one.records) > 100:
                    torn.append(1)
                    one.records = one.records[:-10]
        return response

    world.peer.change = tear
    append(leader, 5)

    await alike_after(leader, follower, torn)


async def alike_after(leader: HostedPartition, follower: HostedPartition, torn: list[int]) -> None:
    await until(lambda: follower.log.log_end_offset == 5)
    assert content(leader) == content(follower)
    assert torn


async def test_a_follower_that_flushes_asks_only_from_what_is_on_its_disk(world: World) -> None:
    world.flushes = True
    leader, follower = await world.lead(), await world.follow()
    ahead: list[tuple[int, int]] = []

    def look(response: FetchResponse) -> FetchResponse:
        synced = follower.log.recovery_point
        asked = [one.fetch_offset for topic in world.peer.asked[-1].topics for one in topic.partitions]
        ahead.extend((offset, synced) for offset in asked if offset > synced)
        return response

    world.peer.change = look
    for _ in range(5):
        append(leader, 10)
        await alike(leader, follower)
    await until(lambda: follower.high_watermark == 50)

    assert ahead == []


async def test_a_throttle_holds_up_what_lacks_records_and_nothing_else(world: World) -> None:
    world.throttled = ("0:2",)
    leader, other = await world.lead(), await world.lead(1)
    append(leader, 30, b"x" * 1_000)
    world.quota.bytes_per_s = 10_000
    world.quota.record(10_001)
    held, free = await world.follow(), await world.follow(1)

    append(other, 20)
    await alike(other, free)
    assert held.log.log_end_offset == 0

    world.now_ms = 60_000
    await alike(leader, held)
    assert world.quota.byte_rate > 30_000
    await until(lambda: held.high_watermark == 30)
    append(leader, 10)  # it is in sync: writes to the leader wait for it
    await alike(leader, held)
    assert world.quota.is_exceeded


async def test_a_follower_that_flushes_syncs_its_records_of_earlier_roles_first(world: World) -> None:
    world.flushes = True
    leader, follower = await world.lead(), await world.follow(leader=-1)
    append(leader, 10)
    follower.log.append_as_follower(leader.log.read(0, 100_000, up_to=10).read(), 1)
    assert follower.log.recovery_point == 0
    asked: list[tuple[int, int]] = []

    def look(response: FetchResponse) -> FetchResponse:
        offsets = [one.fetch_offset for topic in world.peer.asked[-1].topics for one in topic.partitions]
        asked.extend((offset, follower.log.recovery_point) for offset in offsets)
        return response

    world.peer.change = look
    await world.lead(epoch=1)
    await world.follow(epoch=1)
    await until(lambda: bool(asked))

    assert asked[0] == (10, 10)

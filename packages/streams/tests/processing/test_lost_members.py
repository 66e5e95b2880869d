"""Members of a real group that stand still, drain for long, or commit between two generations."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.admin import Admin
from ottla.broker.testing import BrokerThread
from ottla.client.cluster import Cluster
from ottla.consumer import ConsumerRecord
from ottla.consumer.group.coordinator_connection import CoordinatorConnection
from ottla.consumer.group.leadership import encode_assignment
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.topics import TopicPartition
from peers.order_processors import WAIT_S, processor, until, write

TESTS = Path(__file__).parents[4] / "tests"
SESSION_MS = 6_000
PLACES = [TopicPartition("orders", 0), TopicPartition("orders", 1)]


# --- a member that stands still


@asynccontextmanager
async def stalled_member(broker: BrokerThread, notes: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "peers.stalled_member", broker.bootstrap_servers, str(notes),
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_a_member_that_stood_still_starts_nothing_that_others_have(
    ottla_broker: BrokerThread, tmp_path: Path
) -> None:
    await write(ottla_broker, 600, len(PLACES))
    notes, seen = tmp_path / "notes", Counter[tuple[int, int]]()
    notes.touch()

    async def handle(record: ConsumerRecord) -> None:
        seen[record.partition, record.offset] += 1

    def noted() -> list[str]:
        return notes.read_text().splitlines()

    async with stalled_member(ottla_broker, notes) as member:
        await until(lambda: len(noted()) > 20)
        member.send_signal(signal.SIGSTOP)
        async with processor(ottla_broker, handle, session_timeout_ms=SESSION_MS) as other:
            await until(lambda: len(seen | Counter(tuple(map(int, each.split())) for each in noted())) == 600)
            started = noted()
            member.send_signal(signal.SIGCONT)
            await until(lambda: len(other.scheduler.partitions) == 1)  # it is back in the group

    assert noted() == started
    assert set(seen.values()) == {1}


# --- a drain that takes longer than the session


@pytest.mark.slow
async def test_a_drain_may_take_longer_than_the_session(ottla_broker: BrokerThread) -> None:
    await write(ottla_broker, 40, len(PLACES))
    seen, entered = Counter[tuple[int, int]](), set[int]()

    async def slow(record: ConsumerRecord) -> None:
        entered.add(record.partition)
        await asyncio.sleep(9)
        seen[record.partition, record.offset] += 1

    async def handle(record: ConsumerRecord) -> None:
        seen[record.partition, record.offset] += 1

    settings = {
        "order": "partition",
        "session_timeout_ms": SESSION_MS,
        "drain_timeout_ms": 60_000,
        "close_timeout_ms": 90_000,
    }
    first = processor(ottla_broker, slow, **settings)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(first.run())
        await until(lambda: len(entered) == len(PLACES))
        async with processor(ottla_broker, handle, **settings) as second:
            await until(lambda: len(second.scheduler.partitions) == 1)
            first.stop()
            await until(lambda: len(seen) == 40)
        await running

    assert set(seen.values()) == {1}


# --- a commit between two generations


class Leader:
    """A member that leads the group, gives all partitions to the other, and shares them when it wants."""

    def __init__(self, cluster: Cluster) -> None:
        self._coordinator = CoordinatorConnection(cluster, "g")
        self.member_id = ""
        self.generation = -1
        self.others: list[str] = []
        self._metadata = b"\x00\x01\x00\x00\x00\x01\x00\x06orders\xff\xff\xff\xff\x00\x00\x00\x00"

    async def join(self) -> None:
        for _ in range(2):  # the first answer names its id
            protocol = JoinGroupRequestProtocol(name="cooperative-sticky", metadata=self._metadata)
            request = JoinGroupRequest(
                group_id="g", session_timeout_ms=60_000, rebalance_timeout_ms=60_000,
                member_id=self.member_id, protocol_type="consumer", protocols=[protocol],
            )  # fmt: skip
            answer = await self._coordinator.send(request, JoinGroupResponse, timeout_s=60)
            self.member_id, self.generation = answer.member_id, answer.generation_id
            if answer.error_code == ErrorCode.NONE:
                self.others = [each.member_id for each in answer.members if each.member_id != self.member_id]
                return

    async def share(self) -> None:
        given = encode_assignment(PLACES)
        shares = [SyncGroupRequestAssignment(member_id=each, assignment=given) for each in self.others]
        request = SyncGroupRequest(
            group_id="g", generation_id=self.generation, member_id=self.member_id,
            protocol_type="consumer", protocol_name="cooperative-sticky",
            assignments=shares,
        )  # fmt: skip
        await self._coordinator.send(request, SyncGroupResponse, timeout_s=60)

    async def until_rebalancing(self) -> None:
        code = int(ErrorCode.NONE)
        while code != ErrorCode.REBALANCE_IN_PROGRESS:
            request = HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.member_id)
            code = (await self._coordinator.send(request, HeartbeatResponse)).error_code
            await asyncio.sleep(0.01)

    async def leave(self) -> None:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=self.member_id)])
        await self._coordinator.send(request, LeaveGroupResponse)
        await self._coordinator.close()


async def test_a_last_commit_between_two_generations_is_not_lost(ottla_broker: BrokerThread) -> None:
    """Its leader has joined and does not share the partitions: the coordinator takes no commit until then."""
    await write(ottla_broker, 40, len(PLACES))
    seen, gate = Counter[tuple[int, int]](), asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        if record.offset:
            await gate.wait()
        seen[record.partition, record.offset] += 1

    servers = ottla_broker.bootstrap_servers
    async with asyncio.timeout(WAIT_S), Cluster(servers) as cluster, asyncio.TaskGroup() as tasks:
        leader = Leader(cluster)
        await leader.join()
        await leader.share()
        one = processor(ottla_broker, handle, session_timeout_ms=SESSION_MS)
        running = tasks.create_task(one.run())
        await leader.until_rebalancing()
        await leader.join()
        await leader.share()
        await until(lambda: len(seen) == len(PLACES))
        await leader.join()  # a leader that joins again begins a rebalance
        gate.set()
        await until(lambda: len(seen) == 40)
        one.stop()
        await asyncio.sleep(3)  # for longer than a heartbeat of this session may take
        await leader.share()
        await running
        await leader.leave()
        async with Admin(servers) as admin:
            committed = await admin.groups.committed("g", PLACES)

    assert {each: offset for each, (offset, _) in committed.items()} == dict.fromkeys(PLACES, 20)

"""Commits between two generations: the coordinator refuses them until all members have their assignments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.testing import ScriptedBroker
from ottla.consumer.group.leadership import encode_assignment
from ottla.consumer.group.rebalance_events import Phase
from ottla.consumer.subscription import RebalanceListener, subscription
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.topics import TopicPartition
from peers.group_application import GroupApplication, group_application

PLACE = TopicPartition("t", 0)


class Coordinator(ScriptedBroker):
    """A group with one member that does not lead; a test sets the codes of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = 0
        self.beat: Callable[[], int] = lambda: 0
        self.sync: Callable[[], int] = lambda: 0
        self.commit: Callable[[], int] = lambda: 0
        self.on(MetadataRequest, lambda _: self.metadata("t"))
        self.on(
            FindCoordinatorRequest,
            lambda _: FindCoordinatorResponse(node_id=1, host=self.host, port=self.port),
        )
        self.on(JoinGroupRequest, self._joined)
        self.on(SyncGroupRequest, self._synced)
        self.on(HeartbeatRequest, lambda _: HeartbeatResponse(error_code=self.beat()))
        self.on(LeaveGroupRequest, lambda _: LeaveGroupResponse())
        self.on(OffsetCommitRequest, self._committed)

    def _joined(self, request: JoinGroupRequest) -> JoinGroupResponse:
        self.generation += 1
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name=request.protocols[0].name,
            leader="other",
            member_id="me",
        )

    def _synced(self, _: SyncGroupRequest) -> SyncGroupResponse:
        code = self.sync()
        return SyncGroupResponse(error_code=code, assignment=b"" if code else encode_assignment([PLACE]))

    def _committed(self, _: OffsetCommitRequest) -> OffsetCommitResponse:
        part = OffsetCommitResponsePartition(partition_index=0, error_code=self.commit())
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])

    def rebalance(self) -> None:
        """Answer the member once that the group rebalances."""

        def once() -> int:
            self.beat = lambda: 0
            return ErrorCode.REBALANCE_IN_PROGRESS

        self.beat = once


@asynccontextmanager
async def cooperative(broker: Coordinator, **settings: Any) -> AsyncIterator[GroupApplication]:
    async with group_application(
        broker.bootstrap_servers,
        subscription("t"),
        group_id="g",
        partition_assignment_strategy="cooperative-sticky",
        **{"heartbeat_interval_ms": 5} | settings,
    ) as one:
        yield one


async def test_a_member_that_awaits_its_assignment_sends_nothing_behind_that_request() -> None:
    """A heartbeat would be answered after it, too late: its time-out took the connection from both."""
    refused = 0

    def refuse() -> int:
        nonlocal refused
        refused += 1
        return ErrorCode.REBALANCE_IN_PROGRESS if refused < 5 else ErrorCode.NONE

    async with Coordinator() as broker, asyncio.timeout(60), cooperative(broker) as one:
        await one.until_owning(0)
        broker.ignore(SyncGroupRequest)
        broker.rebalance()
        await one.until(lambda: len(broker.seen(SyncGroupRequest)) == 2)
        broker.commit = refuse
        await one.commits.commit({PLACE: OffsetAndMetadata(1)})
        sent = [type(request) for request, _ in broker.requests]
        broker.drop_connections()
        broker.on(SyncGroupRequest, broker._synced)

    assert HeartbeatRequest not in sent[sent.index(OffsetCommitRequest) :]


async def test_a_commit_while_the_member_waits_to_join_again_is_repeated() -> None:
    """A last commit was given up, and the next owner of the partition repeated what had been handled."""
    refused_in: set[Phase] = set()

    async with Coordinator() as broker, asyncio.timeout(60), cooperative(broker) as one:

        def refuse() -> int:
            refused_in.add(one.membership._member.phase)
            return ErrorCode.REBALANCE_IN_PROGRESS if len(refused_in) < 2 else ErrorCode.NONE

        await one.until_owning(0)
        broker.sync = lambda: ErrorCode.NONE if refused_in else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        broker.rebalance()
        await one.until(lambda: len(broker.seen(SyncGroupRequest)) >= 4)  # it waits longer and longer
        await one.until(lambda: one.membership._member.phase is Phase.WAITING)
        broker.commit = refuse
        await one.commits.commit({PLACE: OffsetAndMetadata(1)})

    assert Phase.WAITING in refused_in


class CommittingListener(RebalanceListener):
    """A listener that commits what goes."""

    def __init__(self) -> None:
        self.one: GroupApplication | None = None
        self.committed = 0

    async def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        if self.one is not None:
            await self.one.commits.commit({each: OffsetAndMetadata(1) for each in revoked})
            self.committed += 1


async def test_a_member_that_leaves_between_two_generations_repeats_its_last_commit() -> None:
    listener = CommittingListener()
    codes = [ErrorCode.REBALANCE_IN_PROGRESS] * 3
    async with Coordinator() as broker, asyncio.timeout(60):
        broker.commit = lambda: codes.pop() if codes else ErrorCode.NONE
        async with cooperative(broker, listener=listener) as one:
            listener.one = one
            await one.until_owning(0)
            broker.sync = lambda: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            broker.rebalance()
            await one.until(lambda: len(broker.seen(SyncGroupRequest)) == 2)

        assert listener.committed == 1
        assert len(broker.seen(OffsetCommitRequest)) == 4

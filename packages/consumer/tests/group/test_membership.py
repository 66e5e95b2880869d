"""A membership and a coordinator that says what the test wants: errors, old versions, other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.client.cluster import Cluster
from ottla.client.group_metadata import GroupMetadata, OffsetAndMetadata
from ottla.client.testing import ScriptedBroker
from ottla.consumer import Consumer
from ottla.consumer.errors import CommitFailed, NoSuchPartitions
from ottla.consumer.group.commits import Commits
from ottla.consumer.group.leadership import encode_assignment
from ottla.consumer.subscription import RebalanceListener, subscription
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, GroupAuthorizationFailed
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponseBroker
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.records import BatchBuilder
from ottla.protocol.topics import TopicPartition
from peers.group_application import group_application

PLACE = TopicPartition("t", 0)
WANTED = subscription("t")
ME = "member-1"
OLD: dict[int, tuple[int, int]] = {
    ApiKey.JOIN_GROUP: (0, 1),
    ApiKey.SYNC_GROUP: (0, 0),
    ApiKey.HEARTBEAT: (0, 0),
    ApiKey.LEAVE_GROUP: (0, 1),
    ApiKey.OFFSET_COMMIT: (0, 2),
    ApiKey.FIND_COORDINATOR: (0, 0),
}


def then(*codes: int) -> Callable[[], int]:
    """Give codes one after the other, and the last one for ever."""
    left = list(codes)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


class Coordinator(ScriptedBroker):
    """A group of one member, which leads; each API answers with its codes."""

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None) -> None:
        super().__init__(versions)
        self.find = self.join = self.sync = self.beat = self.commit = then(0)
        self.coordinator: ScriptedBroker = self
        self.generation = 0
        self.on(MetadataRequest, lambda _: self.metadata("t"))
        self.on(FindCoordinatorRequest, self._found)
        self.on(JoinGroupRequest, self._joined)
        self.on(SyncGroupRequest, self._synced)
        self.on(HeartbeatRequest, lambda _: HeartbeatResponse(error_code=self.beat()))
        self.on(LeaveGroupRequest, lambda _: LeaveGroupResponse())
        self.on(OffsetCommitRequest, self._committed)

    def _found(self, _: FindCoordinatorRequest) -> FindCoordinatorResponse:
        other = self.coordinator
        node_id = 1 if other is self else 2
        return FindCoordinatorResponse(
            error_code=self.find(), node_id=node_id, host=other.host, port=other.port
        )

    def _joined(self, request: JoinGroupRequest) -> JoinGroupResponse | None:
        code = self.join()
        if code == ErrorCode.NETWORK_EXCEPTION:  # here: no answer at all
            return None
        self.generation += code == ErrorCode.NONE
        members = [JoinGroupResponseMember(member_id=ME, metadata=bytes(request.protocols[0].metadata))]
        return JoinGroupResponse(
            error_code=code,
            generation_id=self.generation,
            protocol_name=request.protocols[0].name,
            leader=ME,
            member_id=ME,
            members=members,
        )

    def _synced(self, request: SyncGroupRequest) -> SyncGroupResponse:
        code = self.sync()
        return SyncGroupResponse(error_code=code, assignment=b"" if code else encode_assignment([PLACE]))

    def _committed(self, _: OffsetCommitRequest) -> OffsetCommitResponse:
        part = OffsetCommitResponsePartition(partition_index=0, error_code=self.commit())
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])


async def test_a_member_joins_with_an_id_that_it_was_given() -> None:
    async with Coordinator() as broker:
        broker.join = then(ErrorCode.MEMBER_ID_REQUIRED, 0)
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until_owning(0)

        assert [each.member_id for each in broker.seen(JoinGroupRequest)] == ["", ME]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NETWORK_EXCEPTION,
    ],
)
async def test_joining_goes_on_through_what_passes(code: ErrorCode) -> None:
    async with Coordinator() as broker:
        broker.join = then(code, code, 0)
        broker.find = then(ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until_owning(0)

        assert len(broker.seen(JoinGroupRequest)) == 3


@pytest.mark.parametrize(
    "code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.NOT_COORDINATOR]
)
async def test_a_sync_that_fails_is_a_reason_to_join_again(code: ErrorCode) -> None:
    async with Coordinator() as broker:
        broker.sync = then(code, 0)
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until_owning(0)

        assert [each.member_id for each in broker.seen(JoinGroupRequest)] == ["", ME]


async def test_an_authorization_error_is_raised_and_the_next_poll_joins_again() -> None:
    async with Coordinator() as broker:
        broker.join = then(ErrorCode.GROUP_AUTHORIZATION_FAILED, 0)
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until(lambda: not one.membership.is_involved and bool(broker.seen(JoinGroupRequest)))
            with pytest.raises(GroupAuthorizationFailed):
                one.membership.polled()
            one.membership.polled()

            await one.until_owning(0)


class SlowToGo(RebalanceListener):
    """A listener that takes its time over partitions that are revoked, or lost."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        self.began.set()
        await self.may_end.wait()


async def test_a_poll_while_the_member_leaves_makes_it_join_again() -> None:
    listener, is_back = SlowToGo(), asyncio.Event()

    def joined_again() -> int:
        is_back.set()
        return ErrorCode.NONE

    async with Coordinator() as broker, asyncio.timeout(60):
        broker.on(OffsetFetchRequest, committed_nothing)
        broker.on(FetchRequest, lambda _: None)
        broker.ignore(FetchRequest)  # or its answer would wake whoever waits for records
        consumer = Consumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", heartbeat_interval_ms=20
        )
        consumer.subscribe(["t"], listener=listener)
        async with consumer:
            broker.beat = then(ErrorCode.GROUP_AUTHORIZATION_FAILED, 0)
            with pytest.raises(GroupAuthorizationFailed):
                await consumer.getone()
            await listener.began.wait()
            asking = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0)  # it has asked, and waits

            broker.join = joined_again
            listener.may_end.set()

            await is_back.wait()
            asking.cancel()


async def test_a_partition_assigned_by_hand_while_the_group_revokes_it_is_read() -> None:
    listener = SlowToGo()
    async with Coordinator() as broker, asyncio.timeout(60):
        broker.on(OffsetFetchRequest, committed_nothing)
        broker.on(FetchRequest, letters)
        consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g")
        consumer.subscribe(["t"], listener=listener)
        async with consumer:
            assert (await consumer.getone()).value == b"a"
            consumer.unsubscribe()
            await listener.began.wait()  # nothing is given out any more of what goes
            consumer.assign([PLACE])
            listener.may_end.set()

            assert (await consumer.getone()).value == b"b"


async def test_a_subscription_right_after_unsubscribing_gets_its_partitions_back() -> None:
    async with Coordinator() as broker, asyncio.timeout(60):
        broker.on(OffsetFetchRequest, committed_nothing)
        broker.on(FetchRequest, letters)
        consumer = Consumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", enable_auto_commit=False
        )
        consumer.subscribe(["t"])
        async with consumer:
            assert (await consumer.getone()).value == b"a"
            consumer.unsubscribe()
            consumer.assign([PLACE])
            consumer.unsubscribe()
            consumer.subscribe(["t"])

            assert (await consumer.getone()).value == b"a"


class SlowToCome(RebalanceListener):
    """A listener that takes its time over the first partitions."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()

    async def on_partitions_assigned(self, assigned: frozenset[TopicPartition]) -> None:
        self.began.set()
        await self.may_end.wait()


async def test_a_subscription_while_a_listener_runs_gets_its_partitions_back() -> None:
    listener = SlowToCome()
    async with Coordinator() as broker, asyncio.timeout(60):
        broker.on(OffsetFetchRequest, committed_nothing)
        broker.on(FetchRequest, letters)
        consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g")
        consumer.subscribe(["t"], listener=listener)
        starting = asyncio.create_task(consumer.start())
        await listener.began.wait()
        consumer.unsubscribe()
        consumer.assign([])
        consumer.unsubscribe()
        consumer.subscribe(["t"], listener=listener)
        listener.may_end.set()
        await starting

        assert (await consumer.getone()).value == b"a"
        await consumer.stop()


def letters(request: FetchRequest) -> FetchResponse:
    """Give the letter of each offset, one at a time."""
    ((wanted,),) = (topic.partitions for topic in request.topics)
    builder = BatchBuilder(1_000)
    builder.append(None, b"%c" % (ord("a") + wanted.fetch_offset), 0)
    records = builder.build(base_offset=wanted.fetch_offset)
    data = PartitionData(partition_index=0, high_watermark=100, records=records)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def committed_nothing(request: OffsetFetchRequest) -> OffsetFetchResponse:
    part = OffsetFetchResponsePartition(partition_index=0, committed_offset=0)
    return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[part])])


async def test_owned_partitions_are_lost_when_the_group_continues_without_the_member() -> None:
    async with Coordinator() as broker:
        broker.beat = then(ErrorCode.UNKNOWN_MEMBER_ID, 0)
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until(lambda: len(one.events) == 3)

            assert [what for what, _ in one.events] == ["released", "lost", "released"]
            assert [each.member_id for each in broker.seen(JoinGroupRequest)] == ["", ""]


async def test_heartbeats_and_commits_follow_the_coordinator() -> None:
    async with Coordinator() as first, Coordinator() as second:
        first.on(MetadataRequest, lambda _: both)
        second.on(MetadataRequest, lambda _: both)
        both = first.metadata("t")
        both.brokers.append(MetadataResponseBroker(node_id=2, host=second.host, port=second.port))
        async with group_application(first.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until_owning(0)
            first.coordinator = second.coordinator = Elsewhere(second)
            first.beat = first.commit = then(ErrorCode.NOT_COORDINATOR)
            await one.commits.commit({PLACE: OffsetAndMetadata(1)})
            await one.until(lambda: bool(second.seen(HeartbeatRequest)))

            assert one.membership.is_stable
            assert [what for what, _ in one.events] == ["released"]

        assert len(second.seen(OffsetCommitRequest)) == 1
        assert len(second.seen(LeaveGroupRequest)) == 1


class Elsewhere(ScriptedBroker):
    """Names another broker as the coordinator."""

    def __init__(self, other: ScriptedBroker) -> None:
        super().__init__()
        self.host, self.port = other.host, other.port


@pytest.mark.parametrize(
    "code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.REBALANCE_IN_PROGRESS]
)
async def test_a_commit_after_the_membership_ended_explains_why_it_failed(code: ErrorCode) -> None:
    async with Coordinator() as broker:
        broker.commit = then(code)
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until_owning(0)
            with pytest.raises(CommitFailed, match="are read again"):
                await one.commits.commit({PLACE: OffsetAndMetadata(1)})

        assert len(broker.seen(OffsetCommitRequest)) == 1


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS])
async def test_a_commit_of_kept_partitions_waits_for_the_next_generation(code: ErrorCode) -> None:
    async with Coordinator() as broker:
        broker.commit = then(code, 0)
        cooperative = {"group_id": "g", "partition_assignment_strategy": "cooperative-sticky"}
        async with group_application(broker.bootstrap_servers, WANTED, **cooperative) as one:
            await one.until_owning(0)
            await one.commits.commit({PLACE: OffsetAndMetadata(1)})

        assert len(broker.seen(OffsetCommitRequest)) == 2


async def test_commits_keep_the_order_of_the_calls() -> None:
    async with Coordinator() as broker:
        broker.commit = then(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until_owning(0)
            async with asyncio.TaskGroup() as tasks:
                first = one.commits.commit_nowait({PLACE: OffsetAndMetadata(1)}, tasks)
                second = one.commits.commit_nowait({PLACE: OffsetAndMetadata(2)}, tasks)
                await one.commits.commit({PLACE: OffsetAndMetadata(3)})

        assert first.done()
        assert second.done()
        offsets = [
            part.committed_offset
            for request in broker.seen(OffsetCommitRequest)
            for part in request.topics[0].partitions
        ]
        assert offsets == [1, 1, 2, 3]


async def test_a_partition_that_is_not_there_holds_up_no_commit() -> None:
    gone, there = TopicPartition("gone", 0), OffsetAndMetadata(1)
    told: list[object] = []

    def answer(request: OffsetCommitRequest) -> OffsetCommitResponse:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topics = [
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=unknown * (topic.name == "gone")
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetCommitResponse(topics=topics)

    async with Coordinator() as broker, Cluster(broker.bootstrap_servers) as cluster:
        broker.on(OffsetCommitRequest, answer)
        commits = Commits(cluster, "g", lambda: GroupMetadata("g"), on_commit=told.append)
        with pytest.raises(NoSuchPartitions, match="no such partition: gone-0") as caught:
            await commits.commit({gone: there, PLACE: there})
        await commits.commit({PLACE: OffsetAndMetadata(2)})
        await commits.close()

        assert caught.value.partitions == {gone}
        assert told == [{PLACE: there}, {PLACE: OffsetAndMetadata(2)}]
        assert len(broker.seen(OffsetCommitRequest)) == 2


async def test_a_commit_is_retried_only_for_partitions_that_are_not_stored_yet() -> None:
    busy, other = then(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0), TopicPartition("t", 1)

    def answer(request: OffsetCommitRequest) -> OffsetCommitResponse:
        parts = [
            OffsetCommitResponsePartition(
                partition_index=each.partition_index, error_code=busy() if each.partition_index else 0
            )
            for each in request.topics[0].partitions
        ]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=parts)])

    async with Coordinator() as broker, Cluster(broker.bootstrap_servers) as cluster:
        broker.on(OffsetCommitRequest, answer)
        commits = Commits(cluster, "g", lambda: GroupMetadata("g"))
        await commits.commit({PLACE: OffsetAndMetadata(1), other: OffsetAndMetadata(1)})
        await commits.close()
        asked = [len(each.topics[0].partitions) for each in broker.seen(OffsetCommitRequest)]

    assert asked == [2, 1]


async def test_groups_work_with_brokers_of_long_ago() -> None:
    async with Coordinator(OLD) as broker:
        async with group_application(broker.bootstrap_servers, WANTED, group_id="g") as one:
            await one.until_owning(0)
            await one.commits.commit({PLACE: OffsetAndMetadata(1, "note", 5)})
            await one.until(lambda: bool(broker.seen(HeartbeatRequest)))

        versions = {type(request).API_KEY: version for request, version in broker.requests}
        assert {key: versions[key] for key in OLD} == {key: newest for key, (_, newest) in OLD.items()}
        assert broker.seen(LeaveGroupRequest)[0].member_id == ME

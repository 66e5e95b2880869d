"""A membership of the consumer protocol and a coordinator that answers as the test wants."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from ottla.client.group_metadata import OffsetAndMetadata
from ottla.client.testing import ScriptedBroker
from ottla.consumer.errors import CommitFailed, GroupFailed
from ottla.consumer.subscription import Subscription, TopicFilter, subscription
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_groups import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitionsResponse,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.topics import TopicPartition
from peers.group_application import group_application

TOPIC_ID = UUID(int=7)
PLACE = TopicPartition("t", 0)


def then(*codes: int) -> Callable[[], int]:
    """Give codes one after the other, and the last one for ever."""
    left = list(codes)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


class Coordinator(ScriptedBroker):
    """A group of one member, which is assigned t-0; its epoch rises with each heartbeat that joins."""

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None) -> None:
        super().__init__(versions)
        self.beat = self.commit = then(0)
        self.epoch = 0
        self.on(MetadataRequest, self._metadata)
        self.on(FindCoordinatorRequest, self._found)
        self.on(ConsumerGroupHeartbeatRequest, self._beat)
        self.on(OffsetCommitRequest, self._committed)

    def _metadata(self, _: MetadataRequest) -> MetadataResponse:
        answer = self.metadata("t", "other")
        answer.topics[0].topic_id = TOPIC_ID
        return answer

    def _found(self, _: FindCoordinatorRequest) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=1, host=self.host, port=self.port)

    def _beat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        code = self.beat() if request.member_epoch >= 0 else 0
        if code:
            return ConsumerGroupHeartbeatResponse(error_code=code, error_message="no")
        self.epoch += request.member_epoch == 0
        topic = TopicPartitionsResponse(topic_id=TOPIC_ID, partitions=[0])
        joins = request.member_epoch == 0
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=self.epoch,
            heartbeat_interval_ms=20,
            assignment=Assignment(topic_partitions=[topic]) if joins else None,
        )

    def _committed(self, _: OffsetCommitRequest) -> OffsetCommitResponse:
        part = OffsetCommitResponsePartition(partition_index=0, error_code=self.commit())
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="t", partitions=[part])])

    @property
    def beats(self) -> list[ConsumerGroupHeartbeatRequest]:
        return self.seen(ConsumerGroupHeartbeatRequest)


WANTED = subscription("t")


async def test_a_member_joins_reports_what_it_owns_once_and_leaves() -> None:
    async with Coordinator() as broker:
        async with group_application(
            broker.bootstrap_servers, WANTED, group_id="g", group_protocol="consumer", client_rack="r1"
        ) as one:
            await one.until_owning(0)
            await one.until(lambda: len(broker.beats) > 3)

    first, last = broker.beats[0], broker.beats[-1]
    (report,) = [beat for beat in broker.beats[1:-1] if beat.topic_partitions is not None]
    unchanged = [beat for beat in broker.beats[1:-1] if beat is not report]
    assert (first.member_epoch, first.subscribed_topic_names, first.topic_partitions) == (0, ["t"], [])
    assert (first.rack_id, first.rebalance_timeout_ms) == ("r1", 300_000)
    assert {beat.member_id for beat in broker.beats} == {first.member_id} != {""}
    assert [(owned.topic_id, owned.partitions) for owned in report.topic_partitions or ()] == [
        (TOPIC_ID, [0])
    ]
    assert (report.member_epoch, report.subscribed_topic_names) == (1, None)
    assert {(beat.rebalance_timeout_ms, beat.rack_id) for beat in unchanged} == {(-1, None)}
    assert last.member_epoch == -1


async def test_a_missing_topic_may_be_created_at_once_and_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Coordinator() as broker:
        broker.on(MetadataRequest, lambda _: broker.lacking("t"))

        async with group_application(
            broker.bootstrap_servers, WANTED, group_id="g", group_protocol="consumer"
        ) as one:
            await one.until(lambda: len(asked(broker)) > 2, "asking again")

    assert asked(broker)[0].allow_auto_topic_creation
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "topic 't' does not exist; it is read once it is created"
    ]


def asked(broker: ScriptedBroker) -> list[MetadataRequest]:
    return [
        request for request in broker.seen(MetadataRequest) if any(each.name for each in request.topics or ())
    ]


async def test_a_static_member_leaves_for_a_while() -> None:
    async with Coordinator() as broker:
        async with group_application(
            broker.bootstrap_servers, WANTED, group_id="g", group_protocol="consumer", group_instance_id="i"
        ) as one:
            await one.until_owning(0)

    assert (broker.beats[-1].member_epoch, broker.beats[-1].instance_id) == (-2, "i")


@pytest.mark.parametrize(
    ("wanted", "expression"),
    [
        (TopicFilter(["t.*"]), "t.*"),
        (TopicFilter(["t", "u[0-9]+"]), "(?:t)|(?:u[0-9]+)"),
        (TopicFilter([".*"]), None),  # it matches internal topics, which are excluded
        (TopicFilter(["t.*"], deny="t2"), None),
        (TopicFilter(["(?i)T"]), None),
    ],
    ids=["one", "two", "internal", "deny", "flags"],
)
async def test_the_coordinator_matches_a_pattern_that_it_can(
    wanted: TopicFilter, expression: str | None
) -> None:
    async with Coordinator() as broker:
        async with group_application(
            broker.bootstrap_servers, Subscription(filter=wanted), group_id="g", group_protocol="consumer"
        ) as one:
            await one.until_owning(0)

    assert broker.beats[0].subscribed_topic_regex == expression
    assert ("t" in (broker.beats[0].subscribed_topic_names or [])) == (expression is None)


async def test_a_pattern_that_the_coordinator_refuses_is_matched_here() -> None:
    async with Coordinator() as broker:
        broker.beat = then(ErrorCode.INVALID_REGULAR_EXPRESSION, 0)
        wanted = Subscription(filter=TopicFilter([r"t(?!\d)"]))
        async with group_application(
            broker.bootstrap_servers, wanted, group_id="g", group_protocol="consumer"
        ) as one:
            await one.until_owning(0)
            await one.until(lambda: broker.beats[-1].subscribed_topic_names != [])

    assert [beat.subscribed_topic_regex for beat in broker.beats[:2]] == [r"t(?!\d)", None]
    assert ["t"] in [beat.subscribed_topic_names for beat in broker.beats]


async def test_a_coordinator_without_patterns_gets_names() -> None:
    async with Coordinator({ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 0)}) as broker:
        wanted = Subscription(filter=TopicFilter(["t"]))
        async with group_application(
            broker.bootstrap_servers, wanted, group_id="g", group_protocol="consumer"
        ) as one:
            await one.until_owning(0)

    assert broker.beats[0].subscribed_topic_names == ["t"]


async def test_brokers_without_the_protocol_are_named_as_the_reason() -> None:
    async with Coordinator({ApiKey.CONSUMER_GROUP_HEARTBEAT: (9, 9)}) as broker:
        async with group_application(
            broker.bootstrap_servers, WANTED, group_id="g", group_protocol="consumer"
        ) as one:
            await one.until(lambda: bool(one.membership._failures))
            with pytest.raises(GroupFailed, match='use group_protocol="classic" here'):
                one.membership.polled()


async def test_a_commit_has_the_epoch_of_the_member_and_follows_it() -> None:
    async with Coordinator() as broker:
        broker.commit = then(ErrorCode.STALE_MEMBER_EPOCH, 0)
        async with group_application(
            broker.bootstrap_servers, WANTED, group_id="g", group_protocol="consumer"
        ) as one:
            await one.until_owning(0)
            await one.commits.commit({PLACE: OffsetAndMetadata(5)})

    first, second = broker.seen(OffsetCommitRequest)
    assert first.generation_id_or_member_epoch == second.generation_id_or_member_epoch == 1
    assert first.member_id == broker.beats[0].member_id
    versions = [version for request, version in broker.requests if isinstance(request, OffsetCommitRequest)]
    assert versions == [9, 9]


async def test_a_fenced_member_loses_its_partitions_its_commits_fail_and_it_joins_again() -> None:
    async with Coordinator() as broker:
        async with group_application(
            broker.bootstrap_servers, WANTED, group_id="g", group_protocol="consumer"
        ) as one:
            await one.until_owning(0)
            broker.beat = then(ErrorCode.FENCED_MEMBER_EPOCH, 0)
            broker.commit = then(ErrorCode.FENCED_MEMBER_EPOCH)
            with pytest.raises(CommitFailed, match="FENCED_MEMBER_EPOCH"):
                await one.commits.commit({PLACE: OffsetAndMetadata(5)})
            await one.until(lambda: ("lost", frozenset({PLACE})) in one.events)
            await one.until(lambda: broker.epoch == 2)
            await one.until_owning(0)

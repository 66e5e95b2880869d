"""A share consumer and brokers that answer as the test wants: sessions, leaders, errors, the end."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from ottla.client.settings import SettingError
from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    AcknowledgementFailed,
    CorruptBatch,
    GroupFailed,
    ShareConsumer,
    ShareConsumerConfig,
)
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode, TopicAuthorizationFailed
from ottla.protocol.messages.consumer_groups import Assignment, TopicPartitionsResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from ottla.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.share_sessions import (
    AcquiredRecords,
    ShareAcknowledgePartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    ShareFetchableTopicResponse,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.records import BatchBuilder

TOPIC_ID = UUID(int=7)


def batch(first: int, count: int) -> bytes:
    builder = BatchBuilder()
    for offset in range(first, first + count):
        builder.append(None, str(offset).encode(), 0)
    return builder.build(base_offset=first)


class Leader(ScriptedBroker):
    """A coordinator and leader: gives records once, and nothing after that."""

    def __init__(self, versions: dict[int, tuple[int, int]] | None = None) -> None:
        super().__init__(versions)
        self.leader: ScriptedBroker = self
        self.code = self.partition_code = self.acknowledge_code = 0
        self.records: list[tuple[int, int]] = [(0, 3)]
        self.damaged: list[bytes] = []
        self.on(MetadataRequest, self._metadata)
        self.on(FindCoordinatorRequest, self._found)
        self.on(ShareGroupHeartbeatRequest, self._beat)
        self.on(ShareFetchRequest, self._fetched)
        self.on(ShareAcknowledgeRequest, self._acknowledged)

    def _metadata(self, _: MetadataRequest) -> MetadataResponse:
        answer = self.metadata("t", leader=1 if self.leader is self else 2)
        answer.topics[0].topic_id = TOPIC_ID
        if self.leader is not self:
            other = self.leader
            answer.brokers.append(MetadataResponseBroker(node_id=2, host=other.host, port=other.port))
        return answer

    def _found(self, _: FindCoordinatorRequest) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=1, host=self.host, port=self.port)

    def _beat(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        topic = TopicPartitionsResponse(topic_id=TOPIC_ID, partitions=[0])
        return ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=1,
            heartbeat_interval_ms=20,
            assignment=Assignment(topic_partitions=[topic]) if request.member_epoch == 0 else None,
        )

    def _fetched(self, request: ShareFetchRequest) -> ShareFetchResponse:
        code, self.code = self.code, 0
        if code:
            return ShareFetchResponse(error_code=code)
        data = ShareFetchPartitionData(
            partition_index=0,
            error_code=self.partition_code,
            acknowledge_error_code=self.acknowledge_code if any_acknowledged(request) else 0,
        )
        if self.records and not self.partition_code:
            first, count = self.records.pop(0)
            data.records = self.damaged.pop() if self.damaged else batch(first, count)
            data.acquired_records = [
                AcquiredRecords(first_offset=first, last_offset=first + count - 1, delivery_count=1)
            ]
        topic = ShareFetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        return ShareFetchResponse(acquisition_lock_timeout_ms=30_000, responses=[topic])

    def _acknowledged(self, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
        data = ShareAcknowledgePartitionData(partition_index=0, error_code=self.acknowledge_code)
        topic = ShareAcknowledgeTopicResponse(topic_id=TOPIC_ID, partitions=[data])
        return ShareAcknowledgeResponse(responses=[topic] if request.topics else [])


def any_acknowledged(request: ShareFetchRequest) -> bool:
    return any(part.acknowledgement_batches for topic in request.topics for part in topic.partitions)


def acknowledged(request: ShareAcknowledgeRequest | ShareFetchRequest) -> list[tuple[int, int, list[int]]]:
    return [
        (given.first_offset, given.last_offset, given.acknowledge_types)
        for topic in request.topics
        for partition in topic.partitions
        for given in partition.acknowledgement_batches
    ]


def member(broker: ScriptedBroker, **settings: Any) -> ShareConsumer[Any, Any]:
    config = ShareConsumerConfig.of(
        **{"group_id": "g", "retry_backoff_ms": 20, "fetch_max_wait_ms": 10} | settings
    )
    return ShareConsumer("t", bootstrap_servers=broker.bootstrap_servers, config=config)


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("auto_offset_reset", "earliest", "share.auto.offset.reset=earliest"),
        ("isolation_level", "read_committed", "share.isolation.level=read_committed"),
        ("session_timeout_ms", 6_000, "share.session.timeout.ms="),
        ("heartbeat_interval_ms", 500, "share.heartbeat.interval.ms="),
        ("enable_auto_commit", False, 'acknowledgement_mode="explicit"'),
        ("group_protocol", "share", "it has one protocol"),
    ],
)
@pytest.mark.parametrize("make", [ShareConsumer, ShareConsumerConfig])
def test_a_setting_of_consumers_is_refused_with_what_share_groups_have_instead(
    make: Any, name: str, value: object, instead: str
) -> None:
    with pytest.raises(SettingError, match=f"{name} is no setting of a ShareConsumer: .*{instead}"):
        make(group_id="g", **{name: value})


async def test_a_missing_topic_may_be_created_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with Leader() as broker:
        asked: list[MetadataRequest] = []
        asked_often = asyncio.Event()

        def answer(request: MetadataRequest) -> MetadataResponse:
            asked.extend([request] if request.topics else [])
            if len(asked) > 3:
                asked_often.set()
            return broker.lacking("t")

        broker.on(MetadataRequest, answer)

        async with member(broker), asyncio.timeout(20):
            await asked_often.wait()

    assert asked[0].allow_auto_topic_creation
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "topic 't' does not exist; it is read once it is created"
    ]


async def test_the_last_request_of_a_session_acknowledges_and_releases_the_rest() -> None:
    async with Leader() as broker, member(broker) as consumer, asyncio.timeout(20):
        record = await consumer.getone()
        record.accept()

    requests = broker.seen(ShareAcknowledgeRequest)
    assert requests[-1].share_session_epoch == -1
    given = [some for request in requests for some in acknowledged(request)]
    assert given == [(0, 0, [1]), (1, 2, [2])]
    assert broker.seen(ShareGroupHeartbeatRequest)[-1].member_epoch == -1


async def test_an_acknowledgement_that_is_awaited_is_sent_at_once_and_others_go_with_the_next_fetch() -> None:
    async with Leader() as broker, member(broker) as consumer, asyncio.timeout(20):
        broker.records.append((3, 1))
        await (await consumer.getone()).accept()
        sent = broker.seen(ShareAcknowledgeRequest)
        await consumer.getone()
        await consumer.getone()
        await consumer.getone()

    assert acknowledged(sent[0]) == [(0, 0, [1])]
    fetches = [request for request in broker.seen(ShareFetchRequest) if any_acknowledged(request)]
    assert acknowledged(fetches[0]) == [(1, 2, [1])]


async def test_a_session_that_the_broker_lost_is_opened_again_and_its_acknowledgements_fail() -> None:
    async with Leader() as broker, member(broker) as consumer, asyncio.timeout(20):
        broker.records.append((3, 1))
        records = [await consumer.getone() for _ in range(3)]
        broker.code = ErrorCode.SHARE_SESSION_NOT_FOUND
        answer = records[2].accept()
        following = await consumer.getone()
        with pytest.raises(AcknowledgementFailed, match="the broker closed the session"):
            await answer

    epochs = [request.share_session_epoch for request in broker.seen(ShareFetchRequest)]
    assert following.offset == 3
    assert epochs[:3] == [0, 1, 0]


async def test_records_come_from_the_new_leader_and_locks_of_the_old_one_are_void() -> None:
    async with Leader() as other, Leader() as broker, member(broker) as consumer, asyncio.timeout(20):
        other.records = [(0, 3)]
        first = await consumer.getone()
        broker.leader = other
        broker.partition_code = broker.acknowledge_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(AcknowledgementFailed, match="has another leader") as failed:
            await first.accept()
        assert consumer.in_flight == 0
        again = [await consumer.getone() for _ in range(3)]

    assert failed.value.offset == 0
    assert [record.lock.node for record in again] == [2, 2, 2]


async def test_records_of_the_new_leader_stay_when_the_old_one_refuses_an_acknowledgement() -> None:
    explicit = {"acknowledgement_mode": "explicit"}
    async with (
        Leader() as other,
        Leader() as broker,
        member(broker, **explicit) as consumer,
        asyncio.timeout(20),
    ):
        broker.records = [(0, 1)]
        old = await consumer.getone()
        broker.leader = other
        broker.partition_code = broker.acknowledge_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        new = [await consumer.getone()]
        with pytest.raises(AcknowledgementFailed, match="has another leader"):
            await old.accept()
        new += [await consumer.getone() for _ in range(2)]

    assert [(record.lock.node, record.offset) for record in new] == [(2, 0), (2, 1), (2, 2)]


async def test_an_error_that_does_not_pass_is_raised_by_the_next_call() -> None:
    async with Leader() as broker, member(broker) as consumer, asyncio.timeout(20):
        broker.partition_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(TopicAuthorizationFailed, match="READ"):
            await consumer.getone()
        broker.partition_code = 0
        assert (await consumer.getone()).offset == 0


async def test_brokers_without_share_groups_are_named_as_the_reason() -> None:
    async with Leader({ApiKey.SHARE_GROUP_HEARTBEAT: (9, 9)}) as broker, asyncio.timeout(20):
        consumer = member(broker)
        with pytest.raises(GroupFailed, match="do not serve this type of groups"):
            async with consumer:
                await consumer.getone()


async def test_a_damaged_batch_is_rejected_and_the_next_one_is_delivered() -> None:
    async with Leader() as broker, member(broker) as consumer, asyncio.timeout(20):
        broker.damaged = [bytes([*batch(0, 3)[:-1], 0xFF])]
        broker.records.append((3, 1))
        with pytest.raises(CorruptBatch):
            await consumer.getone()
        following = await consumer.getone()

    assert following.offset == 3
    given = [some for request in broker.seen(ShareFetchRequest) for some in acknowledged(request)]
    assert (0, 2, [3]) in given

"""The requests of the recorded conversations about share groups and their state, in order.

650 lines because a conversation is a list of requests, with as many lines as they have fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from ottla.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from ottla.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from ottla.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    DeleteStateData,
    DeleteStatePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    ReadStatePartition,
    ReadStateSummaryData,
    ReadStateSummaryPartition,
    StateBatch,
    WriteShareGroupStateRequest,
    WriteStateData,
    WriteStatePartition,
)
from ottla.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from peers.conversations import Changes, Conversation, batch, cases

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
BEGIN, END = 0, -1
JOIN, LEAVE = 0, -1
NOWHERE: Final = UUID(int=7)
_GROUP_CONFIG: Final = 32

Acknowledged = tuple[int, int, Sequence[int]]
"""The first and the last offset, and the types."""


class Share:
    """A member of a share group in a script, with its session at the broker."""

    def __init__(
        self, talk: Conversation, group: str, member: str, topic_id: UUID, version: int, over: str = ""
    ) -> None:
        self.talk = talk
        self.group = group
        self.member = member
        self.topic_id = topic_id
        self.version = version
        self.over = over
        self.epoch = 0

    async def join(self, topic: str, partitions: int = 1) -> None:
        """Join the group, and return once there are partitions; nothing of it is written down."""
        beat = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member, member_epoch=JOIN, subscribed_topic_names=[topic]
        )
        while True:
            answer = await self.talk.prepare(beat)
            assert answer.error_code == 0, answer
            given = answer.assignment.topic_partitions if answer.assignment is not None else []
            if sum(len(found.partitions) for found in given) == partitions:
                return
            beat.member_epoch = answer.member_epoch

    async def fetch(self, title: str, *acknowledged: Acknowledged, **changes: Any) -> Any:
        request = self.fetch_request(acknowledged, **changes)
        return self._next(await self.talk.ask(title, request, self.version, over=self.over), request)

    async def first(self, title: str, **changes: Any) -> Any:
        """Begin a session again and again until it gets records."""
        request = self.fetch_request((), **{"share_session_epoch": BEGIN, **changes})

        def has_records(answer: Any) -> bool:
            return any(part.acquired_records for topic in answer.responses for part in topic.partitions)

        answer = await self.talk.until(title, request, self.version, has_records, over=self.over)
        return self._next(answer, request)

    async def acknowledge(self, title: str, *acknowledged: Acknowledged, **changes: Any) -> Any:
        partition = AcknowledgePartition(
            partition_index=changes.pop("partition", 0), acknowledgement_batches=_batches(acknowledged)
        )
        topic = AcknowledgeTopic(topic_id=changes.pop("topic_id", self.topic_id), partitions=[partition])
        fields: Changes = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch,
            "topics": [topic],
        }  # fmt: skip
        request = ShareAcknowledgeRequest(**fields | changes)
        return self._next(await self.talk.ask(title, request, self.version, over=self.over), request)

    async def read(self) -> None:
        """Begin a session that reads both partitions, and end it; nothing of it is written down."""
        for partition in (0, 1):
            fetch = self.fetch_request((), share_session_epoch=BEGIN, partition=partition)
            await self.talk.prepare(fetch, self.version)
            fetch.share_session_epoch = END
            await self.talk.prepare(fetch, self.version)

    def fetch_request(self, acknowledged: Sequence[Acknowledged], **changes: Any) -> ShareFetchRequest:
        partition = ShareFetchPartition(
            partition_index=changes.pop("partition", 0), acknowledgement_batches=_batches(acknowledged)
        )
        topic = ShareFetchTopic(topic_id=changes.pop("topic_id", self.topic_id), partitions=[partition])
        fields: Changes = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch,
            "max_wait_ms": 200, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 100, "batch_size": 100,
            "topics": [topic],
        }  # fmt: skip
        return ShareFetchRequest(**fields | changes)

    def _next(self, answer: Any, request: ShareFetchRequest | ShareAcknowledgeRequest) -> Any:
        if answer is not None and answer.error_code == 0:
            self.epoch = 0 if request.share_session_epoch == END else request.share_session_epoch + 1
        return answer


def _batches(acknowledged: Sequence[Acknowledged]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in acknowledged
    ]


async def configure(talk: Conversation, group: str, **configs: str) -> None:
    """Set configurations of a group, underscores for dots."""
    settings = {"share.auto.offset.reset": "earliest"} | {
        f"share.{key.replace('_', '.')}": value for key, value in configs.items()
    }
    resource = IncrementalAlterConfigsResource(
        resource_type=_GROUP_CONFIG, resource_name=group,
        configs=[IncrementalAlterableConfig(name=key, value=value) for key, value in settings.items()],
    )  # fmt: skip
    answer = await talk.prepare(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == 0, answer


async def produce(talk: Conversation, topic: str, *batches: bytes, partition: int = 0) -> None:
    for records in batches:
        data = PartitionProduceData(index=partition, records=records)
        named = TopicProduceData(name=topic, partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[named])
        answer = await talk.prepare(request, 12)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


async def filled(talk: Conversation, topic: str, counts: Sequence[int] = (5, 5)) -> UUID:
    """Create a topic of one partition with batches of so many records."""
    topic_id = await talk.topic(topic)
    numbers = iter(range(sum(counts)))
    await produce(talk, topic, *(batch(*(f"v{next(numbers)}" for _ in range(count))) for count in counts))
    return topic_id


# ---- the group


async def share_groups(talk: Conversation) -> None:
    topic_id = await talk.topic("jobs", 2)
    await produce(talk, "jobs", batch("a", "b", "c"))
    await _refused_heartbeats(talk)

    def beat(member: str, epoch: int, **changes: Any) -> ShareGroupHeartbeatRequest:
        fields: Changes = {"group_id": "workers", "member_id": member, "member_epoch": epoch}
        return ShareGroupHeartbeatRequest(**fields | changes)

    def has_two(answer: Any) -> bool:
        given = answer.assignment.topic_partitions if answer.assignment is not None else []
        return sum(len(topic.partitions) for topic in given) == 2

    joined = await talk.prepare(beat("one", JOIN, subscribed_topic_names=["jobs"]))
    asked = beat("one", joined.member_epoch, subscribed_topic_names=["jobs"])
    epoch = (await talk.until("the member gets all partitions", asked, 1, has_two)).member_epoch
    await Share(talk, "workers", "one", topic_id, 1).read()
    await talk.ask("a short heartbeat", beat("one", epoch), 1)
    for title, request in {
        "an epoch of the future": beat("one", epoch + 1),
        "an epoch of the far future": beat("one", 2**31 - 1),
        "an epoch before the last": beat("one", max(1, epoch - 2)),
        "an unknown member": beat("stranger", epoch),
        "an unknown member leaves": beat("stranger", LEAVE),
        "the member joins again": beat("one", JOIN, subscribed_topic_names=["jobs"]),
    }.items():
        answer = await talk.ask(title, request, 1)
        epoch = answer.member_epoch or epoch
    described = ShareGroupDescribeRequest(
        group_ids=["workers", "of-nobody", ""], include_authorized_operations=True
    )
    await talk.ask("groups are described", described, 1)
    await talk.ask("share groups are listed", ListGroupsRequest(types_filter=["share"]), 5)
    classic = DescribeGroupsRequest(groups=["workers"])
    await talk.ask("a share group is no classic group", classic, 6)
    await _offsets(talk, "workers", topic_id)
    await talk.ask("a group with members is not deleted", DeleteGroupsRequest(groups_names=["workers"]), 2)
    await talk.ask(
        "the member asks for another topic", beat("one", epoch, subscribed_topic_names=["none"]), 1
    )
    await talk.ask("the member leaves", beat("one", LEAVE), 1)
    await talk.ask("the member has left", beat("one", LEAVE), 1)
    await talk.ask("the empty group is described", ShareGroupDescribeRequest(group_ids=["workers"]), 1)
    await _changed_offsets(talk, "workers")
    await talk.ask("the group is deleted", DeleteGroupsRequest(groups_names=["workers"]), 2)
    await talk.ask("the group was deleted", DeleteGroupsRequest(groups_names=["workers"]), 2)


async def _refused_heartbeats(talk: Conversation) -> None:
    for title, changes in cases(
        {
            "a join without a group": {"group_id": ""},
            "a join with a blank group": {"group_id": " "},
            "a join without a member": {"member_id": ""},
            "a join with a blank rack": {"rack_id": " "},
            "a join that asks for nothing": {"subscribed_topic_names": None},
            "a join with no topics": {"subscribed_topic_names": []},
            "an epoch that is none": {"member_epoch": -2},
            "a member of an unknown group": {"member_epoch": 4},
            "a member leaves an unknown group": {"member_epoch": LEAVE},
        }
    ):
        fields: Changes = {
            "group_id": "refused-shares", "member_id": "m", "subscribed_topic_names": ["jobs"]
        }  # fmt: skip
        request = ShareGroupHeartbeatRequest(**fields | changes)
        answer = await talk.ask(title, request, 1)
        if answer.error_code == 0:
            request.member_epoch = LEAVE
            await talk.prepare(request)


def _described(group: str, *topics: tuple[str, Sequence[int]]) -> DescribeShareGroupOffsetsRequest:
    named = [
        DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(partitions))
        for name, partitions in topics
    ]
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=named or None)
    return DescribeShareGroupOffsetsRequest(groups=[asked])


async def _offsets(talk: Conversation, group: str, topic_id: UUID) -> None:
    for version in (0, 1):
        for title, request in {
            "offsets of all topics": _described(group),
            "offsets of a topic": _described(group, ("jobs", [0, 1])),
            # Of a partition that is not there Apache Kafka's coordinator asks again for minutes.
            "offsets of an unknown topic": _described(group, ("of-nobody", [0])),
            "offsets of an unknown group": _described("of-nobody", ("jobs", [0])),
            "all offsets of an unknown group": _described("of-nobody"),
            "offsets of a group without a name": _described("", ("jobs", [0])),
            "offsets of no group": DescribeShareGroupOffsetsRequest(groups=[]),
        }.items():
            await talk.ask(f"{title} are described, {version}", request, version)
    await talk.ask("offsets of a group with members are not set", _altered(group, ("jobs", 0, 1)), 0)
    await talk.ask("offsets of a group with members are not deleted", _deleted(group, "jobs"), 0)


def _altered(group: str, *starts: tuple[str, int, int]) -> AlterShareGroupOffsetsRequest:
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=offset)],
        )
        for name, number, offset in starts
    ]
    return AlterShareGroupOffsetsRequest(group_id=group, topics=topics)


def _deleted(group: str, *topics: str) -> DeleteShareGroupOffsetsRequest:
    named = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    return DeleteShareGroupOffsetsRequest(group_id=group, topics=named)


async def _changed_offsets(talk: Conversation, group: str) -> None:
    for title, request in {
        "an offset is set": _altered(group, ("jobs", 0, 2)),
        "an offset after the end is set": _altered(group, ("jobs", 0, 1_000)),
        "an offset below 0 is set": _altered(group, ("jobs", 0, -7)),
        "an offset of a partition that is not there is set": _altered(group, ("jobs", 9, 0)),
        "an offset of an unknown topic is set": _altered(group, ("of-nobody", 0, 0), ("jobs", 1, 0)),
        "an offset of an unknown group is set": _altered("of-nobody", ("jobs", 0, 0)),
        "an offset of a group without a name is set": _altered("", ("jobs", 0, 0)),
        "no offsets are set": _altered(group),
    }.items():
        await talk.ask(title, request, 0)
    await talk.ask("offsets that were set are described", _described(group, ("jobs", [0, 1])), 1)
    for title, deletion in {
        "offsets of an unknown topic are deleted": _deleted(group, "of-nobody"),
        "offsets of an unknown group are deleted": _deleted("of-no-group", "jobs"),
        "offsets of a group without a name are deleted": _deleted("", "jobs"),
        "no offsets are deleted": _deleted(group),
        "offsets are deleted": _deleted(group, "jobs", "of-nobody"),
        "offsets are deleted again": _deleted(group, "jobs"),
    }.items():
        await talk.ask(title, deletion, 0)
    await talk.ask("offsets that were deleted are described", _described(group, ("jobs", [0, 1])), 1)


# ---- sessions, records and acknowledgements


async def share_sessions_1(talk: Conversation) -> None:
    await _sessions(talk, 1)
    await _locks(talk)
    await _deleted_topic(talk)


async def share_sessions_2(talk: Conversation) -> None:
    await _sessions(talk, 2)
    await _renewals(talk)
    await _limits(talk)
    await _transactions(talk)


async def _sessions(talk: Conversation, version: int) -> None:
    topic, group = f"parcels-{version}", f"couriers-{version}"
    topic_id = await filled(talk, topic)
    await configure(talk, group)
    one = Share(talk, group, "one", topic_id, version, over="one")
    two = Share(talk, group, "two", topic_id, version, over="two")
    await one.join(topic)
    await two.join(topic)
    for title, changes in cases(
        {
            "a fetch without a group": {"group_id": None},
            "a fetch without a member": {"member_id": ""},
            "a fetch of a member that is none": {"member_id": None},
            "a fetch of a member with a long name": {"member_id": "m" * 37},
            "a session that has not begun": {"share_session_epoch": 1},
            "a session that has not begun ends": {"share_session_epoch": END},
        }
    ):
        await one.fetch(title, **changes)
    await one.fetch("a session begins with acknowledgements", (0, 1, [ACCEPT]), share_session_epoch=BEGIN)
    await one.acknowledge("acknowledgements without a session", (0, 1, [ACCEPT]), share_session_epoch=1)
    await one.acknowledge("acknowledgements begin a session", (0, 1, [ACCEPT]), share_session_epoch=BEGIN)
    await one.first("the first member gets all records")
    await one.fetch("there are no others", topics=[])
    await one.fetch("an epoch of the past", share_session_epoch=1, topics=[])
    await one.fetch("an epoch of the future", share_session_epoch=70, topics=[])
    await one.acknowledge(
        "an acknowledgement in an epoch of the past", (0, 0, [ACCEPT]), share_session_epoch=1
    )
    await _acknowledgements(one)
    await two.first("the second member gets what was released")
    await one.acknowledge("records of the other member", (2, 2, [ACCEPT]))
    await two.fetch("acknowledgements go with a fetch", (2, 2, [ACCEPT]), topic_id=topic_id)
    await two.fetch("damaged acknowledgements go with a fetch", (900, 901, [ACCEPT]))
    await two.fetch("a partition that is not there", partition=9)
    await two.fetch("an unknown topic", topic_id=NOWHERE)
    forgotten = [
        ForgottenTopic(topic_id=topic_id, partitions=[0]),
        ForgottenTopic(topic_id=NOWHERE, partitions=[0]),
    ]
    await two.fetch("a partition is forgotten", topics=[], forgotten_topics_data=forgotten)
    await _ended_sessions(talk, one, two)


async def _ended_sessions(talk: Conversation, one: Share, two: Share) -> None:
    await one.acknowledge("the session ends with acknowledgements", (6, 6, [ACCEPT]), share_session_epoch=END)
    await one.acknowledge("the session has ended", (7, 7, [ACCEPT]), share_session_epoch=5)
    await two.fetch("the second member gets what the first left", share_session_epoch=BEGIN)
    await talk.disconnect("two")
    await one.first("the first member gets what the other left, which is gone")
    await one.fetch(
        "the last acknowledgements", (5, 9, [GAP, GAP, ACCEPT, REJECT, RELEASE]), share_session_epoch=END
    )
    await one.first("the last record comes again")
    await one.fetch("a session ends and leaves a record", share_session_epoch=END)
    await one.fetch("a session that has ended", share_session_epoch=END)


async def _acknowledgements(one: Share) -> None:
    await one.acknowledge("acknowledgements of three kinds", (0, 3, [ACCEPT, ACCEPT, RELEASE, REJECT]))
    for title, acknowledged, changes in (
        ("they come twice", [(0, 3, [ACCEPT])], {}),
        ("records that were never acquired", [(100, 110, [ACCEPT])], {}),
        ("the last offset there is", [(2**63 - 1, 2**63 - 1, [ACCEPT])], {}),
        ("offsets below 0", [(-5, -1, [ACCEPT])], {}),
        ("a range that ends before it begins", [(5, 4, [ACCEPT])], {}),
        ("ranges in the wrong order", [(5, 5, [ACCEPT]), (4, 4, [ACCEPT])], {}),
        ("ranges that overlap", [(4, 5, [ACCEPT]), (5, 6, [ACCEPT])], {}),
        ("no type", [(4, 4, [])], {}),
        ("too many types", [(4, 4, [ACCEPT, ACCEPT])], {}),
        ("too few types", [(4, 6, [ACCEPT, ACCEPT])], {}),
        ("a type that there is not", [(4, 4, [9])], {}),
        ("a type below 0", [(4, 4, [-1])], {}),
        ("a renewal that is not said to be one", [(4, 4, [RENEW])], {}),
        ("no ranges", [], {}),
        ("a partition that is not there, acknowledged", [(0, 0, [ACCEPT])], {"partition": 9}),
        ("an unknown topic, acknowledged", [(0, 0, [ACCEPT])], {"topic_id": NOWHERE}),
        ("no topics", [], {"topics": []}),
        ("half of it is acquired", [(4, 20, [ACCEPT])], {}),
        ("a part of a batch", [(4, 5, [ACCEPT])], {}),
    ):
        await one.acknowledge(f"acknowledged: {title}", *acknowledged, **changes)
    for title, changes in cases(
        {
            "acknowledgements without a group": {"group_id": None},
            "acknowledgements without a member": {"member_id": ""},
            "acknowledgements of an unknown member": {"member_id": "stranger"},
            "acknowledgements of an unknown group": {"group_id": "of-nobody"},
        }
    ):
        await one.acknowledge(title, (6, 6, [ACCEPT]), **changes)


async def _locks(talk: Conversation) -> None:
    """A lock ends while another member waits for its records."""
    topic_id = await filled(talk, "short", [2])
    await configure(talk, "short-locks", record_lock_duration_ms="1000")
    one, two = (Share(talk, "short-locks", name, topic_id, 1, over=name) for name in ("one", "two"))
    await one.join("short")
    await two.join("short")
    await one.first("a member acquires with a short lock")
    await two.first("another member gets them after the lock")
    await one.acknowledge("an acknowledgement after the lock", (0, 1, [ACCEPT]))
    await two.acknowledge("an acknowledgement in time", (0, 1, [ACCEPT]))


async def _deleted_topic(talk: Conversation) -> None:
    topic_id = await filled(talk, "leaving", [3])
    await configure(talk, "left")
    one = Share(talk, "left", "one", topic_id, 1, over="left")
    await one.join("leaving")
    await one.first("records of a topic that will be deleted")
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="leaving")], timeout_ms=30_000)
    await talk.ask("the topic is deleted", deletion, 6)
    gone = one.fetch_request([], share_session_epoch=BEGIN, max_wait_ms=0)

    def is_gone(answer: Any) -> bool:
        return bool(answer.responses) and answer.responses[0].partitions[0].error_code == 100

    one._next(await talk.until("a fetch of a deleted topic", gone, 1, is_gone, over="left"), gone)
    await one.acknowledge("an acknowledgement of a deleted topic", (0, 2, [ACCEPT]))


async def _renewals(talk: Conversation) -> None:
    topic_id = await filled(talk, "long", [4])
    await configure(talk, "renewing", renew_acknowledge_enable="true")
    one = Share(talk, "renewing", "one", topic_id, 2, over="renewing")
    await one.join("long")
    await one.first("records to be renewed")
    await one.acknowledge("a lock is renewed", (0, 1, [RENEW]), is_renew_ack=True)
    await one.acknowledge("one is renewed and one accepted", (0, 1, [RENEW, ACCEPT]), is_renew_ack=True)
    await one.acknowledge("a lock is renewed that is none", (1, 1, [RENEW]), is_renew_ack=True)
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    await one.fetch("a lock is renewed with a fetch", (2, 2, [RENEW]), is_renew_ack=True, **nothing)
    for name in nothing:
        only = {key: value for key, value in nothing.items() if key != name}
        await one.fetch(f"a renewal with {name}", (2, 2, [RENEW]), is_renew_ack=True, **only)
    await one.acknowledge("all of it", (0, 0, [ACCEPT]), (2, 3, [ACCEPT]))
    await configure(talk, "not-renewing", renew_acknowledge_enable="false")
    two = Share(talk, "not-renewing", "two", topic_id, 2, over="not-renewing")
    await two.join("long")
    await two.first("records not to be renewed")
    await two.acknowledge("a lock that may not be renewed", (0, 1, [RENEW]), is_renew_ack=True)


async def _limits(talk: Conversation) -> None:
    topic_id = await filled(talk, "limits", [5, 5])
    await configure(talk, "limited", delivery_count_limit="2", partition_max_record_locks="100")
    one = Share(talk, "limited", "one", topic_id, 2, over="limited")
    await one.join("limits")
    await one.first("whole batches", max_records=1, batch_size=1)
    await one.acknowledge("all are released", (0, 4, [RELEASE]))
    await one.fetch("no more records than asked for", topics=[], max_records=2, share_acquire_mode=1)
    await one.acknowledge("they are released a second time", (0, 1, [RELEASE]))
    await one.fetch("records past the limit are skipped", topics=[], max_records=3, share_acquire_mode=1)
    await one.fetch("no records are asked for", topics=[], max_records=0)
    await one.fetch("less than a byte", topics=[], max_bytes=0)
    await one.fetch("a time below 0", topics=[], max_wait_ms=-1)
    described = _described("limited", ("limits", [0]))
    await talk.until(
        "what was given up is no part of the lag", described, 1,
        lambda answer: answer.groups[0].topics[0].partitions[0].lag == 8,
    )  # fmt: skip
    await one.fetch("a mode that there is not", topics=[], max_records=2, share_acquire_mode=7)


async def _transactions(talk: Conversation) -> None:
    """A group that reads committed records only skips those of a transaction that was aborted."""
    from peers.conversations_of_clusters import ended_transaction

    topic_id = await talk.topic("mixed")
    await produce(talk, "mixed", batch("a"))
    await ended_transaction(talk, "sharing-1", "mixed", committed=False)
    await ended_transaction(talk, "sharing-2", "mixed", committed=True)
    for level in ("read_committed", "read_uncommitted"):
        await configure(talk, level, isolation_level=level)
        one = Share(talk, level, "one", topic_id, 2, over=level)
        await one.join("mixed")
        await one.first(f"records of transactions: {level}")
        await one.acknowledge(f"all of them are accepted: {level}", (0, 0, [ACCEPT]), share_session_epoch=END)


# ---- the state that brokers keep of share partitions


async def share_state(talk: Conversation) -> None:
    topic_id = await talk.topic("states", 2)
    await _initialized(talk, topic_id)
    await _read(talk, topic_id, "before a write")
    for version in (0, 1):
        await _written(talk, topic_id, version)
        await _read(talk, topic_id, f"after a write of version {version}")
    for title, data in {
        "a state is deleted": DeleteStateData(
            topic_id=topic_id, partitions=[DeleteStatePartition(partition=0)]
        ),
        "a deleted state is deleted": DeleteStateData(
            topic_id=topic_id, partitions=[DeleteStatePartition(partition=0)]
        ),
        "a state of an unknown topic is deleted": DeleteStateData(
            topic_id=NOWHERE, partitions=[DeleteStatePartition(partition=0)]
        ),
        "a state below 0 is deleted": DeleteStateData(
            topic_id=topic_id, partitions=[DeleteStatePartition(partition=-1)]
        ),
    }.items():  # fmt: skip
        await talk.ask(title, DeleteShareGroupStateRequest(group_id="keepers", topics=[data]), 0)
    await talk.ask(
        "a state without a group is deleted", DeleteShareGroupStateRequest(group_id="", topics=[data])
    )
    await _read(talk, topic_id, "after its end")


async def _initialized(talk: Conversation, topic_id: UUID) -> None:
    def asked(**changes: Any) -> InitializeShareGroupStateRequest:
        fields: Changes = {"partition": 0, "state_epoch": 1, "start_offset": 5}
        data = InitializeStateData(
            topic_id=changes.pop("topic_id", topic_id),
            partitions=[
                InitializeStatePartition(**fields | {k: v for k, v in changes.items() if k in fields})
            ],
        )
        return InitializeShareGroupStateRequest(group_id=changes.get("group_id", "keepers"), topics=[data])

    for title, changes in cases(
        {
            "a state begins": {},
            "it begins again": {},
            "it begins in an epoch of the past": {"state_epoch": 0},
            "it begins in a later epoch": {"state_epoch": 2, "start_offset": 7},
            "the state of an unknown topic begins": {"topic_id": NOWHERE},
            "the state of no topic begins": {"topic_id": UUID(int=0)},
            "the state of a partition that is not there begins": {"partition": 9},
            "the state of a partition below 0 begins": {"partition": -1},
            "the state without a group begins": {"group_id": ""},
            "a state begins below 0": {"partition": 1, "start_offset": -9},
            "a state begins in an epoch below 0": {"partition": 1, "state_epoch": -4},
        }
    ):
        await talk.ask(title, asked(**changes), 0)


async def _read(talk: Conversation, topic_id: UUID, when: str) -> None:
    for title, partition, epoch, of in (
        ("a state", 0, 0, topic_id),
        ("a state for an unknown leader", 0, -1, topic_id),
        ("another state", 1, 0, topic_id),
        ("the state of a partition that is not there", 9, 0, topic_id),
        ("the state of a partition below 0", -1, 0, topic_id),
        ("the state of an unknown topic", 0, 0, NOWHERE),
    ):
        data = ReadStateData(
            topic_id=of, partitions=[ReadStatePartition(partition=partition, leader_epoch=epoch)]
        )
        await talk.ask(
            f"{title} is read {when}", ReadShareGroupStateRequest(group_id="keepers", topics=[data]), 0
        )
        for version in (0, 1):
            summary = ReadStateSummaryData(
                topic_id=of, partitions=[ReadStateSummaryPartition(partition=partition, leader_epoch=epoch)]
            )
            request = ReadShareGroupStateSummaryRequest(group_id="keepers", topics=[summary])
            await talk.ask(f"{title} is summed up {when}, {version}", request, version)
    nameless = ReadShareGroupStateRequest(group_id="", topics=[data])
    await talk.ask(f"a state without a group is read {when}", nameless, 0)
    data = ReadStateData(topic_id=topic_id, partitions=[ReadStatePartition(partition=0)])
    other = ReadShareGroupStateRequest(group_id="others", topics=[data])
    await talk.ask(f"a state of another group is read {when}", other, 0)


async def _written(talk: Conversation, topic_id: UUID, version: int) -> None:
    def asked(**changes: Any) -> WriteShareGroupStateRequest:
        fields: Changes = {
            "partition": 0, "state_epoch": 2, "leader_epoch": 3 + version, "start_offset": 7,
            "state_batches": [StateBatch(first_offset=8, last_offset=9, delivery_state=0, delivery_count=1)],
        }  # fmt: skip
        if version:
            fields["delivery_complete_count"] = 0
        data = WriteStateData(
            topic_id=changes.pop("topic_id", topic_id),
            partitions=[
                WriteStatePartition(**fields | {k: v for k, v in changes.items() if k != "group_id"})
            ],
        )
        return WriteShareGroupStateRequest(group_id=changes.get("group_id", "keepers"), topics=[data])

    backward = StateBatch(first_offset=9, last_offset=8, delivery_state=0, delivery_count=1)
    unknown = StateBatch(first_offset=20, last_offset=21, delivery_state=99, delivery_count=1)
    before = StateBatch(first_offset=1, last_offset=2, delivery_state=0, delivery_count=1)
    part = StateBatch(first_offset=9, last_offset=12, delivery_state=2, delivery_count=2)
    for title, changes in cases(
        {
            "a state is written": {},
            "a state is written over a part of it": {"state_batches": [part]},
            "a state is written by a leader of the past": {"leader_epoch": 1},
            "a state of the past is written": {"state_epoch": 1},
            "a state of the future is written": {"state_epoch": 9},
            "a start before the present one is written": {"start_offset": 6},
            "a start below 0 is written": {"start_offset": -5},
            "no start is written": {"start_offset": -1},
            "a range that ends before it begins is written": {"state_batches": [backward]},
            "an unknown delivery state is written": {"state_batches": [unknown]},
            "a range before the start is written": {"state_batches": [before]},
            "the state of a partition that is not there is written": {"partition": 9},
            "the state of an unknown topic is written": {"topic_id": NOWHERE},
            "the state of a partition without a state is written": {"group_id": "others"},
            "the state without a group is written": {"group_id": ""},
            "a start after all of it is written": {"start_offset": 30, "state_batches": []},
        }
    ):
        if version and title.startswith("a start after"):
            changes = changes | {"start_offset": 40}
        await talk.ask(f"{title}, {version}", asked(**changes), version)

"""The requests of the recorded conversations about classic, consumer and streams groups, in order.

650 lines because a conversation is a list of requests, with as many lines as they have fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from ottla.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.streams_group_describe import (
    Endpoint,
    StreamsGroupDescribeRequest,
    TaskIds,
    TopicInfo,
    TopologyDescription,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from ottla.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
    Subtopology,
    Topology,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from peers.conversations import Cases, Changes, Conversation, cases

JOIN, LEAVE, LEAVE_STATIC = 0, -1, -2
NOWHERE: Final = UUID(int=7)
LONG_MS: Final = 300_000


def joining(group: str, member: str = "", **changes: Any) -> ConsumerGroupHeartbeatRequest:
    fields: Changes = {
        "group_id": group, "member_id": member, "member_epoch": JOIN, "rebalance_timeout_ms": LONG_MS,
        "subscribed_topic_names": [], "topic_partitions": [],
    }  # fmt: skip
    return ConsumerGroupHeartbeatRequest(**fields | changes)


class Member:
    """A member of a consumer group in a script: its id, its epoch, and the partitions that it owns."""

    def __init__(self, talk: Conversation, group: str, name: str, version: int) -> None:
        self.talk = talk
        self.group = group
        self.name = name
        self.version = version
        self.member_id = name if version else ""
        self.epoch = 0
        self.owned: list[TopicPartitions] = []
        self.asked: dict[str, Any] = {}

    async def join(self, title: str, topics: Sequence[str], **changes: Any) -> Any:
        self.asked = {"subscribed_topic_names": list(topics), **changes}
        request = joining(self.group, self.member_id, subscribed_topic_names=list(topics), **changes)
        return self._took(await self.talk.ask(title, request, self.version))

    async def beat(self, title: str, **changes: Any) -> Any:
        asks = {"subscribed_topic_names", "subscribed_topic_regex"} & changes.keys()
        self.asked |= {key: changes[key] for key in asks}
        return self._took(await self.talk.ask(title, self.request(**changes), self.version))

    async def assigned(self, title: str, partitions: int, **changes: Any) -> Any:
        """Send all that a member has to say until so many partitions are assigned to it."""
        everything: Changes = {"rebalance_timeout_ms": LONG_MS, "topic_partitions": self.owned, **self.asked}
        request = self.request(**everything | changes)

        def is_ready(answer: Any) -> bool:
            given = answer.assignment and answer.assignment.topic_partitions
            return given is not None and sum(len(topic.partitions) for topic in given) == partitions

        return self._took(await self.talk.until(title, request, self.version, is_ready))

    def request(self, **changes: Any) -> ConsumerGroupHeartbeatRequest:
        fields: Changes = {"group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch}
        fields |= {"topic_partitions": None, "subscribed_topic_names": None, "rebalance_timeout_ms": -1}
        return ConsumerGroupHeartbeatRequest(**fields | changes)

    def _took(self, answer: Any) -> Any:
        if answer.error_code == 0:
            self.member_id, self.epoch = answer.member_id, answer.member_epoch
            if self.version == 0:
                self.talk.name(self.member_id, self.name)
            if answer.assignment is not None:
                self.owned = [
                    TopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
                    for topic in answer.assignment.topic_partitions
                ]
        return answer


async def consumer_groups_0(talk: Conversation) -> None:
    await _consumer_group(talk, 0)


async def consumer_groups_1(talk: Conversation) -> None:
    await _consumer_group(talk, 1)
    await _expressions(talk)


async def _consumer_group(talk: Conversation, version: int) -> None:
    topic, group = f"orders-{version}", f"cashiers-{version}"
    topic_id = await talk.topic(topic, 4)
    await _refused_heartbeats(talk, topic, version)
    first = Member(talk, group, "first", version)
    await first.join("the first member joins", [topic])
    await first.assigned("the first member gets all partitions", 4)
    await first.beat("the first member owns them", topic_partitions=first.owned)
    await first.beat("nothing has changed", subscribed_topic_names=[topic], topic_partitions=first.owned)
    await first.beat("a heartbeat that is short")
    await _refused_epochs(talk, first)
    second = Member(talk, group, "second", version)
    await second.join("the second member joins", [topic])
    await first.assigned("the first member is to revoke two", 2)
    await second.beat("the second member waits")
    await first.beat("the first member has revoked them", topic_partitions=first.owned)
    await first.beat("the first member goes on", topic_partitions=first.owned)
    await second.assigned("the second member gets them", 2)
    await second.beat("the second member owns them", topic_partitions=second.owned)
    await _described(talk, group, version)
    await _offsets(talk, first, topic, topic_id)
    await _static_member(talk, topic, version)
    await _classic_requests(talk, group, first)
    await talk.ask("a group with members is not deleted", DeleteGroupsRequest(groups_names=[group]))
    await talk.ask("offsets of a topic that is read are not deleted", _deletion(group, topic))
    await second.beat("the second member leaves", member_epoch=LEAVE)
    await second.beat("the second member has left", member_epoch=LEAVE)
    await first.beat("the first member asks for another topic", subscribed_topic_names=["of-nobody"])
    await first.beat("a heartbeat without partitions", topic_partitions=[])
    await first.beat("the first member asks for none", subscribed_topic_names=[])
    await first.beat("the first member returns", subscribed_topic_names=[topic], topic_partitions=[])
    await first.assigned("the first member gets all partitions again", 4)
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=30_000)
    await talk.ask("the topic is deleted", deletion)
    await first.assigned("the first member has no partitions without the topic", 0)
    await first.beat("the first member leaves", member_epoch=LEAVE)
    await talk.ask("the group is empty", ConsumerGroupDescribeRequest(group_ids=[group]), version)
    await talk.ask("the group is deleted", DeleteGroupsRequest(groups_names=[group]))
    await talk.ask("the group was deleted", DeleteGroupsRequest(groups_names=[group]))


async def _refused_heartbeats(talk: Conversation, topic: str, version: int) -> None:
    member = "someone" if version else ""
    group = f"refused-{version}"
    names = [topic]
    every_case: Cases = {
        "a join without a group": {"group_id": ""},
        "a join with a blank group": {"group_id": "  "},
        "a join with a blank instance": {"instance_id": " "},
        "a join with an empty rack": {"rack_id": ""},
        "a join without a rebalance timeout": {"rebalance_timeout_ms": -1},
        "a join that owns partitions": {
            "topic_partitions": [TopicPartitions(topic_id=NOWHERE, partitions=[0])]
        },
        "a join that does not name its partitions": {"topic_partitions": None},
        "a join that asks for nothing": {"subscribed_topic_names": None},
        "a join with an unknown assignor": {"server_assignor": "sticky"},
        "a join without a member": {"member_id": ""},
        "a join with a negative rebalance timeout": {"rebalance_timeout_ms": -5},
        "an epoch that is none": {"member_epoch": -3},
        "a static member leaves without its instance": {"member_epoch": LEAVE_STATIC},
        "a member of an unknown group": {"member_id": "someone", "member_epoch": 1},
        "a member leaves an unknown group": {"member_id": "someone", "member_epoch": LEAVE},
        "a static member leaves an unknown group": {
            "member_id": "someone", "instance_id": "till", "member_epoch": LEAVE_STATIC
        },
        "the last epoch there is": {"member_id": "someone", "member_epoch": 2**31 - 1},
    }  # fmt: skip
    for title, changes in every_case.items():
        request = joining(group, member, subscribed_topic_names=names)
        for field, value in changes.items():
            setattr(request, field, value)
        answer = await talk.ask(title, request, version)
        if answer.error_code == 0:
            leave = ConsumerGroupHeartbeatRequest(
                group_id=request.group_id, member_id=answer.member_id, member_epoch=LEAVE
            )
            await talk.prepare(leave, version)


async def _refused_epochs(talk: Conversation, member: Member) -> None:
    for title, changes in cases({
        "an epoch of the future": {"member_epoch": member.epoch + 1},
        "an epoch of the far future": {"member_epoch": 2**31 - 1},
        "an epoch of the past without its partitions": {
            "member_epoch": member.epoch - 1, "topic_partitions": []
        },
        "an unknown member": {"member_id": "stranger", "member_epoch": 1},
        "an unknown member leaves": {"member_id": "stranger", "member_epoch": LEAVE},
        "an instance that is not the member's": {"instance_id": "till"},
        "an unknown instance leaves": {"instance_id": "till", "member_epoch": LEAVE_STATIC},
        "partitions that the member does not have": {
            "topic_partitions": [TopicPartitions(topic_id=NOWHERE, partitions=[9])]
        },
    }):  # fmt: skip
        answer = await member.talk.ask(title, member.request(**changes), member.version)
        if answer.error_code == 0:
            member.epoch = answer.member_epoch


async def _described(talk: Conversation, group: str, version: int) -> None:
    asked = ConsumerGroupDescribeRequest(group_ids=[group, "of-nobody"], include_authorized_operations=True)
    await talk.ask("the group is described", asked, version)
    await talk.ask("no group is described", ConsumerGroupDescribeRequest(group_ids=[]), version)
    await talk.ask(
        "a group without a name is described", ConsumerGroupDescribeRequest(group_ids=[""]), version
    )
    twice = ConsumerGroupDescribeRequest(group_ids=["of-nobody", "of-nobody"])
    await talk.ask("a group is described twice", twice, version)
    await talk.ask(
        "it is described as a classic group", DescribeGroupsRequest(groups=[group, "of-nobody", ""]), 6
    )
    await talk.ask(
        "consumer groups are listed",
        ListGroupsRequest(types_filter=["consumer"], states_filter=["Stable"]),
        5,
    )


def _commit(member: Member, topic: str, topic_id: UUID, **changes: Any) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=number, committed_offset=5 + number, committed_metadata="m"
        )
        for number in changes.pop("partitions", [0])
    ]
    named = OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)
    fields: Changes = {
        "group_id": member.group, "member_id": member.member_id,
        "generation_id_or_member_epoch": member.epoch, "topics": [named],
    }  # fmt: skip
    return OffsetCommitRequest(**fields | changes)


async def _offsets(talk: Conversation, member: Member, topic: str, topic_id: UUID) -> None:
    for version in (9, 10):
        name, of = (topic, UUID(int=0)) if version == 9 else ("", topic_id)
        for title, changes in cases(
            {
                "offsets are committed": {"partitions": [0, 1]},
                "a commit with an epoch of the future": {"generation_id_or_member_epoch": member.epoch + 5},
                "a commit with an epoch of the past": {"generation_id_or_member_epoch": member.epoch - 1},
                "a commit of an unknown member": {"member_id": "stranger"},
                "a commit without a member": {"member_id": "", "generation_id_or_member_epoch": -1},
                "a commit of an unknown group": {"group_id": f"of-nobody-{member.version}"},
                "a commit of a partition that is not there": {"partitions": [0, 99]},
                "a commit without a group": {"group_id": ""},
            }
        ):
            await talk.ask(f"{title}, {version}", _commit(member, name, of, **changes), version)
        if version == 9:
            await talk.ask("a commit of an unknown topic, 9", _commit(member, "of-nobody", of), 9)
        else:
            await talk.ask("a commit of an unknown topic, 10", _commit(member, "", NOWHERE), 10)
            await talk.ask("a commit of a topic without an id, 10", _commit(member, "", UUID(int=0)), 10)
        await _fetched(talk, member, name, of, version)


async def _fetched(talk: Conversation, member: Member, topic: str, topic_id: UUID, version: int) -> None:
    def asked(**changes: Any) -> OffsetFetchRequest:
        wanted = OffsetFetchRequestTopics(
            name=changes.pop("name", topic), topic_id=changes.pop("topic_id", topic_id),
            partition_indexes=[0, 1, 2, 99],
        )  # fmt: skip
        fields: Changes = {"group_id": member.group, "topics": [wanted], "member_epoch": -1}
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(**fields | changes)])

    of: Changes = {"member_id": member.member_id, "member_epoch": member.epoch}
    for title, changes in cases(
        {
            "offsets are fetched": {},
            "offsets are fetched by a member": of,
            "all offsets are fetched": {"topics": None},
            "no offsets are fetched": {"topics": []},
            "offsets are fetched with an epoch of the past": of | {"member_epoch": member.epoch - 1},
            "offsets are fetched with an epoch of the future": of | {"member_epoch": member.epoch + 1},
            "offsets are fetched by an unknown member": {"member_id": "stranger", "member_epoch": 1},
            "offsets of an unknown group are fetched": {"group_id": "of-nobody"},
            "offsets of a group without a name are fetched": {"group_id": ""},
            "offsets of an unknown topic are fetched": {"name": "of-nobody"}
            if version == 9
            else {"topic_id": NOWHERE},
        }
    ):
        await talk.ask(f"{title}, {version}", asked(**changes), version)


async def _static_member(talk: Conversation, topic: str, version: int) -> None:
    group = f"static-{version}"
    still = Member(talk, group, "still", version)
    await still.join("a static member joins", [topic], instance_id="till")
    await still.assigned("the static member gets all partitions", 4, instance_id="till")
    other = Member(talk, group, "other", version)
    await other.join("another member has the instance", [topic], instance_id="till")
    await still.beat("the static member leaves for a while", instance_id="till", member_epoch=LEAVE_STATIC)
    await still.beat("the static member is away", instance_id="till", member_epoch=1)
    await talk.ask(
        "a static member that is away is described", ConsumerGroupDescribeRequest(group_ids=[group]), version
    )
    await other.join("another member takes the instance", [topic], instance_id="till")
    await still.beat("the static member is fenced", instance_id="till", member_epoch=1)
    await other.beat("the other member leaves", instance_id="till", member_epoch=LEAVE)


async def _classic_requests(talk: Conversation, group: str, member: Member) -> None:
    def join(protocol_type: str, metadata: bytes) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group, session_timeout_ms=45_000, rebalance_timeout_ms=45_000, member_id="",
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )  # fmt: skip

    await talk.ask("a worker of Connect joins", join("connect", b""), 3)
    await talk.ask("a classic member joins with a damaged subscription", join("consumer", b"\x00"), 3)
    beat = HeartbeatRequest(group_id=group, generation_id=member.epoch, member_id=member.member_id)
    await talk.ask("a classic heartbeat of a member of the new protocol", beat, 4)
    stranger = HeartbeatRequest(group_id=group, generation_id=1, member_id="stranger")
    await talk.ask("a classic heartbeat of an unknown member", stranger, 4)
    sync = SyncGroupRequest(group_id=group, generation_id=member.epoch, member_id=member.member_id)
    await talk.ask("a classic sync of a member of the new protocol", sync, 5)
    leave = LeaveGroupRequest(
        group_id=group,
        members=[
            MemberIdentity(member_id="stranger"),
            MemberIdentity(member_id="", group_instance_id="desk"),
        ],
    )
    await talk.ask("unknown members leave", leave, 5)


def _deletion(group: str, topic: str) -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    return OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
    )


async def _expressions(talk: Conversation) -> None:
    await talk.topic("regex-1", 2)
    await talk.topic("regex-2", 1)
    reader = Member(talk, "readers", "reader", 1)
    for title, expression in {
        "an expression that does not end": "[",
        "an expression with a reference back": r"(a)\1",
        "an expression that looks ahead": "a(?=b)",
        "an empty expression": "",
    }.items():
        request = joining("readers", "reader", subscribed_topic_names=None, subscribed_topic_regex=expression)
        answer = await talk.ask(title, request, 1)
        if answer.error_code == 0:
            reader.epoch = answer.member_epoch
            await talk.ask(f"{title}: the member leaves", reader.request(member_epoch=LEAVE), 1)
    grows = joining("growing", "m", subscribed_topic_names=None, subscribed_topic_regex="(a{1000}){1000}")
    await talk.ask("an expression that grows", grows, 1)
    await reader.join("a member joins with an expression", [], subscribed_topic_regex="regex-.*")
    await reader.assigned("all topics that the expression matches", 3)
    await talk.ask(
        "a group with an expression is described", ConsumerGroupDescribeRequest(group_ids=["readers"]), 1
    )
    await reader.beat("the expression is replaced", subscribed_topic_regex="regex-2")
    await reader.assigned("the topic that the other expression matches", 1)
    await reader.beat("a damaged expression", subscribed_topic_regex="*")
    await reader.beat("the expression is removed", subscribed_topic_regex="")
    await reader.beat("the reader leaves", member_epoch=LEAVE)


# ---- classic groups, and groups of all kinds


async def classic_groups(talk: Conversation) -> None:
    """Ask for coordinators, groups and their descriptions in the versions of today."""
    await _coordinators(talk)
    join = JoinGroupRequest(
        group_id="old", session_timeout_ms=45_000, rebalance_timeout_ms=45_000, member_id="",
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\x01")],
    )  # fmt: skip
    named = await talk.until("an id is given to a member", join, 9, lambda answer: answer.error_code == 79)
    join.member_id = named.member_id
    joined = await talk.ask("the member joins", join, 9)
    sync = SyncGroupRequest(
        group_id="old", generation_id=joined.generation_id, member_id=joined.member_id,
        protocol_type="consumer", protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"\x02")],
    )  # fmt: skip
    await talk.ask("the leader assigns", sync, 5)
    await talk.ask(
        "groups are described",
        DescribeGroupsRequest(groups=["old", "of-nobody"], include_authorized_operations=True),
        6,
    )
    await talk.ask("a classic group is no consumer group", ConsumerGroupDescribeRequest(group_ids=["old"]), 1)
    await talk.ask(
        "a member of today joins an old group", joining("old", "m", subscribed_topic_names=["x"]), 1
    )
    for title, states, types in (
        ("classic groups", [], ["classic"]),
        ("groups in two states", ["Stable", "Empty"], ["classic"]),
        ("groups in small letters", ["stable"], ["CLASSIC"]),
        ("groups in no state that is known", ["Asleep"], []),
        ("groups of no kind that is known", [], ["queue"]),
    ):
        await talk.ask(f"{title} are listed", ListGroupsRequest(states_filter=states, types_filter=types), 5)
    leave = LeaveGroupRequest(group_id="old", members=[MemberIdentity(member_id=joined.member_id)])
    await talk.ask("the member leaves", leave, 5)
    await talk.ask("the empty group is described", DescribeGroupsRequest(groups=["old"]), 6)


async def _coordinators(talk: Conversation) -> None:
    for version in (4, 5, 6):
        for title, key_type, keys in (
            ("of groups", 0, ["a", "b", ""]),
            ("of transactions", 1, ["a", ""]),
            ("of share groups", 2, ["g:AAAAAAAAAAAAAAAAAAAABw:0"]),
            ("of a share group that is none", 2, ["g", "g:x:0", "g:AAAAAAAAAAAAAAAAAAAABw:x", "", ":::"]),
            ("of nothing that is known", 3, ["a"]),
            ("of no one", 0, []),
        ):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
            await talk.until(
                f"coordinators {title}, {version}", request, version,
                lambda answer: answer is None or all(one.error_code != 15 for one in answer.coordinators),
            )  # fmt: skip


# ---- streams groups


def _topology(source: str, epoch: int = 0, **changes: Any) -> Topology:
    changelog = TopicInfo(name=f"{source}-store-changelog")
    fields: Changes = {
        "subtopology_id": "0", "source_topics": [source], "state_changelog_topics": [changelog]
    }  # fmt: skip
    return Topology(epoch=epoch, subtopologies=[Subtopology(**fields | changes)])


def _stream(group: str, member: str, epoch: int = JOIN, **changes: Any) -> StreamsGroupHeartbeatRequest:
    fields: Changes = {"group_id": group, "member_id": member, "member_epoch": epoch}
    if epoch == JOIN:
        fields |= {
            "rebalance_timeout_ms": LONG_MS, "process_id": "process", "client_tags": [],
            "active_tasks": [], "standby_tasks": [], "warmup_tasks": [],
        }  # fmt: skip
    return StreamsGroupHeartbeatRequest(**fields | changes)


async def streams_groups_0(talk: Conversation) -> None:
    await _streams_group(talk, 0)


async def streams_groups_1(talk: Conversation) -> None:
    await _streams_group(talk, 1)
    await _topology_descriptions(talk)


async def _streams_group(talk: Conversation, version: int) -> None:
    source, group = f"clicks-{version}", f"counter-{version}"
    await talk.topic(source, 2)
    await _refused_streams(talk, source, version)
    joined = await talk.ask(
        "a member joins",
        _stream(group, "one", topology=_topology(source, state_changelog_topics=[])),
        version,
    )
    epoch = joined.member_epoch
    tasks = [TaskIds(subtopology_id="0", partitions=[0, 1])]
    owned = {"active_tasks": tasks, "standby_tasks": [], "warmup_tasks": []}
    await talk.ask("the member has its tasks", _stream(group, "one", epoch, **owned), version)
    for title, changes in cases(
        {
            "an epoch of the future": {"member_epoch": epoch + 1},
            "an epoch of the past without its tasks": {
                "member_epoch": epoch - 1,
                **owned,
                "active_tasks": [],
            },
            "an unknown member": {"member_id": "stranger"},
            "an unknown member leaves": {"member_id": "stranger", "member_epoch": LEAVE},
            "a topology of the future": {"topology": _topology(source, 5, state_changelog_topics=[])},
            "an unknown endpoint epoch": {"endpoint_information_epoch": 9},
        }
    ):
        request = _stream(group, "one", epoch)
        for field, value in changes.items():
            setattr(request, field, value)
        answer = await talk.ask(title, request, version)
        if answer.error_code == 0:
            epoch = max(epoch, answer.member_epoch)
    asked = StreamsGroupDescribeRequest(
        group_ids=[group, "of-nobody", ""], include_authorized_operations=True
    )
    await talk.ask("the group is described", asked, version)
    await talk.ask("the member leaves", _stream(group, "one", LEAVE), version)
    await talk.ask("the member has left", _stream(group, "one", LEAVE), version)
    await talk.ask("the empty group is described", StreamsGroupDescribeRequest(group_ids=[group]), version)
    await _internal_topics(talk, source, version)


async def _refused_streams(talk: Conversation, source: str, version: int) -> None:
    topology = _topology(source, state_changelog_topics=[])
    for title, changes in cases(
        {
            "a join without a group": {"group_id": ""},
            "a join without a member": {"member_id": ""},
            "a join without a process": {"process_id": None},
            "a join with an empty process": {"process_id": ""},
            "a join without a rebalance timeout": {"rebalance_timeout_ms": -1},
            "a join without a topology": {"topology": None},
            "a join that has tasks": {"active_tasks": [TaskIds(subtopology_id="0", partitions=[0])]},
            "a join that does not name its tasks": {"active_tasks": None},
            "a join without tags": {"client_tags": None},
            "a join with a blank instance": {"instance_id": " "},
            "a join with a blank rack": {"rack_id": " "},
            "an endpoint without a host": {"user_endpoint": Endpoint(host="", port=1)},
            "an endpoint without a port": {"user_endpoint": Endpoint(host="here", port=0)},
            "an epoch that is none": {"member_epoch": -3},
            "a static member leaves without its instance": {"member_epoch": LEAVE_STATIC},
            "a member of an unknown group": {"member_epoch": 3, "topology": None},
            "a member leaves an unknown group": {"member_epoch": LEAVE},
            "a subtopology without topics": {
                "topology": Topology(epoch=0, subtopologies=[Subtopology(subtopology_id="0")])
            },
            "two subtopologies with one name": {
                "topology": Topology(epoch=0, subtopologies=topology.subtopologies * 2)
            },
            "a source topic with an illegal name": {"topology": _topology("a/b")},
            "a topology with a negative epoch": {"topology": _topology(source, -1)},
            "a changelog with partitions": {
                "topology": _topology(source, state_changelog_topics=[TopicInfo(name="x", partitions=3)])
            },
        }
    ):
        request = _stream(f"refused-streams-{version}", "member", topology=topology)
        for field, value in changes.items():
            setattr(request, field, value)
        answer = await talk.ask(title, request, version)
        if answer.error_code == 0:
            await talk.prepare(_stream(request.group_id, "member", LEAVE), version)


async def _internal_topics(talk: Conversation, source: str, version: int) -> None:
    group = f"internal-{version}"
    lacking = _stream(group, "a", topology=_topology("of-nobody"))
    await talk.ask("a topology lacks a source", lacking, version)
    await talk.ask("the member of it leaves", _stream(group, "a", LEAVE), version)
    group = f"creating-{version}"
    joined = await talk.ask(
        "a topology needs a changelog", _stream(group, "b", topology=_topology(source)), version
    )
    beat = _stream(group, "b", joined.member_epoch, active_tasks=[], standby_tasks=[], warmup_tasks=[])

    def has_tasks(answer: Any) -> bool:
        return bool(answer.error_code or answer.active_tasks)

    await talk.until("the changelog is there", beat, version, has_tasks)
    two = Topology(
        epoch=0,
        subtopologies=[
            Subtopology(subtopology_id="0", source_topics=[source], repartition_sink_topics=[f"r{version}"]),
            Subtopology(
                subtopology_id="1", repartition_source_topics=[TopicInfo(name=f"r{version}", partitions=3)]
            ),
        ],
    )
    group = f"repartition-{version}"
    joined = await talk.ask(
        "a topology needs a repartition topic", _stream(group, "c", topology=two), version
    )
    beat = _stream(group, "c", joined.member_epoch, active_tasks=[], standby_tasks=[], warmup_tasks=[])
    ready = await talk.until("the repartition topic is there", beat, version, has_tasks)
    described = StreamsGroupDescribeRequest(group_ids=[group])
    await talk.ask("a group of another topology is described", described, version)
    down = _stream(group, "c", ready.member_epoch, shutdown_application=True)
    await talk.ask("the application is shut down", down, version)
    await talk.ask("it is still shut down", _stream(group, "c", ready.member_epoch), version)


async def _topology_descriptions(talk: Conversation) -> None:
    node = TopologyDescriptionNode(name="source", node_type=1, source_topics=["clicks-1"])
    parts = [TopologyDescriptionSubtopology(subtopology_id="0", nodes=[node])]
    for title, changes in cases({
        "a topology is described for an unknown group": {"group_id": "of-nobody"},
        "a topology is described without a group": {"group_id": ""},
        "a topology is described without a member": {"member_id": ""},
        "a topology is described by an unknown member": {"group_id": "repartition-1"},
        "a topology of another epoch is described": {
            "group_id": "repartition-1", "member_id": "c", "topology_epoch": 5
        },
        "a topology is described": {"group_id": "repartition-1", "member_id": "c"},
    }):  # fmt: skip
        fields: Changes = {
            "group_id": "repartition-1", "member_id": "stranger", "topology_epoch": 0,
            "topology_description": TopologyDescription(subtopologies=parts),
        }  # fmt: skip
        await talk.ask(title, StreamsGroupTopologyDescriptionUpdateRequest(**fields | changes))
    await talk.ask(
        "a described topology is asked for",
        StreamsGroupDescribeRequest(group_ids=["repartition-1"], include_topology_description=True),
        1,
    )

"""The group APIs in every version they are served in, from decoded request to encoded answer."""

import asyncio
from typing import Any

import pytest

from ottla.broker.api import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from ottla.broker.api.group_testing import BROKER, GroupServices, TopicsStub, ask, context_of
from ottla.protocol.errors import ErrorCode, InvalidReplicationFactor
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.messages.producer_ids import InitProducerIdRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.topics import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC


def versions(last: int, first: int = 0) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", range(first, last + 1))


def a_join(version: int, member_id: str = "", **more: Any) -> JoinGroupRequest:
    if version >= 1:
        more["rebalance_timeout_ms"] = 60_000
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\5topic\0\0\0\0")],
        **more,
    )


async def join(services: GroupServices, version: int = 5) -> JoinGroupResponse:
    first = await ask(services, join_group.handle, a_join(version), version)
    if first.error_code != ErrorCode.MEMBER_ID_REQUIRED:
        return first
    return await ask(services, join_group.handle, a_join(version, first.member_id), version)


async def stable(services: GroupServices) -> str:
    """Bring group g to Stable and return its only member."""
    joined = await join(services)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
    )
    assert (await ask(services, sync_group.handle, request, 3)).assignment == b"mine"
    return joined.member_id


# ---- coordinators


@versions(3)
async def test_the_first_to_ask_for_a_coordinator_makes_the_topic(
    services: GroupServices, topics: TopicsStub, version: int
) -> None:
    answer = await ask(services, find_coordinator.handle, FindCoordinatorRequest(key="g"), version)

    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, BROKER, "localhost", 9092)
    assert topics.created == [GROUP_METADATA_TOPIC]
    await ask(services, find_coordinator.handle, FindCoordinatorRequest(key="g"), version)
    assert len(topics.created) == 1


@versions(6, first=4)
async def test_coordinators_of_several_groups_are_found_at_once(
    services: GroupServices, topics: TopicsStub, version: int
) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g", "h"])

    answer = await ask(services, find_coordinator.handle, request, version)

    assert [(one.key, one.error_code, one.node_id, one.host, one.port) for one in answer.coordinators] == [
        ("g", 0, BROKER, "localhost", 9092),
        ("h", 0, BROKER, "localhost", 9092),
    ]
    assert topics.created == [GROUP_METADATA_TOPIC]


@versions(6, first=4)
async def test_each_of_several_coordinators_has_its_own_error(services: GroupServices, version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g", "h"], key_type=3)

    answer = await ask(services, find_coordinator.handle, request, version)

    assert [(one.key, one.error_code, one.node_id, one.host) for one in answer.coordinators] == [
        ("g", ErrorCode.INVALID_REQUEST, -1, ""),
        ("h", ErrorCode.INVALID_REQUEST, -1, ""),
    ]


async def test_a_topic_that_cannot_be_made_is_no_coordinator(
    services: GroupServices, topics: TopicsStub
) -> None:
    topics.refusal = InvalidReplicationFactor("not enough brokers")

    answer = await ask(services, find_coordinator.handle, FindCoordinatorRequest(key="g"), 3)

    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "not enough brokers" in (answer.error_message or "")
    assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)


async def test_a_coordinator_of_an_unknown_kind_is_an_invalid_request(services: GroupServices) -> None:
    answer = await ask(services, find_coordinator.handle, FindCoordinatorRequest(key="s", key_type=2), 3)

    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_a_share_partition_has_a_coordinator_where_share_groups_are_on(
    services: GroupServices, topics: TopicsStub
) -> None:
    async def code(key: str) -> int:
        request = FindCoordinatorRequest(coordinator_keys=[key], key_type=2)
        return (await ask(services, find_coordinator.handle, request, 6)).coordinators[0].error_code

    good = f"group:of:shares:{'A' * 22}:3"
    services.features.off.add("share.version")
    assert await code(good) == ErrorCode.INVALID_REQUEST

    services.features.off.clear()
    assert await code(good) == 0
    assert topics.created == [SHARE_GROUP_STATE_TOPIC]
    for bad in ("group", f":{'A' * 22}:3", f"group:{'A' * 21}:3", f"group:{'A' * 22}:x"):
        assert await code(bad) == ErrorCode.INVALID_REQUEST


# ---- membership


@versions(9)
async def test_a_member_joins(services: GroupServices, version: int) -> None:
    answer = await join(services, version)

    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert answer.member_id.startswith("client-")
    assert answer.leader == answer.member_id
    assert [member.member_id for member in answer.members] == [answer.member_id]
    assert answer.protocol_type == ("consumer" if version >= 7 else None)


@versions(9)
async def test_a_refused_join_can_be_encoded(services: GroupServices, version: int) -> None:
    answer = await ask(services, join_group.handle, a_join(version, "unknown"), version)

    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert answer.generation_id == -1


async def test_a_static_member_gets_an_id_named_after_its_instance(services: GroupServices) -> None:
    answer = await ask(services, join_group.handle, a_join(5, group_instance_id="one"), 5)

    assert answer.error_code == 0
    assert answer.member_id.startswith("one-")
    assert answer.members[0].group_instance_id == "one"


async def test_a_static_leader_that_returns_is_told_to_skip_the_assignment(services: GroupServices) -> None:
    for version, skips in ((8, False), (9, True)):
        member = {"group_instance_id": "one"}
        joined = await ask(services, join_group.handle, a_join(version, **member), version)
        if not skips:
            request = SyncGroupRequest(
                group_id="g", generation_id=1, member_id=joined.member_id, group_instance_id="one"
            )
            await ask(services, sync_group.handle, request, 3)
            continue
        assert (joined.skip_assignment, joined.leader) == (True, joined.member_id)
        assert [one.member_id for one in joined.members] == [joined.member_id]


@versions(5)
async def test_a_member_gets_its_assignment(services: GroupServices, version: int) -> None:
    joined = await join(services)
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")],
        **named,
    )

    answer = await ask(services, sync_group.handle, request, version)

    assert (answer.error_code, answer.assignment) == (0, b"mine")
    assert answer.protocol_name == ("range" if version >= 5 else None)


async def test_a_new_sync_without_protocol_is_inconsistent(services: GroupServices) -> None:
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")

    answer = await ask(services, sync_group.handle, request, 5)

    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@versions(4)
async def test_heartbeats_are_answered(services: GroupServices, version: int) -> None:
    member_id = await stable(services)
    for generation, error in ((1, ErrorCode.NONE), (0, ErrorCode.ILLEGAL_GENERATION)):
        request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
        assert (await ask(services, heartbeat.handle, request, version)).error_code == error


@versions(2)
async def test_one_member_leaves(services: GroupServices, version: int) -> None:
    member_id = await stable(services)
    request = LeaveGroupRequest(group_id="g", member_id=member_id)

    errors = [(await ask(services, leave_group.handle, request, version)).error_code for _ in range(2)]

    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


@versions(5, first=3)
async def test_several_members_leave(services: GroupServices, version: int) -> None:
    member_id = await stable(services)
    members = [MemberIdentity(member_id=member_id, reason="done"), MemberIdentity(member_id="nobody")]

    answer: LeaveGroupResponse = await ask(
        services, leave_group.handle, LeaveGroupRequest(group_id="g", members=members), version
    )

    assert answer.error_code == 0
    assert [one.error_code for one in answer.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]


async def test_leaving_without_a_group_id_is_invalid(services: GroupServices) -> None:
    assert (await ask(services, leave_group.handle, LeaveGroupRequest(member_id="m"), 0)).error_code == (
        ErrorCode.INVALID_GROUP_ID
    )


# ---- administration


@versions(6)
async def test_groups_are_described(services: GroupServices, version: int) -> None:
    member_id = await stable(services)
    asked = {"include_authorized_operations": True} if version >= 3 else {}
    request = DescribeGroupsRequest(groups=["g", "nobody"], **asked)

    answer = await ask(services, describe_groups.handle, request, version)

    group, nobody = answer.groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "client", "/127.0.0.1")
    assert member.member_assignment == b"mine"
    missing = (ErrorCode.GROUP_ID_NOT_FOUND, "Group nobody not found.") if version >= 6 else (0, None)
    assert (nobody.error_code, nobody.error_message) == missing
    assert (nobody.group_state, nobody.members) == ("Dead", [])
    if version >= 3:
        assert group.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


async def test_answers_that_list_a_large_group_are_made_in_steps(services: GroupServices) -> None:
    contexts = [context_of(JoinGroupRequest, 1) for _ in range(300)]
    joins = await asyncio.gather(*(join_group.handle(services, a_join(1), context) for context in contexts))
    describing = context_of(DescribeGroupsRequest, 0)

    described = await describe_groups.handle(services, DescribeGroupsRequest(groups=["g"]), describing)

    assert [context.needs_steps for context in contexts] == [len(join.members) == 300 for join in joins]
    assert len(described.groups[0].members) == 300
    assert describing.needs_steps


@versions(5)
async def test_groups_are_listed(services: GroupServices, version: int) -> None:
    await stable(services)

    answer = await ask(services, list_groups.handle, ListGroupsRequest(), version)

    assert [(one.group_id, one.protocol_type) for one in answer.groups] == [("g", "consumer")]
    if version >= 4:
        assert answer.groups[0].group_state == "Stable"
    if version >= 5:
        assert answer.groups[0].group_type == "classic"


async def test_groups_are_listed_by_state(services: GroupServices) -> None:
    await stable(services)
    for state, count in (("Stable", 1), ("stable", 1), ("Empty", 0)):
        request = ListGroupsRequest(states_filter=[state])
        assert len((await ask(services, list_groups.handle, request, 4)).groups) == count


async def test_groups_are_listed_by_type(services: GroupServices) -> None:
    await stable(services)
    for kind, count in (("Classic", 1), ("classic", 1), ("consumer", 0)):
        request = ListGroupsRequest(types_filter=[kind])
        assert len((await ask(services, list_groups.handle, request, 5)).groups) == count


@versions(3)
async def test_only_empty_groups_are_deleted(services: GroupServices, version: int) -> None:
    member_id = await stable(services)
    request = DeleteGroupsRequest(groups_names=["g", "nobody"])

    errors = {
        one.group_id: one.error_code
        for one in (await ask(services, delete_groups.handle, request, version)).results
    }
    assert errors == {"g": ErrorCode.NON_EMPTY_GROUP, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}

    await ask(services, leave_group.handle, LeaveGroupRequest(group_id="g", member_id=member_id), 0)
    answer = await ask(services, delete_groups.handle, DeleteGroupsRequest(groups_names=["g"]), version)
    assert [one.error_code for one in answer.results] == [0]
    assert (await ask(services, list_groups.handle, ListGroupsRequest(), 0)).groups == []


# ---- producer ids


@versions(4)
async def test_idempotent_producers_get_ids_of_their_own(services: GroupServices, version: int) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)

    answers = [await ask(services, init_producer_id.handle, request, version) for _ in range(3)]

    assert len({one.producer_id for one in answers}) == 3
    assert {(one.error_code, one.producer_epoch) for one in answers} == {(0, 0)}

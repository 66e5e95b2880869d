from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from ottla.client.testing import NODE_ID, ScriptedBroker
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import consumer_groups, share_groups, streams_group_describe
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from ottla.protocol.messages.log_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A scripted broker on a loop of its own: commands bring their own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    scripted = ScriptedBroker()
    asyncio.run_coroutine_threadsafe(scripted.__aenter__(), loop).result(10)
    scripted.on(MetadataRequest, lambda _: scripted.metadata("orders", partitions=2))
    yield scripted
    asyncio.run_coroutine_threadsafe(scripted.__aexit__(None, None, None), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


MISSING = int(ErrorCode.GROUP_ID_NOT_FOUND)


def assigned(*partitions: int) -> consumer_groups.MemberAssignment:
    topic = consumer_groups.DescribedTopicPartitions(
        topic_id=UUID(int=1), topic_name="orders", partitions=list(partitions)
    )
    return consumer_groups.MemberAssignment(topic_partitions=[topic])


def consumer_group(name: str) -> consumer_groups.DescribedGroup:
    if name != "newer":
        return consumer_groups.DescribedGroup(error_code=MISSING, group_id=name)
    member = consumer_groups.Member(
        member_id="m", member_epoch=7, client_id="cashier", client_host="/10.0.0.1", rack_id="east",
        subscribed_topic_names=["orders"], assignment=assigned(0), target_assignment=assigned(0, 1),
        member_type=0,
    )  # fmt: skip
    return consumer_groups.DescribedGroup(
        group_id=name, group_state="Reconciling", group_epoch=9, assignment_epoch=8, assignor_name="uniform",
        members=[member],
    )  # fmt: skip


def share_group(name: str) -> share_groups.DescribedGroup:
    if name != "shared":
        return share_groups.DescribedGroup(error_code=MISSING, group_id=name)
    members = [
        share_groups.Member(member_id=client, client_id=client, assignment=assigned(0), member_epoch=2)
        for client in ("one", "two")
    ]
    return share_groups.DescribedGroup(group_id=name, group_state="Stable", group_epoch=3, members=members)


def streams_group(name: str) -> streams_group_describe.DescribedGroup:
    if name != "program":
        return streams_group_describe.DescribedGroup(error_code=MISSING, group_id=name)
    part = streams_group_describe.Subtopology(subtopology_id="0", source_topics=["orders", "missing"])
    tasks = streams_group_describe.Assignment(
        active_tasks=[streams_group_describe.TaskIds(subtopology_id="0", partitions=[1])]
    )
    member = streams_group_describe.Member(
        member_id="m", client_id="counter", process_id="p", assignment=tasks, target_assignment=tasks
    )
    return streams_group_describe.DescribedGroup(
        group_id=name, group_state="Stable", group_epoch=4, members=[member],
        topology=streams_group_describe.Topology(epoch=1, subtopologies=[part]),
    )  # fmt: skip


def classic_group(name: str) -> DescribedGroup:
    state = "Empty" if name == "older" else "Dead"
    return DescribedGroup(group_id=name, group_state=state, protocol_type="consumer")


def share_offsets(
    _: share_groups.DescribeShareGroupOffsetsRequest,
) -> share_groups.DescribeShareGroupOffsetsResponse:
    partitions = [
        share_groups.DescribeShareGroupOffsetsResponsePartition(partition_index=0, start_offset=3, lag=2),
        share_groups.DescribeShareGroupOffsetsResponsePartition(partition_index=1, start_offset=-1),
    ]
    topic = share_groups.DescribeShareGroupOffsetsResponseTopic(topic_name="orders", partitions=partitions)
    found = share_groups.DescribeShareGroupOffsetsResponseGroup(group_id="shared", topics=[topic])
    return share_groups.DescribeShareGroupOffsetsResponse(groups=[found])


def ends(request: ListOffsetsRequest) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index,
                        offset=0 if partition.timestamp == -2 else 10,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def serve_groups(started: ScriptedBroker) -> None:
    """Answer what is asked of all groups."""
    groups = [
        ListedGroup(group_id="newer", protocol_type="consumer", group_state="Stable", group_type="consumer"),
        ListedGroup(group_id="shared", protocol_type="share", group_state="Stable", group_type="share"),
        ListedGroup(group_id="older", protocol_type="consumer", group_state="Empty"),
    ]
    started.on(ListGroupsRequest, lambda _: ListGroupsResponse(groups=groups))
    started.on(
        FindCoordinatorRequest,
        lambda _: FindCoordinatorResponse(node_id=NODE_ID, host=started.host, port=started.port),
    )
    started.on(
        DescribeGroupsRequest,
        lambda request: DescribeGroupsResponse(groups=[classic_group(*request.groups)]),
    )


def serve_newer_groups(started: ScriptedBroker) -> None:
    """Answer what is asked of groups of the newer types."""
    started.on(
        consumer_groups.ConsumerGroupDescribeRequest,
        lambda request: consumer_groups.ConsumerGroupDescribeResponse(
            groups=[consumer_group(*request.group_ids)]
        ),
    )
    started.on(
        share_groups.ShareGroupDescribeRequest,
        lambda request: share_groups.ShareGroupDescribeResponse(groups=[share_group(*request.group_ids)]),
    )
    started.on(
        streams_group_describe.StreamsGroupDescribeRequest,
        lambda request: streams_group_describe.StreamsGroupDescribeResponse(
            groups=[streams_group(*request.group_ids)]
        ),
    )
    committed = OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name="orders", partitions=[OffsetFetchResponsePartition(committed_offset=4)]
            )
        ]
    )
    started.on(OffsetFetchRequest, lambda _: committed)
    started.on(share_groups.DescribeShareGroupOffsetsRequest, share_offsets)
    started.on(ListOffsetsRequest, ends)
    started.on(
        share_groups.AlterShareGroupOffsetsRequest,
        lambda _: share_groups.AlterShareGroupOffsetsResponse(),
    )
    started.on(
        share_groups.DeleteShareGroupOffsetsRequest,
        lambda _: share_groups.DeleteShareGroupOffsetsResponse(error_code=ErrorCode.NON_EMPTY_GROUP),
    )


@pytest.fixture
def serve_all_groups() -> Callable[[ScriptedBroker], None]:
    """Serves `newer` (consumer), `shared` (share), `older` (classic) and `program` (streams)."""

    def serve(started: ScriptedBroker) -> None:
        serve_groups(started)
        serve_newer_groups(started)

    return serve

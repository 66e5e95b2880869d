"""Consumer, share and streams groups, described by a scripted broker that has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest
from click.testing import CliRunner

from ottla.admin import Admin, CommitsNoOffsets, GroupProgress, ShareOffset
from ottla.admin.commands.group import group as group_command
from ottla.client.testing import ScriptedBroker
from ottla.protocol.errors import GroupIdNotFound, NonEmptyGroup
from ottla.protocol.messages import share_groups
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from ottla.protocol.topics import TopicPartition


@pytest.fixture
async def broker(serve_all_groups: Callable[[ScriptedBroker], None]) -> AsyncIterator[ScriptedBroker]:
    """A broker with one group of each type, and the topic `orders` of two partitions."""
    async with ScriptedBroker() as started:
        started.on(MetadataRequest, lambda _: started.metadata("orders", partitions=2))
        serve_all_groups(started)
        yield started


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.bootstrap_servers) as connected:
        yield connected


def rows(progress: GroupProgress) -> list[tuple[str, int | None, int | None, list[str]]]:
    return [
        (str(found.partition), found.offset, found.lag, [owner.client_id for owner in found.owners])
        for found in progress.partitions
    ]


async def test_groups_are_listed_by_type_and_an_older_broker_has_classic_ones(admin: Admin) -> None:
    found = {listing.name: listing.type for listing in await admin.groups.list()}

    assert found == {"newer": "consumer", "older": "classic", "shared": "share"}
    assert [listing.name for listing in await admin.groups.list(types=["Share"])] == ["shared"]
    with pytest.raises(ValueError, match="there is no type 'other' of groups"):
        await admin.groups.list(types=["other"])


async def test_a_consumer_group_is_described_with_what_its_members_are_to_have(admin: Admin) -> None:
    progress = await admin.group_progress("newer")
    group, (member,) = progress.description, progress.description.members

    assert (group.type, group.state, group.epoch, group.assignment_epoch) == (
        "consumer",
        "Reconciling",
        9,
        8,
    )
    assert (member.epoch, member.rack, member.host, member.topics) == (7, "east", "10.0.0.1", ("orders",))
    assert (member.is_settled, member.is_classic) == (False, True)
    assert rows(progress) == [("orders-0", 4, 6, ["cashier"])]


async def test_partitions_of_a_share_group_have_many_owners_and_the_lag_of_the_broker(admin: Admin) -> None:
    progress = await admin.group_progress("shared")

    assert progress.description.type == "share"
    assert rows(progress) == [("orders-0", 3, 2, ["one", "two"]), ("orders-1", None, None, [])]
    assert await admin.groups.share_offsets("shared") == [
        ShareOffset(TopicPartition("orders", 0), 3, 2),
        ShareOffset(TopicPartition("orders", 1), None, None),
    ]


async def test_a_member_of_a_streams_group_reads_the_sources_of_its_tasks(admin: Admin) -> None:
    progress = await admin.group_progress("program")
    (member,) = progress.description.members

    assert member.tasks is not None
    assert member.tasks.active == ("0_1",)
    assert progress.description.subtopologies[0].sources == ("orders", "missing")
    # `missing` has no partition 1: the task has one for the topics that do.
    assert rows(progress) == [("orders-0", 4, 6, []), ("orders-1", None, None, ["counter"])]


async def test_a_group_is_asked_for_by_the_type_that_it_had_last(
    admin: Admin, broker: ScriptedBroker
) -> None:
    await admin.groups.describe("program")
    first = len(broker.requests)
    await admin.groups.describe("program")

    again = [type(request).__name__ for request, _ in broker.requests[first:]]
    assert again == ["StreamsGroupDescribeRequest"]
    assert (await admin.groups.describe("older")).type == "classic"
    with pytest.raises(GroupIdNotFound, match="group 'unknown' does not exist"):
        await admin.groups.describe("unknown")


async def test_offsets_of_a_share_group_are_set_and_deleted(admin: Admin, broker: ScriptedBroker) -> None:
    await admin.groups.alter_share_offsets("shared", {TopicPartition("orders", 0): 5})
    with pytest.raises(NonEmptyGroup):
        await admin.groups.delete_share_offsets("shared", ["orders"])

    (sent,) = broker.seen(share_groups.AlterShareGroupOffsetsRequest)
    (topic,) = sent.topics
    assert (topic.topic_name, topic.partitions[0].start_offset) == ("orders", 5)


async def test_committed_offsets_of_a_share_group_are_refused_with_the_call_to_use(
    admin: Admin, broker: ScriptedBroker
) -> None:
    broker.on(OffsetFetchRequest, lambda _: OffsetFetchResponse(topics=[]))

    with pytest.raises(CommitsNoOffsets, match=r"'shared' is a share group, .*use share_offsets\(\)"):
        await admin.groups.offsets("shared")
    assert await admin.groups.offsets("newer") == await admin.groups.offsets("typo") == []


async def test_commands_list_describe_and_reset_groups_of_every_type(broker: ScriptedBroker) -> None:

    async def ottla(*arguments: str) -> str:
        where = ("--bootstrap-server", broker.bootstrap_servers)
        done = await asyncio.to_thread(CliRunner().invoke, group_command, [*arguments, *where])
        assert done.exit_code == 0, done.output
        return done.stdout

    listed = json.loads(await ottla("list", "--type", "share", "--json"))
    described = json.loads(await ottla("describe", "newer", "--json"))
    shared = await ottla("describe", "shared")
    await ottla("reset-offsets", "shared", "--to-latest", "--execute")

    assert [(row["group"], row["type"], row["protocol"]) for row in listed] == [("shared", "share", "share")]
    assert (described["type"], described["epoch"], described["members"][0]["target"]) == (
        "consumer", 9, ["orders-0", "orders-1"],
    )  # fmt: skip
    assert "Group shared: share, Stable, epoch 3, 2 members" in shared
    assert "one, two" in shared
    (sent,) = broker.seen(share_groups.AlterShareGroupOffsetsRequest)
    assert [part.start_offset for part in sent.topics[0].partitions] == [10, 10]

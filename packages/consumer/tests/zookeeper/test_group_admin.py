"""Groups in ZooKeeper from outside."""

from __future__ import annotations

import pytest

from ottla.consumer.zookeeper import group_admin
from ottla.consumer.zookeeper.assignment import GroupView, range_assignment
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.testing import MemoryEnsemble
from ottla.zookeeper.znodes import ConsumerOwner, ConsumerRegistration, TopicAssignment

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_offsets_are_written_and_read_as_kafka_exports_them() -> None:
    offsets = {"g": {A0: 5943, A1: 0}, "h": {A1: 7}}

    lines = group_admin.offset_lines(offsets)

    assert lines == [
        "/consumers/g/offsets/a/0:5943",
        "/consumers/g/offsets/a/1:0",
        "/consumers/h/offsets/a/1:7",
    ]
    assert group_admin.parse_offset_lines([*lines, ""]) == offsets


@pytest.mark.parametrize("line", ["nonsense", "/consumers/g/offsets/a/x:1", "/consumers/g/owners/a/0:1"])
def test_a_line_that_is_no_offset_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        group_admin.parse_offset_lines(["/consumers/g/offsets/a/0:1", line])


def test_a_rebalance_is_whole_when_every_partition_has_a_live_owner() -> None:
    view = GroupView([ConsumerRegistration("g", "g_m", {"a": 1}, "static", 0)], {"a": [0, 1]})
    owners = {partition: str(thread) for partition, thread in range_assignment(view).items()}

    assert group_admin.unowned(view, owners) == []
    assert group_admin.unowned(view, {A0: "g_m-0"}) == ["no owner for partition a-1"]
    assert group_admin.unowned(view, {**owners, A1: "g_gone-0"}) == [
        "owner g_gone-0 of partition a-1 is not in the group"
    ]


async def test_exported_offsets_are_imported_unchanged_and_verifying_names_missing_owners() -> None:
    async with MemoryEnsemble().session() as session:
        topic = TopicAssignment("a", {0: (1,), 1: (1,)})
        await session.create(topic.path, topic.encode(), make_parents=True)
        member = ConsumerRegistration("g", "g_m", {"a": 1}, "static", 0)
        await session.create(member.path, member.encode(), ephemeral=True, make_parents=True)
        owner = ConsumerOwner("g", "a", 0, "g_m-0")
        await session.create(owner.path, owner.encode(), ephemeral=True, make_parents=True)
        await group_admin.group_znodes_of(session, "g").commit({A0: 3, A1: 4})

        assert await group_admin.groups(session) == ["g"]
        assert await group_admin.read_offsets(session, ["g", "unknown"]) == {
            "g": {A0: 3, A1: 4},
            "unknown": {},
        }
        assert await group_admin.verify(session, "g") == ["no owner for partition a-1"]
        assert await group_admin.verify(session, "unknown") == ["group unknown has no members"]

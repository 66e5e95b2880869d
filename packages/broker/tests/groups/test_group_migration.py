"""Groups that move between the classic and the consumer protocol while their members run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.groups.classic.events import (
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    MemberIdentity,
    Sync,
)
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeats import ConsumerHeartbeat, HeartbeatAnswer
from ottla.broker.groups.consumer.testing import topic_id
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.groups.kinds import GroupKind
from ottla.broker.groups.testing import (
    PARTITIONS,
    TOPIC_0,
    FakeTopics,
    leading,
    offset,
)
from ottla.broker.metrics import Metrics
from ottla.broker.metrics.registry import Gauge
from ottla.protocol.errors import ErrorCode, GroupIdNotFound, KafkaError
from ottla.protocol.stored_messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)

SETTINGS: dict[str, Any] = {"group_consumer_assignment_interval_ms": "0"}
TOPIC = topic_id(1)


def topics() -> FakeTopics:
    topics = FakeTopics()
    topics.publish_partitions({"topic": (TOPIC, 4)})
    return topics


def subscription(**fields: Any) -> bytes:
    return subscription_of("topic", **fields)


def subscription_of(*names: str, **fields: Any) -> bytes:
    return ConsumerProtocolSubscription(topics=list(names), **fields).to_bytes(3)


def owning(*partitions: int, **fields: Any) -> tuple[tuple[str, bytes], ...]:
    owned = [TopicPartitions(topic="topic", partitions=list(partitions))]
    return (("cooperative-sticky", subscription(owned_partitions=owned, **fields)),)


def assignment(*partitions: int, user_data: bytes | None = None) -> bytes:
    topic = TopicPartitions(topic="topic", partitions=list(partitions))
    return ConsumerProtocolAssignment(assigned_partitions=[topic], user_data=user_data).to_bytes(0)


def a_join(member_id: str, **fields: Any) -> Join:
    given: dict[str, Any] = {
        "protocols": (("cooperative-sticky", subscription()),),
        "new_member_id": f"{member_id or 'new'}x",
        "rebalance_timeout_ms": 60_000,
    }
    return Join(
        token=None,
        member_id=member_id,
        client_id="client",
        session_timeout_ms=10_000,
        protocol_type="consumer",
        **given | fields,
    )


async def classic_group(groups: GroupCoordinator, parts: dict[str, bytes]) -> tuple[list[str], int]:
    """Bring a classic group to Stable with an assignment for each member."""
    joins = await asyncio.gather(*(groups.join("g", a_join("", new_member_id=name)) for name in parts))
    await asyncio.gather(
        *(
            groups.sync(
                "g",
                Sync(token=None, member_id=join.member_id, generation=join.generation, assignments=parts),
            )
            for join in joins
        )
    )
    return [join.member_id for join in joins], joins[0].generation


async def beat(groups: GroupCoordinator, member_id: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
    if epoch == 0:
        fields = {"topics": frozenset({"topic"}), "rebalance_timeout_ms": 60_000, "owned": {}} | fields
    event = ConsumerHeartbeat(member_id=member_id, epoch=epoch, **fields)
    answer: HeartbeatAnswer = await groups.request("g", GroupKind.CONSUMER, event, creates=epoch == 0)
    return answer


async def rejoin(groups: GroupCoordinator, member_id: str, *owned: int) -> tuple[JoinResult, list[int]]:
    """Join again with the partitions that the member still has; return its answer and its partitions."""
    joined = await groups.join("g", a_join(member_id, protocols=owning(*owned)))
    synced = await groups.sync("g", Sync(token=None, member_id=member_id, generation=joined.generation))
    assert joined.error is synced.error is ErrorCode.NONE
    assigned = ConsumerProtocolAssignment.from_bytes(synced.assignment).assigned_partitions
    return joined, sorted(index for topic in assigned for index in topic.partitions)


async def heard(groups: GroupCoordinator, member_id: str, generation: int) -> ErrorCode:
    return await groups.heartbeat("g", Heartbeat(token=None, member_id=member_id, generation=generation))


@in_virtual_time
async def test_a_classic_group_becomes_a_consumer_group_and_one_again() -> None:
    store, known = MemoryStore(PARTITIONS), topics()
    async with leading(store, topics=known, **SETTINGS) as groups:
        (old,), generation = await classic_group(groups, {"old": assignment(0, 1, 2, 3)})
        await groups.offsets.commit("g", {TOPIC_0: offset(5)}, member_id=old, generation=generation)

        new = await beat(groups, "new", 0)
        assert (new.assignment, [group.kind for group in groups.list_groups()[1]]) == (
            {},
            [GroupKind.CONSUMER],
        )
        assert await heard(groups, old, generation) is ErrorCode.REBALANCE_IN_PROGRESS
        _, kept = await rejoin(groups, old, 0, 1, 2, 3)
        joined, kept = await rejoin(groups, old, *kept)
        assert len(kept) == 2
        new = await beat(groups, "new", new.epoch)
        assert new.assignment is not None
        assert sorted([*new.assignment[TOPIC], *kept]) == [0, 1, 2, 3]
        assert await heard(groups, old, joined.generation) is ErrorCode.NONE

    async with leading(store, topics=known, **SETTINGS) as groups:
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}
        await beat(groups, "new", -1)

        described = groups.describe_group("g")
        assert (described.state.value, [member.member_id for member in described.members]) == (
            "PreparingRebalance",
            [old],
        )
        assert await heard(groups, old, joined.generation) is ErrorCode.REBALANCE_IN_PROGRESS
        rejoined = await groups.join("g", a_join(old))
        assert rejoined.error is ErrorCode.NONE
        assert rejoined.leader_id == old
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}

    async with leading(store, topics=known, **SETTINGS) as groups:
        assert [group.kind for group in groups.list_groups()[1]] == [GroupKind.CLASSIC]


@in_virtual_time
async def test_groups_and_rebalances_are_counted_by_kind() -> None:
    metrics = Metrics()
    async with leading(MemoryStore(PARTITIONS), metrics, topics(), **SETTINGS) as groups:
        await classic_group(groups, {"old": assignment(0, 1, 2, 3)})

        def counted(name: str, **tags: str) -> float:
            found = metrics.get("kafka.server", "group-coordinator-metrics", name, **tags)
            assert isinstance(found, Gauge)
            return found.value

        assert counted("group-count", protocol="classic") == 1
        assert counted("classic-group-count", state="Stable") == 1
        await beat(groups, "new", 0)

        assert counted("group-count", protocol="classic") == 0
        assert counted("group-count", protocol="consumer") == 1
        assert counted("consumer-group-count", state="Reconciling") == 1
        rebalances = metrics.meter("kafka.server", "group-coordinator-metrics", "consumer-group-rebalance")
        assert rebalances.count == 1


@in_virtual_time
async def test_members_that_wait_in_a_rebalance_join_again_after_the_upgrade() -> None:
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS) as groups:
        (first, _), _ = await classic_group(groups, {"a": assignment(0, 1), "b": assignment(2, 3)})
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(
                groups.join(
                    "g", a_join(first, protocols=(("cooperative-sticky", subscription(rack_id="r")),))
                )
            )
            await asyncio.sleep(0)
            assert not waiting.done()

            await beat(groups, "new", 0)

        assert waiting.result().error is ErrorCode.REBALANCE_IN_PROGRESS
        assert (await groups.join("g", a_join(first))).error is ErrorCode.NONE


@in_virtual_time
async def test_a_classic_group_that_is_upgraded_before_its_first_generation_begins_in_epoch_1() -> None:
    settings = SETTINGS | {"group_initial_rebalance_delay_ms": "3000"}
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **settings) as groups:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(groups.join("g", a_join("", new_member_id="old")))
            await asyncio.sleep(1)
            assert not waiting.done()

            new = await beat(groups, "new", 0)

        group = groups.find("g", GroupKind.CONSUMER).group
        assert isinstance(group, ConsumerGroup)
        assert (group.members["old"].epoch, group.epoch, new.epoch) == (1, 2, 2)


@in_virtual_time
async def test_partitions_that_members_had_before_a_downgrade_are_theirs_after_an_upgrade() -> None:
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS) as groups:
        (old,), _ = await classic_group(groups, {"old": assignment(0, 1, 2, 3)})
        await beat(groups, "new", 0)  # half of the partitions shall go to it
        await beat(groups, "new", -1)
        assert groups.describe_group("g").state.value == "PreparingRebalance"

        await beat(groups, "newer", 0)

        group = groups.find("g", GroupKind.CONSUMER).group
        assert isinstance(group, ConsumerGroup)
        assert group.members[old].assigned[TOPIC].keys() == {0, 1, 2, 3}


@in_virtual_time
async def test_what_a_member_gives_up_is_its_own_in_an_upgrade_until_it_has_joined_again() -> None:
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS) as groups:
        (old,), _ = await classic_group(groups, {"old": assignment(0, 1, 2, 3)})
        joined = await groups.join("g", a_join(old, protocols=owning(0, 1, 2, 3)))
        sync = Sync(token=None, member_id=old, generation=joined.generation, assignments={old: assignment(0)})
        await groups.sync("g", sync)  # the answer is on its way

        new = await beat(groups, "new", 0)

        assert new.assignment == {}
        assert await heard(groups, old, joined.generation) is ErrorCode.REBALANCE_IN_PROGRESS
        await rejoin(groups, old, 0)
        new = await beat(groups, "new", new.epoch)
        assert new.assignment is not None
        assert 0 not in new.assignment[TOPIC]


@pytest.mark.parametrize("assigned", [2, 3])
def test_an_upgrade_leaves_a_partition_to_the_member_that_had_it_last(assigned: int) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS) as groups:
            ids, _ = await classic_group(groups, {"a": assignment(0, 1), "b": assignment(2, 3)})
            owned = {ids[0]: owning(0, 1, 2, generation_id=3), ids[1]: owning(2, 3, generation_id=4)}
            async with asyncio.TaskGroup() as tasks:
                joins = [
                    tasks.create_task(groups.join("g", a_join(name, protocols=protocols)))
                    for name, protocols in owned.items()
                ]
            generation = joins[0].result().generation
            parts = {ids[0]: assignment(0), ids[1]: assignment(assigned)}
            sync = Sync(token=None, member_id=ids[0], generation=generation, assignments=parts)
            await groups.sync("g", sync)

            await beat(groups, "new", 0)

            group = groups.find("g", GroupKind.CONSUMER).group
            assert isinstance(group, ConsumerGroup)
            has = [
                {*group.members[name].assigned[TOPIC], *group.members[name].revoking.get(TOPIC, ())}
                for name in ids
            ]
            assert has == [{0, 1}, {2, 3}]

    scenario()


@in_virtual_time
async def test_a_classic_member_that_gave_up_after_a_load_stays() -> None:
    settings: dict[str, Any] = {"group_consumer_assignment_interval_ms": "15000"}
    store, known = MemoryStore(PARTITIONS), topics()
    known.publish_partitions({"other": (topic_id(2), 1)})
    async with leading(store, topics=known, **settings) as groups:
        await beat(groups, "new", 0, topics=frozenset())
        await asyncio.sleep(15)
        both, other = (((("range", subscription_of(*names)),)) for names in (("topic", "other"), ("other",)))
        timeout_ms = {"rebalance_timeout_ms": 5_000}
        joined = await groups.join("g", a_join("old", protocols=both, **timeout_ms))
        owned = TopicPartitions(topic="topic", partitions=[0, 1, 2, 3])
        keeps = (("range", subscription_of("other", owned_partitions=[owned])),)
        joined = await groups.join("g", a_join("old", protocols=keeps, **timeout_ms))

    async with leading(store, topics=known, **settings) as groups:
        await groups.join("g", a_join("old", protocols=other, **timeout_ms))
        await groups.sync("g", Sync(token=None, member_id="old", generation=joined.generation))
        await asyncio.sleep(6)

        assert await heard(groups, "old", joined.generation) is ErrorCode.NONE


@in_virtual_time
async def test_a_classic_member_joins_and_expressions_of_others_match_as_before() -> None:
    known = topics()
    async with leading(MemoryStore(PARTITIONS), topics=known, **SETTINGS) as groups:
        reader = await beat(groups, "new", 0, topics=frozenset(), expression="to.*")
        await asyncio.sleep(1)
        reader = await beat(groups, "new", reader.epoch)
        assert reader.assignment == {TOPIC: frozenset(range(4))}
        await asyncio.sleep(11)  # topics are looked for again
        known.publish_partitions({"tools": (topic_id(2), 1)})

        await groups.join("g", a_join("old"))
        await asyncio.sleep(1)

        group = groups.find("g", GroupKind.CONSUMER).group
        assert isinstance(group, ConsumerGroup)
        assert group.expressions["to.*"].topics == {"topic"}
        await beat(groups, "new", reader.epoch)
        await asyncio.sleep(1)
        assert group.expressions["to.*"].topics == {"topic", "tools"}


@pytest.mark.parametrize(
    ("settings", "data", "problem"),
    [
        ({"group_consumer_migration_policy": "downgrade"}, None, "online upgrade is disabled"),
        ({"group_consumer_max_size": "1"}, None, "exceeds the consumer group maximum size"),
        ({}, b"x", "an unsupported custom assignor"),
    ],
)
def test_some_classic_groups_stay_as_they_are(
    settings: dict[str, str], data: bytes | None, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS | settings) as groups:
            members, generation = await classic_group(
                groups, {"a": assignment(0, 1, user_data=data), "b": assignment(2, 3)}
            )

            for _ in range(2):  # members try again and again
                with pytest.raises(GroupIdNotFound, match=problem):
                    await beat(groups, "new", 0)

            assert await heard(groups, members[0], generation) is ErrorCode.NONE
            assert groups.describe_group("g").state.value == "Stable"

    scenario()

    lines = [record for record in caplog.records if record.msg == "group stays classic"]
    assert [(line.__dict__["group"], line.levelname) for line in lines] == [("g", "WARNING")]
    assert problem in lines[0].__dict__["reason"]


@in_virtual_time
async def test_a_group_of_another_protocol_type_stays_as_it_is() -> None:
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS) as groups:
        join = Join(
            token=None,
            member_id="",
            new_member_id="c",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="connect",
            protocols=(("default", b""),),
        )
        await groups.join("g", join)

        with pytest.raises(GroupIdNotFound, match="does not use the consumer embedded protocol"):
            await beat(groups, "new", 0)


@in_virtual_time
async def test_an_upgrade_whose_records_are_refused_leaves_the_classic_group() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store, topics=topics(), **SETTINGS) as groups:
        (member,), generation = await classic_group(groups, {"a": assignment(0, 1, 2, 3)})
        store.fail_with = KafkaError()

        with pytest.raises(KafkaError):
            await beat(groups, "new", 0)

        store.fail_with = None
        assert groups.describe_group("g").state.value == "Stable"
        assert await heard(groups, member, generation) is ErrorCode.NONE


@in_virtual_time
async def test_a_classic_member_joins_a_consumer_group_and_is_fenced_like_others() -> None:
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS) as groups:
        await beat(groups, "new", 0)
        asked = await groups.join("g", a_join("", require_known_member_id=True, new_member_id="old"))
        assert (asked.error, asked.member_id) == (ErrorCode.MEMBER_ID_REQUIRED, "old")
        other = await groups.join("g", a_join("old", protocols=(("other", b"x"),)))
        assert other.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        joined, parts = await rejoin(groups, "old")
        assert parts == []

        generation = joined.generation
        assert await heard(groups, "old", generation + 1) is ErrorCode.ILLEGAL_GENERATION
        assert await heard(groups, "new", generation) is ErrorCode.UNKNOWN_MEMBER_ID
        unequal = await groups.sync(
            "g", Sync(token=None, member_id="old", generation=generation, protocol_name="range")
        )
        assert unequal.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        committed = await groups.offsets.commit(
            "g", {TOPIC_0: offset(1)}, member_id="old", generation=generation - 1, version=8
        )
        assert committed == {TOPIC_0: ErrorCode.ILLEGAL_GENERATION}
        left = await groups.leave(
            "g", Leave(token=None, members=(MemberIdentity("old"), MemberIdentity("unknown")))
        )
        assert [error for _, error in left.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        assert groups.find("g", GroupKind.CONSUMER).group.member_count == 1


@in_virtual_time
async def test_a_classic_member_that_does_not_sync_or_join_is_removed() -> None:
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **SETTINGS) as groups:
        await beat(groups, "new", 0)
        joined = await groups.join("g", a_join("old"))
        assert joined.error is ErrorCode.NONE
        group = groups.find("g", GroupKind.CONSUMER).group
        for _ in range(12):
            await asyncio.sleep(5)
            await beat(groups, "new", 2, owned={TOPIC: frozenset(range(4))})
            await heard(groups, "old", joined.generation)
        assert group.member_count == 1


@in_virtual_time
async def test_no_classic_member_joins_where_migration_is_disabled() -> None:
    settings = SETTINGS | {"group_consumer_migration_policy": "disabled"}
    async with leading(MemoryStore(PARTITIONS), topics=topics(), **settings) as groups:
        await beat(groups, "new", 0)

        assert (await groups.join("g", a_join("old"))).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@in_virtual_time
async def test_a_static_member_comes_back_by_the_classic_protocol_and_takes_the_group_with_it() -> None:
    store, known = MemoryStore(PARTITIONS), topics()
    async with leading(store, topics=known, **SETTINGS) as groups:
        await beat(groups, "new", 0, instance_id="i")
        await beat(groups, "new", -2, instance_id="i")

        joined = await groups.join("g", a_join("", instance_id="i", new_member_id="old"))

        assert (joined.error, joined.member_id, joined.generation) == (ErrorCode.NONE, "old", 2)
        described = groups.describe_group("g")
        assert [member.member_id for member in described.members] == ["old"]
        synced = await groups.sync("g", Sync(token=None, member_id="old", generation=2, instance_id="i"))
        assigned = ConsumerProtocolAssignment.from_bytes(synced.assignment).assigned_partitions
        assert [topic.partitions for topic in assigned] == [[0, 1, 2, 3]]
    async with leading(store, topics=known, **SETTINGS) as groups:
        assert [member.member_id for member in groups.describe_group("g").members] == ["old"]


@in_virtual_time
async def test_a_member_that_waits_for_partitions_joins_again_after_a_static_one_downgrades_it() -> None:
    store, known = MemoryStore(PARTITIONS), topics()
    async with leading(store, topics=known, **SETTINGS) as groups:
        await beat(groups, "new", 0, instance_id="i")
        waiting, parts = await rejoin(groups, "waiting")
        assert parts == []
        await beat(groups, "new", -2, instance_id="i")

        joined = await groups.join("g", a_join("", instance_id="i", new_member_id="old"))

        assert joined.error is ErrorCode.NONE
        assert await heard(groups, "waiting", waiting.generation) is ErrorCode.REBALANCE_IN_PROGRESS
    async with leading(store, topics=known, **SETTINGS) as groups:
        assert await heard(groups, "waiting", waiting.generation) is ErrorCode.REBALANCE_IN_PROGRESS


@in_virtual_time
async def test_a_downgraded_group_that_needs_no_rebalance_is_stable_after_a_load() -> None:
    store, known = MemoryStore(PARTITIONS), topics()
    async with leading(store, topics=known, **SETTINGS) as groups:
        await beat(groups, "new", 0, instance_id="i")
        await beat(groups, "new", -2, instance_id="i")
        joined = await groups.join("g", a_join("", instance_id="i", new_member_id="old"))

    async with leading(store, topics=known, **SETTINGS) as groups:
        assert await heard(groups, "old", joined.generation) is ErrorCode.NONE

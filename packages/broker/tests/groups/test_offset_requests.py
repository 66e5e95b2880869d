import asyncio

from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.groups.classic.events import (
    Heartbeat,
    Leave,
    MemberIdentity,
    Sync,
)
from ottla.broker.groups.testing import (
    MINUTE_MS,
    PARTITIONS,
    TOPIC_0,
    TOPIC_1,
    a_join,
    leading,
    offset,
    settle,
)
from ottla.protocol.errors import ErrorCode, NotEnoughReplicas, NotLeaderOrFollower
from ottla.protocol.topics import TopicPartition


@in_virtual_time
async def test_a_simple_consumer_commits_and_fetches() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        committed = {TOPIC_0: offset(5, "note", leader_epoch=3), TOPIC_1: offset(7)}

        assert set((await groups.offsets.commit("g", committed)).values()) == {ErrorCode.NONE}

        assert groups.offsets.fetch("g") == (ErrorCode.NONE, committed)
        unknown = TopicPartition("other", 0)
        assert groups.offsets.fetch("g", [unknown]) == (ErrorCode.NONE, {unknown: None})


@in_virtual_time
async def test_long_metadata_is_refused_for_its_partition_alone() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        results = await groups.offsets.commit(
            "g", {TOPIC_0: offset(5, "x" * 11), TOPIC_1: offset(7, "x" * 10)}
        )

        assert results == {TOPIC_0: ErrorCode.OFFSET_METADATA_TOO_LARGE, TOPIC_1: ErrorCode.NONE}
        assert list(groups.offsets.fetch("g")[1]) == [TOPIC_1]


@in_virtual_time
async def test_an_offset_is_not_seen_before_all_replicas_have_it() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups, asyncio.TaskGroup() as tasks:
        store.hold = True
        commit = tasks.create_task(groups.offsets.commit("g", {TOPIC_0: offset(5)}))
        await asyncio.sleep(1)
        assert not commit.done()
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: None}

        store.release()

        assert await commit == {TOPIC_0: ErrorCode.NONE}
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}


@in_virtual_time
async def test_a_commit_whose_client_disconnected_becomes_visible() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups, asyncio.TaskGroup() as tasks:
        store.hold = True
        commit = tasks.create_task(groups.offsets.commit("g", {TOPIC_0: offset(5)}))
        await asyncio.sleep(1)
        commit.cancel()
        await asyncio.sleep(0)

        store.release()
        await asyncio.sleep(0.1)

        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: offset(5)}


@in_virtual_time
async def test_a_commit_that_replicas_do_not_take_times_out() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        store.hold = True

        assert await groups.offsets.commit("g", {TOPIC_0: offset(5)}) == {
            TOPIC_0: ErrorCode.REQUEST_TIMED_OUT
        }
        assert groups.offsets.fetch("g", [TOPIC_0])[1] == {TOPIC_0: None}


@in_virtual_time
async def test_errors_of_the_log_are_translated_for_group_clients() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        store.fail_with = NotEnoughReplicas()
        commit = await groups.offsets.commit("g", {TOPIC_0: offset(5)})
        assert commit == {TOPIC_0: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        store.fail_with = NotLeaderOrFollower()
        commit = await groups.offsets.commit("g", {TOPIC_0: offset(5)})
        assert commit == {TOPIC_0: ErrorCode.NOT_COORDINATOR}
        assert groups.list_groups()[1] == []

        joined = await groups.join("g", a_join())
        sync = Sync(token=None, member_id=joined.member_id, generation=1)
        assert (await groups.sync("g", sync)).error is ErrorCode.NOT_COORDINATOR


@in_virtual_time
async def test_members_cannot_commit_for_an_older_generation() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        (member,) = await settle(groups, "g", ["a"])

        old = await groups.offsets.commit("g", {TOPIC_0: offset(5)}, member_id=member, generation=0)
        simple = await groups.offsets.commit("g", {TOPIC_0: offset(5)})
        now = await groups.offsets.commit("g", {TOPIC_0: offset(6)}, member_id=member, generation=1)

        assert old == {TOPIC_0: ErrorCode.ILLEGAL_GENERATION}
        assert simple == {TOPIC_0: ErrorCode.UNKNOWN_MEMBER_ID}
        assert now == {TOPIC_0: ErrorCode.NONE}


@in_virtual_time
async def test_offsets_of_topics_in_use_cannot_be_deleted() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        (member,) = await settle(groups, "g", ["a"])
        other = TopicPartition("other", 0)
        offsets = {TOPIC_0: offset(5), other: offset(6)}
        await groups.offsets.commit("g", offsets, member_id=member, generation=1)

        error, results = await groups.offsets.delete("g", [TOPIC_0, other])

        assert error is ErrorCode.NONE
        assert results == {TOPIC_0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, other: ErrorCode.NONE}
        assert list(groups.offsets.fetch("g")[1]) == [TOPIC_0]
        assert await groups.delete_groups(["g"]) == {"g": ErrorCode.NON_EMPTY_GROUP}


@in_virtual_time
async def test_offsets_of_deleted_partitions_are_deleted() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        await groups.offsets.commit("g", {TOPIC_0: offset(5), TOPIC_1: offset(6)})

        groups.partitions_deleted([TOPIC_0])

        assert list(groups.offsets.fetch("g")[1]) == [TOPIC_1]


@in_virtual_time
async def test_offsets_of_an_empty_group_expire_together_after_it_emptied() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        (member,) = await settle(groups, "g", ["a"])
        await groups.offsets.commit("g", {TOPIC_0: offset(5)}, member_id=member, generation=1)
        for _ in range(200):
            await asyncio.sleep(9)
            await groups.heartbeat("g", Heartbeat(token=None, member_id=member, generation=1))
        assert groups.offsets.fetch("g")[1], "a member is subscribed to the topic"
        await groups.leave("g", Leave(token=None, members=(MemberIdentity(member),)))

        await asyncio.sleep(9 * 60)
        assert groups.offsets.fetch("g")[1]
        await asyncio.sleep(2 * 60)

        assert groups.offsets.fetch("g")[1] == {}
        assert groups.list_groups()[1] == []


@in_virtual_time
async def test_offsets_of_topics_nobody_subscribes_to_expire_in_a_living_group() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        (member,) = await settle(groups, "g", ["a"])
        other = TopicPartition("other", 0)
        offsets = {TOPIC_0: offset(5), other: offset(6)}
        await groups.offsets.commit("g", offsets, member_id=member, generation=1)

        for _ in range(80):
            await asyncio.sleep(9)
            await groups.heartbeat("g", Heartbeat(token=None, member_id=member, generation=1))

        assert list(groups.offsets.fetch("g")[1]) == [TOPIC_0]


@in_virtual_time
async def test_the_retention_of_a_commit_wins_over_the_brokers() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        await groups.offsets.commit(
            "g", {TOPIC_0: offset(5, expire_timestamp_ms=2 * MINUTE_MS), TOPIC_1: offset(6)}
        )

        await asyncio.sleep(3 * 60)

        assert list(groups.offsets.fetch("g")[1]) == [TOPIC_1]

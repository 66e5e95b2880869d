import asyncio
from typing import Any

from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.groups.classic.events import (
    GroupState,
    Heartbeat,
    JoinResult,
    Leave,
    MemberIdentity,
    Sync,
    SyncResult,
)
from ottla.broker.groups.testing import (
    PARTITIONS,
    TOPIC_0,
    TOPIC_1,
    a_join,
    elect,
    leading,
    make,
    offset,
    resign,
    settle,
)
from ottla.broker.metrics import Metrics
from ottla.broker.runtime.loop_budget import LONG
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition


@in_virtual_time
async def test_two_members_share_a_group() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        ids = await settle(groups, "g", ["a", "b"])

        described = groups.describe_group("g")
        assert described.state is GroupState.STABLE
        assert {one.member_id: one.assignment for one in described.members} == {
            one: one.encode() for one in ids
        }
        assert groups.list_groups()[1][0].group_id == "g"
        assert groups.list_groups(["Empty"]) == (ErrorCode.NONE, [])


@in_virtual_time
async def test_a_silent_member_is_removed_after_its_session() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        await settle(groups, "g", ["a"])

        await asyncio.sleep(10.01)

        assert groups.describe_group("g").state is GroupState.EMPTY


@in_virtual_time
async def test_members_with_heartbeats_stay() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        (member,) = await settle(groups, "g", ["a"])

        for _ in range(20):
            await asyncio.sleep(9)
            beat = Heartbeat(token=None, member_id=member, generation=1)
            assert await groups.heartbeat("g", beat) is ErrorCode.NONE


@in_virtual_time
async def test_a_group_that_was_never_joined_is_not_kept() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        answer = await groups.join("g", a_join("unknown"))

        assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert groups.list_groups() == (ErrorCode.NONE, [])
        assert groups.describe_group("g").state is GroupState.DEAD


@in_virtual_time
async def test_a_broker_coordinates_only_so_many_groups() -> None:
    async with leading(MemoryStore(PARTITIONS), group_max_count="2") as groups:
        await settle(groups, "g", ["a"])
        assert await groups.offsets.commit("h", {TOPIC_0: offset(1)}) == {TOPIC_0: ErrorCode.NONE}

        joined = await groups.join("i", a_join())
        committed = await groups.offsets.commit("i", {TOPIC_0: offset(1)})

        assert joined.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert committed == {TOPIC_0: ErrorCode.GROUP_MAX_SIZE_REACHED}
        assert await groups.offsets.commit("h", {TOPIC_0: offset(2)}) == {TOPIC_0: ErrorCode.NONE}
        await groups.delete_groups(["h"])
        assert await groups.offsets.commit("i", {TOPIC_0: offset(1)}) == {TOPIC_0: ErrorCode.NONE}


@in_virtual_time
async def test_requests_without_a_group_get_kafkas_answers() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        sync = await groups.sync("g", Sync(token=None, member_id="m", generation=1))
        leave = await groups.leave("g", Leave(token=None, members=(MemberIdentity("m"),)))

        assert sync.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert leave.members == ((MemberIdentity("m"), ErrorCode.UNKNOWN_MEMBER_ID),)
        beat = Heartbeat(token=None, member_id="m", generation=1)
        assert await groups.heartbeat("g", beat) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await groups.delete_groups(["g"]) == {"g": ErrorCode.GROUP_ID_NOT_FOUND}
        assert (await groups.offsets.delete("g", [TOPIC_0]))[0] is ErrorCode.GROUP_ID_NOT_FOUND
        commit = await groups.offsets.commit("g", {TOPIC_0: offset(1)}, member_id="m", generation=3)
        assert commit == {TOPIC_0: ErrorCode.ILLEGAL_GENERATION}
        assert groups.offsets.fetch("g", [TOPIC_0]) == (ErrorCode.NONE, {TOPIC_0: None})
        assert groups.offsets.fetch("g") == (ErrorCode.NONE, {})


@in_virtual_time
async def test_the_empty_group_id_is_for_simple_consumers_only() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        assert (await groups.join("", a_join())).error is ErrorCode.INVALID_GROUP_ID
        assert (await groups.offsets.commit("", {TOPIC_0: offset(3)})) == {TOPIC_0: ErrorCode.NONE}
        assert groups.offsets.fetch("", [TOPIC_0])[1] == {TOPIC_0: offset(3)}
        assert groups.describe_group("").state is GroupState.EMPTY
        assert await groups.delete_groups([""]) == {"": ErrorCode.NONE}


@in_virtual_time
async def test_a_group_of_another_broker_is_refused() -> None:
    async with make(MemoryStore(PARTITIONS)) as groups:
        assert (await groups.join("g", a_join())).error is ErrorCode.NOT_COORDINATOR
        assert groups.offsets.fetch("g")[0] is ErrorCode.NOT_COORDINATOR


@in_virtual_time
async def test_a_coordinator_that_is_not_running_is_not_available() -> None:
    groups = make(MemoryStore(PARTITIONS))
    assert (await groups.join("g", a_join())).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert groups.list_groups()[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE


# ---- loading and unloading


@in_virtual_time
async def test_the_next_coordinator_continues_where_the_last_one_stopped() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        leader, follower = await settle(groups, "g", ["a", "b"])
        await groups.offsets.commit("g", {TOPIC_0: offset(5)}, member_id=leader, generation=1)
        await groups.offsets.commit("g", {TOPIC_0: offset(8, "n")}, member_id=leader, generation=1)
        await groups.offsets.commit("simple", {TOPIC_1: offset(1)})
        await groups.offsets.commit("gone", {TOPIC_1: offset(1)})
        await groups.delete_groups(["gone"])
        before = {name: groups.describe_group(name) for name in ("g", "simple", "gone")}

    async with leading(store) as groups:
        assert {name: groups.describe_group(name) for name in before} == before
        assert groups.offsets.fetch("g")[1] == {TOPIC_0: offset(8, "n")}
        assert groups.offsets.fetch("simple")[1] == {TOPIC_1: offset(1)}
        beat = Heartbeat(token=None, member_id=follower, generation=1)
        assert await groups.heartbeat("g", beat) is ErrorCode.NONE
        sync = await groups.sync("g", Sync(token=None, member_id=follower, generation=1))
        assert sync == SyncResult(
            error=ErrorCode.NONE,
            protocol_type="consumer",
            protocol_name="range",
            assignment=follower.encode(),
        )


@in_virtual_time
async def test_requests_during_a_load_get_retriable_errors_and_heartbeats_succeed() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        (member,) = await settle(groups, "g", ["a"])
    store.read_gate.clear()
    async with make(store) as groups:
        elect(groups)
        await asyncio.sleep(0.01)
        assert (await groups.join("g", a_join())).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert groups.offsets.fetch("g")[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        sync = await groups.sync("g", Sync(token=None, member_id=member, generation=1))
        assert sync.error is ErrorCode.REBALANCE_IN_PROGRESS
        beat = Heartbeat(token=None, member_id=member, generation=1)
        assert await groups.heartbeat("g", beat) is ErrorCode.NONE
        assert groups.list_groups()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        store.read_gate.set()
        await asyncio.sleep(0.01)

        assert groups.describe_group("g").state is GroupState.STABLE


@in_virtual_time
async def test_a_load_that_fails_is_tried_again() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        await groups.offsets.commit("g", {TOPIC_0: offset(5)})
    store.led.clear()
    async with make(store) as groups:
        elect(groups)
        await asyncio.sleep(3)
        assert groups.offsets.fetch("g")[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

        store.led.update(range(PARTITIONS))
        await asyncio.sleep(3)

        assert groups.offsets.fetch("g")[1] == {TOPIC_0: offset(5)}


@in_virtual_time
async def test_waiting_joins_get_not_coordinator_when_leadership_ends() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups, asyncio.TaskGroup() as tasks:
        await settle(groups, "g", ["a"])
        waiting = tasks.create_task(groups.join("g", a_join(new_member_id="b")))
        await asyncio.sleep(0.1)

        resign(groups)

        assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        assert groups.list_groups() == (ErrorCode.NONE, [])


@in_virtual_time
async def test_an_older_resignation_does_not_end_a_newer_leadership() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        await groups.offsets.commit("g", {TOPIC_0: offset(5)})
        elect(groups, epoch=5)

        resign(groups, epoch=4)

        assert groups.offsets.fetch("g")[1] == {TOPIC_0: offset(5)}


@in_virtual_time
async def test_waiting_joins_get_not_coordinator_when_the_broker_stops() -> None:
    async with asyncio.TaskGroup() as tasks:
        async with leading(MemoryStore(PARTITIONS)) as groups:
            await settle(groups, "g", ["a"])
            waiting: asyncio.Task[JoinResult] = tasks.create_task(groups.join("g", a_join(new_member_id="b")))
            await asyncio.sleep(0.1)

        assert (await waiting).error is ErrorCode.NOT_COORDINATOR


@in_virtual_time
async def test_a_static_member_gets_its_new_id_only_when_it_is_in_the_log() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups, asyncio.TaskGroup() as tasks:
        joined = await groups.join("g", a_join(instance_id="one", new_member_id="one-1"))
        await groups.sync("g", Sync(token=None, member_id="one-1", generation=joined.generation))
        store.hold = True
        again = tasks.create_task(groups.join("g", a_join(instance_id="one", new_member_id="one-2")))
        await asyncio.sleep(1)
        assert not again.done()

        store.release()

        assert (await again).member_id == "one-2"
    async with leading(store) as groups:
        beat = Heartbeat(token=None, member_id="one-2", generation=1, instance_id="one")
        assert await groups.heartbeat("g", beat) is ErrorCode.NONE


def test_loading_a_long_log_never_keeps_the_loop_for_long() -> None:
    async def story() -> None:
        store = MemoryStore(PARTITIONS, batches_in_a_chunk=1_000)
        async with leading(store) as groups:
            for number in range(5_000):
                await groups.offsets.commit("g", {TopicPartition("topic", number % 50): offset(number)})
        async with make(store) as groups:
            elect(groups)
            turns = 0
            while groups.describe_group("g").error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                turns += 1
                await asyncio.sleep(0)
            assert len(groups.offsets.fetch("g")[1]) == 50
            assert turns > 5

    asyncio.run(story())


@in_virtual_time
async def test_groups_and_offsets_are_counted() -> None:
    metrics = Metrics()
    async with leading(MemoryStore(PARTITIONS), metrics) as groups:
        await settle(groups, "g", ["a"])
        await groups.offsets.commit("h", {TOPIC_0: offset(5), TOPIC_1: offset(5)})

        def gauge(name: str) -> float:
            found = metrics.get("kafka.coordinator.group", "GroupMetadataManager", name)
            assert found is not None
            return found.value  # type: ignore[union-attr]

        assert gauge("NumGroups") == 2
        assert gauge("NumOffsets") == 2
        assert (gauge("NumGroupsStable"), gauge("NumGroupsEmpty"), gauge("NumGroupsDead")) == (1, 1, 0)


@in_virtual_time
async def test_many_groups_share_one_timer() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        for number in range(300):
            await settle(groups, f"g{number}", ["a"])
        assert len(asyncio.all_tasks()) <= 5

        await asyncio.sleep(10.1)

        assert {one.state for one in groups.list_groups()[1]} == {GroupState.EMPTY}


class TurnCounter:
    """The most requests that end in one turn of the running loop."""

    def __init__(self, requests: list[asyncio.Task[Any]]) -> None:
        self._requests = requests
        self._done = 0
        self.most = 0
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        done = sum(request.done() for request in self._requests)
        self.most, self._done = max(self.most, done - self._done), done
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> int:
        self._handle.cancel()
        return self.most


async def test_a_large_group_is_answered_over_many_turns_of_the_loop() -> None:
    names = [f"m-{number}" for number in range(1_000)]
    async with leading(MemoryStore(PARTITIONS), group_initial_rebalance_delay_ms="100") as groups:
        joins = [asyncio.create_task(groups.join("g", a_join(new_member_id=name))) for name in names]
        joining = TurnCounter(joins)
        joined = await asyncio.gather(*joins)
        most_joined = joining.stop()
        leader = joined[0].leader_id
        ids = sorted((join.member_id for join in joined), key=lambda member_id: member_id == leader)
        syncs = [
            asyncio.create_task(
                groups.sync(
                    "g",
                    Sync(
                        token=None,
                        member_id=member_id,
                        generation=1,
                        assignments={name: name.encode() for name in ids} if member_id == leader else {},
                    ),
                )
            )
            for member_id in ids
        ]
        syncing = TurnCounter(syncs)
        synced = await asyncio.gather(*syncs)
        most_synced = syncing.stop()

    assert [sync.assignment for sync in synced] == [member_id.encode() for member_id in ids]
    assert most_joined <= 200
    assert most_synced <= 200


@in_virtual_time
async def test_a_group_that_is_emptied_while_its_assignment_is_encoded_is_loaded_empty() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        names = [f"m{number}" for number in range(LONG + 1)]
        joined = [asyncio.create_task(groups.join("g", a_join(new_member_id=name))) for name in names]
        members = [(await task).member_id for task in joined]
        leader = groups.describe_group("g").members[0].member_id
        assignments = dict.fromkeys(members, b"part")
        sync = Sync(token=None, member_id=leader, generation=1, assignments=assignments)
        synced = asyncio.create_task(groups.sync("g", sync))
        await asyncio.sleep(0)

        identities = tuple(MemberIdentity(member) for member in members)
        assert (await groups.leave("g", Leave(token=None, members=identities))).error is ErrorCode.NONE
        assert (await synced).error is not ErrorCode.NONE
        await asyncio.sleep(1)
        assert groups.describe_group("g").state is GroupState.EMPTY

    async with leading(store) as again:
        assert again.describe_group("g").state is GroupState.EMPTY

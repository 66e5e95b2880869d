"""Offsets that are committed in transactions: pending until the marker, and after a load too."""

import asyncio

import pytest

from ottla.broker.controller.testing import run_in_virtual_time
from ottla.broker.coordinators.coordinator_partitions import partition_for
from ottla.broker.coordinators.internal_topic_log import TransactionalProducer
from ottla.broker.coordinators.testing import MemoryStore, in_virtual_time
from ottla.broker.groups.classic.events import Heartbeat
from ottla.broker.groups.hosting.coordinator import GroupCoordinator
from ottla.broker.groups.testing import (
    MINUTE_MS,
    PARTITIONS,
    TOPIC_0,
    TOPIC_1,
    elect,
    leading,
    make,
    offset,
    settle,
)
from ottla.protocol.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    KafkaError,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
)
from ottla.protocol.records import ControlType, end_transaction_marker, read_header

PRODUCER = TransactionalProducer(7, 2)
NUMBER = partition_for("g", PARTITIONS)
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


async def commit(groups: GroupCoordinator, number: int = 5, **member: object) -> ErrorCode:
    """Commit an offset of `TOPIC_0` in the transaction."""
    results = await groups.offsets.commit(
        "g",
        {TOPIC_0: offset(number)},
        producer=PRODUCER,
        **member,  # type: ignore[arg-type]
    )
    return results[TOPIC_0]


def fetched(groups: GroupCoordinator, *, stable: bool = False) -> object:
    return groups.offsets.fetch("g", [TOPIC_0], require_stable=stable)[1][TOPIC_0]


def marker(store: MemoryStore, *, commits: bool) -> None:
    kind = ControlType.COMMIT if commits else ControlType.ABORT
    batch = end_transaction_marker(kind, producer_id=7, producer_epoch=2, coordinator_epoch=0, timestamp_ms=0)
    store.append_batch(NUMBER, batch)


@pytest.mark.parametrize(("commits", "seen"), [(True, offset(5)), (False, offset(1))])
def test_offsets_of_a_transaction_count_once_it_is_committed(commits: bool, seen: object) -> None:
    async def story() -> None:
        async with leading(MemoryStore(PARTITIONS)) as groups:
            await groups.offsets.commit("g", {TOPIC_0: offset(1)})

            assert await commit(groups) is ErrorCode.NONE
            assert fetched(groups) == offset(1)
            assert fetched(groups, stable=True) is UNSTABLE

            groups.transaction_ended(NUMBER, 7, commits)
            assert fetched(groups, stable=True) == seen

    run_in_virtual_time(story())


@in_virtual_time
async def test_the_batch_belongs_to_the_transaction_of_its_producer() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        await commit(groups)

    header = read_header(store.batches[NUMBER][-1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0)
    assert header.is_transactional


@in_virtual_time
async def test_a_commit_that_is_being_written_is_unstable_and_ends_with_its_marker() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups, asyncio.TaskGroup() as tasks:
        store.hold = True
        writing = tasks.create_task(commit(groups))
        await asyncio.sleep(1)
        assert fetched(groups, stable=True) is UNSTABLE

        store.release()
        # The marker is heard of before the task has run that waits for the commit in front of it.
        groups.transaction_ended(NUMBER, 7, True)

        assert await writing is ErrorCode.NONE
        assert fetched(groups, stable=True) == offset(5)


@in_virtual_time
async def test_a_commit_that_fails_leaves_nothing_pending() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        store.fail_with = NotEnoughReplicas()

        assert await commit(groups) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert fetched(groups, stable=True) is None


@in_virtual_time
async def test_a_commit_that_fails_leaves_what_the_transaction_had_written_before() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        await commit(groups)
        store.fail_with = NotEnoughReplicas()
        await commit(groups, 6)

        groups.transaction_ended(NUMBER, 7, True)
        assert fetched(groups) == offset(5)


@pytest.mark.parametrize(("commits", "seen"), [(True, offset(5)), (False, None)])
def test_a_marker_in_the_log_is_replayed_by_a_load(commits: bool, seen: object) -> None:
    async def story() -> None:
        store = MemoryStore(PARTITIONS)
        async with leading(store) as groups:
            await commit(groups)
        marker(store, commits=commits)

        async with leading(store) as groups:
            assert fetched(groups, stable=True) == seen

    run_in_virtual_time(story())


@in_virtual_time
async def test_an_open_transaction_is_still_open_after_a_load() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        await commit(groups)

    async with leading(store) as groups:
        assert fetched(groups, stable=True) is UNSTABLE
        groups.transaction_ended(NUMBER, 7, True)
        assert fetched(groups, stable=True) == offset(5)


@in_virtual_time
async def test_a_marker_that_is_written_during_a_load_is_applied_after_it() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        await commit(groups)
    store.read_gate.clear()
    async with make(store) as groups:
        elect(groups)
        await asyncio.sleep(1)

        groups.transaction_ended(NUMBER, 7, True)
        store.read_gate.set()
        await asyncio.sleep(1)

        assert fetched(groups, stable=True) == offset(5)


@in_virtual_time
async def test_a_deleted_group_does_not_come_back_with_its_transaction() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        await commit(groups)
        assert await groups.delete_groups(["g"]) == {"g": ErrorCode.NONE}
        groups.transaction_ended(NUMBER, 7, True)
        assert fetched(groups) is None
    marker(store, commits=True)

    async with leading(store) as groups:
        assert fetched(groups) is None


@in_virtual_time
async def test_an_offset_that_is_deleted_in_an_open_transaction_stays_deleted() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        await groups.offsets.commit("g", {TOPIC_1: offset(1)})
        await commit(groups)

        await groups.offsets.delete("g", [TOPIC_0])
        groups.transaction_ended(NUMBER, 7, True)

        assert fetched(groups) is None


@in_virtual_time
async def test_an_offset_that_is_deleted_while_its_commit_is_replicated_stays_deleted() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups, asyncio.TaskGroup() as tasks:
        await groups.offsets.commit("g", {TOPIC_1: offset(1)})
        store.hold = True
        writing = tasks.create_task(commit(groups))
        await asyncio.sleep(1)

        await groups.offsets.delete("g", [TOPIC_0])
        store.release()
        await writing
        groups.transaction_ended(NUMBER, 7, True)
        assert fetched(groups) is None
    marker(store, commits=True)

    async with leading(store) as groups:
        assert fetched(groups) is None


@in_virtual_time
async def test_a_commit_whose_replication_timed_out_ends_with_its_marker() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        store.hold = True
        assert await commit(groups) is ErrorCode.REQUEST_TIMED_OUT
        assert fetched(groups, stable=True) is UNSTABLE

        groups.transaction_ended(NUMBER, 7, True)
        assert fetched(groups, stable=True) == offset(5)


@in_virtual_time
async def test_an_open_transaction_keeps_offset_and_group_from_expiring() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        await groups.offsets.commit("g", {TOPIC_0: offset(1)})
        await commit(groups)

        await asyncio.sleep(30 * MINUTE_MS / 1000)

        assert fetched(groups) == offset(1)
        assert fetched(groups, stable=True) is UNSTABLE


@in_virtual_time
async def test_a_zombie_of_an_earlier_generation_is_refused() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        (member,) = await settle(groups, "g", ["m"])

        assert await commit(groups, member_id=member, generation=1) is ErrorCode.NONE
        assert await commit(groups, member_id=member, generation=0) is ErrorCode.ILLEGAL_GENERATION
        assert await commit(groups, member_id="other", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(groups) is ErrorCode.NONE, "a producer before KIP-447 names no member"


@in_virtual_time
async def test_a_transactional_commit_is_no_heartbeat() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        (member,) = await settle(groups, "g", ["m"])
        for _ in range(3):
            await asyncio.sleep(4)
            await commit(groups, member_id=member, generation=1)

        beat = Heartbeat(token=None, member_id=member, generation=1)
        assert await groups.heartbeat("g", beat) is ErrorCode.UNKNOWN_MEMBER_ID


@in_virtual_time
async def test_a_plain_commit_that_is_being_written_is_unstable_too() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups, asyncio.TaskGroup() as tasks:
        store.hold = True
        writing = tasks.create_task(groups.offsets.commit("g", {TOPIC_0: offset(5)}))
        await asyncio.sleep(1)
        assert fetched(groups, stable=True) is UNSTABLE

        store.release()

        assert await writing == {TOPIC_0: ErrorCode.NONE}
        assert fetched(groups, stable=True) == offset(5)


@in_virtual_time
async def test_a_transaction_commits_no_offsets_of_the_empty_group() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        sent = await groups.offsets.commit("", {TOPIC_0: offset(5)}, producer=PRODUCER)

        assert sent == {TOPIC_0: ErrorCode.INVALID_GROUP_ID}


@in_virtual_time
async def test_a_member_of_a_group_that_is_gone_is_unknown() -> None:
    async with leading(MemoryStore(PARTITIONS)) as groups:
        assert await commit(groups, member_id="m", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert groups.list_groups() == (ErrorCode.NONE, [])


# ---- whether this broker still coordinates the group


async def confirmed(groups: GroupCoordinator, group_id: str = "g") -> ErrorCode:
    return (await groups.offsets.confirm_coordinators([group_id]))[group_id]


@in_virtual_time
async def test_stable_offsets_wait_until_the_followers_still_follow() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups, asyncio.TaskGroup() as tasks:
        await groups.offsets.commit("g", {TOPIC_0: offset(1)})
        store.has_followers = store.hold = True

        confirming = tasks.create_task(confirmed(groups))
        await asyncio.sleep(1)
        assert not confirming.done()

        store.release()
        assert await confirming is ErrorCode.NONE
        assert fetched(groups, stable=True) == offset(1)


@in_virtual_time
async def test_a_coordinator_without_followers_in_sync_appends_nothing() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        assert await confirmed(groups) is ErrorCode.NONE

    assert store.batches[NUMBER] == []


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (NotLeaderOrFollower(), ErrorCode.NOT_COORDINATOR),
        (FencedLeaderEpoch(), ErrorCode.NOT_COORDINATOR),
        (KafkaStorageError(), ErrorCode.NOT_COORDINATOR),
        (NotEnoughReplicasAfterAppend(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_a_coordinator_that_is_not_confirmed_has_an_error_that_clients_repeat(
    error: KafkaError, answer: ErrorCode
) -> None:
    async def story() -> None:
        store = MemoryStore(PARTITIONS)
        async with leading(store) as groups, asyncio.TaskGroup() as tasks:
            store.has_followers = store.hold = True
            confirming = tasks.create_task(confirmed(groups))
            await asyncio.sleep(1)
            store.release(error)

            assert await confirming is answer

    run_in_virtual_time(story())


@in_virtual_time
async def test_a_coordinator_whose_followers_stay_away_answers_in_time() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        store.has_followers = store.hold = True

        assert await confirmed(groups) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@in_virtual_time
async def test_a_coordinator_that_has_resigned_confirms_nothing() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        store.led.clear()

        assert await confirmed(groups) is ErrorCode.NOT_COORDINATOR


@in_virtual_time
async def test_what_confirms_a_coordinator_is_no_group_after_a_load() -> None:
    store = MemoryStore(PARTITIONS)
    async with leading(store) as groups:
        await groups.offsets.commit("g", {TOPIC_0: offset(1)})
        store.has_followers = True
        assert await confirmed(groups) is ErrorCode.NONE
        assert len(store.batches[NUMBER]) == 2

    async with leading(store) as groups:
        assert fetched(groups) == offset(1)
        assert [one.group_id for one in groups.list_groups()[1]] == ["g"]


@in_virtual_time
async def test_many_groups_wait_no_longer_than_one_for_followers_that_stay_away() -> None:
    store, asked = MemoryStore(PARTITIONS), [f"group {number}" for number in range(50)]
    async with leading(store) as groups:
        store.has_followers = store.hold = True
        began_s = asyncio.get_running_loop().time()
        await confirmed(groups)
        one_s = asyncio.get_running_loop().time() - began_s

        answers = await groups.offsets.confirm_coordinators(asked)

        assert answers == dict.fromkeys(asked, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert asyncio.get_running_loop().time() - began_s < 2.5 * one_s
        assert sum(map(len, store.batches)) <= 1 + PARTITIONS

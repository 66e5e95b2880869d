import asyncio
import random
from typing import Any

import pytest

from ottla.broker.coordinators.coordinator_partitions import KeyValue, partition_for
from ottla.broker.coordinators.internal_topic_log import build_batch
from ottla.broker.coordinators.testing import LoggedWarnings, MemoryStore, in_virtual_time
from ottla.broker.runtime.log_lines import MOST_SUBJECTS
from ottla.broker.transactions.coordinator import TransactionCoordinator, TransactionFilter
from ottla.broker.transactions.events import NO_PRODUCER, Producer, TransactionSnapshot, TransactionState
from ottla.broker.transactions.records import decode_record
from ottla.broker.transactions.testing import (
    ALL,
    BROKER,
    MINUTE_MS,
    OTHER_0,
    PARTITIONS,
    TOPIC_0,
    TOPIC_1,
    MemoryCluster,
    WrittenMarker,
    begun,
    described,
    elect,
    initialized,
    leading,
    memory_store,
    resign,
    until,
)
from ottla.protocol.errors import ErrorCode, NotEnoughReplicas, NotLeaderOrFollower
from ottla.protocol.records import iter_records
from ottla.protocol.stored_messages import TransactionLogKey
from ottla.zookeeper.frozen_classes import replace

NONE = ErrorCode.NONE


def names(coordinator: TransactionCoordinator, **filters: Any) -> list[str]:
    error, listed = coordinator.list_transactions(TransactionFilter(**filters))
    assert error is NONE
    return sorted(name for name, _ in listed)


def records(store: MemoryStore) -> list[tuple[str, TransactionSnapshot | None]]:
    """All records of the log, with tombstones."""
    return [
        decode_record(record.key, record.value)
        for batches in store.batches
        for batch in batches
        for record in iter_records(batch)
        if record.key is not None
    ]


# ---- the ordinary course


@in_virtual_time
async def test_a_commit_writes_a_marker_into_each_partition() -> None:
    cluster = MemoryCluster()
    async with leading(memory_store(), cluster, epoch=3) as coordinator:
        producer = await begun(coordinator)

        assert await coordinator.end("t", producer, commit=True) is NONE
        await until(coordinator, TransactionState.COMPLETE_COMMIT)

    marker = WrittenMarker(producer.id, producer.epoch, True, 3)
    assert cluster.written == {TOPIC_0: [marker], TOPIC_1: [marker], OTHER_0: [marker]}
    assert {broker for broker, _ in cluster.requests} == {1, 2, BROKER}


@in_virtual_time
async def test_one_request_has_the_markers_of_several_transactions() -> None:
    cluster = MemoryCluster()
    async with leading(memory_store(), cluster) as coordinator:
        producers = {name: await begun(coordinator, name) for name in "abcdef"}
        cluster.gate.clear()

        for name, producer in producers.items():
            assert await coordinator.end(name, producer, commit=False) is NONE
        cluster.gate.set()
        for name in producers:
            await until(coordinator, TransactionState.COMPLETE_ABORT, name)

    assert len(cluster.written[TOPIC_0]) == 6
    assert len([1 for broker, _ in cluster.requests if broker == 1]) <= 2


@in_virtual_time
async def test_an_answer_waits_for_its_record() -> None:
    store = memory_store()
    async with leading(store, MemoryCluster()) as coordinator:
        store.hold = True
        first = asyncio.create_task(coordinator.initialize("t", MINUTE_MS))
        await asyncio.sleep(1)
        second = await coordinator.initialize("t", MINUTE_MS)

        assert second.error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert not first.done()
        store.release()
        assert (await first).producer.epoch == 0


@in_virtual_time
async def test_a_record_that_is_not_committed_in_time_is_answered_as_unavailable() -> None:
    store = memory_store()
    async with leading(store, MemoryCluster()) as coordinator:
        store.hold = True

        result = await coordinator.initialize("t", MINUTE_MS)

        assert result.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert coordinator.describe("t") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@in_virtual_time
async def test_bad_requests_have_kafkas_errors() -> None:
    async with leading(memory_store(), MemoryCluster()) as coordinator:
        nobody = Producer(5, 0)

        assert (await coordinator.initialize("", 1)).error is ErrorCode.INVALID_REQUEST
        for timeout_ms in (0, -1, 900_001):
            refused = await coordinator.initialize("t", timeout_ms)
            assert refused.error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        for name, error in (
            ("", ErrorCode.INVALID_REQUEST),
            ("nobody", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ):
            assert await coordinator.add_partitions(name, nobody, ALL) is error
            assert await coordinator.end(name, nobody, commit=True) is error
            assert coordinator.verify(name, nobody, [TOPIC_0]) == {TOPIC_0: error}
        assert coordinator.describe("") is ErrorCode.INVALID_REQUEST
        assert coordinator.describe("nobody") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


# ---- another coordinator


@in_virtual_time
async def test_the_next_coordinator_has_the_transactions_of_the_one_before() -> None:
    store, cluster = memory_store(), MemoryCluster()
    async with leading(store, cluster) as first:
        producer = await begun(first)
        before = described(first)

    async with leading(store, cluster, epoch=1) as second:
        assert described(second) == replace(before, previous=NO_PRODUCER)
        assert await second.end("t", producer, commit=True) is NONE
        await until(second, TransactionState.COMPLETE_COMMIT)


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_sends_the_markers_that_are_missing(commit: bool) -> None:
    @in_virtual_time
    async def story() -> None:
        store, cluster = memory_store(), MemoryCluster()
        cluster.gate.clear()
        async with leading(store, cluster) as first:
            producer = await begun(first)
            assert await first.end("t", producer, commit=commit) is NONE
            await asyncio.sleep(1)
        assert not cluster.written
        cluster.gate.set()

        async with leading(store, cluster, epoch=4) as second:
            complete = TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
            await until(second, complete)

        assert cluster.written[TOPIC_0] == [WrittenMarker(producer.id, producer.epoch, commit, 4)]

    story()


@in_virtual_time
async def test_a_coordinator_that_is_replaced_answers_so_and_sends_nothing_more() -> None:
    store, cluster = memory_store(), MemoryCluster()
    async with leading(store, cluster) as coordinator:
        producer = await begun(coordinator)
        cluster.errors[TOPIC_0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
        await coordinator.end("t", producer, commit=True)
        await asyncio.sleep(0.01)
        store.hold = True
        waiting = asyncio.create_task(coordinator.initialize("other", MINUTE_MS))
        await asyncio.sleep(0.01)

        resign(coordinator, 1)
        store.release(NotLeaderOrFollower())

        assert (await waiting).error is ErrorCode.NOT_COORDINATOR
        assert await coordinator.end("t", producer, commit=True) is ErrorCode.NOT_COORDINATOR
        await asyncio.sleep(10)
        assert TOPIC_0 not in {one for one, of in cluster.written.items() if of}


@in_virtual_time
async def test_a_record_that_is_committed_after_the_coordinator_was_replaced_is_not_acted_upon() -> None:
    store, cluster = memory_store(), MemoryCluster()
    async with leading(store, cluster) as coordinator:
        producer = await begun(coordinator)
        store.hold = True
        ended = asyncio.create_task(coordinator.end("t", producer, commit=True))
        await asyncio.sleep(0.01)

        resign(coordinator, 1)
        store.release()

        assert await ended is ErrorCode.NOT_COORDINATOR
        await asyncio.sleep(10)
        assert cluster.requests == []


@in_virtual_time
async def test_nothing_is_answered_before_the_log_is_read() -> None:
    store = memory_store()
    async with leading(store, MemoryCluster()) as first:
        await begun(first)
    store.read_gate.clear()

    async with leading(store, MemoryCluster(), epoch=1) as second:
        error, _ = second.list_transactions(TransactionFilter())
        assert error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await second.initialize("t", 1)).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        store.read_gate.set()
        await asyncio.sleep(0.1)
        assert described(second).state is TransactionState.ONGOING


@in_virtual_time
async def test_an_id_with_a_damaged_record_begins_anew_and_the_others_go_on() -> None:
    store, cluster = memory_store(), MemoryCluster()
    number = partition_for("t", PARTITIONS)
    other = next(one for one in map(str, range(99)) if partition_for(one, PARTITIONS) == number)
    async with leading(store, cluster) as first:
        producer, neighbour = await begun(first), await begun(first, other)
    for key, value in ((b"\0\7junk", b"x"), (b"", None), (b"\0\0\0\1t", b"\0\0short")):
        store.append_batch(number, build_batch([KeyValue(key, value)], 0))

    async with leading(store, cluster, epoch=1) as second:
        await asyncio.sleep(120)
        assert second.describe("t") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert names(second) == [other]
        assert await second.end("t", producer, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        renewed = await initialized(second)
        assert renewed.id not in (producer.id, neighbour.id)
        assert await second.add_partitions("t", renewed, ALL) is NONE
    markers = [one for written in cluster.written.values() for one in written]
    assert {one.producer_id for one in markers} == {neighbour.id}, (
        "aborted by its timeout; the damaged one not"
    )


@in_virtual_time
async def test_of_thousands_of_damaged_records_few_lines_tell_and_the_others_are_loaded() -> None:
    store, chance = memory_store(), random.Random(11)
    async with leading(store, MemoryCluster()) as first:
        await begun(first)
    (begins, *_) = [
        record
        for batches in store.batches
        for batch in batches
        for record in iter_records(batch)
        if record.value is not None
    ]
    for number in range(2_000):
        name = f"damaged-{number}"
        key = TransactionLogKey(transactional_id=name).to_bytes(0)
        value = bytearray(begins.value or b"")
        for _ in range(chance.randint(1, 4)):
            value[chance.randrange(len(value))] = chance.randrange(256)
        cut = chance.choice([len(value), len(value), chance.randrange(len(value))])
        record = KeyValue(key if number % 10 else key[: chance.randrange(len(key))], bytes(value[:cut]))
        store.append_batch(partition_for(name, PARTITIONS), build_batch([record], 0))

    with LoggedWarnings() as logged:
        async with leading(store, MemoryCluster(), epoch=1) as second:
            assert "t" in names(second)
            renewed = await initialized(second, "damaged-1")
            assert await second.add_partitions("damaged-1", renewed, ALL) is NONE

    assert len(logged.seen) <= 2 * PARTITIONS + MOST_SUBJECTS, logged.seen[:5]


# ---- markers that are not written at once


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_marker_is_sent_until_it_is_written(error: ErrorCode) -> None:
    @in_virtual_time
    async def story() -> None:
        cluster = MemoryCluster()
        cluster.errors[TOPIC_0] = [error] * 5
        async with leading(memory_store(), cluster) as coordinator:
            producer = await begun(coordinator)
            await coordinator.end("t", producer, commit=True)
            await until(coordinator, TransactionState.COMPLETE_COMMIT)

        assert [len(cluster.written[one]) for one in ALL] == [1, 1, 1]

    story()


@in_virtual_time
async def test_a_partition_without_producers_needs_no_marker() -> None:
    cluster = MemoryCluster()
    cluster.errors[TOPIC_0] = [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT]
    async with leading(memory_store(), cluster) as coordinator:
        await coordinator.end("t", await begun(coordinator), commit=True)
        await until(coordinator, TransactionState.COMPLETE_COMMIT)

    assert cluster.written[TOPIC_0] == []


@in_virtual_time
async def test_a_partition_without_leader_is_waited_for() -> None:
    cluster = MemoryCluster(without_leader={TOPIC_0})
    async with leading(memory_store(), cluster) as coordinator:
        await coordinator.end("t", await begun(coordinator), commit=True)
        await asyncio.sleep(120)
        assert described(coordinator).state is TransactionState.PREPARE_COMMIT

        cluster.without_leader.clear()
        await until(coordinator, TransactionState.COMPLETE_COMMIT)


@in_virtual_time
async def test_only_a_partition_that_is_deleted_for_certain_is_left_out() -> None:
    cluster = MemoryCluster()
    async with leading(memory_store(), cluster) as coordinator:
        producer = await begun(coordinator)
        del cluster.leaders[TOPIC_0]
        await coordinator.end("t", producer, commit=True)
        await asyncio.sleep(120)
        assert described(coordinator).state is TransactionState.PREPARE_COMMIT

        cluster.deleted.add(TOPIC_0)
        await until(coordinator, TransactionState.COMPLETE_COMMIT)


@in_virtual_time
async def test_a_broker_that_does_not_answer_is_left_once_it_leads_no_more() -> None:
    cluster = MemoryCluster(silent={1})
    async with leading(memory_store(), cluster) as coordinator:
        await coordinator.end("t", await begun(coordinator), commit=True)
        await asyncio.sleep(60)
        assert described(coordinator).state is TransactionState.PREPARE_COMMIT

        cluster.leaders[TOPIC_0] = 2
        await until(coordinator, TransactionState.COMPLETE_COMMIT)

    assert len(cluster.written[TOPIC_0]) == 1


@pytest.mark.parametrize(
    "error", [ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH]
)
def test_a_fenced_marker_is_not_sent_again_before_a_newer_epoch(error: ErrorCode) -> None:
    @in_virtual_time
    async def story() -> None:
        cluster = MemoryCluster()
        async with leading(memory_store(), cluster, epoch=1) as coordinator:
            producer = await begun(coordinator)
            cluster.errors[TOPIC_0] = [error]
            await coordinator.end("t", producer, commit=True)
            await asyncio.sleep(3600)
            assert described(coordinator).state is TransactionState.PREPARE_COMMIT
            assert cluster.written[TOPIC_0] == []

            elect(coordinator, 2)
            await until(coordinator, TransactionState.COMPLETE_COMMIT)

        assert [one.coordinator_epoch for one in cluster.written[TOPIC_0]] == [2]

    story()


@in_virtual_time
async def test_a_completion_is_written_again_after_it_failed() -> None:
    store, cluster = memory_store(), MemoryCluster()
    cluster.gate.clear()
    async with leading(store, cluster) as coordinator:
        await coordinator.end("t", await begun(coordinator), commit=True)
        store.fail_with = NotEnoughReplicas()
        cluster.gate.set()
        await asyncio.sleep(10)
        assert described(coordinator).state is TransactionState.PREPARE_COMMIT

        store.fail_with = None
        await until(coordinator, TransactionState.COMPLETE_COMMIT)

    assert [len(cluster.written[one]) for one in ALL] == [1, 1, 1]


# ---- time


@in_virtual_time
async def test_a_transaction_that_is_open_for_too_long_is_aborted() -> None:
    cluster = MemoryCluster()
    async with leading(memory_store(), cluster) as coordinator:
        producer = await begun(coordinator, timeout_ms=20_000)
        await asyncio.sleep(19)
        assert described(coordinator).state is TransactionState.ONGOING

        await asyncio.sleep(12)

        assert described(coordinator).state is TransactionState.COMPLETE_ABORT
        assert await coordinator.end("t", producer, commit=True) is ErrorCode.PRODUCER_FENCED
        assert (await initialized(coordinator)).epoch == producer.epoch + 2
    assert cluster.written[TOPIC_0] == [WrittenMarker(producer.id, producer.epoch + 1, False, 0)]


@in_virtual_time
async def test_an_abort_by_timeout_is_tried_again() -> None:
    store, cluster = memory_store(), MemoryCluster()
    async with leading(store, cluster) as coordinator:
        await begun(coordinator, timeout_ms=1_000)
        store.fail_with = NotEnoughReplicas()
        await asyncio.sleep(60)
        assert described(coordinator).state is TransactionState.ONGOING

        store.fail_with = None
        await until(coordinator, TransactionState.COMPLETE_ABORT)


@in_virtual_time
async def test_ids_that_nobody_uses_are_removed_from_memory_and_log() -> None:
    store = memory_store()
    settings: Any = {"transactional_id_expiration_ms": "7200000"}
    async with leading(store, MemoryCluster(), **settings) as coordinator:
        for number in range(1_200):
            await initialized(coordinator, f"unused-{number}")
        await asyncio.sleep(6_000)
        await initialized(coordinator, "used")
        store.fail_with = NotEnoughReplicas()
        await asyncio.sleep(3_000)
        assert len(names(coordinator)) == 1_201
        store.fail_with = None
        await asyncio.sleep(3_600)

        assert names(coordinator) == ["used"]
        assert coordinator._hosted.memory_bytes < 3_000
    assert len([1 for _, snapshot in records(store) if snapshot is None]) == 1_200
    async with leading(store, MemoryCluster(), epoch=1, **settings) as second:
        assert names(second) == ["used"]


# ---- many and long ids


@in_virtual_time
async def test_memory_for_ids_is_limited_and_those_that_are_there_go_on() -> None:
    limit = 2_000_000
    async with leading(
        memory_store(), MemoryCluster(), transaction_max_memory_bytes=str(limit)
    ) as coordinator:
        long_ids = [f"{number:05}".ljust(32_000, "x") for number in range(100)]
        errors = [(await coordinator.initialize(one, MINUTE_MS)).error for one in long_ids]

        admitted = errors.count(NONE)
        assert errors == [NONE] * admitted + [ErrorCode.POLICY_VIOLATION] * (100 - admitted)
        assert limit / 33_000 <= admitted <= limit / 33_000 + 1
        again = await coordinator.initialize(long_ids[0], MINUTE_MS)
        assert (again.error, again.producer.epoch) == (NONE, 1)


# ---- administration


@in_virtual_time
async def test_transactions_are_listed_by_state_producer_and_duration() -> None:
    async with leading(memory_store(), MemoryCluster()) as coordinator:
        producer = await begun(coordinator, "open", timeout_ms=900_000)
        await asyncio.sleep(60)
        await initialized(coordinator, "empty")

        assert names(coordinator) == ["empty", "open"]
        ongoing = frozenset({TransactionState.ONGOING})
        assert names(coordinator, states=ongoing) == ["open"]
        assert names(coordinator, producer_ids=frozenset({producer.id})) == ["open"]
        assert names(coordinator, states=ongoing, longer_than_ms=59_000) == ["open"]
        assert names(coordinator, states=ongoing, longer_than_ms=61_000) == []

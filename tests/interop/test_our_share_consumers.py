"""Our share consumers as members of share groups of Apache Kafka 4.4 and of Ottla (KIP-932)."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from ottla.admin import GROUP, Admin
from ottla.broker.testing import BrokerProcess
from ottla.consumer import (
    AcknowledgementFailed,
    RecordDeserializationFailed,
    ShareConsumer,
    ShareConsumerConfig,
    ShareRecord,
    SyncShareConsumer,
)
from ottla.consumer.share import AlreadyAcknowledged, NotAcknowledged
from ottla.producer import Producer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from peers.cluster_commands import command_for, shown
from peers.kraft_kafka import KraftKafka

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

BOUND_S = 60.0
SETTINGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "2000",
    "group.share.min.record.lock.duration.ms": "1000",
}


@pytest.fixture(scope="module", params=["kafka-4.4", "ottla"])
def kafka(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KraftKafka | BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    kind = KraftKafka if request.param == "kafka-4.4" else BrokerProcess
    with kind(directory, SETTINGS) as running:
        yield running


@pytest.fixture
def servers(kafka: KraftKafka | BrokerProcess) -> str:
    return kafka.bootstrap_servers


@pytest.fixture
async def topic(servers: str, request: pytest.FixtureRequest) -> str:
    """Make a topic of one partition, and a group of its name that reads it from the beginning."""
    name: str = request.node.originalname.removeprefix("test_")[:60]
    async with Admin(servers) as admin:
        await admin.topics.create(name, partitions=1)
    await configure(servers, name, {"share.auto.offset.reset": "earliest"})
    return name


async def configure(servers: str, group: str, settings: dict[str, str | None]) -> None:
    async with Admin(servers) as admin:
        await admin.configs.alter(GROUP, group, settings)


async def fill(servers: str, topic: str, count: int) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for number in range(count):
            await producer.send(topic, str(number))


def member(servers: str, topic: str, **settings: Any) -> ShareConsumer[Any, str]:
    config = ShareConsumerConfig.of(**{"group_id": topic, "value_type": str} | settings)
    return ShareConsumer(topic, bootstrap_servers=servers, config=config)


async def settled(servers: str, group: str) -> None:
    """Wait until the group has finished all records."""

    lags: list[int | None] = []
    async with Admin(servers) as admin, asyncio.timeout(BOUND_S):
        while lags != [0]:
            lags = [found.lag for found in await admin.groups.share_offsets(group)]
            await asyncio.sleep(0.1)  # the coordinator learns it from the leader


async def test_a_record_is_accepted_rejected_or_released_for_another_delivery(
    servers: str, topic: str
) -> None:
    await fill(servers, topic, 20)
    delivered: Counter[str] = Counter()
    answers: list[tuple[TopicPartition, tuple[int, ...], Exception | None]] = []

    async with member(servers, topic) as consumer, asyncio.timeout(BOUND_S):
        consumer.set_acknowledgement_callback(lambda *answer: answers.append(answer))
        async for record in consumer:
            delivered[record.value] += 1
            assert record.delivery_count == delivered[record.value]
            if record.value == "3" and record.delivery_count == 1:
                await record.release()
            elif record.value == "4":
                await record.reject()
            elif record.value == "5" and record.delivery_count == 1:
                with pytest.raises(RuntimeError):
                    async with record:
                        raise RuntimeError
            else:
                async with record:
                    pass
            if len(delivered) == 20 and delivered["3"] == delivered["5"] == 2:
                break
        await consumer.commit()
        assert consumer.in_flight == 0

    assert sum(delivered.values()) == 22
    assert sum(len(offsets) for _, offsets, error in answers if error is None) == 22
    await settled(servers, topic)


async def test_a_record_without_an_acknowledgement_is_accepted_as_the_next_is_asked_for(
    servers: str, topic: str
) -> None:
    await fill(servers, topic, 10)
    async with member(servers, topic, consumer_timeout_ms=2_000) as consumer:
        first = [record.value async for record in consumer]

    await fill(servers, topic, 1)
    async with member(servers, topic) as consumer, asyncio.timeout(BOUND_S):
        record = await consumer.getone()

    assert first == [str(number) for number in range(10)]
    assert (record.offset, record.delivery_count) == (10, 1)


async def test_what_was_not_finished_at_the_end_is_delivered_again(servers: str, topic: str) -> None:
    await fill(servers, topic, 10)
    async with member(servers, topic) as consumer, asyncio.timeout(BOUND_S):
        await consumer.getone()
        await consumer.getone()  # the first is accepted, this one is not, and eight are buffered

    async with member(servers, topic) as again, asyncio.timeout(BOUND_S):
        records = [await again.getone() for _ in range(9)]

    assert [(record.offset, record.delivery_count) for record in records] == [
        (offset, 2) for offset in range(1, 10)
    ]


async def test_members_share_the_records_of_one_partition(servers: str, topic: str) -> None:
    counts: list[int] = []
    seen: Counter[str] = Counter()

    async def read(consumer: ShareConsumer[Any, str]) -> None:
        count = 0
        while sum(seen.values()) < 300:
            found = await consumer.getmany(timeout_ms=200, max_records=5)
            for record in (record for records in found.values() for record in records):
                seen[record.value] += 1
                count += 1
            await asyncio.sleep(0.01)  # a member has a little to do with each batch
        await consumer.commit()
        counts.append(count)

    settings: dict[str, Any] = {"max_poll_records": 5, "share_acquire_mode": "record_limit"}
    async with (
        member(servers, topic, **settings) as one,
        member(servers, topic, **settings) as two,
        asyncio.timeout(BOUND_S),
        asyncio.TaskGroup() as tasks,
    ):
        await fill(servers, topic, 300)
        tasks.create_task(read(one))
        tasks.create_task(read(two))

    assert seen == Counter(map(str, range(300)))
    assert min(counts) > 0


async def test_a_lock_that_ended_gives_the_record_to_another_and_a_renewed_one_does_not(
    servers: str, topic: str
) -> None:
    await configure(servers, topic, {"share.record.lock.duration.ms": "1000"})
    await fill(servers, topic, 2)
    async with (
        member(servers, topic, acknowledgement_mode="explicit") as one,
        member(servers, topic, acknowledgement_mode="explicit") as two,
        asyncio.timeout(BOUND_S),
    ):
        late, kept = await one.getone(), await one.getone()
        assert one.lock_timeout_ms == 1_000
        asked = asyncio.create_task(two.getone())
        while not asked.done():
            await kept.renew()
            await asyncio.sleep(0.2)
        given = await asked
        with pytest.raises(AcknowledgementFailed, match="its lock had ended") as refused:
            await late.accept()
        await kept.accept()
        await given.accept()

    assert (given.offset, given.delivery_count) == (0, 2)
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE
    await settled(servers, topic)


async def test_records_of_transactions_are_delivered_once_they_are_committed(
    servers: str, topic: str
) -> None:
    await configure(servers, topic, {"share.isolation.level": "read_committed"})
    async with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        for number in range(6):
            await producer.begin_transaction()
            await producer.send(topic, str(number))
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())

    async with member(servers, topic, consumer_timeout_ms=2_000) as consumer:
        read = [record.value async for record in consumer]
        await consumer.commit()
        assert consumer.in_flight == 0

    assert read == ["0", "2", "4"]
    await settled(servers, topic)


async def test_a_record_that_cannot_be_deserialized_is_released_and_the_next_one_is_delivered(
    servers: str, topic: str
) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        for value in ("1", "zwei", "3"):
            await producer.send(topic, value)

    async with member(servers, topic, value_type=int) as consumer, asyncio.timeout(BOUND_S):
        first = await consumer.getone()
        with pytest.raises(RecordDeserializationFailed, match="at offset 1 "):
            await consumer.getone()
        third = await consumer.getone()
        await third.accept()
    async with member(servers, topic) as other, asyncio.timeout(BOUND_S):
        again: ShareRecord[Any, Any] = await other.getone()

    assert (first.offset, third.offset) == (0, 2)
    assert (again.value, again.delivery_count) == ("zwei", 2)


async def test_tasks_of_the_application_acknowledge_in_any_order(servers: str, topic: str) -> None:
    await fill(servers, topic, 40)
    done: list[int] = []

    async def work(record: ShareRecord[Any, str]) -> None:
        async with record:
            await asyncio.sleep(0.05 if record.offset % 3 else 0.01)
            done.append(record.offset)

    async with (
        member(servers, topic, acknowledgement_mode="explicit") as consumer,
        asyncio.timeout(BOUND_S),
        asyncio.TaskGroup() as tasks,
    ):
        for _ in range(40):
            tasks.create_task(work(await consumer.getone()))

    assert len(done) == 40
    await settled(servers, topic)


async def test_more_records_than_may_be_in_work_are_refused(servers: str, topic: str) -> None:
    await fill(servers, topic, 10)
    settings: dict[str, Any] = {"acknowledgement_mode": "explicit", "max_in_flight_records": 10}
    async with member(servers, topic, **settings) as consumer, asyncio.timeout(BOUND_S):
        records = [await consumer.getone() for _ in range(10)]
        with pytest.raises(NotAcknowledged, match="10 records have no acknowledgement"):
            await consumer.getone()
        await records[0].accept()
        with pytest.raises(AlreadyAcknowledged, match="already: accept"):
            await records[0].reject()
        assert await consumer.getmany(timeout_ms=50) == {}


async def test_batches_are_accepted_or_released_as_a_whole(servers: str, topic: str) -> None:
    await fill(servers, topic, 10)
    counts: list[list[int]] = []
    async with member(servers, topic) as consumer, asyncio.timeout(BOUND_S):
        async for batch in consumer.batches():
            counts.append([record.delivery_count for record in batch])
            if counts[-1][0] == 1:
                with pytest.raises(RuntimeError):
                    async with batch:
                        raise RuntimeError
            else:
                async with batch:
                    break

    assert counts == [[1] * 10, [2] * 10]
    await settled(servers, topic)


async def test_threads_read_a_topic_as_a_queue(servers: str, topic: str) -> None:
    await fill(servers, topic, 40)
    seen: Counter[str] = Counter()

    def work(consumer: SyncShareConsumer[Any, str]) -> None:
        for record in consumer:
            with record:
                seen[record.value] += 1

    def read() -> None:
        config = ShareConsumerConfig.of(
            group_id=topic, value_type=str, acknowledgement_mode="explicit", consumer_timeout_ms=2_000
        )
        with SyncShareConsumer(topic, bootstrap_servers=servers, config=config) as consumer:
            threads = [threading.Thread(target=work, args=(consumer,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(BOUND_S)
            consumer.commit()

    await asyncio.to_thread(read)

    assert seen == Counter(map(str, range(40)))
    await settled(servers, topic)


async def test_commands_describe_reset_and_delete_a_share_group(servers: str, topic: str) -> None:
    ottla = command_for(servers)
    await fill(servers, topic, 10)
    async with member(servers, topic, acknowledgement_mode="explicit") as consumer, asyncio.timeout(BOUND_S):
        records = [await consumer.getone() for _ in range(4)]
        await records[2].accept()
        await asyncio.sleep(0)
        listed = shown(await asyncio.to_thread(ottla, "share-group", "list", "--json"))
        members = shown(
            await asyncio.to_thread(ottla, "share-group", "describe", topic, "--members", "--json")
        )
    (described,) = shown(await asyncio.to_thread(ottla, "share-group", "describe", topic, "--json"))
    reset = await asyncio.to_thread(
        ottla, "share-group", "reset-offsets", topic, "--to-latest", "--execute", "--json"
    )
    (after,) = shown(await asyncio.to_thread(ottla, "share-group", "describe", topic, "--json"))
    offsets = await asyncio.to_thread(ottla, "share-group", "delete-offsets", topic, "--topic", topic)
    deleted = await asyncio.to_thread(ottla, "share-group", "delete", topic)
    classic = await asyncio.to_thread(ottla, "share-group", "describe", topic)

    assert topic in [row["group"] for row in listed]
    assert [row["partitions"] for row in members] == [[f"{topic}-0"]]
    assert (described["start_offset"], described["end_offset"]) == (0, 10)
    assert (described["lag"], described["acknowledged_ahead"]) == (9, 1)
    assert shown(reset)[0]["new_offset"] == 10
    assert (after["start_offset"], after["lag"]) == (10, 0)
    assert (offsets.exit_code, deleted.exit_code) == (0, 0), offsets.output + deleted.output
    assert classic.exit_code == 1


async def test_a_pattern_is_matched_by_the_member(servers: str, topic: str) -> None:
    await fill(servers, topic, 2)
    config = ShareConsumerConfig.of(group_id=topic, value_type=str)
    async with (
        ShareConsumer(bootstrap_servers=servers, config=config) as consumer,
        asyncio.timeout(BOUND_S),
    ):
        consumer.subscribe(pattern=f"{topic[:20]}.*")
        assert {(await consumer.getone()).value, (await consumer.getone()).value} == {"0", "1"}


async def test_a_broker_that_restarts_delivers_what_it_had_given_again(
    kafka: KraftKafka | BrokerProcess, servers: str, topic: str
) -> None:
    await fill(servers, topic, 10)
    async with member(servers, topic) as consumer, asyncio.timeout(2 * BOUND_S):
        first = await consumer.getone()
        await first.accept()
        await consumer.getone()
        await asyncio.to_thread(kafka.restart)
        seen: list[int] = []
        async for record in consumer:
            with suppress(AcknowledgementFailed):  # of those that were buffered before
                await record.accept()
                seen.append(record.offset)
            if set(seen) >= set(range(2, 10)):
                break

    assert 0 not in seen
    await settled(servers, topic)

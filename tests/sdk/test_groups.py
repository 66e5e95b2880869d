"""Consumers that share a group: what each reads, in every kind of rebalance."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import pytest

from ottla.admin import Admin
from ottla.consumer import (
    Consumer,
    Fenced,
    OffsetAndMetadata,
    RebalanceListener,
    TopicFilter,
    TopicPartition,
    WrongMode,
)
from ottla.consumer.assignors import Assigned, MemberSubscription, RebalanceProtocol, TopicRacks
from ottla.consumer.errors import CommitFailed

PATIENCE_S = 60.0

Fresh = Callable[[str], str]
Partitions = frozenset[TopicPartition]


class Servers(Protocol):
    """A cluster under test."""

    bootstrap_servers: str


class Writer:
    """Writes numbered records, and knows how many there are in each partition."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Producer

        self.topic = topic
        self.counts = dict.fromkeys(range(partitions), 0)
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 0})

    async def write(self, each: int = 1) -> None:
        """Write so many records to each partition."""
        for partition in self.counts:
            for _ in range(each):
                self._producer.produce(self.topic, str(self.counts[partition]).encode(), partition=partition)
                self.counts[partition] += 1
        left = await asyncio.to_thread(self._producer.flush, PATIENCE_S)
        assert left == 0, "the cluster took no records"

    def everything(self) -> set[tuple[int, int]]:
        return {(partition, offset) for partition, count in self.counts.items() for offset in range(count)}


@asynccontextmanager
async def writer_of(servers: str, topic: str, partitions: int) -> AsyncIterator[Writer]:
    async with Admin(servers) as admin:
        await admin.topics.create(topic, partitions=partitions)
    yield Writer(servers, topic, partitions)


def consumer_of(servers: str, group: str, *topics: str, **settings: Any) -> Consumer:
    quick: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 200,
        "session_timeout_ms": 6_000,
        "metadata_max_age_ms": 500,
        "retry_backoff_ms": 20,
    }
    return Consumer(*topics, bootstrap_servers=servers, group_id=group, **(quick | settings))


class Reader:
    """Reads with a consumer in a task of its own, until it is told to stop."""

    def __init__(self, consumer: Consumer, seen: Counter[tuple[int, int]]) -> None:
        self.consumer = consumer
        self._seen = seen
        self._stopping = False

    async def run(self) -> None:
        async with self.consumer:
            while not self._stopping:
                await self._read(timeout_ms=50)
            while await self._finish():
                pass

    def stop(self) -> None:
        self._stopping = True

    async def _finish(self) -> bool:
        """Ask once more, which finishes what is in hand; say whether something new came of it."""
        self.consumer.pause(*self.consumer.assignment())
        return await self._read(timeout_ms=0)

    async def _read(self, timeout_ms: float) -> bool:
        found = await self.consumer.getmany(timeout_ms=timeout_ms, max_records=3)
        for partition, records in found.items():
            for record in records:
                self._seen[partition.partition, record.offset] += 1
        return bool(found)


async def eventually(holds: Callable[[], bool], what: object = "") -> None:
    """Wait until something holds, within a bound."""
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"it did not come about: {what}")


def shares(*consumers: Consumer) -> list[int]:
    return sorted(each.partition for consumer in consumers for each in consumer.assignment())


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_members_that_come_and_go_read_every_record_once(
    cluster: Servers, fresh: Fresh, strategy: str
) -> None:
    servers, group = cluster.bootstrap_servers, fresh("churn")
    chance, seen = random.Random(strategy), Counter[tuple[int, int]]()

    async with writer_of(servers, fresh("churn"), 5) as writer, asyncio.TaskGroup() as tasks:
        readers: list[Reader] = []
        for _ in range(12):
            await writer.write(4)
            if len(readers) < 2 or (len(readers) < 4 and chance.random() < 0.6):
                consumer = consumer_of(servers, group, writer.topic, partition_assignment_strategy=strategy)
                readers.append(Reader(consumer, seen))
                tasks.create_task(readers[-1].run())
            else:
                readers.pop(chance.randrange(len(readers))).stop()
            await asyncio.sleep(chance.choice([0, 0.1, 0.5]))
        await writer.write(4)
        await eventually(lambda: set(seen) >= writer.everything(), "reading everything")
        await eventually(lambda: shares(*[each.consumer for each in readers]) == [0, 1, 2, 3, 4])
        for reader in readers:
            reader.stop()

    assert {place: times for place, times in seen.items() if times > 1} == {}


async def test_iterating_members_share_and_read_every_record_once(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("iterate")
    seen: Counter[tuple[int, int]] = Counter()

    async def read(consumer: Consumer) -> None:
        async with consumer:
            while not done.is_set():
                async for record in consumer:  # ends when there was nothing for a while
                    seen[record.partition, record.offset] += 1

    done = asyncio.Event()
    async with writer_of(servers, fresh("iterate"), 4) as writer, asyncio.TaskGroup() as tasks:
        consumers = [
            consumer_of(servers, group, writer.topic, consumer_timeout_ms=100, group_instance_id=name)
            for name in (None, None, "static")
        ]
        for consumer in consumers:
            tasks.create_task(read(consumer))
            await writer.write(20)
            await eventually(lambda: set(seen) >= writer.everything(), "reading everything")
        await eventually(lambda: all(len(each.assignment()) > 0 for each in consumers))
        await writer.write(20)
        await eventually(lambda: set(seen) >= writer.everything(), "reading everything")
        done.set()

    assert {place: times for place, times in seen.items() if times > 1} == {}


async def test_who_handles_records_that_are_at_hand_is_asking(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("slow")

    async with writer_of(servers, fresh("slow"), 1) as writer:
        await writer.write(30)
        slow = consumer_of(servers, group, writer.topic, max_poll_interval_ms=500)
        async with slow:
            async for record in slow:
                await asyncio.sleep(0.05)  # all together take longer than may pass between two calls
                if record.offset == 29:
                    break
            generation = slow.group_metadata().generation_id

    assert generation == 1


class Everything:
    """An assignor of one's own: the member with the first id gets everything."""

    name = "everything"
    protocols = (RebalanceProtocol.EAGER,)

    def user_data(self, topics: frozenset[str], last: Assigned | None) -> bytes | None:
        return b"mine"

    def assign(
        self, topics: TopicRacks, members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        assert {member.user_data for member in members.values()} == {b"mine"}
        partitions = [TopicPartition(name, index) for name in topics for index in range(len(topics[name]))]
        return {min(members): partitions}


async def test_a_group_may_use_an_assignor_of_its_own(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("own")
    own: dict[str, Any] = {"partition_assignment_strategy": [Everything()]}

    async with writer_of(servers, fresh("own"), 3) as writer:
        async with consumer_of(servers, group, writer.topic, **own) as one:
            asking = asyncio.ensure_future(_ask_for_ever(one))
            async with consumer_of(servers, group, writer.topic, **own) as other:
                ids = {each.group_metadata().member_id: each for each in (one, other)}
                await eventually(lambda: len(ids[min(ids)].assignment()) == 3)
                assert ids[max(ids)].assignment() == frozenset()
            asking.cancel()


async def _ask_for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.getmany(timeout_ms=100)


async def test_a_record_is_finished_when_the_next_one_is_asked_for(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("finish")

    async with writer_of(servers, fresh("finish"), 1) as writer:
        await writer.write(3)
        async with consumer_of(servers, group, writer.topic) as consumer:
            async for record in consumer:
                if record.offset == 1:
                    break
        async with consumer_of(servers, group, writer.topic) as consumer:
            again = await consumer.getone()

    assert again.offset == 1  # it was in hand as the consumer closed


@pytest.mark.parametrize("way", ["all", "given", "nowait"])
async def test_a_consumer_that_stops_does_not_go_back_behind_its_own_commit(
    cluster: Servers, fresh: Fresh, way: str
) -> None:
    topic, group = fresh("own-commit"), fresh("own-commit")
    async with writer_of(cluster.bootstrap_servers, topic, 1) as writer:
        await writer.write(5)
    partition = TopicPartition(topic, 0)

    async with consumer_of(cluster.bootstrap_servers, group, topic) as consumer:
        found: list[int] = []
        while len(found) < 5:
            found += [
                record.offset for record in (await consumer.getmany(timeout_ms=5_000)).get(partition, [])
            ]
        match way:
            case "all":
                await consumer.commit()
            case "given":
                await consumer.commit({partition: 3})
            case _:
                await consumer.commit_nowait()

    async with consumer_of(cluster.bootstrap_servers, group) as consumer:
        assert await consumer.committed(partition) == (3 if way == "given" else 5)


async def test_a_rebalance_waits_for_the_record_in_hand(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("hand")

    async with writer_of(servers, fresh("hand"), 1) as writer, AsyncExitStack() as stack:
        await writer.write(1)
        # Static members come in the order of their names: the second takes the only partition.
        one = consumer_of(servers, group, writer.topic, group_instance_id="b")
        await stack.enter_async_context(one)
        await one.getone()
        other = consumer_of(servers, group, writer.topic, group_instance_id="a")
        starting = asyncio.ensure_future(stack.enter_async_context(other))
        await asyncio.sleep(0.5)  # the time that handling the record takes
        assert not starting.done()

        asking = asyncio.ensure_future(one.getmany(timeout_ms=PATIENCE_S * 1_000))
        await asyncio.wait_for(starting, PATIENCE_S)
        await writer.write(1)
        record = await asyncio.wait_for(other.getone(), PATIENCE_S)
        asking.cancel()

    assert record.offset == 1


async def test_a_listener_may_seek_before_anything_is_given(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("seek")

    async with writer_of(servers, fresh("seek"), 2) as writer:
        await writer.write(5)
        consumer = consumer_of(servers, group, auto_offset_reset="none")

        class Seeking(RebalanceListener):
            async def on_partitions_assigned(self, assigned: Partitions) -> None:
                for partition in assigned:
                    consumer.seek(partition, 3)
                    assert await consumer.position(partition) == 3

        consumer.subscribe([writer.topic], listener=Seeking())
        async with consumer:
            found: set[tuple[int, int]] = set()
            while len(found) < 4:
                for records in (await consumer.getmany(timeout_ms=1_000)).values():
                    found |= {(record.partition, record.offset) for record in records}

    assert found == {(0, 3), (0, 4), (1, 3), (1, 4)}


async def test_what_a_listener_raises_ends_a_call_that_waits(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("raises")

    class Failing(RebalanceListener):
        def on_partitions_revoked(self, revoked: Partitions) -> None:
            raise RuntimeError("the listener is broken")

    async with writer_of(servers, fresh("raises"), 2) as writer:
        one = consumer_of(servers, group)
        one.subscribe([writer.topic], listener=Failing())
        async with one:
            asking = asyncio.ensure_future(one.getmany(timeout_ms=None))
            async with consumer_of(servers, group, writer.topic) as other:
                with pytest.raises(RuntimeError, match="the listener is broken"):
                    await asyncio.wait_for(asking, PATIENCE_S)
                await eventually(lambda: shares(one, other) == [0, 1])
                await one.getmany()


async def test_offsets_of_lost_partitions_cannot_be_committed(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("lost")

    async with writer_of(servers, fresh("lost"), 1) as writer:
        await writer.write(2)
        slow = consumer_of(servers, group, writer.topic, max_poll_interval_ms=1_000, enable_auto_commit=False)
        async with slow:
            record = await slow.getone()
            await eventually(lambda: not slow.assignment(), "leaving for not being asked")

            with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
                await slow.commit({record.topic_partition: record.offset + 1})
            again = await asyncio.wait_for(slow.getone(), PATIENCE_S)
            await slow.commit()

            assert again.offset == record.offset
            assert await slow.committed(record.topic_partition) == again.offset + 1


async def test_a_consumer_that_is_fenced_says_so(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("fenced")

    async with writer_of(servers, fresh("fenced"), 1) as writer:
        async with consumer_of(servers, group, writer.topic, group_instance_id="one") as old:
            asking = asyncio.ensure_future(old.getmany(timeout_ms=None))
            async with consumer_of(servers, group, writer.topic, group_instance_id="one") as new:
                with pytest.raises(Fenced, match="'one'"):
                    await asyncio.wait_for(asking, PATIENCE_S)
                await writer.write(1)
                assert (await asyncio.wait_for(new.getone(), PATIENCE_S)).offset == 0


async def test_patterns_find_topics_and_leave_others_out(cluster: Servers, fresh: Fresh) -> None:
    servers, stem = cluster.bootstrap_servers, fresh("pattern")

    async with writer_of(servers, f"{stem}.a", 1) as first, writer_of(servers, f"{stem}.no", 1) as denied:
        await first.write(1)
        await denied.write(1)
        consumer = consumer_of(servers, fresh("pattern"))
        consumer.subscribe(pattern=TopicFilter(rf"{stem}\..*", deny=r".*\.no"))
        async with consumer:
            found = {(await asyncio.wait_for(consumer.getone(), PATIENCE_S)).topic}
            async with writer_of(servers, f"{stem}.b", 1) as second:
                await second.write(1)
                found.add((await asyncio.wait_for(consumer.getone(), PATIENCE_S)).topic)
            subscribed = consumer.subscription()

    assert found == {f"{stem}.a", f"{stem}.b"}
    assert subscribed == found


async def test_unsubscribing_commits_and_leaves_and_one_may_subscribe_again(
    cluster: Servers, fresh: Fresh
) -> None:
    servers, group = cluster.bootstrap_servers, fresh("again")

    async with writer_of(servers, fresh("again"), 1) as writer:
        await writer.write(3)
        async with consumer_of(servers, group, writer.topic, auto_commit_interval_ms=60_000) as consumer:
            partition = TopicPartition(writer.topic, 0)
            records = await consumer.getmany(timeout_ms=5_000)
            await consumer.getmany()
            consumer.unsubscribe()
            await eventually(lambda: not consumer.assignment())
            consumer.subscribe([writer.topic])
            await writer.write(1)

            record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)

    assert [each.offset for each in records[partition]] == [0, 1, 2]
    assert record.offset == 3


async def test_partitions_may_be_assigned_by_hand_right_after_unsubscribing(
    cluster: Servers, fresh: Fresh
) -> None:
    servers, group = cluster.bootstrap_servers, fresh("hand")

    async with writer_of(servers, fresh("hand"), 2) as writer:
        await writer.write(1)
        async with consumer_of(servers, group, writer.topic) as consumer:
            partition = TopicPartition(writer.topic, 1)
            consumer.unsubscribe()
            consumer.assign([partition])
            record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            await eventually(lambda: consumer.group_metadata().member_id == "")
            assert consumer.assignment() == {partition}
            await consumer.commit()

            assert record.topic_partition == partition
            assert await consumer.committed(partition) == 1


async def test_commits_carry_notes_and_go_on_where_they_are_told(cluster: Servers, fresh: Fresh) -> None:
    servers, group = cluster.bootstrap_servers, fresh("notes")

    async with writer_of(servers, fresh("notes"), 1) as writer:
        await writer.write(5)
        partition = TopicPartition(writer.topic, 0)
        async with consumer_of(servers, group, writer.topic, enable_auto_commit=False) as consumer:
            await consumer.getone()
            await consumer.commit_nowait({partition: OffsetAndMetadata(2, "two")})
            await consumer.commit({partition: OffsetAndMetadata(4, "four")})
            found = await consumer.committed_offsets([partition])
            metadata = consumer.group_metadata()
        async with consumer_of(servers, group, writer.topic) as consumer:
            record = await asyncio.wait_for(consumer.getone(), PATIENCE_S)

    assert found[partition][:2] == (4, "four")
    assert (metadata.group_id, metadata.generation_id > 0, bool(metadata.member_id)) == (group, True, True)
    assert record.offset == 4


async def test_commits_that_nobody_waits_for_are_done_before_a_consumer_leaves(
    cluster: Servers, fresh: Fresh
) -> None:
    servers, group = cluster.bootstrap_servers, fresh("nowait")

    async with writer_of(servers, fresh("nowait"), 1) as writer:
        await writer.write(5)
        partition = TopicPartition(writer.topic, 0)
        async with consumer_of(servers, group, writer.topic, enable_auto_commit=False) as consumer:
            await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            stored = [consumer.commit_nowait({partition: offset}) for offset in (1, 2, 3)]
        async with consumer_of(servers, group) as consumer:
            assert await consumer.committed(partition) == 3

    assert [each.result() for each in stored] == [None, None, None]


async def test_a_consumer_that_was_unsubscribed_gives_out_nothing_more(
    cluster: Servers, fresh: Fresh
) -> None:
    servers, group = cluster.bootstrap_servers, fresh("unsubscribed")

    async with writer_of(servers, fresh("unsubscribed"), 1) as writer:
        await writer.write(5)
        async with consumer_of(servers, group, writer.topic) as consumer:
            await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            consumer.unsubscribe()
            with pytest.raises(WrongMode):
                await consumer.getone()

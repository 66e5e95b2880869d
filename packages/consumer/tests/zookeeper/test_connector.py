"""Members of a group over ZooKeeper and brokers in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ottla.consumer.record import ConsumerRecord
from ottla.consumer.zookeeper import (
    ConsumerRebalanceFailed,
    ConsumerTimeout,
    MessageStream,
    MessageStreamsExist,
    Whitelist,
    ZookeeperConsumerConnector,
)
from ottla.consumer.zookeeper.testing import MemoryGroup
from ottla.protocol.errors import LeaderNotAvailable
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper import paths
from ottla.zookeeper.znodes import ConsumerOwner, TopicAssignment

BOUND_S = 60.0


pytestmark = pytest.mark.usefixtures("bound")


async def until(condition: Callable[[], Any]) -> None:
    """Turn the loop until a condition holds."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


async def take(stream: MessageStream, count: int) -> list[bytes]:
    async with asyncio.timeout(BOUND_S):
        return [(await anext(stream)).value or b"" for _ in range(count)]


async def test_committing_no_offsets_commits_nothing(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, b"a", b"b")
    async with world.connector("a", auto_commit_enable=False) as connector:
        streams = await connector.create_message_streams({"t": 1})
        assert await take(streams["t"][0], 1) == [b"a"]
        await connector.commit_offsets()
        assert await take(streams["t"][0], 1) == [b"b"]
        await connector.commit_offsets({})
        assert await world.offset("t", 0) == 1
        await connector.commit_offsets()
        assert await world.offset("t", 0) == 2


async def test_one_member_owns_and_reads_everything(world: MemoryGroup) -> None:
    await world.prepare(t=3)
    for partition in range(3):
        world.logs.append("t", partition, *(b"%d-%d" % (partition, n) for n in range(5)))

    async with world.connector("a") as connector:
        streams = await connector.create_message_streams({"t": 1})
        values = await take(streams["t"][0], 15)
        owners = await world.owners("t", 3)
        await connector.commit_offsets()
        offset = await world.offset("t", 2)

    assert sorted(values) == sorted(b"%d-%d" % (p, n) for p in range(3) for n in range(5))
    assert owners == dict.fromkeys(range(3), "g_a-0")
    assert offset == 5
    assert await world.owners("t", 3) == {}
    assert await world.admin.children(paths.consumer_ids("g")) == []


async def test_the_registration_is_what_java_writes(world: MemoryGroup) -> None:
    await world.prepare(t=1)

    async with world.connector("a") as connector:
        await connector.create_message_streams({"t": 2})
        data, _ = await world.admin.get(paths.consumer_id("g", "g_a"))

    text = data.decode()
    assert text.startswith('{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"1')
    assert text.endswith('"}')


async def test_members_share_and_hand_offsets_over(world: MemoryGroup) -> None:
    await world.prepare(t=5)
    for partition in range(5):
        world.logs.append("t", partition, b"x", b"y")

    async with world.connector("a") as first:
        one = (await first.create_message_streams({"t": 2}))["t"]
        await take(one[0], 6)
        asking = asyncio.create_task(anext(one[0]))  # which finishes the sixth
        async with world.connector("b") as second:
            two = (await second.create_message_streams({"t": 2}))["t"]
            await until(lambda: len(first.assignment) == 3)

            assert await world.owners("t", 5) == {0: "g_a-0", 1: "g_a-0", 2: "g_a-1", 3: "g_b-0", 4: "g_b-1"}
            assert await world.offset("t", 2) == 2
            assert await take(two[0], 2) == [b"x", b"y"]
        await until(lambda: len(first.assignment) == 5)
        asking.cancel()


async def test_what_stays_is_read_on_without_a_break(world: MemoryGroup) -> None:
    await world.prepare(t=2)
    world.logs.append("t", 0, *(b"%d" % n for n in range(8)))

    async with world.connector("a") as first:
        (stream,) = (await first.create_message_streams({"t": 1}))["t"]
        values = await take(stream, 4)
        async with world.connector("b") as second:
            await second.create_message_streams({"t": 1})
            await until(lambda: len(first.assignment) == 1)
            values += await take(stream, 4)

    assert values == [b"%d" % n for n in range(8)]


async def test_a_record_is_finished_when_the_next_one_is_asked_for(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, b"a", b"b", b"c")

    async with world.connector("a") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await take(stream, 2)

    assert await world.offset("t", 0) == 1
    async with world.connector("b") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        assert await take(stream, 2) == [b"b", b"c"]


async def test_without_auto_commit_only_explicit_commits_are_stored(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, b"a", b"b", b"c")

    async with world.connector("a", auto_commit_enable=False) as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await take(stream, 2)
        await connector.commit_offsets()
        await take(stream, 1)

    assert await world.offset("t", 0) == 2


async def test_a_handler_that_is_still_at_work_is_waited_for_and_not_repeated(world: MemoryGroup) -> None:
    await world.prepare(t=2)
    world.logs.append("t", 1, b"a", b"b", b"c")

    async with world.connector("a", rebalance_backoff_ms=2_000) as first, world.connector("b") as second:
        (stream,) = (await first.create_message_streams({"t": 1}))["t"]
        await take(stream, 1)
        joining = asyncio.create_task(second.create_message_streams({"t": 1}))
        await until(lambda: len(first.assignment) == 1)
        asking = asyncio.create_task(anext(stream))
        (other,) = (await joining)["t"]

        assert await take(other, 2) == [b"b", b"c"]
        asking.cancel()


async def test_the_place_where_nothing_was_read_yet_moves_too(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, b"old")

    async with world.connector("b", auto_offset_reset="largest") as first:
        await first.create_message_streams({"t": 1})
        world.logs.append("t", 0, b"new")
    async with world.connector("a", auto_offset_reset="largest") as second:
        (stream,) = (await second.create_message_streams({"t": 1}))["t"]
        assert await take(stream, 1) == [b"new"]


async def test_an_expired_session_registers_and_claims_again_and_repeats_nothing(world: MemoryGroup) -> None:
    await world.prepare(t=2)
    world.logs.append("t", 0, *(b"%d" % n for n in range(6)))

    async with world.connector("a") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        values = await take(stream, 2)
        session = world.sessions["a"]
        world.ensemble.expire(session)
        assert connector.assignment == frozenset()
        values += await take(stream, 4)

        assert values == [b"%d" % n for n in range(6)]
        assert await world.owners("t", 2) == {0: "g_a-0", 1: "g_a-0"}
        _, stat = await world.admin.get(paths.consumer_owner("g", "t", 0))
        assert stat.ephemeral_owner == session.session_id


async def test_others_take_over_from_a_member_that_expired(world: MemoryGroup) -> None:
    await world.prepare(t=4)

    async with world.connector("a") as first, world.connector("b") as second:
        await first.create_message_streams({"t": 1})
        await second.create_message_streams({"t": 1})
        await until(lambda: len(first.assignment) == 2)
        world.ensemble.expire(world.sessions["a"], reconnect=False)
        await until(lambda: len(second.assignment) == 4)

        assert first.assignment == frozenset()
        world.ensemble.reconnect(world.sessions["a"])
        await until(lambda: len(first.assignment) == 2 and len(second.assignment) == 2)


async def test_a_lost_reply_to_a_claim_is_no_conflict(world: MemoryGroup) -> None:
    await world.prepare(t=2)
    topic = TopicAssignment("t", dict.fromkeys(range(4), (1,)))

    async with world.connector("a") as connector:
        await connector.create_message_streams({"t": 1})
        await world.admin.set(topic.path, topic.encode())
        for _ in range(40):
            await asyncio.sleep(0)
            if world.sessions["a"].fault is None:
                world.ensemble.lose_next_reply(world.sessions["a"])
        world.sessions["a"].fault = None
        await until(lambda: len(connector.assignment) == 4)

        assert await world.owners("t", 4) == dict.fromkeys(range(4), "g_a-0")


async def test_a_partition_that_somebody_keeps_fails_the_rebalance_and_claims_nothing(
    world: MemoryGroup,
) -> None:
    await world.prepare(t=2)
    owner = ConsumerOwner("g", "t", 1, "somebody-0")
    await world.admin.create(owner.path, owner.encode(), make_parents=True)

    async with world.connector("a", rebalance_max_retries=2, rebalance_backoff_ms=20) as connector:
        with pytest.raises(ConsumerRebalanceFailed, match="t-1 is owned by somebody-0"):
            await connector.create_message_streams({"t": 1})
        assert await world.owners("t", 2) == {1: "somebody-0"}
        assert await world.admin.children(paths.consumer_ids("g")) == []

        await world.admin.delete(owner.path)
        await connector.create_message_streams({"t": 1})
        assert len(connector.assignment) == 2


async def test_a_later_rebalance_that_fails_is_raised_by_the_streams_and_goes_on(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 1, b"late")
    owner = ConsumerOwner("g", "t", 1, "somebody-0")

    async with world.connector("a", rebalance_max_retries=2, rebalance_backoff_ms=20) as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await world.admin.create(owner.path, owner.encode())
        topic = TopicAssignment("t", {0: (1,), 1: (1,)})
        await world.admin.set(topic.path, topic.encode())
        with pytest.raises(ConsumerRebalanceFailed):
            await take(stream, 1)

        await world.admin.delete(owner.path)
        while True:
            try:
                assert await take(stream, 1) == [b"late"]
                break
            except ConsumerRebalanceFailed:
                continue


async def test_a_wildcard_reads_topics_that_are_made_later(world: MemoryGroup) -> None:
    await world.prepare(orders=1, other=1)
    world.logs.append("orders", 0, b"o")
    world.logs.append("other", 0, b"not this")

    async with world.connector("a") as connector:
        (stream,) = await connector.create_message_streams_by_filter(Whitelist("orders.*"))
        assert await take(stream, 1) == [b"o"]
        world.logs.append("orders-2", 0, b"o2")
        await world.make_topic("orders-2", 1)

        assert await take(stream, 1) == [b"o2"]
        data, _ = await world.admin.get(paths.consumer_id("g", "g_a"))
        assert b'"subscription":{"orders.*":1},"pattern":"white_list"' in data


async def test_a_topic_may_be_made_after_its_stream(world: MemoryGroup) -> None:
    await world.prepare()
    await world.admin.create(paths.BROKER_TOPICS)
    world.logs.append("t", 0, b"x")

    async with world.connector("a") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await world.make_topic("t", 1)
        assert await take(stream, 1) == [b"x"]


async def test_a_stream_without_records_times_out_and_can_be_used_again(world: MemoryGroup) -> None:
    await world.prepare(t=1)

    async with world.connector("a", consumer_timeout_ms=20) as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        with pytest.raises(ConsumerTimeout):
            await anext(stream)
        world.logs.append("t", 0, b"x")
        assert await take(stream, 1) == [b"x"]


async def test_streams_end_with_the_connector_and_are_made_once(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    connector = world.connector("a")
    await connector.start()
    (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
    reading = asyncio.create_task(_all(stream))
    with pytest.raises(MessageStreamsExist):
        await connector.create_message_streams({"t": 1})

    await connector.shutdown()

    assert await reading == []
    await connector.shutdown()


async def _all(stream: MessageStream) -> list[ConsumerRecord]:
    return [each async for each in stream]


@pytest.mark.parametrize("dual", [True, False])
async def test_offsets_kept_in_kafka_are_written_to_both_while_migrating(
    world: MemoryGroup, dual: bool
) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, b"a", b"b", b"c", b"d")
    await world.admin.create(paths.consumer_offset("g", "t", 0), b"2", make_parents=True)

    async with world.connector("a", offsets_storage="kafka", dual_commit_enabled=dual) as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        first = await take(stream, 1)
        await connector.commit_offsets()

    assert first == ([b"c"] if dual else [b"a"])
    assert world.logs.stored == {TopicPartition("t", 0): 3 if dual else 1}
    assert await world.offset("t", 0) == (3 if dual else 2)


async def test_offsets_that_cannot_be_written_are_not_taken_for_written(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, b"a", b"b")

    async with world.connector("a", offsets_storage="kafka") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await take(stream, 1)
        world.logs.refuses = True
        with pytest.raises(LeaderNotAvailable):
            await connector.commit_offsets()
        world.logs.refuses = False
        await connector.commit_offsets()

    assert world.logs.stored == {TopicPartition("t", 0): 1}


async def test_finished_records_are_committed_regularly(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, b"a", b"b")

    async with world.connector("a", auto_commit_interval_ms=10, offsets_storage="kafka") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await take(stream, 2)
        await until(lambda: world.logs.stored == {TopicPartition("t", 0): 1})


async def test_many_members_coming_and_going_lose_no_record(world: MemoryGroup) -> None:
    await world.prepare(t=6)
    expected = {b"%d-%d" % (partition, n) for partition in range(6) for n in range(60)}
    seen: Counter[bytes] = Counter()

    async def member(name: str, records: int) -> None:
        async with world.connector(name, rebalance_max_retries=50) as connector:
            (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
            async for each in stream:
                seen[each.value or b""] += 1
                await asyncio.sleep(0.001)
                records -= 1
                if not records or seen.keys() == expected:
                    break

    async def write() -> None:
        for n in range(60):
            for partition in range(6):
                world.logs.append("t", partition, b"%d-%d" % (partition, n))
            await asyncio.sleep(0.002)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        for number, records in enumerate([40, 25, 60, 30, 45]):
            tasks.create_task(member(f"m{number}", records))
    async with world.connector("last") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        while seen.keys() != expected:
            async with asyncio.timeout(BOUND_S):
                seen[(await anext(stream)).value or b""] += 1

    assert set(seen) == expected
    assert sum(seen.values()) <= len(expected) + 6 * 6


class Ear:
    """Keeps what a listener hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, list[int]]] = []
        self.connector: ZookeeperConsumerConnector | None = None

    async def on_partitions_revoked(self, revoked: frozenset[TopicPartition]) -> None:
        self.heard.append(("revoked", sorted(each.partition for each in revoked)))
        if self.connector is not None:
            await self.connector.commit_offsets()

    def on_partitions_assigned(self, assigned: frozenset[TopicPartition]) -> None:
        self.heard.append(("assigned", sorted(each.partition for each in assigned)))

    def on_partitions_lost(self, lost: frozenset[TopicPartition]) -> None:
        self.heard.append(("lost", sorted(each.partition for each in lost)))


async def test_a_listener_is_called_and_may_commit_before_a_revocation(world: MemoryGroup) -> None:
    await world.prepare(t=2)
    world.logs.append("t", 1, b"a", b"b")
    ear = Ear()

    async with world.connector("a", listener=ear, auto_commit_enable=False) as connector:
        ear.connector = connector
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        await take(stream, 1)
        async with world.connector("b") as second:
            await second.create_message_streams({"t": 1})
            assert await world.offset("t", 1) == 1
        await until(lambda: len(connector.assignment) == 2)
        world.ensemble.expire(world.sessions["a"])
        await until(lambda: len(connector.assignment) == 2)

    assert ear.heard == [
        ("assigned", [0, 1]),
        ("revoked", [1]),
        ("assigned", [1]),
        ("lost", [0, 1]),
        ("assigned", [0, 1]),
        ("revoked", [0, 1]),
    ]


async def test_brokers_that_all_moved_are_found_where_they_are_now(world: MemoryGroup) -> None:
    await world.prepare(t=1)
    world.logs.append("t", 0, *(b"%d" % n for n in range(8)))

    async with world.connector("a") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        values = await take(stream, 2)
        await world.move_broker(9093)
        await until(lambda: len(world.logs.opened) == 2 and connector.assignment)
        values += await take(stream, 6)

    assert values == [b"%d" % n for n in range(8)]
    assert world.logs.opened == ["127.0.0.1:9092", "127.0.0.1:9093"]


async def test_a_member_started_before_the_first_broker_notices_it(world: MemoryGroup) -> None:
    await world.admin.wait_connected()
    world.logs.append("t", 0, b"a")

    async with world.connector("a") as connector:
        (stream,) = (await connector.create_message_streams({"t": 1}))["t"]
        assert not connector.assignment
        await world.prepare(t=1)

        assert await take(stream, 1) == [b"a"]


async def test_a_record_that_outlives_its_partition_takes_back_no_commit(world: MemoryGroup) -> None:
    await world.prepare(t=2)
    world.logs.append("t", 1, b"a", b"b", b"c")

    async with world.connector("a", rebalance_backoff_ms=20) as first:
        (slow,) = (await first.create_message_streams({"t": 1}))["t"]
        await take(slow, 1)  # and it takes its time
        async with world.connector("b", rebalance_backoff_ms=20) as second:
            (other,) = (await second.create_message_streams({"t": 1}))["t"]
            assert await take(other, 3) == [b"a", b"b", b"c"]
            await second.commit_offsets()
        await until(lambda: len(first.assignment) == 2)
        asking = asyncio.create_task(anext(slow))
        await asyncio.sleep(0)
        await first.commit_offsets()
        asking.cancel()

    assert await world.offset("t", 1) == 3

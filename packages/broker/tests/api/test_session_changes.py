"""Fetches of a session read what has changed, and miss no change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api.fetch import general as fetch
from ottla.broker.api.fetch.reading import DEBUGGING
from ottla.broker.api.fetch.response import FetchAnswer, FetchedPartition
from ottla.broker.api.fetch.sessions import RequestedPartition, WatchedPartitions
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.log.log import Slice
from ottla.broker.replication.replicas import HostedPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.protocol.topics import TopicPartition

BOUND_S = 60
FOR_EVER_MS = 3_600_000
UNREAD = -7
"""A log start that no follower has: a read for the follower overwrites it."""
MAX_LAG_MS = 30_000


@dataclass
class Known:
    """The facts that a reader was told of one partition."""

    offset: int = 0
    leader_epoch: int = 0
    high_watermark: int = -1
    log_start_offset: int = -1
    error_code: int = 0


@dataclass
class Reader:
    """A follower, or a consumer (-1), that reads partitions of topic "t" in a session."""

    plane: DataPlane
    replica: int = 2
    max_bytes: int = 1 << 20
    known: dict[int, Known] = field(default_factory=dict)
    asked: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(offset, leader epoch) of each partition that the session has."""
    session_id: int = 0
    epoch: int = 0

    def begin(self, *, wait_ms: int = 0, min_bytes: int = 1) -> FetchAnswer | Awaitable[FetchAnswer]:
        changed = {
            number: known
            for number, known in self.known.items()
            if self.asked.get(number) != (known.offset, known.leader_epoch)
        }
        forgotten = [number for number in self.asked if number not in self.known]
        self.asked = {number: (known.offset, known.leader_epoch) for number, known in self.known.items()}
        partitions = [
            FetchPartition(
                partition=number,
                current_leader_epoch=known.leader_epoch,
                fetch_offset=known.offset,
                partition_max_bytes=self.max_bytes,
                log_start_offset=0,
            )
            for number, known in changed.items()
        ]
        request = FetchRequest(
            replica_id=self.replica,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=self.max_bytes,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic="t", partitions=partitions)] if partitions else [],
            forgotten_topics_data=[ForgottenTopic(topic="t", partitions=forgotten)] if forgotten else [],
        )
        self.epoch += 1
        return fetch.handle(self.plane.services, request, self.plane.context(ApiKey.FETCH, 12))

    async def end(self, answer: FetchAnswer | Awaitable[FetchAnswer]) -> list[int]:
        """Take over an answer; return the partitions that it has."""
        if isinstance(answer, Awaitable):
            answer = await asyncio.wait_for(answer, BOUND_S)
        assert answer.error_code == 0
        self.session_id = answer.session_id
        carried = []
        for _, partitions in answer.topics:
            for result in partitions:
                carried.append(result.index)
                known = self.known[result.index]
                known.error_code = result.error_code
                if result.error_code:
                    continue
                known.high_watermark = result.high_watermark
                known.log_start_offset = result.log_start_offset
                if isinstance(result.records, Slice) and result.size:
                    known.offset = result.records.end_offset
        return carried

    async def fetch(self) -> list[int]:
        return await self.end(self.begin())


async def led(plane: DataPlane, count: int, **more: tuple[int, ...]) -> list[HostedPartition]:
    roles = {"isr": (1, 2), "replicas": (1, 2)} | more
    return [await plane.lead(partition=number, **roles) for number in range(count)]  # type: ignore[arg-type]


async def settled(plane: DataPlane, count: int, replica: int = 2) -> Reader:
    """Return a reader whose session has read everything."""
    reader = Reader(plane, replica, known={number: Known() for number in range(count)})
    assert await reader.fetch() == list(range(count))
    assert await reader.fetch() == []
    return reader


def append(partition: HostedPartition, value: bytes = b"a", now_ms: int = 0) -> None:
    partition.append(batch_of(value), required_acks=1, now_ms=now_ms)


def mark_unread(partitions: list[HostedPartition], replica: int = 2) -> None:
    for partition in partitions:
        partition.core.followers[replica].log_start_offset = UNREAD


def read_again(partitions: list[HostedPartition], replica: int = 2) -> list[int]:
    return [
        number
        for number, partition in enumerate(partitions)
        if partition.core.followers[replica].log_start_offset != UNREAD
    ]


async def test_a_fetch_of_a_session_reads_only_what_has_changed(plane: DataPlane) -> None:
    partitions = await led(plane, 300)
    follower = await settled(plane, 300)
    mark_unread(partitions)

    assert await follower.fetch() == []
    assert read_again(partitions) == []
    append(partitions[7])
    assert await follower.fetch() == [7]
    assert read_again(partitions) == [7]
    assert await follower.fetch() == [7], "the follower has the record, and hears that it is committed"
    assert partitions[7].high_watermark == follower.known[7].high_watermark == 1
    assert read_again(partitions) == [7]
    mark_unread(partitions)
    assert await follower.fetch() == []
    assert read_again(partitions) == []


async def test_a_fetch_that_waits_reads_what_changes_meanwhile_and_sends_news_it_had_before(
    plane: DataPlane,
) -> None:
    partitions = await led(plane, 300, replicas=(1, 2, 3), isr=(1, 2, 3))
    second, third = await settled(plane, 300), await settled(plane, 300, replica=3)
    append(partitions[7])
    assert (await second.fetch(), await third.fetch()) == ([7], [7])
    assert (await second.fetch(), await third.fetch()) == ([], [7])  # the third one's commits the record
    mark_unread(partitions)

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(second.end(second.begin(wait_ms=FOR_EVER_MS)))
        while read_again(partitions) != [7]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        append(partitions[9])

    assert sorted(waiting.result()) == [7, 9]
    assert second.known[7].high_watermark == 1
    assert read_again(partitions) == [7, 9]


def leader_epoch(plane: DataPlane, partition: HostedPartition) -> Awaitable[object]:
    return plane.lead(partition=1, leader_epoch=1, isr=(1, 2), replicas=(1, 2))


def other_leader(plane: DataPlane, partition: HostedPartition) -> Awaitable[object]:
    return plane.lead(partition=1, leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))


def deletion(plane: DataPlane, partition: HostedPartition) -> Awaitable[object]:
    return plane.replicas.stop([(partition.topic_partition, -2, True)])


def log_start(plane: DataPlane, partition: HostedPartition) -> None:
    partition.log.advance_log_start(1)


@pytest.mark.parametrize(
    ("change", "error_code"), [(leader_epoch, 74), (other_leader, 74), (deletion, 3), (log_start, 0)]
)
@pytest.mark.parametrize("replica", [2, -1])
async def test_a_session_hears_of_every_change(
    plane: DataPlane,
    change: Callable[[DataPlane, HostedPartition], Awaitable[object] | None],
    error_code: int,
    replica: int,
) -> None:
    partitions = await led(plane, 3)
    append(partitions[1])
    partitions[1].fetched(2, 1, 0, 0)
    reader = await settled(plane, 3, replica)
    for _ in range(3):
        await reader.fetch()

    done = change(plane, partitions[1])
    if isinstance(done, Awaitable):
        await done

    assert await reader.fetch() == [1]
    known = reader.known[1]
    assert known.error_code == error_code
    assert known.log_start_offset == (1 if change is log_start else 0)
    assert await reader.fetch() == ([] if change is log_start else [1]), "an error is said until it ends"


async def test_a_reader_of_a_follower_hears_of_a_truncation(plane: DataPlane) -> None:
    partition = await plane.lead(leader=2, isr=(1, 2), replicas=(1, 2))
    partition.append_from_leader(bytes(batch_of(b"a")), 1, 0, 0)
    reader = await settled(plane, 1, replica=DEBUGGING)
    assert reader.known[0].offset == 1
    assert await reader.fetch() == []

    await partition.truncate_to(0)

    assert await reader.fetch() == [0]
    assert reader.known[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE


async def test_what_did_not_fit_into_an_answer_comes_first_in_the_next(plane: DataPlane) -> None:
    partitions = await led(plane, 4)
    follower = await settled(plane, 4)
    follower.max_bytes = 100
    for partition in partitions[1:]:
        append(partition, b"x" * 90)

    carried = [await follower.fetch() for _ in range(4)]

    assert [next(iter(numbers)) for numbers in carried[:3]] == [1, 2, 3]
    assert all(known.offset == 1 for number, known in follower.known.items() if number)


async def test_what_a_throttle_held_back_is_sent_when_that_ends(plane: DataPlane) -> None:
    plane.overrides["t"] = {"leader.replication.throttled.replicas": "0:1"}
    partitions = await led(plane, 1, isr=(1,))
    follower = await settled(plane, 1)
    quota = plane.services.replication_quotas.leader
    quota.bytes_per_s = 0
    quota.record(1)
    append(partitions[0])

    assert await follower.fetch() == []
    quota.bytes_per_s = 1 << 40
    assert await follower.fetch() == [0]
    assert follower.known[0].offset == 1


async def test_a_follower_outside_of_the_isr_is_proposed_again_by_each_fetch(plane: DataPlane) -> None:
    partition = (await led(plane, 1, isr=(1,)))[0]
    follower = await settled(plane, 1)

    proposals = []
    for _ in range(3):
        await follower.fetch()
        proposal = partition.core.proposal
        assert proposal is not None
        proposals.append(sorted(proposal.isr))
        plane.replicas.isr_refused(partition.topic_partition, proposal.token)

    assert proposals == [[1, 2]] * 3


async def test_a_member_that_leaves_the_isr_is_read_again(plane: DataPlane) -> None:
    partition = (await led(plane, 1))[0]
    follower = await settled(plane, 1)
    mark_unread([partition])

    plane.replicas.isr_read(partition.topic_partition, 0, [1], 1)
    await follower.fetch()

    assert read_again([partition]) == [0]
    assert partition.core.proposal is not None


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ms = 1 << 42  # later than the roles, which come by the machine's clock

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> float:
        return float(self.ms)


async def test_a_fetch_that_names_no_partition_counts_for_all_of_its_session(plane: DataPlane) -> None:
    clock = plane.environment.clock = SetClock()
    partition = (await led(plane, 1))[0]
    follower = await settled(plane, 1)

    clock.ms += 10 * MAX_LAG_MS
    await follower.fetch()
    last_fetch_ms, clock.ms = clock.ms, clock.ms + 100
    append(partition, now_ms=clock.ms)

    assert partition.core.shrink(last_fetch_ms + MAX_LAG_MS) == []
    assert len(partition.core.shrink(last_fetch_ms + MAX_LAG_MS + 1)) == 1


async def test_a_follower_that_went_away_leaves_the_isr_by_its_last_fetch(plane: DataPlane) -> None:
    clock = plane.environment.clock = SetClock()
    partition = (await led(plane, 1))[0]
    follower = await settled(plane, 1)
    last_fetch_ms, clock.ms = clock.ms, clock.ms + 10 * MAX_LAG_MS
    assert partition.core.shrink(clock.ms) == [], "it has all records"

    append(partition, now_ms=clock.ms)

    assert partition.core.followers[2].last_caught_up_ms == last_fetch_ms
    assert len(partition.core.shrink(clock.ms)) == 1
    assert follower.known[0].offset == 0


@pytest.mark.parametrize("ending", ["forgotten", "restarted", "closed"])
async def test_a_session_that_ends_watches_nothing_and_has_counted_its_fetches(
    plane: DataPlane, ending: str
) -> None:
    clock = plane.environment.clock = SetClock()
    partitions = await led(plane, 2)
    follower = await settled(plane, 2)
    clock.ms += 10 * MAX_LAG_MS
    await follower.fetch()
    last_fetch_ms, clock.ms = clock.ms, clock.ms + 100

    if ending == "forgotten":
        del follower.known[1]
    else:
        follower.epoch, follower.asked = (-1 if ending == "closed" else 0), {}
        del follower.known[1]
    await follower.fetch()

    assert not partitions[1].watchers
    assert partitions[1].core.followers[2].last_caught_up_ms == last_fetch_ms
    assert len(plane.services.fetch_sessions) == (0 if ending == "closed" else 1)
    assert len(partitions[0].watchers) == (0 if ending == "closed" else 1)


async def test_a_wait_that_is_given_up_loses_no_change(plane: DataPlane) -> None:
    partitions = await led(plane, 3, replicas=(1, 2, 3), isr=(1, 2, 3))
    follower, third = await settled(plane, 3), await settled(plane, 3, replica=3)
    append(partitions[1])
    for reader in (follower, third, follower, third):
        await reader.fetch()
    assert follower.known[1].high_watermark == 0, "it is committed now, and the follower has not heard of it"

    waiting = asyncio.ensure_future(follower.end(follower.begin(wait_ms=FOR_EVER_MS)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert await follower.fetch() == [1]
    assert follower.known[1].high_watermark == 1


async def test_a_request_of_a_session_behind_one_that_waits_hears_of_changes(plane: DataPlane) -> None:
    partitions = await led(plane, 3)
    follower = await settled(plane, 3)
    first = asyncio.ensure_future(follower.end(follower.begin(wait_ms=200)))
    await asyncio.sleep(0)

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as tasks:
        second = tasks.create_task(follower.end(follower.begin(wait_ms=FOR_EVER_MS)))
        await asyncio.sleep(0)
        append(partitions[2])
    assert second.result() == [2]
    await first
    while await follower.fetch():
        pass
    assert follower.known[2].high_watermark == 1


async def test_an_answer_that_is_late_does_not_hide_what_a_later_one_has_said(plane: DataPlane) -> None:
    partition = (await led(plane, 1))[0]
    for _ in range(3):
        append(partition)
    partition.fetched(2, 3, 0, 0)
    reader = Reader(plane, known={0: Known(offset=3)})
    while await reader.fetch():
        pass

    partition.log.advance_log_start(1)
    late = asyncio.ensure_future(reader.end(reader.begin(wait_ms=100)))
    await asyncio.sleep(0)
    await reader.fetch()
    partition.log.advance_log_start(2)
    await reader.fetch()
    await late

    await reader.fetch()
    assert reader.known[0].log_start_offset == 2


def test_a_change_between_a_read_and_its_answer_keeps_a_partition_unsettled() -> None:
    hosted: Any = SimpleNamespace(watchers={})
    requested = RequestedPartition(TopicPartition("t", 0), 0, 1000)
    watched, settled_answer = WatchedPartitions(), FetchedPartition(0, is_settled=True)
    watched.add(requested)

    watched.watch(requested, hosted)
    for note in list(hosted.watchers):
        note()
    watched.settle(requested, settled_answer)
    assert watched.to_read() == [requested]

    watched.watch(requested, hosted)
    watched.settle(requested, settled_answer)
    assert watched.to_read() == []


async def test_a_high_watermark_that_waits_for_time_to_pass_moves_with_any_fetch(plane: DataPlane) -> None:
    clock = plane.environment.clock = SetClock()
    partition = (await led(plane, 1, replicas=(1, 2, 3, 4)))[0]
    second, third, fourth = (Reader(plane, replica, known={0: Known()}) for replica in (2, 3, 4))
    await second.fetch()
    await fourth.fetch()
    assert partition.core.proposal is not None, "while it is pending, the third is not proposed"
    await third.fetch()
    append(partition, now_ms=clock.ms)
    for reader in (second, fourth, second, fourth):
        await reader.fetch()
    assert partition.high_watermark == 0, "the third may join, and has not asked for more"

    clock.ms += MAX_LAG_MS + 1
    await second.fetch()

    assert partition.high_watermark == 1


@pytest.mark.parametrize("seed", range(20))
async def test_readers_know_after_each_fetch_what_their_leader_knows(plane: DataPlane, seed: int) -> None:
    """A fetch that does not wait brings a session up to date after any history."""
    chance = random.Random(seed)
    partitions = await led(plane, 6, replicas=(1, 2, 3), isr=(1, 2, 3))
    readers = [
        Reader(plane, replica, max_bytes=chance.choice((300, 1 << 20)), known={n: Known() for n in range(6)})
        for replica in (2, 3, -1)
    ]

    def happens() -> None:
        partition = chance.choice(partitions)
        match chance.randrange(4):
            case 0 | 1:
                append(partition, b"x" * chance.randrange(1, 200))
            case 2:
                partition.log.advance_log_start(partition.high_watermark)
            case _:
                core = partition.core
                isr = chance.choice(([1, 2, 3], [1, 3], [1, 2]))
                plane.replicas.isr_read(partition.topic_partition, 0, isr, core.partition_epoch + 1)

    for _ in range(60):
        for _ in range(chance.randrange(4)):
            happens()
        reader = chance.choice(readers)
        begun = reader.begin(wait_ms=chance.choice((0, 1)))
        if chance.randrange(2):
            happens()  # between the read and the answer, where the fetch waits
        await reader.end(begun)
        for _ in range(200):  # until all is sent that does not fit into one answer
            await reader.fetch()
            if all(reader.known[n].offset == visible(reader, partitions[n]) for n in range(6)):
                break
        await reader.fetch()
        for number, partition in enumerate(partitions):
            known = reader.known[number]
            if known.error_code:  # below the log's start now
                known.offset = partition.log.log_start_offset
                continue
            assert known.high_watermark == partition.high_watermark
            assert known.log_start_offset == partition.log.log_start_offset
            assert known.offset == visible(reader, partition)


def visible(reader: Reader, partition: HostedPartition) -> int:
    return partition.log.log_end_offset if reader.replica > 0 else partition.high_watermark

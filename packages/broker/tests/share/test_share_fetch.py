"""ShareFetch and ShareAcknowledge on a real broker: sessions, waits, locks, leaderships, and bad input.

The module has over 500 lines because all of it is told by the same members on one broker.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api import share_fetch
from ottla.broker.api.testing import FakeSession
from ottla.broker.log.files.file_slices import Slice
from ottla.broker.metrics import Metrics
from ottla.broker.replication.hosted_partition import HostedPartition
from ottla.broker.replication.partition import Assignment
from ottla.broker.requests.context import RequestContext
from ottla.broker.share.hosted_partition import HostedSharePartition
from ottla.broker.share.hosting import SharePartitions
from ottla.broker.share.in_flight import Acquired
from ottla.broker.share.metrics import ShareGroupMetrics
from ottla.broker.share.partition import Acknowledgement, Acquisition
from ottla.broker.share.state import SharePartitionKey
from ottla.broker.share.terms import ShareGroupTerms
from ottla.broker.testing import BrokerThread
from ottla.client.config import Address, ClientConfig
from ottla.client.connection import Connection
from ottla.producer import Producer
from ottla.protocol.api import ApiKey, RequestHeader
from ottla.protocol.errors import ErrorCode, NotLeaderOrFollower
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.share_sessions import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchPartition,
    ShareFetchPartitionData,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
)
from ottla.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.records import iter_records, split_batches
from ottla.protocol.topics import TopicPartition

GROUP = "group"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
FOREVER_MS = 2**31 - 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    settings = {
        "group.share.record.lock.duration.ms": "2000",
        "group.share.max.share.sessions": "20",
        "share.coordinator.state.topic.num.partitions": "3",
    }
    with BrokerThread(tmp_path_factory.mktemp("broker"), settings) as broker:
        yield broker


@asynccontextmanager
async def connected(broker: BrokerThread) -> AsyncIterator[Connection]:
    config = ClientConfig(client_id="test", request_timeout_ms=60_000)
    connection = Connection(Address(broker.host, broker.port), config)
    await connection.connect()
    try:
        yield connection
    finally:
        await connection.close()


class Member:
    """A member of a share group, as far as it fetches one partition."""

    def __init__(self, connection: Connection, name: str, topic_id: UUID, group: str = GROUP) -> None:
        self.connection = connection
        self.name = name
        self.topic_id = topic_id
        self.group = group
        self.epoch = 0

    async def fetch(
        self,
        *acknowledged: tuple[int, int, list[int]],
        wait_ms: int = 20_000,
        records: int = 500,
        min_bytes: int = 1,
        mode: int = 0,
        epoch: int | None = None,
    ) -> ShareFetchResponse:
        partition = ShareFetchPartition(
            partition_index=0,
            acknowledgement_batches=[
                AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
                for first, last, types in acknowledged
            ],
        )
        request = ShareFetchRequest(
            group_id=self.group, member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=1_000_000, max_records=records,
            batch_size=records, share_acquire_mode=mode,
            topics=[ShareFetchTopic(topic_id=self.topic_id, partitions=[partition])],
        )  # fmt: skip
        response = await self.connection.send(request, ShareFetchResponse)
        if not response.error_code:
            self.epoch += 1
        return response

    async def take(self, **named: int) -> list[tuple[int, int, int]]:
        """Fetch, and return the acquired ranges with their delivery counts."""
        response = await self.fetch(**named)
        assert response.error_code == 0
        return acquired(response)

    async def acknowledge(self, first: int, last: int, *types: int, renew: bool = False) -> int:
        """Acknowledge records; return the partition's error."""
        batch = AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        topic = AcknowledgeTopic(
            topic_id=self.topic_id,
            partitions=[AcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])],
        )
        request = ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.name, share_session_epoch=self.epoch, is_renew_ack=renew,
            topics=[topic],
        )  # fmt: skip
        response = await self.connection.send(request, ShareAcknowledgeResponse)
        assert response.error_code == 0
        self.epoch += 1
        return response.responses[0].partitions[0].error_code


def only(response: ShareFetchResponse) -> ShareFetchPartitionData:
    return response.responses[0].partitions[0]


def acquired(response: ShareFetchResponse) -> list[tuple[int, int, int]]:
    if not response.responses:
        return []
    return [
        (piece.first_offset, piece.last_offset, piece.delivery_count)
        for piece in only(response).acquired_records
    ]


async def new_topic(broker: BrokerThread, connection: Connection, name: str, group: str = GROUP) -> UUID:
    """Create a topic, and begin the state of its only partition for the group."""
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    created = await connection.send(
        CreateTopicsRequest(topics=topics, timeout_ms=30_000), CreateTopicsResponse
    )
    assert created.topics[0].error_code == 0
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    metadata = await connection.send(request, MetadataResponse, min_version=10)
    topic_id = metadata.topics[0].topic_id
    assert broker.broker is not None
    persister = broker.broker.services.share().persister
    key = SharePartitionKey(group, topic_id, 0)
    await asyncio.to_thread(broker.call, persister.initialize(key, 1, 0), 60)
    return topic_id


async def produce(broker: BrokerThread, topic: str, *values: str) -> None:
    async with Producer(broker.bootstrap_servers) as producer:
        for value in values:
            await producer.send_and_wait(topic, value.encode())


def test_the_outcome_of_an_acknowledgement_whose_client_has_gone_is_no_fault(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "unheard")
            await produce(broker, "unheard", "a")
            await Member(connection, "one", topic_id).take()
            assert broker.broker is not None
            key, partitions = SharePartitionKey(GROUP, topic_id, 0), broker.broker.services.share().partitions
            hosted = partitions.get(key, TopicPartition("unheard", 0))
            assert hosted is not None
            assert await asyncio.to_thread(broker.call, complaints_about(hosted), 60) == []

    async def complaints_about(hosted: HostedSharePartition) -> list[str]:
        """Lose the leadership while an acknowledgement is written for which nobody waits."""
        loop, complaints = asyncio.get_running_loop(), list[str]()
        before = loop.get_exception_handler()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        settled = hosted.acknowledge("one", [Acknowledgement(0, 0, [ACCEPT])])
        hosted.fail(NotLeaderOrFollower())
        assert settled is not None
        del settled
        await asyncio.sleep(0)
        gc.collect()
        loop.set_exception_handler(before)
        return complaints

    asyncio.run(story())


def led_by(broker: BrokerThread, session_id: Callable[[], int], reset: str = "earliest") -> SharePartitions:
    """Make share partitions of a broker whose session is this one."""
    assert broker.broker is not None
    services = broker.broker.services
    of_broker = services.share().partitions
    return SharePartitions(
        environment=services.environment, persister=of_broker.persister, tasks=of_broker.tasks,
        record_threads=services.record_threads, session_id=session_id,
        terms=lambda _: ShareGroupTerms(auto_offset_reset=reset), dead_letters=of_broker.dead_letters,
        metrics=ShareGroupMetrics(Metrics(), 10),
    )  # fmt: skip


async def acquire(hosted: HostedSharePartition) -> list[Acquired]:
    loaded = asyncio.Event()
    hosted.wait(loaded.set)
    if hosted.core is None:
        await loaded.wait()
    hosted.stop_waiting(loaded.set)
    asked = partial(Acquisition, "one", batch_size=1, max_records=10)
    return (await hosted.deliver(asked, 1_000_000, at_least_one=True)).acquired


async def accept(hosted: HostedSharePartition, offset: int) -> None:
    settled = hosted.acknowledge("one", [Acknowledgement(offset, offset, [ACCEPT])])
    assert settled is not None
    await settled


def test_a_leader_that_lost_its_session_reads_the_state_again(broker: BrokerThread) -> None:
    session_ids = [1]

    async def take_as_leader(topic_id: UUID) -> list[list[Acquired]]:
        """Acquire, lose the session, and acquire with the state that the coordinator has by then."""
        assert broker.broker is not None
        partitions = led_by(broker, lambda: session_ids[-1])
        led = broker.broker.services.replicas.leader(TopicPartition("lost", 0))
        key = SharePartitionKey(GROUP, topic_id, 0)
        first = await acquire(partitions.find(key, led))
        hosted = partitions.find(key, led)
        await accept(hosted, 0)
        session_ids.append(2)
        for _ in range(2):
            with pytest.raises(NotLeaderOrFollower) as refused:
                assert hosted.active
            assert refused.value is not hosted.error, "its traceback would grow with every refusal"
        return [first, await acquire(partitions.find(key, led))]

    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "lost")
            await produce(broker, "lost", "a", "b")
            taken = await asyncio.to_thread(broker.call, take_as_leader(topic_id), 60)
            assert taken == [[Acquired(0, 0, 1), Acquired(1, 1, 1)], [Acquired(1, 1, 1)]]

    asyncio.run(story())


async def raise_epoch(
    broker: BrokerThread, led: HostedPartition, by: int = 1, *, is_led: bool = True
) -> None:
    """Raise the leader epoch of a partition, of which this broker is the leader or none is."""
    assert broker.broker is not None
    replicas, node = broker.broker.services.replicas, broker.broker.broker_id
    new = Assignment(
        controller_epoch=replicas.controller_epoch, leader=node if is_led else -1,
        leader_epoch=led.leader_epoch + by, partition_epoch=led.core.partition_epoch + 1,
        isr=(node,), replicas=(node,),
    )  # fmt: skip
    answers = await replicas.apply([(led.topic_partition, led.log.topic_id, new)])
    assert answers == {led.topic_partition: ErrorCode.NONE}


def test_a_leader_goes_on_in_the_next_epoch_and_reads_the_state_again_after_others(
    broker: BrokerThread,
) -> None:
    async def lead(topic_id: UUID) -> list[Acquired]:
        assert broker.broker is not None
        partitions = led_by(broker, lambda: 1)
        led = broker.broker.services.replicas.leader(TopicPartition("deaths", 0))
        key = SharePartitionKey(GROUP, topic_id, 0)
        hosted = partitions.find(key, led)
        await acquire(hosted)

        await raise_epoch(broker, led)  # another replica has died

        assert partitions.find(key, led) is hosted
        assert await acquire(hosted) == []
        await accept(hosted, 0)

        await raise_epoch(broker, led, 2)  # there was another leader

        assert partitions.find(key, led) is not hosted
        return await acquire(partitions.find(key, led))

    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "deaths")
            await produce(broker, "deaths", "a", "b")
            taken = await asyncio.to_thread(broker.call, lead(topic_id), 60)
            assert taken == [Acquired(1, 1, 1)]

    asyncio.run(story())


def test_the_leadership_before_an_epoch_without_a_leader_is_over(broker: BrokerThread) -> None:
    async def lead(topic_id: UUID) -> list[bool]:
        assert broker.broker is not None
        led = broker.broker.services.replicas.leader(TopicPartition("pauses", 0))
        hosted = led_by(broker, lambda: 1).find(SharePartitionKey(GROUP, topic_id, 0), led)
        await acquire(hosted)
        found = [hosted.leads()]
        for is_led in (False, True):
            await raise_epoch(broker, led, is_led=is_led)
            found.append(hosted.leads())
        return found

    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "pauses")
            await produce(broker, "pauses", "a")
            assert await asyncio.to_thread(broker.call, lead(topic_id), 60) == [True, False, False]

    asyncio.run(story())


def test_members_that_come_back_read_what_was_written_after_the_first_had_begun_at_the_end(
    broker: BrokerThread,
) -> None:
    async def begin(partitions: SharePartitions, key: SharePartitionKey) -> list[Acquired]:
        assert broker.broker is not None
        led = broker.broker.services.replicas.leader(TopicPartition("late", 0))
        return await acquire(partitions.find(key, led))

    async def leave(partitions: SharePartitions) -> None:
        (hosted,), ended = list(partitions), asyncio.Event()
        hosted.wait(ended.set)
        partitions.group_left("late")
        await ended.wait()
        assert list(partitions) == []

    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "late")
            await produce(broker, "late", "before")
            partitions, key = led_by(broker, lambda: 1, "latest"), SharePartitionKey("late", topic_id, 0)
            await asyncio.to_thread(broker.call, partitions.persister.initialize(key, 1, -1), 60)
            assert await asyncio.to_thread(broker.call, begin(partitions, key), 60) == []
            await asyncio.to_thread(broker.call, leave(partitions), 60)
            await produce(broker, "late", "between")
            assert await asyncio.to_thread(broker.call, begin(partitions, key), 60) == [Acquired(1, 1, 1)]

    asyncio.run(story())


def test_members_share_the_records_of_one_partition(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, "shared")
            await produce(broker, "shared", "a", "b", "c")
            one, two = Member(connection, "one", topic_id), Member(other, "two", topic_id)

            response = await one.fetch(records=2)
            values = [
                record.value
                for batch in split_batches(only(response).records or b"")
                for record in iter_records(batch)
            ]
            assert (acquired(response), values) == ([(0, 1, 1)], [b"a", b"b"])
            assert response.acquisition_lock_timeout_ms == 2000
            assert await two.take() == [(2, 2, 1)]
            assert await two.take(wait_ms=50) == []

            assert await one.acknowledge(0, 1, ACCEPT, RELEASE) == 0
            assert await two.take() == [(1, 1, 2)]
            response = await two.fetch((1, 2, [ACCEPT]), wait_ms=0)
            assert only(response).acknowledge_error_code == 0
            assert await one.take(wait_ms=50) == []

    asyncio.run(story())


def test_a_fetch_reads_little_more_of_the_log_than_its_member_gets(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    read = HostedPartition.read

    def recorded(partition: HostedPartition, *arguments: Any, **named: Any) -> Slice:
        found = read(partition, *arguments, **named)
        lengths.append(found.length)
        return found

    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "backlog")
            await produce(broker, "backlog", *[str(number).ljust(10_000) for number in range(60)])
            member = Member(connection, "one", topic_id)
            monkeypatch.setattr(HostedPartition, "read", recorded)

            few = await member.take(records=2)
            lengths_of_few = lengths.copy()
            lengths.clear()
            many = await member.take(records=40)

            assert (few[0][0], few[-1][1]) == (0, 1)
            assert max(lengths_of_few) <= 64 * 1024
            assert (many[0][0], many[-1][1]) == (2, 41)
            assert max(lengths) >= 40 * 10_000

    asyncio.run(story())


def test_a_fetch_waits_for_a_record_that_is_produced_and_for_one_that_is_released(
    broker: BrokerThread,
) -> None:
    async def story() -> None:
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, "waited")
            one, two = Member(connection, "one", topic_id), Member(other, "two", topic_id)
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(one.take())
                group.create_task(produce(broker, "waited", "a"))
            assert waiting.result() == [(0, 0, 1)]

            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(two.take())
                await asyncio.sleep(0.05)
                group.create_task(one.acknowledge(0, 0, RELEASE))
            assert waiting.result() == [(0, 0, 2)]

    asyncio.run(story())


def test_a_fetch_of_more_bytes_than_there_are_looks_again_only_after_changes(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = share_fetch._Fetch._look

    async def counted(fetch: share_fetch._Fetch, *given: Any, **named: Any) -> bool:
        nonlocal looks
        looks += 1
        assert looks < 100, "the fetch looks without a pause"
        return await look(fetch, *given, **named)

    async def story() -> None:
        nonlocal looks
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, "too-few")
            assert await Member(other, "loads", topic_id).take(wait_ms=1) == []
            await produce(broker, "too-few", "a")
            one, two = Member(connection, "one", topic_id), Member(other, "two", topic_id)

            monkeypatch.setattr(share_fetch._Fetch, "_look", counted)
            async with asyncio.TaskGroup() as group:
                late = group.create_task(one.take(min_bytes=1_000, wait_ms=2_000))
                empty = group.create_task(two.take(min_bytes=1_000, wait_ms=2_000))

        assert sorted([late.result(), empty.result()]) == [[], [(0, 0, 1)]]

    asyncio.run(story())


def test_a_lock_that_ends_gives_its_records_to_a_waiting_member(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, "locked")
            await produce(broker, "locked", "a", "b")
            one, two = Member(connection, "one", topic_id), Member(other, "two", topic_id)
            assert await one.take() == [(0, 1, 1)]
            assert await one.acknowledge(0, 1, RENEW, renew=True) == 0

            assert await two.take() == [(0, 1, 2)]
            assert await one.acknowledge(0, 0, ACCEPT) == ErrorCode.INVALID_RECORD_STATE

    asyncio.run(story())


def test_a_connection_that_ends_releases_what_its_member_holds(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as other:
            async with connected(broker) as connection:
                topic_id = await new_topic(broker, connection, "left")
                await produce(broker, "left", "a")
                assert await Member(connection, "one", topic_id).take() == [(0, 0, 1)]
            assert await Member(other, "two", topic_id).take() == [(0, 0, 2)]

    asyncio.run(story())


def test_a_session_that_ends_releases_what_its_member_holds(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, "ended")
            await produce(broker, "ended", "a", "b")
            one = Member(connection, "one", topic_id)
            assert await one.take() == [(0, 1, 1)]
            response = await one.fetch((0, 0, [ACCEPT]), epoch=-1)
            assert only(response).acknowledge_error_code == 0

            assert await Member(other, "two", topic_id).take() == [(1, 1, 2)]
            assert (await one.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    asyncio.run(story())


def test_exactly_as_many_records_come_as_were_asked_for(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "exact")
            async with Producer(broker.bootstrap_servers, linger_ms=50) as producer:
                sent = [await producer.send("exact", b"x") for _ in range(10)]
                for delivery in sent:
                    await delivery
            one = Member(connection, "one", topic_id)
            taken: list[tuple[int, int, int]] = []
            while sum(last - first + 1 for first, last, _ in taken) < 10:
                pieces = await one.take(records=3, mode=1)
                assert 0 < sum(last - first + 1 for first, last, _ in pieces) <= 3
                taken += pieces

    asyncio.run(story())


@pytest.mark.parametrize(
    ("first", "last", "types", "error"),
    [
        (0, 5, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (2**63 - 1, 2**63 - 1, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (0, 2**63 - 1, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (1, 0, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (0, 1, [ACCEPT, ACCEPT, ACCEPT], ErrorCode.INVALID_REQUEST),
        (0, 0, [], ErrorCode.INVALID_REQUEST),
        (0, 0, [9], ErrorCode.INVALID_REQUEST),
        (0, 0, [-1], ErrorCode.INVALID_REQUEST),
        (0, 0, [RENEW], ErrorCode.INVALID_REQUEST),
        (-5, -1, [ACCEPT], ErrorCode.INVALID_REQUEST),
        (3, 3, [ACCEPT], ErrorCode.INVALID_RECORD_STATE),
    ],
)
def test_acknowledgements_of_nothing_are_refused_and_change_nothing(
    broker: BrokerThread, first: int, last: int, types: list[int], error: ErrorCode
) -> None:
    name = f"bad-{first}-{last}-{len(types)}-{sum(types)}"

    async def story() -> None:
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, name)
            await produce(broker, name, "a", "b", "c", "d")
            one, two = Member(connection, "one", topic_id), Member(other, "two", topic_id)
            assert await one.take(records=3) == [(0, 2, 1)]
            assert await two.take() == [(3, 3, 1)]

            assert await one.acknowledge(first, last, *types) == error
            assert await one.acknowledge(0, 2, ACCEPT) == 0
            assert await two.acknowledge(3, 3, ACCEPT) == 0

    asyncio.run(story())


def test_requests_without_a_session_or_of_another_epoch_are_refused(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "epochs")
            one = Member(connection, "one", topic_id)
            assert (await one.fetch(epoch=5)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
            assert (await one.fetch((0, 0, [ACCEPT]), epoch=0)).error_code == ErrorCode.INVALID_REQUEST
            assert (await one.fetch(wait_ms=0)).error_code == 0
            assert (await one.fetch(epoch=7)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
            assert (await Member(connection, "", topic_id).fetch()).error_code == ErrorCode.INVALID_REQUEST
            assert (
                await Member(connection, "x" * 37, topic_id).fetch()
            ).error_code == ErrorCode.INVALID_REQUEST
            unknown = Member(connection, "two", UUID(int=5))
            assert only(await unknown.fetch(wait_ms=0)).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    asyncio.run(story())


def test_a_share_partition_that_was_never_initialized_is_an_error(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "uninitialized")
            other = Member(connection, "one", topic_id, group="another")
            response = await other.fetch(wait_ms=5_000)
            assert only(response).error_code == ErrorCode.UNKNOWN_SERVER_ERROR

    asyncio.run(story())


def test_a_deleted_topic_is_an_error_and_its_waiting_member_hears_of_it(broker: BrokerThread) -> None:
    async def story() -> None:
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, "deleted")
            await produce(broker, "deleted", "a")
            one = Member(connection, "one", topic_id)
            assert await one.take() == [(0, 0, 1)]
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(one.fetch())
                request = DeleteTopicsRequest(topic_names=["deleted"], timeout_ms=30_000)
                await other.send(request, DeleteTopicsResponse)

            gone = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 6)
            assert only(waiting.result()).error_code in gone
            assert await one.acknowledge(0, 0, ACCEPT) in gone

    asyncio.run(story())


def test_sessions_beyond_the_limit_are_refused_and_the_others_go_on(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert broker.broker is not None
    fetches = broker.broker.services.delayed_fetches

    async def story() -> None:
        async with connected(broker) as connection, connected(broker) as other:
            topic_id = await new_topic(broker, connection, "many")
            one = Member(other, "first", topic_id)
            assert (await one.fetch(wait_ms=0)).error_code == 0
            codes = [
                (await Member(connection, f"m{number}", topic_id).fetch(wait_ms=0)).error_code
                for number in range(25)
            ]
            assert codes[0] == 0
            assert codes[-1] == ErrorCode.SHARE_SESSION_LIMIT_REACHED
            assert (await one.fetch(wait_ms=0)).error_code == 0
            monkeypatch.setattr(fetches, "limit", 0)  # no fetch may wait
            refused = await Member(connection, "last", topic_id).fetch(wait_ms=FOREVER_MS)
            assert refused.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED

    asyncio.run(story())


def test_a_session_that_begins_as_its_connection_ends_is_not_kept(broker: BrokerThread) -> None:
    async def topic() -> UUID:
        async with connected(broker) as connection:
            return await new_topic(broker, connection, "gone")

    assert broker.broker is not None
    services, topic_id = broker.broker.services, asyncio.run(topic())
    partition = ShareFetchPartition(partition_index=0)
    request = ShareFetchRequest(
        group_id=GROUP, member_id="late", max_wait_ms=0, max_records=1,
        topics=[ShareFetchTopic(topic_id=topic_id, partitions=[partition])],
    )  # fmt: skip
    context = RequestContext(
        RequestHeader(ApiKey.SHARE_FETCH, 2, 1, "test"), FakeSession(connection_id="gone", is_gone=True), 0.0
    )
    before = len(services.share().sessions)

    response = broker.call(share_fetch.handle(services, request, context), 60)

    assert response.error_code == 0
    assert len(services.share().sessions) == before


def test_what_was_acknowledged_is_remembered_over_a_restart(tmp_path: Path) -> None:
    async def before(broker: BrokerThread) -> UUID:
        async with connected(broker) as connection:
            topic_id = await new_topic(broker, connection, "kept")
            await produce(broker, "kept", "a", "b", "c")
            one = Member(connection, "one", topic_id)
            assert await one.take() == [(0, 2, 1)]
            assert await one.acknowledge(0, 1, ACCEPT, REJECT) == 0
            assert await one.acknowledge(2, 2, RELEASE) == 0
            return topic_id

    async def after(broker: BrokerThread, topic_id: UUID) -> None:
        async with connected(broker) as connection:
            one = Member(connection, "one", topic_id)
            async with asyncio.timeout(60):
                response = await one.fetch()
                while only(response).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:  # not yet elected
                    response = await one.fetch()
            assert acquired(response) == [(2, 2, 2)]

    with BrokerThread(tmp_path) as broker:
        topic_id = asyncio.run(before(broker))
    with BrokerThread(tmp_path) as broker:
        asyncio.run(after(broker, topic_id))

"""Topics that are deleted and created again, or grow, while a producer writes to them."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pyarrow as pa
import pytest

from ottla.client.config import ClientConfig
from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    Acknowledgement,
    NoSuchPartition,
    Producer,
    ProducerConfig,
    TopicRecreated,
)
from ottla.producer.accumulator import Accumulator, Appender, Batch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from peers.accepting_broker import acknowledged, serving

FAST = ClientConfig(retry_backoff_ms=5, retry_backoff_max_ms=20)
FIRST, SECOND = UUID(int=1), UUID(int=2)
KEYS = [b"key-%d" % number for number in range(12)]


class ChangingTopic:
    """The topic `t` of a scripted broker, whose id and number of partitions a test changes."""

    def __init__(self, broker: ScriptedBroker, partitions: int) -> None:
        self._broker = serving(broker)
        self.topic_id, self.partitions = FIRST, partitions
        self.asked: asyncio.Queue[MetadataRequest] = asyncio.Queue()
        broker.on(MetadataRequest, self._metadata)
        broker.on(ProduceRequest, self._produce)

    def recreate(self, partitions: int) -> None:
        """Delete the topic, and create it with another id."""
        self.topic_id, self.partitions = SECOND, partitions

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        self.asked.put_nowait(request)
        response = self._broker.metadata("t", partitions=self.partitions)
        response.topics[0].topic_id = self.topic_id
        return response

    def _produce(self, request: ProduceRequest) -> ProduceResponse:
        response = acknowledged(request, ErrorCode.NONE)
        for partition in response.responses[0].partition_responses:
            if partition.index >= self.partitions:
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return response


async def outcomes(sent: list[Acknowledgement]) -> list[int | type[BaseException]]:
    """Return the partition of each record, or the type of its error."""
    await asyncio.wait([record.future() for record in sent])
    errors = [record.exception() for record in sent]
    return [
        record.result().partition if error is None else type(error)
        for record, error in zip(sent, errors, strict=True)
    ]


async def test_records_for_partitions_that_a_recreated_topic_lacks_fail_with_the_cause() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = ChangingTopic(broker, partitions=4)
        async with Producer(broker.bootstrap_servers, client=FAST, delivery_timeout_ms=30_000) as producer:
            before = await outcomes([await producer.send("t", b"x", key=key) for key in KEYS])
            topic.recreate(2)
            found = await outcomes([await producer.send("t", b"x", key=key) for key in KEYS])

    lost = [index for index, partition in enumerate(before) if partition in (2, 3)]
    assert len(lost) > 3
    assert [index for index, outcome in enumerate(found) if outcome is TopicRecreated] == lost


async def test_keys_choose_the_partitions_of_the_recreated_topic_as_a_new_producer_chooses_them() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = ChangingTopic(broker, partitions=4)
        async with Producer(broker.bootstrap_servers, client=FAST, delivery_timeout_ms=30_000) as producer:
            await producer.send_and_wait("t", b"x", partition=3)
            topic.recreate(3)
            with pytest.raises(TopicRecreated, match="again with 3 partitions, and had 4: send the record"):
                await producer.send_and_wait("t", b"x", partition=3)
            found = await outcomes([await producer.send("t", b"x", key=key) for key in KEYS])
            many = await producer.send_many("t", [b"x"] * len(KEYS), keys=KEYS)
            found_in_bulk = await outcomes(list(many))
        async with Producer(broker.bootstrap_servers, client=FAST) as producer:
            wanted = await outcomes([await producer.send("t", b"x", key=key) for key in KEYS])

    assert found == found_in_bulk == wanted


async def test_records_without_a_key_go_to_the_partitions_of_the_recreated_topic() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = ChangingTopic(broker, partitions=50)
        config = ProducerConfig(client=FAST, batch_size=1, delivery_timeout_ms=30_000)
        async with Producer(broker.bootstrap_servers, config) as producer:
            await producer.send_and_wait("t", b"x", partition=49)
            topic.recreate(1)
            with pytest.raises(TopicRecreated):
                await producer.send_and_wait("t", b"x", partition=49)
            found = await outcomes([await producer.send("t", b"x") for _ in range(20)])

    assert set(found) == {0}


async def test_a_partition_that_a_recreated_topic_lacks_is_rejected() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = ChangingTopic(broker, partitions=4)
        async with Producer(broker.bootstrap_servers, client=FAST, max_block_ms=50) as producer:
            await producer.send_and_wait("t", b"x", partition=3)
            topic.recreate(1)
            with pytest.raises(TopicRecreated):
                await producer.send_and_wait("t", b"x", partition=3)
            with pytest.raises(NoSuchPartition, match="'t' has the partitions 0 to 0, not 3, after"):
                await producer.send("t", b"x", partition=3)


async def test_metadata_of_the_deleted_topic_do_not_bring_its_partitions_back() -> None:
    """A broker that lags behind names the old topic after another named the new one."""
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = ChangingTopic(broker, partitions=4)
        async with Producer(broker.bootstrap_servers, client=FAST) as producer:
            await producer.send_and_wait("t", b"x", partition=3)
            topic.recreate(1)
            with pytest.raises(TopicRecreated):
                await producer.send_and_wait("t", b"x", partition=3)
            topic.topic_id, topic.partitions = FIRST, 4
            await producer._cluster.refresh(["t"])
            producer._metadata.update("t")

            assert await producer.partitions_for("t") == {0}


async def test_calls_wait_for_a_partition_that_the_topic_gets_within_max_block_ms() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        topic = ChangingTopic(broker, partitions=1)
        async with Producer(broker.bootstrap_servers, client=FAST) as producer:
            await producer.send_and_wait("t", b"x")
            batch = producer.create_batch()
            batch.append(value=b"x")
            rows = pa.table({"value": [b"x"] * 3, "partition": [0, 4, 0]})
            waiting = [producer.send_nowait("t", b"x", partition=3)]
            async with asyncio.TaskGroup() as tasks:
                one = tasks.create_task(producer.send("t", b"x", partition=1))
                many = tasks.create_task(producer.send_many("t", [b"x"] * 3, partition=2))
                filled = tasks.create_task(producer.send_batch(batch, "t", partition=3))
                arrow = tasks.create_task(producer.send_arrow("t", rows))
                topic.asked = asyncio.Queue()
                for _ in range(3):
                    await topic.asked.get()
                assert not any(call.done() for call in (one, many, filled, arrow))
                topic.partitions = 5
            waiting += [one.result(), *many.result(), filled.result(), *arrow.result()]
            found = await outcomes(waiting)

    assert found == [3, 1, 2, 2, 2, 3, 0, 4, 0]


async def test_calls_that_wait_for_partitions_share_the_requests_for_metadata() -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        ChangingTopic(broker, partitions=1)
        # The block ends far from each request: one that is under way then is another error.
        client = ClientConfig(retry_backoff_ms=2_000, retry_backoff_max_ms=2_000)
        async with Producer(broker.bootstrap_servers, client=client, max_block_ms=3_000) as producer:
            await producer.send_and_wait("t", b"x")
            calls = [producer.send("t", b"x", partition=number) for number in range(1, 200)]
            failed = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(error) for error in failed} == {NoSuchPartition}
    assert len(broker.seen(MetadataRequest)) < 20


@pytest.mark.parametrize("max_block_ms", [0, 20])
async def test_a_partition_that_never_comes_is_named_after_max_block_ms(max_block_ms: int) -> None:
    async with ScriptedBroker() as broker, asyncio.timeout(60):
        ChangingTopic(broker, partitions=2)
        async with Producer(broker.bootstrap_servers, client=FAST, max_block_ms=max_block_ms) as producer:
            await producer.send_and_wait("t", b"x")
            with pytest.raises(NoSuchPartition, match="'t' has the partitions 0 to 1, not 2, after"):
                await producer.send("t", b"x", partition=2)
            with pytest.raises(NoSuchPartition, match="not 7"):
                await producer.send_nowait("t", b"x", partition=7)
            with pytest.raises(NoSuchPartition, match=r"'t' has the partitions 0 to 1, not -1$"):
                await producer.send("t", b"x", partition=-1)


def _accumulator() -> Accumulator:
    return Accumulator(
        batch_size=1_000, linger_ms=0, buffer_memory=99_999, max_record_size=1_000, monotonic_ms=lambda: 0.0
    )


@pytest.mark.parametrize(
    ("count", "key", "partition", "is_displaced"),
    [
        (2, b"k", 3, True),
        (2, b"k", 1, False),
        (8, b"k", 3, False),
        (8, None, None, False),
        (8, b"k", None, True),
        (4, b"k", None, False),
    ],
)
def test_a_batch_is_displaced_by_fewer_partitions_or_where_their_number_chose_its_own(
    count: int, key: bytes | None, partition: int | None, is_displaced: bool
) -> None:
    accumulator = _accumulator()
    info = accumulator.update_topic("t", 4, [0, 1, 2, 3])
    Appender(accumulator).append(info, key, b"x", partition, None, None)

    displaced: list[Batch] = accumulator.recreate_topic("t", count, list(range(count)))

    assert (displaced == accumulator.incomplete_batches()) is is_displaced
    assert (info.count, bool(displaced)) == (count, is_displaced)


def test_a_partitioner_s_choice_is_displaced_by_another_number_of_partitions() -> None:
    accumulator = _accumulator()
    info = accumulator.update_topic("t", 4, [0, 1, 2, 3])
    Appender(accumulator).append(info, None, b"x", 1, None, None, True)

    assert accumulator.recreate_topic("t", 5, []) == accumulator.incomplete_batches() != []

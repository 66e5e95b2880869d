"""Markers that are written into partitions, over real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.api import describe_producers, write_txn_markers
from ottla.broker.api.testing import CountedTurns, DataPlane, batch_of
from ottla.broker.config import BrokerConfig
from ottla.broker.replication.replicas import HostedPartition
from ottla.broker.requests.context import RequestContext
from ottla.broker.runtime.loop_budget import LONG_REQUESTS_MS, Disconnected
from ottla.broker.transactions.markers import PartitionMarkers
from ottla.protocol.api import RequestHeader
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.open_transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.records import ControlType, read_end_transaction_marker, split_batches

PRODUCER = 7


class Markers:
    """The markers of one broker, and the ends of transactions that its group coordinator heard of."""

    def __init__(self, plane: DataPlane, timeout_ms: int) -> None:
        self.ended: list[tuple[int, int, bool]] = []
        self.markers = PartitionMarkers(
            plane.replicas, plane.environment, timeout_ms, lambda *ended: self.ended.append(ended)
        )


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[DataPlane]:
    plane = DataPlane(tmp_path, BrokerConfig())
    yield plane
    plane.logs.close()


async def write(
    plane: DataPlane,
    topic: str = "t",
    *partitions: int,
    commit: bool = True,
    epoch: int = 0,
    coordinator_epoch: int = 3,
    timeout_ms: int = 60_000,
    transaction_version: int = 0,
) -> tuple[list[int], list[tuple[int, int, bool]]]:
    """Write a marker of `PRODUCER`; return the error of each partition, and what the groups heard."""
    services = Markers(plane, timeout_ms)
    marker = WritableTxnMarker(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions or (0,)))],
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
    )
    request = WriteTxnMarkersRequest(markers=[marker])
    version = 2 if transaction_version else 1
    arrived = WriteTxnMarkersRequest.decode(request.encode(version), version)
    answer = await write_txn_markers.handle(services, arrived, plane.context(27, version))
    decoded = WriteTxnMarkersResponse.decode(answer.encode(version), version)
    assert [one.producer_id for one in decoded.markers] == [PRODUCER]
    codes = [one.error_code for one in decoded.markers[0].topics[0].partitions]
    return codes, services.ended


def begin(partition: HostedPartition, *values: bytes, sequence: int = 0, epoch: int = 0) -> None:
    """Append records of a transaction."""
    batch = transactional(*values, sequence=sequence, epoch=epoch)
    partition.append(batch, required_acks=1, now_ms=0)


def transactional(*values: bytes, sequence: int = 0, epoch: int = 0) -> bytes:
    return batch_of(*values, producer_id=PRODUCER, epoch=epoch, sequence=sequence, transactional=True)


async def test_a_marker_ends_the_transaction_of_its_producer(plane: DataPlane) -> None:
    partition = await plane.lead()
    begin(partition, b"a", b"b")
    assert partition.log.last_stable_offset == 0

    codes, _ = await write(plane)

    assert codes == [ErrorCode.NONE]
    assert partition.log.last_stable_offset == partition.high_watermark == 3
    batch = list(split_batches(partition.read(2, 1 << 20, up_to=3).read()))[-1]
    marker = read_end_transaction_marker(batch)
    assert marker is not None
    assert marker.type is ControlType.COMMIT
    assert marker.coordinator_epoch == 3


async def test_an_abort_is_in_the_transaction_index(plane: DataPlane) -> None:
    partition = await plane.lead()
    begin(partition, b"a", b"b")

    await write(plane, commit=False)

    (aborted,) = partition.log.aborted_transactions(0, 3)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (PRODUCER, 0, 2)


async def test_a_marker_that_is_sent_again_does_no_harm(plane: DataPlane) -> None:
    partition = await plane.lead()
    begin(partition, b"a")

    await write(plane, commit=False)
    codes, _ = await write(plane, commit=False)

    assert codes == [ErrorCode.NONE]
    assert len(partition.log.aborted_transactions(0, 10)) == 1
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 3


async def test_a_marker_of_an_earlier_producer_epoch_is_refused(plane: DataPlane) -> None:
    partition = await plane.lead()
    begin(partition, b"a", epoch=5)

    codes, _ = await write(plane, epoch=4)

    assert codes == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert partition.log.log_end_offset == 1


async def test_a_marker_of_version_2_has_a_later_epoch_than_its_transaction(plane: DataPlane) -> None:
    partition = await plane.lead()
    begin(partition, b"a", epoch=5)

    late, _ = await write(plane, epoch=5, transaction_version=2)
    ended, _ = await write(plane, epoch=6, transaction_version=2)
    again, _ = await write(plane, epoch=6, transaction_version=2)

    assert (late, ended, again) == (
        [ErrorCode.INVALID_PRODUCER_EPOCH],
        [ErrorCode.NONE],
        [ErrorCode.NONE],  # a repetition: nothing is open any more
    )
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 3


async def test_a_marker_of_an_earlier_coordinator_is_refused(plane: DataPlane) -> None:
    partition = await plane.lead()
    begin(partition, b"a")
    await write(plane, coordinator_epoch=9)
    begin(partition, b"b", sequence=1)

    codes, _ = await write(plane, coordinator_epoch=8)

    assert codes == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
    assert partition.log.last_stable_offset == 2


async def test_partitions_that_are_not_led_here_get_their_own_errors(plane: DataPlane) -> None:
    partition = await plane.lead(partition=0)
    await plane.lead(partition=1, leader=2, isr=(2,), replicas=(1, 2))
    begin(partition, b"a")

    codes, _ = await write(plane, "t", 1, 0, 2)

    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert partition.log.last_stable_offset == 2


async def test_a_marker_counts_once_the_replicas_have_it(plane: DataPlane) -> None:
    partition = await plane.lead("__consumer_offsets", isr=(1, 2), replicas=(1, 2))
    begin(partition, b"a")

    codes, ended = await write(plane, "__consumer_offsets", timeout_ms=1)

    assert codes == [ErrorCode.REQUEST_TIMED_OUT]
    assert ended == []
    partition.fetched(2, 2, 0, plane.environment.clock.now_ms())
    assert partition.log.last_stable_offset == 2


async def test_the_group_coordinator_hears_of_committed_markers_in_its_topic(plane: DataPlane) -> None:
    await plane.lead("__consumer_offsets", 4)
    await plane.lead("t")

    _, of_groups = await write(plane, "__consumer_offsets", 4, commit=False)
    _, of_others = await write(plane, "t")

    assert of_groups == [(4, PRODUCER, False)]
    assert of_others == []


async def test_the_group_coordinator_hears_at_once_though_another_partition_lacks_its_replicas(
    plane: DataPlane,
) -> None:
    slow = await plane.lead("t", isr=(1, 2), replicas=(1, 2))
    await plane.lead("__consumer_offsets", 4)
    heard: asyncio.Queue[tuple[int, int, bool]] = asyncio.Queue()
    markers = PartitionMarkers(
        plane.replicas, plane.environment, 60_000, lambda *ended: heard.put_nowait(ended)
    )
    marker = WritableTxnMarker(
        producer_id=PRODUCER,
        producer_epoch=0,
        transaction_result=True,
        topics=[
            WritableTxnMarkerTopic(name="t", partition_indexes=[0]),
            WritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[4]),
        ],
        coordinator_epoch=3,
    )
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(markers.write(WriteTxnMarkersRequest(markers=[marker])))
        async with asyncio.timeout(30):
            assert await heard.get() == (4, PRODUCER, True)
        assert not writing.done()
        slow.fetched(2, 1, 0, plane.environment.clock.now_ms())

    codes = [topic.partitions[0].error_code for topic in writing.result().markers[0].topics]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]


# ---- long requests


def many(count: int, topic: str, *partitions: int) -> WriteTxnMarkersRequest:
    """A request with the markers of many producers."""
    topics = [WritableTxnMarkerTopic(name=topic, partition_indexes=list(partitions))]
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=one, producer_epoch=0, transaction_result=True, topics=topics, coordinator_epoch=1
            )
            for one in range(count)
        ]
    )


def paced(plane: DataPlane, turns: CountedTurns) -> RequestContext:
    return RequestContext(RequestHeader(27, 1, 1, "c"), plane.session, 0.0, budget=turns.budget)


async def test_many_partitions_are_answered_in_many_turns_of_the_loop(plane: DataPlane) -> None:
    turns, services, count = CountedTurns(), Markers(plane, 60_000), 5_000
    request = many(1, "unknown", *range(count))

    writing = asyncio.create_task(write_txn_markers.handle(services, request, paced(plane, turns)))
    taken, answer = await turns.during(writing)

    assert len(answer.markers[0].topics[0].partitions) == count
    assert taken >= 2 * count * 0.1 / LONG_REQUESTS_MS, "two passes"


async def test_many_markers_that_replicas_get_together_are_answered_in_many_turns_of_the_loop(
    plane: DataPlane,
) -> None:
    partition = await plane.lead("t", isr=(1, 2), replicas=(1, 2))
    turns, services, count = CountedTurns(), Markers(plane, 60_000), 1_000
    writing = asyncio.create_task(
        write_txn_markers.handle(services, many(count, "t", 0), paced(plane, turns))
    )
    await ends_at(partition, count)

    partition.fetched(2, count, 0, plane.environment.clock.now_ms())
    taken, answer = await turns.during(writing)

    assert {one.topics[0].partitions[0].error_code for one in answer.markers} == {0}
    assert taken >= count * 0.1 / LONG_REQUESTS_MS


async def ends_at(partition: HostedPartition, least: int) -> None:
    for _ in range(100_000):
        if partition.log.log_end_offset >= least:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{partition.log.log_end_offset} markers of {least}")


async def test_the_group_coordinator_hears_of_a_marker_in_the_turn_in_which_it_is_committed(
    plane: DataPlane,
) -> None:
    """Though the request rests after it: the marker may be sent again meanwhile, and answered."""
    partition = await plane.lead("__consumer_offsets", 4)
    turns, services, count = CountedTurns(), Markers(plane, 60_000), 1_000
    request = many(count, "__consumer_offsets", 4)
    writing = asyncio.create_task(write_txn_markers.handle(services, request, paced(plane, turns)))
    resting = 0

    async with asyncio.timeout(30):
        while not writing.done():
            resting += 0 < partition.high_watermark < count
            assert len(services.ended) == partition.high_watermark
            await asyncio.sleep(0)

    assert resting > 5
    assert len(services.ended) == count


async def test_the_group_coordinator_hears_of_the_markers_of_a_client_that_has_gone(plane: DataPlane) -> None:
    """They are in the log, and its markers are not all appended when it goes."""
    partition = await plane.lead("__consumer_offsets", 4, isr=(1, 2), replicas=(1, 2))
    turns, services, count = CountedTurns(), Markers(plane, 60_000), 1_000
    request = many(count, "__consumer_offsets", 4)
    writing = asyncio.create_task(write_txn_markers.handle(services, request, paced(plane, turns)))
    await ends_at(partition, 1)

    plane.session.is_gone = True
    for _ in range(100):
        await asyncio.sleep(0)
    appended = partition.log.log_end_offset
    partition.fetched(2, appended, 0, plane.environment.clock.now_ms())

    async with asyncio.timeout(30):
        with pytest.raises(Disconnected):
            await writing
    assert 0 < appended < count
    assert services.ended == [(4, one, True) for one in range(appended)]


async def test_producers_are_described_with_their_open_transactions(plane: DataPlane) -> None:
    partition = await plane.lead()
    await plane.lead(partition=1, leader=2, isr=(2,), replicas=(1, 2))
    begin(partition, b"a", b"b", epoch=4)
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 1])])

    answer = await describe_producers.handle(plane.services, request, plane.context(61, 0))

    here, elsewhere = DescribeProducersResponse.decode(answer.encode(0), 0).topics[0].partitions
    (one,) = here.active_producers
    assert (one.producer_id, one.producer_epoch, one.last_sequence) == (PRODUCER, 4, 1)
    assert (one.coordinator_epoch, one.current_txn_start_offset) == (-1, 0)
    assert elsewhere.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

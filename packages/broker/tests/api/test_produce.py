"""Produce against real logs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.api.produce import general as produce
from ottla.broker.api.testing import DataPlane, batch_of, topic_id_of
from ottla.broker.requests.context import CloseConnection, Ordering
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import (
    Codec,
    ControlType,
    convert_down,
    decode_records,
    end_transaction_marker,
    read_header,
)
from ottla.protocol.topics import TopicPartition
from ottla.zookeeper.frozen_classes import replace

BOUND_S = 60


def request_of(
    *batches: bytes | None, acks: int = -1, topic: str = "t", partition: int = 0, timeout_ms: int = 5000
) -> ProduceRequest:
    data = [PartitionProduceData(index=partition + number, records=one) for number, one in enumerate(batches)]
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, topic_id=topic_id_of(topic), partition_data=data)],
    )


async def produced(
    plane: DataPlane, request: ProduceRequest, version: int = 9, **context: Any
) -> ProduceResponse:
    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, version, **context))
    if isinstance(answer, Awaitable):
        answer = await asyncio.wait_for(answer, BOUND_S)
    assert answer is not None
    answer.encode(version)
    return answer


async def one(
    plane: DataPlane, request: ProduceRequest, version: int = 9, **context: Any
) -> PartitionProduceResponse:
    return (await produced(plane, request, version, **context)).responses[0].partition_responses[0]


@pytest.mark.parametrize("version", range(3, 14))
async def test_offsets_are_given_in_order(plane: DataPlane, version: int) -> None:
    await plane.lead()

    first = await one(plane, request_of(batch_of(b"a", b"b")), version)
    second = await one(plane, request_of(batch_of(b"c")), version)

    assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
    assert first.log_append_time_ms == -1
    assert first.log_start_offset == 0


async def test_an_unknown_topic_id_is_the_error_of_its_partitions_alone(plane: DataPlane) -> None:
    await plane.lead()
    request = request_of(batch_of(b"a"))
    for topic_id in (UUID(int=0), UUID(int=1)):
        data = PartitionProduceData(index=0, records=batch_of(b"b"))
        request.topic_data.append(TopicProduceData(topic_id=topic_id, partition_data=[data]))
    arrived = ProduceRequest.decode(request.encode(13), 13)

    answer = await produced(plane, arrived, 13)

    codes = {topic.topic_id: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {
        topic_id_of("t"): 0,
        UUID(int=0): ErrorCode.UNKNOWN_TOPIC_ID,
        UUID(int=1): ErrorCode.UNKNOWN_TOPIC_ID,
    }


async def test_the_log_of_a_deleted_topic_takes_no_records_of_the_next_one(plane: DataPlane) -> None:
    partition = await plane.lead()
    plane.topic_ids["t"] = UUID(int=2)
    plane.tell(TopicPartition("t", 0), 1)  # the metadata knows of the new topic, the log is the one before
    request = request_of(batch_of(b"a"))
    request.topic_data[0].topic_id = UUID(int=2)

    assert (await one(plane, request, 13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert partition.log.log_end_offset == 0


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("magic", [0, 1])
async def test_old_formats_are_stored_in_the_new_one(plane: DataPlane, version: int, magic: int) -> None:
    partition = await plane.lead()

    answer = await one(plane, request_of(convert_down(batch_of(b"a", b"b"), magic)), version)

    assert (answer.error_code, answer.base_offset) == (0, 0)
    stored = partition.read(0, 1000, up_to=2).read()
    assert [record.value for record in decode_records(stored)] == [b"a", b"b"]
    assert stored[16] == 2


async def test_appends_keep_their_order_when_an_earlier_one_is_rewritten(plane: DataPlane) -> None:
    await plane.lead()
    ordering = Ordering()
    begun = []
    for number in range(6):
        batch = batch_of(str(number).encode())
        version, records = (2, convert_down(batch, 1)) if number % 3 == 0 else (9, batch)
        context = plane.context(ApiKey.PRODUCE, version)
        plane.session.ordering = ordering
        begun.append(produce.handle(plane.services, request_of(records), context))

    answers = [
        await asyncio.wait_for(each, BOUND_S) if isinstance(each, Awaitable) else each for each in begun
    ]

    assert [each.responses[0].partition_responses[0].base_offset for each in answers if each] == list(
        range(6)
    )
    assert ordering.behind is None


async def test_acks_0_gets_no_response(plane: DataPlane) -> None:
    partition = await plane.lead()
    context = plane.context(ApiKey.PRODUCE, 9)

    assert produce.handle(plane.services, request_of(batch_of(b"a"), acks=0), context) is None
    assert partition.log.log_end_offset == 1


async def test_without_acks_an_error_closes_the_connection(plane: DataPlane) -> None:
    with pytest.raises(CloseConnection):
        produce.handle(plane.services, request_of(batch_of(b"a"), acks=0), plane.context(ApiKey.PRODUCE, 9))


async def test_other_acks_are_refused(plane: DataPlane) -> None:
    await plane.lead()

    refused = await produced(plane, request_of(batch_of(b"a"), batch_of(b"b"), acks=2))

    codes = [one.error_code for one in refused.responses[0].partition_responses]
    assert codes == [ErrorCode.INVALID_REQUIRED_ACKS] * 2


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"compression_type": "gzip"}, ErrorCode.NONE),
        ({"cleanup_policy": ("compact",)}, ErrorCode.INVALID_RECORD),
    ],
)
async def test_compressed_records_that_must_be_opened_do_not_hold_up_the_loop(
    plane: DataPlane, settings: dict[str, Any], error: ErrorCode
) -> None:
    partition = await plane.lead()
    partition.log.configure(replace(partition.log.config, **settings))
    request = request_of(batch_of(b"without a key", codec=Codec.ZSTD))

    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, 9))

    assert isinstance(answer, Awaitable)  # not before a thread has had them
    assert partition.log.log_end_offset == 0
    answered = await asyncio.wait_for(answer, BOUND_S)
    assert answered is not None
    assert answered.responses[0].partition_responses[0].error_code == error
    if error is ErrorCode.NONE:
        assert read_header(partition.read(0, 1000, up_to=1).read()).codec == Codec.GZIP


async def test_a_batch_is_too_large_as_it_was_sent_however_small_it_would_become(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.log.configure(replace(partition.log.config, compression_type="gzip", max_message_bytes=1000))

    answer = await one(plane, request_of(batch_of(bytes(2000))))

    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_compressing_a_corrupt_batch_again_does_not_hide_the_corruption(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.log.configure(replace(partition.log.config, compression_type="gzip"))

    answer = await one(plane, request_of(damaged()))

    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert partition.log.log_end_offset == 0


def damaged() -> bytes:
    batch = bytearray(batch_of(b"abc"))
    batch[-2] ^= 1
    return bytes(batch)


def marker() -> bytes:
    return end_transaction_marker(
        ControlType.COMMIT, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0
    )


@pytest.mark.parametrize(
    ("records", "version", "error"),
    [
        (None, 9, ErrorCode.INVALID_RECORD),
        (b"", 9, ErrorCode.INVALID_RECORD),
        (batch_of(b"a") + batch_of(b"b"), 9, ErrorCode.INVALID_RECORD),
        (convert_down(batch_of(b"a"), 1), 3, ErrorCode.INVALID_RECORD),
        (damaged(), 9, ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a")[:-1], 9, ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a")[:30], 9, ErrorCode.CORRUPT_MESSAGE),
        (b"xyz", 9, ErrorCode.CORRUPT_MESSAGE),
        (b"xyz", 1, ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a", codec=Codec.ZSTD), 6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch_of(b"a", codec=Codec.ZSTD), 7, ErrorCode.NONE),
        (batch_of(b"a" * 2_000_000), 9, ErrorCode.MESSAGE_TOO_LARGE),
        (marker(), 9, ErrorCode.INVALID_RECORD),
    ],
)
async def test_records_that_cannot_be_are_refused(
    plane: DataPlane, records: bytes | None, version: int, error: ErrorCode
) -> None:
    partition = await plane.lead()

    answer = await one(plane, request_of(records), version)

    assert ErrorCode(answer.error_code) is error
    assert partition.log.log_end_offset == (0 if error else 1)
    assert error is ErrorCode.NONE or answer.base_offset == -1


async def test_one_bad_partition_does_not_harm_another(plane: DataPlane) -> None:
    await plane.lead(partition=0)
    await plane.lead(partition=2)

    answer = await produced(plane, request_of(batch_of(b"a"), batch_of(b"b"), damaged()))

    codes = [each.error_code for each in answer.responses[0].partition_responses]
    assert codes == [0, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.CORRUPT_MESSAGE)]


async def test_internal_topics_are_written_by_brokers_only(plane: DataPlane) -> None:
    await plane.lead("__consumer_offsets")
    request = request_of(batch_of(b"a"), topic="__consumer_offsets")

    assert (await one(plane, request)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (await one(plane, request, client_id="__admin_client")).error_code == 0


async def test_a_retry_of_an_idempotent_producer_gets_its_first_offset(plane: DataPlane) -> None:
    partition = await plane.lead()
    first = batch_of(b"a", b"b", producer_id=7, epoch=0, sequence=0)
    second = batch_of(b"c", producer_id=7, epoch=0, sequence=2)

    answers = [await one(plane, request_of(records)) for records in (first, second, first, second)]

    assert [each.base_offset for each in answers] == [0, 2, 0, 2]
    assert partition.log.log_end_offset == 3


async def test_a_gap_in_the_sequence_is_refused(plane: DataPlane) -> None:
    await plane.lead()
    await one(plane, request_of(batch_of(b"a", producer_id=7, epoch=0, sequence=0)))

    answer = await one(plane, request_of(batch_of(b"c", producer_id=7, epoch=0, sequence=2)))

    assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_the_topic_may_stamp_records_itself(plane: DataPlane) -> None:
    await plane.lead(message_timestamp_type="LogAppendTime")

    answer = await one(plane, request_of(batch_of(b"a")))

    assert answer.log_append_time_ms > 1_600_000_000_000


async def test_all_acks_wait_for_the_replicas(plane: DataPlane) -> None:
    partition = await plane.lead(isr=(1, 2), replicas=(1, 2))
    begun = produce.handle(plane.services, request_of(batch_of(b"a")), plane.context(ApiKey.PRODUCE, 9))
    assert isinstance(begun, Awaitable)
    waiting = asyncio.ensure_future(begun)
    await asyncio.sleep(0)
    assert not waiting.done()

    partition.fetched(2, 1, 0, now_ms=plane.environment.clock.now_ms())

    answer = await asyncio.wait_for(waiting, BOUND_S)
    assert answer is not None
    assert answer.responses[0].partition_responses[0].error_code == 0


async def test_one_ack_does_not_wait(plane: DataPlane) -> None:
    await plane.lead(isr=(1, 2), replicas=(1, 2))

    assert (await one(plane, request_of(batch_of(b"a"), acks=1))).error_code == 0


async def test_replicas_that_stay_away_time_out(plane: DataPlane) -> None:
    await plane.lead(isr=(1, 2), replicas=(1, 2))

    answer = await one(plane, request_of(batch_of(b"a"), timeout_ms=10))

    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_too_few_replicas_in_sync_refuse_all_acks_only(plane: DataPlane) -> None:
    partition = await plane.lead(isr=(1,), replicas=(1, 2, 3), min_insync_replicas="2")

    assert (await one(plane, request_of(batch_of(b"a")))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition.log.log_end_offset == 0
    assert (await one(plane, request_of(batch_of(b"a"), acks=1))).error_code == 0


async def test_waiting_produces_fail_when_the_leadership_ends(plane: DataPlane) -> None:
    await plane.lead(isr=(1, 2), replicas=(1, 2))
    begun = produce.handle(plane.services, request_of(batch_of(b"a")), plane.context(ApiKey.PRODUCE, 9))
    assert isinstance(begun, Awaitable)
    waiting = asyncio.ensure_future(begun)
    await asyncio.sleep(0)

    await plane.lead(leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))

    answer = await asyncio.wait_for(waiting, BOUND_S)
    assert answer is not None
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_topic_may_ask_for_the_disk_before_the_answer(plane: DataPlane) -> None:
    partition = await plane.lead(flush_before_acknowledge="true")

    answers = await asyncio.gather(*(one(plane, request_of(batch_of(b"a"))) for _ in range(10)))

    assert [each.base_offset for each in answers] == list(range(10))
    assert partition.log.recovery_point == 10


async def test_topics_are_measured(plane: DataPlane) -> None:
    await plane.lead()
    batch = batch_of(b"a", b"b")

    await one(plane, request_of(batch))
    await one(plane, request_of(damaged()))
    await one(plane, request_of(batch, topic="nowhere"))

    meters, for_all = plane.services.topic_metrics.of("t"), plane.services.topic_metrics.all_topics
    assert (meters.messages_in.count, meters.bytes_in.count) == (2, len(batch))
    assert (meters.produce_requests.count, meters.failed_produce_requests.count) == (2, 1)
    assert (for_all.produce_requests.count, for_all.failed_produce_requests.count) == (3, 2)


@pytest.mark.parametrize("version", range(9, 12))
async def test_a_produce_to_another_broker_than_the_leader_is_told_who_leads(
    plane: DataPlane, version: int
) -> None:
    await plane.lead(leader=2, leader_epoch=5, isr=(1, 2), replicas=(1, 2))

    answer = await produced(plane, request_of(batch_of(b"a"), None), version)

    first, unknown = answer.responses[0].partition_responses
    assert first.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if version < 10:
        assert (first.current_leader.leader_id, answer.node_endpoints) == (-1, [])
        return
    assert (first.current_leader.leader_id, first.current_leader.leader_epoch) == (2, 5)
    assert unknown.current_leader.leader_id == -1
    (node,) = answer.node_endpoints
    assert (node.node_id, node.host, node.port) == (2, "host-2", 9092)


async def test_a_produce_whose_leader_changes_while_it_waits_is_told_who_leads(plane: DataPlane) -> None:
    await plane.lead(isr=(1, 2), replicas=(1, 2))
    waiting = asyncio.ensure_future(produced(plane, request_of(batch_of(b"a"), timeout_ms=60_000), 11))
    await asyncio.sleep(0)

    await plane.lead(leader=2, leader_epoch=1, isr=(1, 2), replicas=(1, 2))

    answer = await asyncio.wait_for(waiting, BOUND_S)
    (one,) = answer.responses[0].partition_responses
    assert one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (2, 1)

"""Produce of transactional batches against real logs: the verification of the first one (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from ottla.broker.api.produce import general as produce
from ottla.broker.api.testing import DataPlane, batch_of
from ottla.broker.log.log import AppendOrigin
from ottla.broker.replication.replicas import HostedPartition
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import ControlType, end_transaction_marker
from ottla.protocol.topics import TopicPartition

BOUND_S = 60
ID = "payments"


def transactional(
    *values: bytes, sequence: int = 0, epoch: int = 0, producer_id: int = 7, is_transactional: bool = True
) -> bytes:
    return batch_of(
        *values, producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=is_transactional
    )


def request_of(*batches: bytes, transactional_id: str | None = ID) -> ProduceRequest:
    data = [PartitionProduceData(index=number, records=one) for number, one in enumerate(batches)]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=5_000,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )


async def produced(
    plane: DataPlane, request: ProduceRequest, version: int = 9
) -> list[PartitionProduceResponse]:
    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, version))
    if isinstance(answer, Awaitable):
        answer = await asyncio.wait_for(answer, BOUND_S)
    assert isinstance(answer, ProduceResponse)
    return answer.responses[0].partition_responses


async def code_of(plane: DataPlane, *batches: bytes, version: int = 9) -> int:
    return (await produced(plane, request_of(*batches), version))[0].error_code


def end(partition: HostedPartition, kind: ControlType = ControlType.COMMIT, *, epoch: int = 0) -> None:
    marker = end_transaction_marker(
        kind, producer_id=7, producer_epoch=epoch, coordinator_epoch=0, timestamp_ms=1
    )
    partition.append(marker, now_ms=1, origin=AppendOrigin.COORDINATOR)


async def test_the_first_batch_of_a_transaction_is_verified_and_the_others_are_not(plane: DataPlane) -> None:
    partition = await plane.lead()

    first = await code_of(plane, transactional(b"a"))
    second = await code_of(plane, transactional(b"b", sequence=1))

    assert (first, second) == (0, 0)
    assert plane.services.verification.asked == [ID]
    assert (partition.log.last_stable_offset, partition.high_watermark) == (0, 2)


async def test_each_transaction_is_verified_anew(plane: DataPlane) -> None:
    partition = await plane.lead()

    for sequence in range(3):
        assert await code_of(plane, transactional(b"a", sequence=sequence)) == 0
        end(partition)

    assert plane.services.verification.asked == [ID] * 3


@pytest.mark.parametrize(
    ("answered", "told"),
    [
        (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_a_batch_that_is_not_verified_is_not_appended(
    plane: DataPlane, answered: ErrorCode, told: ErrorCode
) -> None:
    partition = await plane.lead()
    plane.services.verification.error = answered

    assert await code_of(plane, transactional(b"a")) == told

    assert partition.log.log_end_offset == 0


async def test_a_marker_between_verification_and_append_keeps_the_batch_out(plane: DataPlane) -> None:
    partition = await plane.lead()
    gate = plane.services.verification.gate = asyncio.Event()
    answer = asyncio.ensure_future(code_of(plane, transactional(b"late")))
    await plane.services.verification.arrived.wait()

    end(partition, ControlType.ABORT)
    gate.set()

    assert await answer == ErrorCode.INVALID_TXN_STATE
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 1


async def test_a_guard_of_an_earlier_verification_does_not_let_a_late_batch_in(plane: DataPlane) -> None:
    partition = await plane.lead()
    gate = plane.services.verification.gate = asyncio.Event()
    late = asyncio.ensure_future(code_of(plane, transactional(b"late")))
    await plane.services.verification.arrived.wait()
    end(partition, ControlType.ABORT)
    # The producer's next transaction is being verified when the answer for the first one comes.
    partition.log.producers.begin_verification(7, 0, 0, 1)

    gate.set()

    assert await late == ErrorCode.INVALID_TXN_STATE
    assert partition.log.log_end_offset == 1


async def test_produces_behind_a_verification_are_appended_in_order(plane: DataPlane) -> None:
    partition = await plane.lead()
    gate = plane.services.verification.gate = asyncio.Event()
    first = asyncio.ensure_future(code_of(plane, transactional(b"a")))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(code_of(plane, transactional(b"b", sequence=1)))
    await asyncio.sleep(0)

    gate.set()

    assert [await first, await second] == [0, 0]
    assert partition.log.log_end_offset == 2


async def test_a_transaction_does_not_begin_behind_its_first_sequence_number(plane: DataPlane) -> None:
    partition = await plane.lead()
    partition.log.producers.begin_verification(7, 0, 0, 1)

    assert await code_of(plane, transactional(b"b", sequence=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    assert await code_of(plane, transactional(b"a")) == 0
    assert partition.log.log_end_offset == 1


async def test_a_late_batch_of_an_earlier_epoch_is_fenced_while_another_begins(plane: DataPlane) -> None:
    """Sequence numbers of different epochs are not compared."""
    partition = await plane.lead()
    assert await code_of(plane, transactional(b"a", epoch=1)) == 0
    end(partition, ControlType.ABORT, epoch=2)
    partition.log.producers.begin_verification(7, 3, 0, 1)

    late = await code_of(plane, transactional(b"b", epoch=1, sequence=1))

    assert late == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await code_of(plane, transactional(b"c", epoch=3)) == 0
    assert partition.log.log_end_offset == 3


async def test_a_verified_batch_is_late_once_the_successor_of_its_producer_begins(plane: DataPlane) -> None:
    partition = await plane.lead()
    gate = plane.services.verification.gate = asyncio.Event()
    late = asyncio.ensure_future(code_of(plane, transactional(b"late", epoch=1, sequence=1)))
    await plane.services.verification.arrived.wait()
    end(partition, ControlType.ABORT, epoch=2)
    partition.log.producers.begin_verification(7, 3, 0, 1)

    gate.set()

    assert await late == ErrorCode.INVALID_TXN_STATE
    assert await code_of(plane, transactional(b"c", epoch=3)) == 0
    assert partition.log.log_end_offset == 2


async def test_a_transactional_batch_needs_a_transactional_id(plane: DataPlane) -> None:
    await plane.lead()

    (answer,) = await produced(plane, request_of(transactional(b"a"), transactional_id=None))

    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert answer.error_message


async def test_a_request_is_of_one_producer(plane: DataPlane) -> None:
    await plane.lead(partition=0)
    await plane.lead(partition=1)

    answers = await produced(plane, request_of(transactional(b"a"), transactional(b"b", producer_id=8)))

    assert {one.error_code for one in answers} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


async def test_an_earlier_epoch_is_fenced(plane: DataPlane) -> None:
    partition = await plane.lead()
    assert await code_of(plane, transactional(b"a", epoch=1)) == 0

    assert await code_of(plane, transactional(b"b", epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH

    assert partition.log.log_end_offset == 1


async def test_a_batch_without_the_mark_is_refused_in_an_open_transaction(plane: DataPlane) -> None:
    await plane.lead()
    assert await code_of(plane, transactional(b"a")) == 0

    plain = transactional(b"b", sequence=1, is_transactional=False)

    assert await code_of(plane, plain) == ErrorCode.INVALID_TXN_STATE


async def test_nothing_is_verified_when_that_is_off(plane: DataPlane) -> None:
    partition = await plane.lead()
    plane.services.verification.is_enabled = False

    assert await code_of(plane, transactional(b"a")) == 0

    assert plane.services.verification.asked == []
    assert partition.log.last_stable_offset == 0


async def test_a_retry_within_the_transaction_gets_its_first_offset(plane: DataPlane) -> None:
    partition = await plane.lead()

    first = await produced(plane, request_of(transactional(b"a", b"b")))
    again = await produced(plane, request_of(transactional(b"a", b"b")))

    assert (first[0].base_offset, again[0].base_offset) == (0, 0)
    assert partition.log.log_end_offset == 2


# ---- version 2: partitions join their transaction with the first batch


JOINS = 12


async def test_a_partition_joins_its_transaction_with_the_first_batch(plane: DataPlane) -> None:
    await plane.lead()
    verification = plane.services.verification

    assert await code_of(plane, transactional(b"a"), version=JOINS) == 0
    assert await code_of(plane, transactional(b"b", sequence=1), version=JOINS) == 0

    assert (verification.asked, verification.joined) == ([ID], {TopicPartition("t", 0)})


async def test_a_partition_joins_also_where_verification_is_off(plane: DataPlane) -> None:
    await plane.lead()
    plane.services.verification.is_enabled = False

    assert await code_of(plane, transactional(b"a"), version=JOINS) == 0

    assert plane.services.verification.joined == {TopicPartition("t", 0)}


async def test_the_version_before_is_verified_and_does_not_join(plane: DataPlane) -> None:
    await plane.lead()

    assert await code_of(plane, transactional(b"a"), version=JOINS - 1) == 0

    assert (plane.services.verification.asked, plane.services.verification.joined) == ([ID], set())


@pytest.mark.parametrize(
    ("answered", "told"),
    [
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_a_batch_whose_partition_does_not_join_is_not_appended(
    plane: DataPlane, answered: ErrorCode, told: ErrorCode
) -> None:
    partition = await plane.lead()
    plane.services.verification.error = answered

    assert await code_of(plane, transactional(b"a"), version=JOINS) == told

    assert partition.log.log_end_offset == 0


async def test_the_next_transaction_does_not_get_into_the_one_that_lacks_its_marker(plane: DataPlane) -> None:
    """The producer has the next epoch from EndTxn, before the marker of the last one has arrived here."""
    partition = await plane.lead()
    assert await code_of(plane, transactional(b"a", epoch=4), version=JOINS) == 0
    plane.services.verification.error = ErrorCode.CONCURRENT_TRANSACTIONS

    early = await code_of(plane, transactional(b"b", epoch=5), version=JOINS)

    assert early == ErrorCode.CONCURRENT_TRANSACTIONS
    end(partition, epoch=5)
    plane.services.verification.error = ErrorCode.NONE
    assert await code_of(plane, transactional(b"b", epoch=5), version=JOINS) == 0
    assert partition.log.last_stable_offset == 2
    assert plane.services.verification.asked == [ID] * 3


@pytest.mark.parametrize("has_records", [True, False])
async def test_the_marker_of_the_last_transaction_leaves_the_verification_of_the_next(
    plane: DataPlane, *, has_records: bool
) -> None:
    """A coordinator answers for the next transaction when the last marker is written: here, and meanwhile."""
    partition = await plane.lead()
    if has_records:
        assert await code_of(plane, transactional(b"a", epoch=4), version=JOINS) == 0
        plane.services.verification.arrived.clear()
    gate = plane.services.verification.gate = asyncio.Event()
    early = asyncio.ensure_future(code_of(plane, transactional(b"b", epoch=5), version=JOINS))
    await plane.services.verification.arrived.wait()
    end(partition, epoch=5)

    gate.set()

    assert await early == ErrorCode.NONE
    assert partition.log.last_stable_offset == partition.log.log_end_offset - 1


async def test_the_marker_of_a_fence_takes_the_verification_of_what_it_fences(plane: DataPlane) -> None:
    partition = await plane.lead()
    gate = plane.services.verification.gate = asyncio.Event()
    late = asyncio.ensure_future(code_of(plane, transactional(b"a", epoch=5), version=JOINS))
    await plane.services.verification.arrived.wait()
    end(partition, ControlType.ABORT, epoch=6)

    gate.set()

    assert await late == ErrorCode.INVALID_TXN_STATE
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 1


async def test_a_batch_that_is_late_has_an_older_epoch_than_the_marker(plane: DataPlane) -> None:
    partition = await plane.lead()
    assert await code_of(plane, transactional(b"a", epoch=4), version=JOINS) == 0
    end(partition, epoch=5)

    late = await code_of(plane, transactional(b"b", epoch=4, sequence=1), version=JOINS)

    assert late == ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.log.last_stable_offset == partition.log.log_end_offset == 2


async def test_each_epoch_begins_with_sequence_0(plane: DataPlane) -> None:
    partition = await plane.lead()

    unknown = await code_of(plane, transactional(b"a", sequence=3), version=JOINS)
    assert unknown == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await code_of(plane, transactional(b"a"), version=JOINS) == 0
    end(partition, epoch=1)

    assert await code_of(plane, transactional(b"b", epoch=1, sequence=1), version=JOINS) == unknown
    assert await code_of(plane, transactional(b"b", epoch=1), version=JOINS) == 0

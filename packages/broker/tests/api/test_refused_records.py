"""Produce names the records for which a batch is refused (KIP-467)."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from ottla.broker.api.produce import general as produce
from ottla.broker.api.testing import DataPlane
from ottla.protocol.api import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records import BatchBuilder, Codec
from ottla.zookeeper.frozen_classes import replace

VERSION = 9


def batch(*records: tuple[bytes | None, int], codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(codec=codec)
    for key, timestamp_ms in records:
        builder.append(key, b"v", timestamp_ms)
    return builder.build()


async def answer_to(plane: DataPlane, records: bytes) -> PartitionProduceResponse:
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(acks=1, timeout_ms=5_000, topic_data=[data])
    answer = produce.handle(plane.services, request, plane.context(ApiKey.PRODUCE, VERSION))
    if isinstance(answer, Awaitable):
        answer = await answer
    assert answer is not None
    decoded = ProduceResponse.decode(answer.encode(VERSION), VERSION)
    return decoded.responses[0].partition_responses[0]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_records_without_a_key_are_named_where_a_topic_is_compacted(
    plane: DataPlane, codec: Codec
) -> None:
    partition = await plane.lead(cleanup_policy="compact")

    answer = await answer_to(plane, batch((b"k", 1), (None, 2), (b"l", 3), (None, 4), codec=codec))

    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in answer.record_errors] == [1, 3]
    assert all("key" in (one.batch_index_error_message or "") for one in answer.record_errors)
    assert "2 records have no key" in (answer.error_message or "")
    assert partition.log.log_end_offset == 0


async def test_records_whose_time_is_too_far_away_are_named(plane: DataPlane) -> None:
    partition = await plane.lead(message_timestamp_before_max_ms="1000")
    now_ms = plane.services.environment.clock.now_ms()

    answer = await answer_to(plane, batch((b"a", now_ms), (b"b", now_ms - 60_000), (b"c", now_ms)))

    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [one.batch_index for one in answer.record_errors] == [1]
    assert partition.log.log_end_offset == 0


async def test_only_so_many_records_are_named(plane: DataPlane) -> None:
    partition = await plane.lead(cleanup_policy="compact")
    partition.log.configure(replace(partition.log.config, max_message_bytes=10_000_000))

    answer = await answer_to(plane, batch(*((None, 1) for _ in range(1_500))))

    assert len(answer.record_errors) == 1_000

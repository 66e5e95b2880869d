"""Batches that the application fills: `create_batch` and `send_batch`."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.producer import (
    Producer,
    RecordTooLarge,
)
from ottla.protocol.records import decode_records
from peers.accepting_broker import batches, serving


def values(broker: ScriptedBroker) -> list[bytes | None]:
    return [record.value for batch in batches(broker) for record in decode_records(batch)]


async def test_a_batch_that_was_sent_still_knows_its_size_and_is_not_sent_again() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers) as producer:
            batch = producer.create_batch()
            batch.append(value=b"x")
            size = batch.size()
            await producer.send_batch(batch, "t", partition=0)

            assert (batch.record_count(), batch.size()) == (1, size)
            with pytest.raises(ValueError, match="was sent already"):
                await producer.send_batch(batch, "t", partition=0)


@pytest.mark.parametrize(("when", "error"), [(-5, ValueError), (1.5, TypeError), ("now", TypeError)])
async def test_a_filled_batch_rejects_an_invalid_timestamp(when: Any, error: type[Exception]) -> None:
    async with serving(ScriptedBroker()) as broker, Producer(broker.bootstrap_servers) as producer:
        batch = producer.create_batch()
        with pytest.raises(error):
            batch.append(value=b"x", timestamp=when)
        assert batch.record_count() == 0


async def test_a_batch_that_was_rejected_for_an_unknown_partition_can_be_sent_to_another() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, max_block_ms=50) as producer:
            batch = producer.create_batch()
            batch.append(value=b"x")
            with pytest.raises(ValueError, match="not 4294967296"):
                await producer.send_batch(batch, "t", partition=2**32)
            assert (await (await producer.send_batch(batch, "t", partition=0))).offset == 100


async def test_a_filled_batch_with_a_record_too_large_is_rejected() -> None:
    async with serving(ScriptedBroker()) as broker:
        async with Producer(broker.bootstrap_servers, max_request_size=1_000) as producer:
            batch = producer.create_batch()
            batch.append(value=bytes(2_000))
            with pytest.raises(RecordTooLarge):
                await producer.send_batch(batch, "t", partition=0)

    assert batches(broker) == []

"""Acknowledgements of batches that are split, or fail while they are packed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.client.testing import ScriptedBroker
from ottla.producer import Producer
from ottla.producer.accumulator import Accumulator, Acknowledgement, Appender, Batch
from ottla.protocol.errors import ErrorCode
from peers.accepting_broker import serving


def accumulator() -> Accumulator:
    return Accumulator(
        batch_size=10_000,
        linger_ms=0,
        buffer_memory=100_000,
        max_record_size=10_000,
        monotonic_ms=lambda: 0.0,
    )


def halved(where: Accumulator, batch: Batch) -> list[Batch]:
    batch.pack(0, None)
    batch.write_header(0, 1, 0, 0)
    parts = where.halves(batch, 0, None)
    where.split(batch, parts)
    return parts


def sent(where: Accumulator, count: int) -> tuple[Batch, list[Acknowledgement]]:
    info = where.update_topic("t", 1, [0])
    appender = Appender(where)
    records = [appender.append(info, None, b"%d" % number, 0, None, None) for number in range(count)]
    [batch] = where.incomplete_batches()
    where.drain(batch)
    return batch, records


@pytest.mark.parametrize("waits", ["before", "after"])
async def test_acknowledgements_of_a_batch_that_was_split_twice_wait_for_the_parts(waits: str) -> None:
    where = accumulator()
    whole, records = sent(where, 4)
    early = [asyncio.ensure_future(one) for one in records] if waits == "before" else []
    await asyncio.sleep(0)

    first, second = halved(where, whole)
    parts = [*halved(where, first), second]
    late = [asyncio.ensure_future(one) for one in records]
    await asyncio.sleep(0)
    for number, part in enumerate(parts):
        part.succeed(10 * number, -1)

    found = await asyncio.wait_for(asyncio.gather(*early, *late), 5)
    assert [each.offset for each in found] == [0, 10, 20, 21] * (2 if early else 1)


async def test_a_waiter_that_is_cancelled_cancels_no_other() -> None:
    where = accumulator()
    whole, [record] = sent(where, 1)
    impatient, patient = asyncio.ensure_future(record), asyncio.ensure_future(record)
    await asyncio.sleep(0)

    impatient.cancel()
    whole.succeed(7, -1)

    assert (await asyncio.wait_for(patient, 60)).offset == 7
    assert impatient.cancelled() or not impatient.done()
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_a_failed_batch_is_not_packed() -> None:
    where = accumulator()
    whole, [record] = sent(where, 1)

    whole.fail(ConnectionError("gone"))
    whole.pack(1, None)

    assert whole.data is None
    with pytest.raises(ConnectionError):
        await record


async def test_without_the_memory_to_split_a_batch_others_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [0, ErrorCode.MESSAGE_TOO_LARGE]
    async with serving(ScriptedBroker(), lambda: errors.pop()) as broker:
        async with Producer(broker.bootstrap_servers, compression_type="gzip") as producer:

            class Small:
                def __getattr__(self, name: str) -> Any:
                    return getattr(producer._accumulator, name)

                def halves(self, *_: Any) -> Any:
                    raise MemoryError

            monkeypatch.setattr(producer._sender._completion, "_accumulator", Small())
            with pytest.raises(MemoryError):
                await (await producer.send_many("t", [b"a", b"b"]))
            await producer.send_and_wait("t", b"last")

"""Records that wait for metadata: appended in order, or failed."""

from __future__ import annotations

import asyncio

import pytest

from ottla.producer import ProducerRecord
from ottla.producer.accumulator import Accumulator, Acknowledgement, Appender
from ottla.producer.append.pending_metadata import PendingMetadata


def record(value: bytes) -> ProducerRecord:
    return ProducerRecord("t", value)


async def test_pending_records_are_appended_in_order_and_their_acknowledgements_follow() -> None:
    accumulator = Accumulator(
        batch_size=1_000, linger_ms=0, buffer_memory=9_999, max_record_size=999, monotonic_ms=lambda: 0.0
    )
    appender, info = Appender(accumulator), accumulator.update_topic("t", 1, [0])
    failures: list[BaseException] = []
    pending = PendingMetadata(failures.append)
    first, wrong, last = (pending.add(record(value)) for value in (b"a", b"wrong", b"b"))
    assert (pending.counts(), pending.size_bytes) == ({"t": 3}, 3 * 40 + 7)
    assert first.topic_partition is None

    def append(one: ProducerRecord) -> Acknowledgement:
        if one.value == b"wrong":
            raise ValueError("no such partition")
        return appender.append(info, None, one.value, 0, None, None)

    pending.append_all("t", 1, append)
    async with asyncio.timeout(60):
        await pending.resolved()
    (batch,) = accumulator.incomplete_batches()
    batch.succeed(100, -1)

    assert [(await each).offset for each in (first, last)] == [100, 101]
    with pytest.raises(ValueError, match="no such partition"):
        await wrong
    assert [str(error) for error in failures] == ["no such partition"]
    assert "t" not in pending


async def test_records_of_a_topic_that_is_not_found_fail_and_so_does_their_transaction() -> None:
    failures: list[BaseException] = []
    pending = PendingMetadata(failures.append)
    waiting = pending.add(record(b"a"))
    resolved = asyncio.create_task(pending.resolved())
    await asyncio.sleep(0)

    pending.fail_all(KeyError("t"))

    with pytest.raises(KeyError):
        await waiting
    async with asyncio.timeout(60):
        await resolved
    assert len(failures) == 1


async def test_records_of_a_later_partition_wait_until_the_topic_has_it_and_flush_waits_for_them() -> None:
    accumulator = Accumulator(
        batch_size=1_000, linger_ms=0, buffer_memory=9_999, max_record_size=999, monotonic_ms=lambda: 0.0
    )
    appender, info = Appender(accumulator), accumulator.update_topic("t", 1, [0])
    pending = PendingMetadata()
    first, later = (pending.add(ProducerRecord("t", b"x", partition=partition)) for partition in (0, 2))
    seen: list[int] = []
    later.add_done_callback(lambda sent: seen.append(sent.offset))
    resolved = asyncio.create_task(pending.resolved())
    await asyncio.sleep(0)

    def append(record: ProducerRecord) -> Acknowledgement:
        return appender.append(info, None, record.value, record.partition, None, None)

    pending.append_all("t", 1, append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (pending.counts(), pending.highest_partition("t"), resolved.done()) == ({"t": 1}, 2, False)
    assert (str(first.topic_partition), later.topic_partition) == ("t-0", None)

    accumulator.update_topic("t", 3, [0, 1, 2])
    pending.append_all("t", 3, append)
    async with asyncio.timeout(60):
        await resolved
        for batch in accumulator.incomplete_batches():
            batch.succeed(7, -1)
        await later
    await asyncio.sleep(0)
    assert (pending.highest_partition("t"), later.offset, seen) == (None, 7, [7])

"""The cleaner in logs with batches that cannot be read: from before they were refused, or replicated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import pytest

from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.compaction.cleaner_testing import clean, registry
from ottla.broker.log.log import Log
from ottla.broker.log.testing import batch, commit
from ottla.protocol.errors import KafkaError
from ottla.protocol.records import (
    Codec,
    Record,
    iter_records,
    read_header,
    scan_records,
    split_batches,
    validate_batch,
)
from ottla.protocol.topics import TopicPartition
from peers.crafted_batches import FIRST_OFFSET, CraftedBatch, crafted_batches

PARTITION: Final = TopicPartition("compacted", 0)
KEYS: Final = (b"key", b"other")


def corpus() -> list[CraftedBatch]:
    """The batches that a follower takes: their headers are right, and no leader has opened them."""
    return [crafted for crafted in crafted_batches() if has_right_header(crafted.data)]


def has_right_header(data: bytes) -> bool:
    try:
        validate_batch(data)
    except KafkaError:
        return False
    return True


def append_at_end(log: Log, data: bytes) -> None:
    log.append_as_follower(data[:12] + bytes(4) + data[16:], now_ms=1)


def good(log: Log, number: int) -> bytes:
    """A batch with a value for each of the two keys, one of which the crafted batches have, too."""
    return batch(b"%d" % number, b"%d" % number, keys=KEYS, base_offset=log.log_end_offset)


def fill(log: Log, crafted: Sequence[CraftedBatch]) -> None:
    """Append good batches around each crafted one, and roll the segment that would be active."""
    for number, one in enumerate(crafted):
        append_at_end(log, good(log, 2 * number))
        append_at_end(log, one.at(log.log_end_offset))
        append_at_end(log, good(log, 2 * number + 1))
    for number in range(20):
        append_at_end(log, good(log, 1_000_000 + number))
    commit(log)
    log.flush()


def stored(log: Log) -> list[bytes]:
    data = b"".join(segment.file.pread(segment.size, 0) for segment in log.segments)
    return [bytes(entry) for entry in split_batches(data)]


def at(log: Log, offset: int) -> bytes | None:
    """The batch with that base offset, if it is there."""
    return next((data for data in stored(log) if int.from_bytes(data[:8], "big") == offset), None)


def is_readable(data: bytes) -> bool:
    try:
        validate_batch(data, check_records=True)
        scan_records(data)
    except KafkaError:
        return False
    return True


def readable_records(log: Log) -> list[Record]:
    return [record for data in stored(log) if is_readable(data) for record in iter_records(data)]


@pytest.mark.parametrize("crafted", corpus(), ids=lambda one: one.name)
async def test_a_batch_that_cannot_be_read_stays_and_the_others_are_compacted(crafted: CraftedBatch) -> None:
    async with registry(log_segment_bytes=600) as logs:
        log = logs.create(PARTITION)
        fill(log, [crafted])
        active, before = log.segments[-1].base_offset, at(log, FIRST_OFFSET)

        assert await clean(logs) == 1

        assert at(log, FIRST_OFFSET) == (None if crafted.is_legal else before)
        last = [record.offset for record in readable_records(log) if record.offset < active]
        assert last == [active - 2, active - 1]
        assert log.cleaned_offset == active
        assert await clean(logs) == 0


async def test_no_record_falls_to_the_keys_of_a_batch_that_cannot_be_read() -> None:
    """The key in front of the fault would supersede the last readable value of that key."""
    (crafted,) = [one for one in corpus() if one.name == "value-length-max/none/last"]
    async with registry(log_segment_bytes=600) as logs:
        log = logs.create(PARTITION)
        append_at_end(log, batch(b"before", keys=[b"key"], base_offset=0))
        append_at_end(log, crafted.at(1))
        for number in range(20):
            append_at_end(log, batch(b"%d" % number, keys=[b"other"], base_offset=log.log_end_offset))
        commit(log)
        log.flush()

        assert await clean(logs) == 1

        assert [record.value for record in readable_records(log) if record.key == b"key"] == [b"before"]


async def test_each_batch_that_cannot_be_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    unreadable = [one for one in corpus() if not one.is_legal and one.codec is Codec.GZIP][:2]
    async with registry(log_segment_bytes=600, log_cleaner_min_cleanable_ratio=0.01) as logs:
        log, cleaner = logs.create(PARTITION), Cleaner(logs)
        fill(log, unreadable)
        offsets = [read_header(data).base_offset for data in stored(log) if not is_readable(data)]
        with caplog.at_level(logging.WARNING, "log-cleaner"):
            await cleaner.clean_next(now_ms=10_000)
            fill(log, [])
            await cleaner.clean_next(now_ms=10_000)

        facts = [(record.__dict__["partition"], record.__dict__["offset"]) for record in caplog.records]
        assert facts == [(str(PARTITION), offset) for offset in offsets]
        assert log.cleaned_offset == log.segments[-1].base_offset


async def test_a_log_with_thousands_of_them_is_logged_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    (crafted,) = [one for one in corpus() if one.name == "value-length-max/none/last"]
    async with registry(log_segment_bytes=100_000) as logs:
        log = logs.create(PARTITION)
        for _ in range(3_000):
            append_at_end(log, crafted.at(log.log_end_offset))
        commit(log)
        log.flush()
        with caplog.at_level(logging.WARNING, "log-cleaner"):
            assert await clean(logs) == 1

        assert 1 <= len(caplog.records) <= 20

"""The cleaner on logs with messages of formats 0 and 1, compressed sets among them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from ottla.broker.log.compaction.cleaner import Cleaner
from ottla.broker.log.compaction.cleaner_testing import registry
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.hosting.registry import LogRegistry
from ottla.broker.log.log import Log
from ottla.broker.log.testing import append, commit, records_of
from ottla.protocol.records import (
    NO_TIMESTAMP,
    Codec,
    Record,
    convert_down,
    decode_records,
    legacy,
    magic_at,
    split_batches,
)
from ottla.protocol.records.legacy import LegacyRecord, encode_set
from ottla.protocol.storage.segments import SegmentFile
from ottla.protocol.topics import TopicPartition

PARTITION = TopicPartition("compacted", 0)
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
KEYS = 6
DAY_MS = 86_400_000


def follow(log: Log, sets: Iterator[bytes]) -> None:
    """Append message sets as a leader of an older format has them; their files are of one time."""
    for one in sets:
        log.append_as_follower(one, 1_000)
    commit(log)
    log.flush()
    dated(log, 1_000)


def dated(log: Log, modified_ms: int, first: int = 0) -> None:
    for segment in log.segments.all[first:]:
        log.files.set_modified_ms(segment.path(SegmentFile.LOG), modified_ms)


def some_sets(
    chance: Random, magic: int, codec: Codec, start: int, count: int = 60, *, tombstones: float = 0.2
) -> Iterator[bytes]:
    """Message sets of up to five messages, with gaps between them."""
    offset = start
    for _ in range(count):
        messages = []
        for _ in range(chance.randrange(1, 6)):
            value = None if chance.random() < tombstones else b"value of %d" % offset
            messages.append(LegacyRecord(offset, 5_000 + offset, b"key %d" % chance.randrange(KEYS), value))
            offset += chance.choice((1, 1, 1, 2))
        yield encode_set(messages, magic, codec=codec)


async def clean(logs: LogRegistry, now_ms: int = 10_000) -> int:
    cleaner, count = Cleaner(logs), 0
    while await cleaner.clean_next(now_ms):
        count += 1
    return count


def entries_of(log: Log) -> Iterator[memoryview]:
    for segment in log.segments:
        yield from split_batches(segment.file.pread(segment.size, 0))


def newest_of(records: list[Record]) -> dict[bytes | None, Record]:
    return {one.key: one for one in sorted(records, key=lambda one: one.offset)}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("seed", range(3))
async def test_the_last_message_of_each_key_is_left_where_it_was(magic: int, codec: Codec, seed: int) -> None:
    files = MemoryFiles()
    async with registry(files) as logs:
        log = logs.create(PARTITION)
        follow(log, some_sets(Random(seed), magic, codec, seed))
        before, end = records_of(log), log.log_end_offset
        active = log.segments[-1].base_offset

        assert await clean(logs) == 1

        left = records_of(log)
        dirty = [one for one in before if one.offset >= active]
        newest = newest_of([one for one in before if one.offset < active])
        assert [one for one in left if one.offset >= active] == dirty
        # Tombstones are kept once: their retention begins with the first cleaning.
        assert [one for one in left if one.offset < active] == sorted(
            newest.values(), key=lambda one: one.offset
        )
        assert (log.log_end_offset, log.cleaned_offset) == (end, active)
        check_entries(log, magic, codec)
        assert await clean(logs) == 0
    async with registry(files) as logs:
        again = logs.get(PARTITION)
        assert again is not None
        assert (records_of(again), again.log_end_offset) == (left, end)


def check_entries(log: Log, magic: int, codec: Codec) -> None:
    """Messages keep format and codec, have right checksums, and offsets rise across them."""
    last = -1
    for entry in entries_of(log):
        if magic_at(entry) == 2:
            assert decode_records(entry) == [], "only a set without messages changes its format"
            continue
        stored = legacy.read_entry(entry)
        assert (stored.magic, stored.codec) == (magic, codec)
        offsets = [one.offset for one in legacy.iter_records(entry)]
        assert offsets[0] > last
        assert offsets == sorted(offsets)
        last = offsets[-1]
        assert stored.offset == last


@pytest.mark.parametrize("codec", CODECS)
async def test_what_is_left_goes_to_older_clients_too(codec: Codec) -> None:
    async with registry(MemoryFiles()) as logs:
        log = logs.create(PARTITION)
        follow(log, some_sets(Random(1), 1, codec, 0))
        await clean(logs)
        left = records_of(log)

        down = [one for entry in entries_of(log) for one in decode_records(convert_down(entry, 0))]

        assert [(one.offset, one.key, one.value) for one in down] == [
            (one.offset, one.key, one.value) for one in left
        ]
        assert {one.timestamp_ms for one in down} == {NO_TIMESTAMP}


@pytest.mark.parametrize("magic", [0, 1])
async def test_tombstones_go_with_the_age_of_their_segment(magic: int) -> None:
    files = MemoryFiles()
    async with registry(files, log_cleaner_delete_retention_ms=DAY_MS) as logs:
        log = logs.create(PARTITION)
        follow(log, some_sets(Random(2), magic, Codec.GZIP, 0, tombstones=1))
        assert await clean(logs) == 1
        kept = [one for one in records_of(log) if one.offset < (log.cleaned_offset or 0)]
        assert len(kept) == KEYS, "their retention begins with the first cleaning"

        follow(log, some_sets(Random(3), magic, Codec.NONE, log.log_end_offset, tombstones=0))
        assert await clean(logs) == 1
        follow(log, some_sets(Random(4), magic, Codec.NONE, log.log_end_offset, tombstones=0))
        dated(log, 1_001 + DAY_MS, first=1)
        assert await clean(logs) == 1

        left = [one for one in records_of(log) if one.offset < (log.cleaned_offset or 0)]
        assert None not in [one.value for one in left]
        assert {one.key for one in left} == {b"key %d" % number for number in range(KEYS)}


async def test_a_key_of_a_new_batch_takes_the_place_of_an_old_message() -> None:
    async with registry(MemoryFiles()) as logs:
        log = logs.create(PARTITION)
        follow(log, some_sets(Random(5), 0, Codec.SNAPPY, 0, tombstones=0))
        for number in range(40):
            append(log, b"new %d" % number, keys=[b"key %d" % (number % KEYS)])
        log.flush()
        active = log.segments[-1].base_offset

        assert await clean(logs) == 1

        left = [one for one in records_of(log) if one.offset < active]
        assert len(left) == KEYS
        assert all((one.value or b"").startswith(b"new") for one in left)


async def test_a_damaged_set_ends_the_cleaning_and_nothing_is_lost() -> None:
    async with registry(MemoryFiles()) as logs:
        log = logs.create(PARTITION)
        follow(log, some_sets(Random(6), 1, Codec.GZIP, 0))
        before = [one.base_offset for one in log.segments]
        file = log.segments[0].file
        file.pwrite(bytes([file.pread(1, 60)[0] ^ 1]), 60)

        await clean(logs)

        assert [one.base_offset for one in log.segments] == before
        assert log.cleaned_offset is None

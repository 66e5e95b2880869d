"""Plain batches are indexed and copied many at a time, with the same outcome as one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.log.compaction.offset_map import OffsetMap, PlainCopy, retained
from ottla.broker.log.files.fake_files import MemoryFiles
from ottla.broker.log.segments.index_building import IndexBuilder
from ottla.broker.log.segments.scan import describe
from ottla.broker.log.segments.segment import Segment
from ottla.protocol.records import BatchBuilder, Codec, read_header, split_batches
from ottla.protocol.storage.segments import SegmentFile

HASH_KEY = bytes(range(16))
NOW_MS, HORIZON_MS, INTERVAL = 50_000, 60_000, 200
BOUND = 1 << 20

RECORDS = st.lists(
    st.tuples(st.sampled_from([None, *(b"key %d" % one for one in range(12))]), st.binary(max_size=40)),
    min_size=1,
    max_size=6,
)
BATCHES = st.lists(st.tuples(RECORDS, st.integers(-1, 3), st.integers(0, 10_000)), max_size=30)


def built(drawn: list[tuple[list[tuple[bytes | None, bytes]], int, int]]) -> list[bytes]:
    found, offset = [], 0
    for records, producer_id, timestamp_ms in drawn:
        builder = BatchBuilder(BOUND)
        for number, (key, value) in enumerate(records):
            builder.append(key, value, timestamp_ms + number * 7)
        sequence = 0 if producer_id >= 0 else -1
        found.append(
            builder.build(
                base_offset=offset, producer_id=producer_id, producer_epoch=sequence, base_sequence=sequence
            )
        )
        offset += len(records)
    return found


def a_map(slots: int = 100) -> OffsetMap:
    return OffsetMap(slots, 0.9, HASH_KEY)


def mapped(batches: list[bytes], upto: int) -> OffsetMap:
    keys = a_map()
    for one in batches[:upto]:
        assert keys.add(one, 0, max_decompressed_bytes=BOUND)
        keys.latest_offset = read_header(one).last_offset
    return keys


@given(BATCHES, st.integers(0, 100), st.integers(2, 12))
def test_keys_of_plain_batches_are_added_as_one_by_one(
    drawn: list[tuple[list[tuple[bytes | None, bytes]], int, int]], from_offset: int, slots: int
) -> None:
    batches, many, single = built(drawn), a_map(slots), a_map(slots)

    taken = many.add_plain(b"".join(batches), from_offset)

    expected = 0
    for one in batches:
        if not single.add(one, from_offset, max_decompressed_bytes=BOUND):
            break
        expected += len(one)
        if read_header(one).last_offset >= from_offset:
            single.latest_offset = read_header(one).last_offset
    assert taken == expected
    assert (many.latest_offset, many.count) == (single.latest_offset, single.count)
    for number in range(12):
        assert many.get(b"key %d" % number) == single.get(b"key %d" % number)


class _OneByOne:
    """Copies batches as the general path does, with the index of their segment."""

    def __init__(self, keys: OffsetMap, last_offsets: list[int]) -> None:
        self.files = MemoryFiles()
        self.segment = a_segment(self.files)
        self.indexes = IndexBuilder(self.segment, INTERVAL, 10_000)
        self.copied = b""
        self.is_changed = False
        self._keys, self._last_offsets = keys, last_offsets

    def take(self, batch: bytes) -> bool:
        """Take a batch, unless it has to be emptied."""
        kept = retained(batch, self._keys, NOW_MS, HORIZON_MS, marked=False, max_decompressed_bytes=BOUND)
        header = read_header(batch)
        if kept is None:
            if header.has_producer_id and header.last_offset in self._last_offsets:
                return False
            self.is_changed = True
            return True
        self.indexes.add(describe(len(self.copied), memoryview(kept)))
        self.copied += bytes(kept)
        self.is_changed = self.is_changed or kept is not batch
        return True


def a_segment(files: MemoryFiles) -> Segment:
    segment = Segment(files, Path("/"), 0)
    segment.create()
    return segment


def indexed(files: MemoryFiles, segment: Segment, indexes: IndexBuilder) -> tuple[bytes, bytes, int, int]:
    indexes.finish()
    offsets, times = (
        files.read(segment.path(kind)) for kind in (SegmentFile.OFFSET_INDEX, SegmentFile.TIME_INDEX)
    )
    return offsets, times, segment.max_timestamp, segment.first_timestamp


def chunks(batches: list[bytes], each: int) -> Iterator[bytes]:
    for start in range(0, len(batches), each):
        yield b"".join(batches[start : start + each])


@given(BATCHES, st.integers(0, 30), st.integers(1, 30))
def test_plain_batches_are_copied_and_indexed_as_one_by_one(
    drawn: list[tuple[list[tuple[bytes | None, bytes]], int, int]], upto: int, each: int
) -> None:
    batches = built(drawn)
    keys, last_offsets = mapped(batches, upto), sorted(read_header(one).last_offset for one in batches[::4])
    files = MemoryFiles()
    segment = a_segment(files)
    indexes, copy = IndexBuilder(segment, INTERVAL, 10_000), PlainCopy(keys, NOW_MS, last_offsets)
    single, copied = _OneByOne(keys, last_offsets), b""

    for chunk in chunks(batches, each):
        room = bytearray(len(chunk))
        indexes.begin_copy(copy, len(copied))
        taken, size, entries = copy.copy(chunk, room, spares_last=False)
        indexes.end_copy(copy, entries)
        copied += room[:size]
        before = 0
        for one in split_batches(chunk):
            if not single.take(bytes(one)):
                break
            before += len(one)
        assert taken == before
        if taken < len(chunk):
            break

    assert copied == single.copied
    expected = indexed(single.files, single.segment, single.indexes)
    assert indexed(files, segment, indexes) == expected
    assert copy.is_changed == single.is_changed


def plain(*values: bytes | None, base_offset: int = 0, codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(BOUND, codec=codec)
    for number, value in enumerate(values):
        builder.append(b"key %d" % number, value, 1_000)
    return builder.build(base_offset=base_offset)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


def transactional() -> bytes:
    builder = BatchBuilder(BOUND)
    builder.append(b"key 0", b"value", 1_000)
    return builder.build(base_offset=1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)


@pytest.mark.parametrize(
    "other",
    [
        damaged(plain(b"value", base_offset=1)),
        plain(b"value", base_offset=1)[:-1],
        plain(b"value", base_offset=1)[:30],
        plain(b"value", base_offset=1, codec=Codec.LZ4),
        transactional(),
        b"",
    ],
    ids=["damaged", "torn", "torn in its header", "compressed", "transactional", "nothing"],
)
def test_the_next_batch_that_is_not_plain_is_left(other: bytes) -> None:
    first, keys = plain(b"value"), a_map()

    assert keys.add_plain(first + other, 0) == len(first)

    room = bytearray(len(first + other))
    copy = PlainCopy(keys, NOW_MS, ())
    assert copy.copy(first + other, room, spares_last=False) == (len(first), len(first), [])
    assert room[: len(first)] == first


def test_a_tombstone_that_needs_a_delete_horizon_is_left() -> None:
    first, tombstone, keys = plain(b"value"), plain(None, base_offset=1), a_map()
    keys.add_plain(first + tombstone, 0)

    copy = PlainCopy(keys, NOW_MS, ())
    assert copy.copy(first + tombstone, bytearray(500), spares_last=False) == (len(first), 0, [])
    assert copy.is_changed


def test_the_last_batch_is_spared() -> None:
    first, last, keys = plain(b"value"), plain(b"value", base_offset=1), a_map()

    copy = PlainCopy(keys, NOW_MS, ())

    assert copy.copy(first + last, bytearray(500), spares_last=True)[0] == len(first)
    assert copy.copy(first + last, bytearray(500), spares_last=False)[0] == len(first + last)
    assert not copy.is_changed


def test_a_copy_wants_room_for_all_batches_and_a_map() -> None:
    first, keys = plain(b"value"), a_map()
    copy = PlainCopy(keys, NOW_MS, ())

    with pytest.raises(ValueError, match="room"):
        copy.copy(first, bytearray(len(first) - 1), spares_last=False)
    keys.release()
    with pytest.raises(ValueError, match="released"):
        copy.copy(first, bytearray(len(first)), spares_last=False)

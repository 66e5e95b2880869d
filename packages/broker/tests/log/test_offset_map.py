"""The offset map holds the newest offset of each key, and decides what is kept of a batch."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.log.compaction.offset_map import SLOT_BYTES, OffsetMap, retained, slots_for
from ottla.broker.log.testing import batch
from ottla.protocol.records import (
    BatchBuilder,
    Buffer,
    Codec,
    CorruptRecords,
    DecompressedTooLarge,
    Record,
    decode_records,
    read_header,
    validate_batch,
)

HASH_KEY = bytes(range(16))
NOW_MS = 50_000
HORIZON_MS = 60_000
BOUND = 1 << 20


def a_map(slots: int = 1_000, load_factor: float = 0.9) -> OffsetMap:
    return OffsetMap(slots, load_factor, HASH_KEY)


def kept_of(data: Buffer, keys: OffsetMap, *, now_ms: int = NOW_MS, marked: bool = False) -> Buffer | None:
    return retained(data, keys, now_ms, HORIZON_MS, marked=marked, max_decompressed_bytes=BOUND)


def tombstones(*keys: bytes, base_offset: int = 0, codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(codec=codec)
    for number, key in enumerate(keys):
        builder.append(key, None, 1_000 + number)
    return builder.build(base_offset=base_offset)


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**62)), max_size=300))
def test_the_newest_offset_of_each_key_is_found(puts: list[tuple[bytes, int]]) -> None:
    keys, known = a_map(), dict(puts)

    assert all(keys.put(key, offset) for key, offset in puts)

    assert {key: keys.get(key) for key in known} == known
    assert len(keys) == len(known)
    assert keys.get(b"a key of more than 40 bytes is not among the keys put") == -1


def test_a_released_map_takes_and_finds_nothing() -> None:
    keys = a_map()
    keys.put(b"key", 1)

    keys.release()
    keys.release()

    assert not keys.put(b"key", 2)
    assert not keys.add(batch(b"value", keys=[b"key"]), 0, max_decompressed_bytes=BOUND)
    assert len(keys) == 1
    with pytest.raises(ValueError, match="released"):
        keys.get(b"key")
    with pytest.raises(ValueError, match="released"):
        kept_of(batch(b"value", keys=[b"key"]), keys)


def test_a_map_takes_keys_up_to_its_load_factor() -> None:
    keys = a_map(100, 0.5)

    assert [keys.put(b"%d" % number, number) for number in range(60)] == [True] * 50 + [False] * 10

    assert (keys.count, keys.most, keys.slots) == (50, 50, 100)
    assert keys.get(b"55") == -1


@pytest.mark.parametrize(("slots", "hash_key"), [(1, HASH_KEY), (10, b"short")])
def test_a_map_without_room_or_key_is_refused(slots: int, hash_key: bytes) -> None:
    with pytest.raises(ValueError, match="2 slots"):
        OffsetMap(slots, 0.9, hash_key)


def test_a_map_is_as_large_as_its_records_need_and_the_memory_allows() -> None:
    assert slots_for(900, 1 << 30, 0.9) == pytest.approx(1_000, abs=3)
    assert slots_for(10**9, 1 << 20, 0.9) == (1 << 20) // SLOT_BYTES
    assert slots_for(0, 1 << 20, 0.9) >= 2


@pytest.mark.parametrize("codec", Codec)
def test_keys_of_a_batch_are_added_from_an_offset_on(codec: Codec) -> None:
    keys = a_map()
    data = batch(b"1", b"2", b"3", keys=[b"a", b"b", b"a"], codec=codec, base_offset=10)

    assert keys.add(data, 11, max_decompressed_bytes=BOUND)

    assert (keys.get(b"a"), keys.get(b"b"), keys.count) == (12, 11, 2)


def test_a_batch_that_does_not_fit_is_added_in_part() -> None:
    keys = a_map(10, 0.3)

    assert not keys.add(
        batch(*[b"v"] * 5, keys=[b"%d" % number for number in range(5)]), 0, max_decompressed_bytes=BOUND
    )

    assert keys.count == 3


@pytest.mark.parametrize("codec", Codec)
def test_what_is_kept_of_a_batch_is_what_a_plain_loop_keeps(codec: Codec) -> None:
    for seed in range(60):
        chance, keys = Random(seed), a_map()
        keys.latest_offset = chance.randrange(95, 125)
        newest = {b"k%d" % number: chance.randrange(90, 120) for number in range(chance.randrange(8))}
        for key, offset in newest.items():
            keys.put(key, offset)
        data = a_random_batch(chance, codec)
        wanted = [one for one in decode_records(data) if is_wanted(one, newest, keys.latest_offset)]

        kept = kept_of(data, keys)

        assert (decode_records(kept) if kept is not None else []) == wanted
        if kept is not None:
            check_kept(data, kept, wanted)


def a_random_batch(chance: Random, codec: Codec) -> bytes:
    builder = BatchBuilder(1 << 20, codec=codec)
    delta = 0
    for _ in range(chance.randrange(1, 40)):
        key = chance.choice([None, *(b"k%d" % number for number in range(10))])
        value = chance.choice([None, bytes(chance.randrange(200))])
        headers = [("h", b"x")] if chance.random() < 0.3 else None
        builder.append(key, value, chance.randrange(1_000, 2**40), headers, offset_delta=delta)
        delta += chance.randrange(1, 3)
    return builder.build(base_offset=100, producer_id=3, producer_epoch=1, base_sequence=4)


def is_wanted(record: Record, newest: dict[bytes, int], latest_offset: int) -> bool:
    if record.offset > latest_offset:
        return True
    return record.key is not None and record.offset >= newest.get(record.key, -1)


def check_kept(data: bytes, kept: Buffer, wanted: list[Record]) -> None:
    before, after = read_header(data), validate_batch(kept, check_records=True)
    for name in ("base_offset", "last_offset", "producer_id", "base_sequence", "codec"):
        assert getattr(after, name) == getattr(before, name)
    assert after.max_timestamp == max(one.timestamp_ms for one in wanted)
    has_tombstone = any(one.value is None for one in wanted)
    assert after.has_delete_horizon == has_tombstone
    assert after.base_timestamp == (HORIZON_MS if has_tombstone else before.base_timestamp)
    if len(wanted) == before.record_count and not has_tombstone:
        assert kept is data


def test_a_tombstone_is_kept_until_its_delete_horizon() -> None:
    keys = a_map()
    keys.latest_offset = 100
    data = tombstones(b"a", b"b")

    first = kept_of(data, keys)
    assert first is not None
    assert decode_records(first) == decode_records(data)
    assert kept_of(first, keys, now_ms=HORIZON_MS - 1) is first
    assert kept_of(first, keys, now_ms=HORIZON_MS) is None


def test_the_log_append_time_stays_the_time_of_every_record() -> None:
    builder = BatchBuilder()
    builder.append(b"a", None, 5)
    builder.append(b"b", b"1", 900)
    data = builder.build(log_append_time_ms=700)
    keys = a_map()
    keys.latest_offset = 10

    kept = kept_of(data, keys)

    assert kept is not None
    assert {one.timestamp_ms for one in decode_records(kept)} == {700}


def test_a_marked_batch_keeps_its_records_and_gets_a_horizon() -> None:
    keys = a_map()
    keys.latest_offset = 100
    keys.put(b"a", 50)
    data = batch(b"1", keys=[b"a"])

    kept = kept_of(data, keys, marked=True)

    assert kept is not None
    assert read_header(kept).has_delete_horizon
    assert decode_records(kept) == decode_records(data)
    assert kept_of(kept, keys, marked=True) is kept


def test_malformed_records_and_bombs_are_refused() -> None:
    keys = a_map()
    torn = bytearray(batch(b"value", keys=[b"key"]))
    torn[61] = 0x02
    bomb = batch(bytes(2 * BOUND), keys=[b"key"], codec=Codec.GZIP)

    for refused, error in ((torn, CorruptRecords), (bomb, DecompressedTooLarge)):
        with pytest.raises(error):
            keys.add(refused, 0, max_decompressed_bytes=BOUND)
        with pytest.raises(error):
            kept_of(refused, keys)

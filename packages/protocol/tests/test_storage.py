import random
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.records import BatchBuilder, Codec, assign_offsets, crc32c
from ottla.protocol.records.legacy import LegacyRecord, encode_set
from ottla.protocol.storage import CorruptStorage
from ottla.protocol.storage.checkpoints import (
    EpochStart,
    MetaProperties,
    decode_leader_epochs,
    decode_meta_properties,
    decode_offset_checkpoint,
    decode_partition_metadata,
    decode_uuid,
    encode_leader_epochs,
    encode_meta_properties,
    encode_offset_checkpoint,
    encode_partition_metadata,
    encode_uuid,
)
from ottla.protocol.storage.indexes import (
    AbortedTransaction,
    OffsetEntry,
    ProducerEntry,
    TimeEntry,
    decode_aborted_transactions,
    decode_producer_snapshot,
    encode_aborted_transaction,
    encode_offset_entry,
    encode_producer_snapshot,
    encode_time_entry,
    lookup_offset,
    lookup_timestamp,
    offset_entry_at,
    time_entry_at,
)
from ottla.protocol.storage.properties import decode_properties
from ottla.protocol.storage.segments import (
    DirectoryKind,
    FileName,
    SegmentFile,
    delete_directory_name,
    directory_name,
    file_name,
    future_directory_name,
    iter_headers,
    iter_stored,
    iter_unconsumed,
    parse_directory_name,
    parse_file_name,
    stray_directory_name,
)
from ottla.protocol.topics import TopicPartition

AN_ID = UUID("7085e280-110a-46c4-90d6-ad26fd8c6523")


# ----------------------------------------------------------------------------------------------- names


def test_segment_files_are_named_by_twenty_digits() -> None:
    assert file_name(0, SegmentFile.LOG) == "00000000000000000000.log"
    assert file_name(1234, SegmentFile.TIME_INDEX) == "00000000000000001234.timeindex"
    assert file_name(7, SegmentFile.OFFSET_INDEX, ".deleted") == "00000000000000000007.index.deleted"
    for kind in SegmentFile:
        for suffix in ("", ".deleted", ".cleaned", ".swap"):
            assert parse_file_name(file_name(2**62, kind, suffix)) == FileName(2**62, kind, suffix)


@pytest.mark.parametrize(
    "name", ["1.log", "00000000000000000000.logs", "leader-epoch-checkpoint", "0000000000000000000x.log", ""]
)
def test_other_files_belong_to_no_segment(name: str) -> None:
    assert parse_file_name(name) is None


@pytest.mark.parametrize("topic", ["t", "my-topic-7", "a.b", "a.b-delete", "x-future", "_-_"])
def test_directories_are_read_by_their_last_dash(topic: str) -> None:
    tp = TopicPartition(topic, 12)

    assert directory_name(tp) == f"{topic}-12"
    assert parse_directory_name(directory_name(tp)) == (tp, DirectoryKind.CURRENT)
    assert parse_directory_name(delete_directory_name(tp, AN_ID)) == (tp, DirectoryKind.DELETE)
    assert parse_directory_name(future_directory_name(tp, AN_ID)) == (tp, DirectoryKind.FUTURE)
    assert parse_directory_name(stray_directory_name(tp, AN_ID)) == (tp, DirectoryKind.STRAY)


def test_a_long_topic_is_cut_for_the_directory_of_its_deletion() -> None:
    tp = TopicPartition("t" * 249, 3)

    name = delete_directory_name(tp, AN_ID)

    assert len(name) == 255
    assert name.endswith("-3.7085e280110a46c490d6ad26fd8c6523-delete")
    assert future_directory_name(tp, AN_ID) == f"{'t' * 249}-3.{AN_ID.hex}-future"


@pytest.mark.parametrize(
    "name", ["", "t", "-0", "t-", "t-x", "t--1-", "t-0-delete", "t-²", "lost+found", "t-0.x"]
)
def test_other_directories_are_refused(name: str) -> None:
    with pytest.raises(CorruptStorage):
        parse_directory_name(name)


# --------------------------------------------------------------------------------------------- entries


def a_log(sizes: list[int]) -> bytes:
    log = bytearray()
    for i, size in enumerate(sizes):
        builder = BatchBuilder(1 << 24, codec=Codec.NONE)
        builder.append(None, bytes(size), 1)
        batch = bytearray(builder.build())
        assign_offsets(batch, i, 0)
        log += batch
    return bytes(log)


def reader_of(data: bytes) -> Callable[[int, int], bytes]:
    return lambda position, size: data[position : position + size]


@pytest.mark.parametrize("chunk_bytes", [1, 17, 64, 100, 1000, 1 << 20])
def test_entries_are_found_whatever_the_chunk(chunk_bytes: int) -> None:
    log = a_log([0, 10, 500, 3, 5000, 1]) + encode_set([LegacyRecord(9, 1, None, b"old")], 1)

    stored = list(iter_stored(reader_of(log), 0, len(log), chunk_bytes=chunk_bytes))

    assert b"".join(entry for _, entry in stored) == log
    assert len(stored) == 7
    assert all(log[position:].startswith(bytes(entry)) for position, entry in stored)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1 << 20])
def test_entries_are_yielded_unless_they_were_consumed(chunk_bytes: int) -> None:
    log = a_log([0, 10, 500, 3, 5000, 1])
    entries = [bytes(entry) for _, entry in iter_stored(reader_of(log), 0, len(log))]
    consumed: list[bytes] = []

    def consume(chunk: memoryview, position: int) -> int:
        assert log[position:].startswith(bytes(chunk))
        taken = 0
        for entry in entries[1:3]:  # these together, where both are whole
            if bytes(chunk[taken:]).startswith(entry):
                consumed.append(entry)
                taken += len(entry)
        return taken

    found = list(iter_unconsumed(reader_of(log), 0, len(log), consume, chunk_bytes=chunk_bytes))

    assert consumed == entries[1:3]
    assert [bytes(entry) for _, entry in found] == [entries[0], *entries[3:]]
    assert all(log[position:].startswith(bytes(entry)) for position, entry in found)


def test_an_entry_that_is_torn_behind_consumed_ones_is_reported_with_its_position() -> None:
    good = a_log([0, 10])

    with pytest.raises(CorruptStorage) as caught:
        list(iter_unconsumed(reader_of(good + good[:30]), 0, len(good) + 30, lambda _, at: len(good) - at))

    assert caught.value.position == len(good)


def test_headers_are_found_between_two_positions() -> None:
    log = a_log([0, 10, 500])
    positions = [position for position, _ in iter_headers(reader_of(log), 0, len(log))]

    assert [h.base_offset for _, h in iter_headers(reader_of(log), positions[1], len(log))] == [1, 2]


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 200, b"\xff" * 200, a_log([5])[:-1], a_log([5])[:20]])
def test_what_is_no_entry_is_reported_with_its_position(tail: bytes) -> None:
    good = a_log([0, 10])
    log = good + tail
    for read in (iter_stored, iter_headers):
        found: list[Any] = []
        with pytest.raises(CorruptStorage) as caught:
            found.extend(read(reader_of(log), 0, len(log)))
        assert caught.value.position == len(good)


def test_an_entry_that_ends_behind_the_file_is_torn_even_if_bytes_are_missing_before() -> None:
    log = a_log([5000])

    for read in (iter_stored, iter_headers):
        with pytest.raises(CorruptStorage):
            list(read(reader_of(log[:3000]), 0, 3000))
        with pytest.raises(CorruptStorage):
            list(read(reader_of(b""), 0, 3000))


# --------------------------------------------------------------------------------------------- indexes


def test_an_offset_entry_is_relative_offset_and_position() -> None:
    # 108 messages of 38 bytes
    entry = OffsetEntry(2661 + 108, 0x1008)

    assert encode_offset_entry(entry, 2661) == bytes.fromhex("0000006c 00001008")
    assert offset_entry_at(bytes.fromhex("0000006c 00001008"), 0, 2661) == (2769, 4104)


def test_time_entries_are_read_again_and_offsets_must_be_in_reach() -> None:
    assert encode_time_entry(TimeEntry(1_700_000_000_000, 105), 100)[8:] == b"\0\0\0\5"
    assert time_entry_at(encode_time_entry(TimeEntry(5, 105), 100), 0, 100) == (5, 105)
    for offset in (99, 100 + 2**31):
        with pytest.raises(ValueError, match="out of reach"):
            encode_time_entry(TimeEntry(5, offset), 100)
        with pytest.raises(ValueError, match="out of reach"):
            encode_offset_entry(OffsetEntry(offset, 0), 100)


@given(st.lists(st.integers(0, 500), unique=True, max_size=40), st.integers(-5, 520))
def test_lookups_find_the_last_entry_that_is_not_behind_the_target(relative: list[int], target: int) -> None:
    relative.sort()
    unused = bytes(24)
    offsets = b"".join(encode_offset_entry(OffsetEntry(100 + r, 10 * r), 100) for r in relative) + unused
    times = b"".join(encode_time_entry(TimeEntry(r, 100 + 2 * r), 100) for r in relative) + unused
    below = [r for r in relative if r <= target]

    found = lookup_offset(offsets, len(relative), 100, 100 + target)
    assert found == ((100 + below[-1], 10 * below[-1]) if below else (100, 0))
    found_time = lookup_timestamp(times, len(relative), 100, target)
    assert found_time == ((below[-1], 100 + 2 * below[-1]) if below else (-1, 100))


def test_aborted_transactions_are_read_again() -> None:
    entries = [AbortedTransaction(1, 10, 20, 5), AbortedTransaction(2**62, 11, 30, 30)]
    data = b"".join(map(encode_aborted_transaction, entries))

    assert len(data) == 68
    assert list(decode_aborted_transactions(data)) == entries
    for bad, position in ((data[:-1], 34), (b"\0\1" + data[2:], 0)):
        with pytest.raises(CorruptStorage) as caught:
            list(decode_aborted_transactions(bad))
        assert caught.value.position == position


# ----------------------------------------------------------------------------------------- checkpoints

names = st.text(st.sampled_from("abcXYZ09._-"), min_size=1, max_size=30)


@given(
    st.dictionaries(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), st.integers(-1, 2**63 - 1))
)
def test_offset_checkpoints_are_read_again(offsets: dict[TopicPartition, int]) -> None:
    assert decode_offset_checkpoint(encode_offset_checkpoint(offsets)) == offsets


def test_checkpoints_are_the_lines_that_kafka_writes() -> None:
    assert encode_offset_checkpoint({TopicPartition("t-1", 3): 42}) == b"0\n1\nt-1 3 42\n"
    assert encode_offset_checkpoint({}) == b"0\n0\n"
    assert encode_leader_epochs([EpochStart(0, 0), EpochStart(7, 120)]) == b"0\n2\n0 0\n7 120\n"
    assert decode_leader_epochs(b"0\n2\n0 0\n7 120") == [(0, 0), (7, 120)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"x\n0\n",
        b"0\n2\nt 0 1\n",
        b"0\n0\nt 0 1\n",
        b"0\n1\nt 0\n",
        b"0\n1\nt 0 1 2\n",
        b"0\n1\nt 0 x\n",
        b"0\n1\nt 0 1_0\n",
        b"0\n1\nt 0 " + b"9" * 5000 + b"\n",
        b"0\n1\n\n",
        b"0\n-1\n",
        b"\xff\xfe\n0\n",
        bytes(100),
    ],
)
def test_malformed_checkpoints_are_refused(data: bytes) -> None:
    for decode in (decode_offset_checkpoint, decode_leader_epochs):
        with pytest.raises(CorruptStorage):
            decode(data)


def test_meta_properties_are_read_again_and_as_java_writes_them() -> None:
    meta = MetaProperties("cluster=with:signs", 3)
    java = b"#\n#Sat Nov 21 02:00:00 UTC 2026\ncluster.id=cluster\\=with\\:signs\nversion=0\nbroker.id=3\n"

    assert decode_meta_properties(encode_meta_properties(meta)) == meta
    assert decode_meta_properties(java) == meta
    assert decode_meta_properties(b"version=0") == MetaProperties(None, None)
    for bad in (b"", b"version=1\nnode.id=3\n", b"version=0\nbroker.id=x", b"version=\\u00zz"):
        with pytest.raises(CorruptStorage):
            decode_meta_properties(bad)


def test_partition_metadata_are_two_lines() -> None:
    text = encode_partition_metadata(AN_ID)

    assert text == b"version: 0\ntopic_id: cIXigBEKRsSQ1q0m_YxlIw\n"
    assert decode_partition_metadata(text) == AN_ID
    assert decode_partition_metadata(text.rstrip()) == AN_ID
    zero = encode_partition_metadata(UUID(int=0))
    for bad in (
        b"",
        b"version: 0\n",
        b"version: 1\ntopic_id: x",
        zero,
        b"\xff",
        text + b"x: y\n",
        text.upper(),
    ):
        with pytest.raises(CorruptStorage):
            decode_partition_metadata(bad)


@given(st.uuids())
def test_uuids_are_22_characters(value: UUID) -> None:
    assert len(encode_uuid(value)) == 22
    assert decode_uuid(encode_uuid(value)) == value
    assert decode_uuid(encode_uuid(value) + "==") == value


@pytest.mark.parametrize("text", ["", "x", "AAAA", "!" * 22, "A" * 23, "AAAAAAAAAAAAAAAAAAAAA+", "ä" * 22])
def test_other_texts_are_no_uuids(text: str) -> None:
    with pytest.raises(CorruptStorage):
        decode_uuid(text)


# ------------------------------------------------------------------------------------ producer snapshot

producers = st.lists(
    st.builds(
        ProducerEntry,
        st.integers(0, 2**63 - 1),
        st.integers(-1, 2**15 - 1),
        st.integers(-1, 2**31 - 1),
        st.integers(-1, 2**63 - 1),
        st.integers(0, 2**31 - 1),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**31 - 1),
        st.integers(-1, 2**63 - 1),
    ),
    max_size=10,
)


@given(producers)
def test_producer_snapshots_are_read_again(entries: list[ProducerEntry]) -> None:
    data = encode_producer_snapshot(entries)

    assert decode_producer_snapshot(data) == entries
    assert len(data) == 10 + 46 * len(entries)
    assert data[:2] == b"\0\1"
    assert struct.unpack_from(">I", data, 2)[0] == crc32c(data[6:])


def test_a_producer_snapshot_is_the_one_that_kafkas_tool_shows() -> None:
    # DumpLogSegments of Apache Kafka 3.9.1 shows these producers in these bytes
    data = encode_producer_snapshot([ProducerEntry(11, 2, 33, 144, 5, 1_700_000_000_006, 7, -1)])

    assert data[6:] == bytes.fromhex(
        "00000001 000000000000000b 0002 00000021 0000000000000090 00000005 0000018bcfe56806 00000007"
        "ffffffffffffffff"
    )


def test_a_damaged_producer_snapshot_is_refused() -> None:
    data = encode_producer_snapshot([ProducerEntry(1, 2, 3, 4, 5, 6, 7, 8)])
    resealed = bytearray(data)
    resealed[9] = 2
    struct.pack_into(">I", resealed, 2, crc32c(resealed[6:]))

    with pytest.raises(CorruptStorage):
        decode_producer_snapshot(bytes(resealed))
    for i in range(len(data)):
        for bad in (data[:i], data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :]):
            with pytest.raises(CorruptStorage):
                decode_producer_snapshot(bad)


def test_random_bytes_are_a_typed_error_or_an_answer() -> None:
    rng = random.Random(6)
    decoders: list[Callable[[bytes], Any]] = [
        decode_offset_checkpoint,
        decode_leader_epochs,
        decode_meta_properties,
        decode_partition_metadata,
        decode_producer_snapshot,
        decode_properties,
        lambda data: list(decode_aborted_transactions(data)),
        lambda data: list(iter_stored(reader_of(data), 0, len(data))),
        lambda data: list(iter_headers(reader_of(data), 0, len(data))),
    ]
    for _ in range(500):
        data = rng.randbytes(rng.randrange(200))
        for decode in decoders:
            try:
                decode(data)
            except CorruptStorage:
                continue

"""Records and cursors, against plain Python that reads the same bytes."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.consumer import ConsumerRecord, RecordDeserializationFailed
from ottla.consumer._records import RecordCursor, end_of
from ottla.protocol.errors import CorruptMessage, MessageTooLarge, UnsupportedCompressionType
from ottla.protocol.records import BatchBuilder, Codec, TimestampType
from ottla.protocol.records.control import ControlType, end_transaction_marker
from ottla.protocol.records.legacy import LegacyRecord, encode_set
from ottla.protocol.topics import TopicPartition

T = TopicPartition("t", 3)

some_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=3)
plain = st.tuples(some_bytes, some_bytes, st.integers(0, 1 << 41), headers)
batches = st.lists(
    st.tuples(st.sampled_from(list(Codec)), st.lists(plain, min_size=1, max_size=8)), min_size=1, max_size=4
)


def batch(base_offset: int, *values: bytes | None, **state: int | bool) -> bytes:
    builder = BatchBuilder(1 << 20)
    for value in values:
        builder.append(b"k", value, 5)
    return builder.build(base_offset=base_offset, partition_leader_epoch=2, **state)  # type: ignore[arg-type]


def read(cursor: RecordCursor) -> list[ConsumerRecord]:
    records = []
    while (record := cursor.read()) is not None:
        records.append(record)
    return records


def shown(records: Sequence[ConsumerRecord]) -> list[tuple[object, ...]]:
    return [(each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in records]


@settings(max_examples=150, deadline=None)
@given(batches, st.data())
def test_a_cursor_reads_what_the_reference_reads_however_it_is_asked(
    contents: list[
        tuple[Codec, list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]]
    ],
    data: st.DataObject,
) -> None:
    built, written, offset = [], [], 10
    for codec, records in contents:
        builder = BatchBuilder(1 << 20, codec=codec)
        for key, value, timestamp_ms, some_headers in records:
            builder.append(key, value, timestamp_ms, some_headers)
        built.append(builder.build(base_offset=offset))
        written += [
            (offset + n, timestamp_ms, key, value, tuple(some_headers))
            for n, (key, value, timestamp_ms, some_headers) in enumerate(records)
        ]
        offset += len(records) + data.draw(st.integers(0, 3))
    position = data.draw(st.integers(0, offset))
    whole = b"".join(built)

    cursor = RecordCursor(T, whole, position)
    taken: list[ConsumerRecord] = []
    while not cursor.at_end:
        if data.draw(st.booleans()):
            taken += cursor.take(data.draw(st.integers(1, 5)))
        elif (record := cursor.read()) is not None:
            taken.append(record)

    assert shown(taken) == [each for each in written if each[0] >= position]
    assert cursor.returned_count == len(taken)
    assert end_of(whole, 0)[2] == sum(len(records) for _, records in contents)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 120), st.integers(0, 255))
def test_arbitrary_bytes_raise_errors_and_nothing_worse(tail: bytes, where: int, byte: int) -> None:
    damaged = bytearray(batch(0, b"a", b"b" * 30) + tail)
    damaged[where % len(damaged)] ^= byte
    for check_crcs in (True, False):
        cursor = RecordCursor(T, bytes(damaged), 0, check_crcs=check_crcs)
        try:
            for record in cursor.take(1000):
                assert isinstance(record.value, bytes | None)
                assert isinstance(record.headers, tuple)
        except (CorruptMessage, MessageTooLarge, UnsupportedCompressionType):
            assert cursor.position < 3


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_older_formats_are_read_too(magic: int, codec: Codec) -> None:
    data = encode_set([LegacyRecord(5 + n, 100 + n, b"k", b"%d" % n) for n in range(4)], magic, codec=codec)

    records = RecordCursor(T, data, 7).take(10)

    times = [-1, -1] if magic == 0 else [102, 103]
    assert [(each.offset, each.value) for each in records] == [(7, b"2"), (8, b"3")]
    assert [each.timestamp_ms for each in records] == times
    assert {each.timestamp_type for each in records} == {TimestampType.CREATE_TIME}


def test_an_entry_that_is_cut_off_is_no_error() -> None:
    data = batch(0, b"a") + batch(1, b"b")
    for size in range(len(data)):
        assert len(RecordCursor(T, data[:size], 0).take(10)) == (1 if size >= len(batch(0, b"a")) else 0)


def test_a_damaged_batch_stays_an_error_and_the_position_in_front_of_it() -> None:
    good, bad = batch(0, b"a"), bytearray(batch(1, b"b"))
    bad[-1] ^= 1
    cursor = RecordCursor(T, good + bytes(bad), 0)

    assert [record.value for record in cursor.take(10)] == [b"a"]
    for _ in range(2):
        with pytest.raises(CorruptMessage, match="t-3 at offset 1"):
            cursor.take(10)
    assert cursor.position == 1


def test_the_position_moves_past_skipped_records() -> None:
    marker = end_transaction_marker(
        ControlType.ABORT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=0,
        base_offset=2,
    )
    data = batch(0, b"x", b"y", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    cursor = RecordCursor(T, data + bytes(marker), 0, [(0, 7)])

    assert read(cursor) == []
    assert cursor.position == 3


def test_a_record_knows_all_that_its_batch_knew() -> None:
    (record,) = RecordCursor(T, batch(9, b"value"), 0).take(1)

    assert (record.topic, record.partition, record.offset, record.topic_partition) == ("t", 3, 9, T)
    assert (record.timestamp, record.timestamp_ms, record.leader_epoch) == (5, 5, 2)
    assert (record.key, record.value, record.headers) == (b"k", b"value", ())
    assert (record.serialized_key_size, record.serialized_value_size) == (1, 5)
    assert record.timestamp_type is TimestampType.CREATE_TIME


def test_records_are_compared_copied_pickled_and_shown() -> None:
    (record,) = RecordCursor(T, batch(9, b"value"), 0).take(1)

    again = pickle.loads(pickle.dumps(record))

    assert again == record == copy.copy(record) == copy.deepcopy(record)
    assert hash(again) == hash(record)
    assert (again.leader_epoch, again.serialized_value_size) == (2, 5)
    assert record != ConsumerRecord("t", 3, 9, 5, b"k", b"other")
    assert record != object()
    assert "offset=9" in repr(record)
    assert "b'value'" in repr(record)


class Bytes(bytearray):
    """Bytes whose end can be seen."""


def test_a_record_whose_fields_were_read_does_not_keep_the_response_alive() -> None:
    data = Bytes(batch(0, b"a", b"b"))
    gone = weakref.ref(data)
    records = RecordCursor(T, data, 0).take(10)
    del data
    assert gone() is not None

    for record in records:
        assert record.key == b"k"
        assert record.value in (b"a", b"b")
    gc.collect()

    assert gone() is None
    assert [record.value for record in records] == [b"a", b"b"]


def test_deserializers_get_what_is_there_and_their_failures_can_be_passed() -> None:
    data = batch(0, b"1", None, b"{", b"4")
    cursor = RecordCursor(T, data, 0, key_deserializer=bytes.decode, value_deserializer=json.loads)

    records = cursor.take(10)

    assert [(record.key, record.value) for record in records] == [("k", 1), ("k", None)]
    for _ in range(2):
        with pytest.raises(RecordDeserializationFailed) as caught:
            cursor.take(10)
        assert (caught.value.what, caught.value.partition, caught.value.offset) == ("value", T, 2)
        assert isinstance(caught.value.__cause__, json.JSONDecodeError)
    assert cursor.position == 2


def test_batches_decompressed_ahead_have_the_same_records() -> None:
    builder = BatchBuilder(1 << 20, codec=Codec.GZIP)
    for n in range(50):
        builder.append(None, b"%d" % n, 0)
    compressed = builder.build()
    data = compressed + batch(50, b"plain")
    cursor = RecordCursor(T, data, 20)

    assert cursor.compressed_sizes() == {Codec.GZIP: len(compressed)}
    cursor.decompress_ahead()

    assert [record.value for record in cursor.take(100)] == [b"%d" % n for n in range(20, 50)] + [b"plain"]

"""Batches with right checksums and wrong contents: records before the fault, an error, and no loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from ottla.client.testing import ScriptedBroker
from ottla.consumer import (
    CorruptBatch,
    OversizedBatch,
    TopicPartition,
    UnknownBatchCompression,
    UnreadableBatch,
)
from ottla.consumer._records import RecordCursor
from ottla.consumer.fetch.decoding import decode
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.records import BatchBuilder, Codec
from ottla.protocol.records.arrow import ColumnBuilder
from peers.crafted_batches import CraftedBatch, crafted_batches, good_batch
from peers.scripted_topic import FAST, Log, reader, take

PARTITION = TopicPartition("t", 3)
CORPUS = crafted_batches()


@dataclass
class Reading:
    """The offsets that a reader got, and the error that it ended with."""

    offsets: list[int] = field(default_factory=list)
    error: Exception | None = None


def by_record(data: bytes) -> Reading:
    cursor, reading = RecordCursor(PARTITION, data, 0), Reading()
    try:
        while (record := cursor.read()) is not None:
            reading.offsets.append(record.offset)
    except UnreadableBatch as error:
        reading.error = error
    return reading


def in_lists(data: bytes) -> Reading:
    cursor, reading = RecordCursor(PARTITION, data, 0), Reading()
    try:
        while records := cursor.take(2):
            reading.offsets += [record.offset for record in records]
    except UnreadableBatch as error:
        reading.error = error
    return reading


def decompressed_ahead(data: bytes) -> Reading:
    cursor, reading = RecordCursor(PARTITION, data, 0), Reading()
    cursor.decompress_ahead()
    try:
        while records := cursor.take(100):
            reading.offsets += [record.offset for record in records]
    except UnreadableBatch as error:
        reading.error = error
    return reading


def at_once(data: bytes) -> Reading:
    reading, position = Reading(), 0
    try:
        while (decoded := decode(PARTITION, data, position)).records:
            reading.offsets += [record.offset for record in decoded.records]
            position = decoded.next_offset
    except UnreadableBatch as error:
        reading.error = error
    return reading


def as_columns(data: bytes) -> Reading:
    reading, position = Reading(), 0
    try:
        while True:
            builder = ColumnBuilder(("offset", "headers", "key", "value"))
            position = builder.add("t", 3, data, position)
            if not len(builder):
                return reading
            reading.offsets += pa.record_batch(builder.finish()).column("offset").to_pylist()
    except KafkaError as error:
        reading.error = error
    return reading


WAYS = [by_record, in_lists, decompressed_ahead, at_once, as_columns]


@pytest.mark.parametrize("read", WAYS, ids=lambda way: way.__name__)
def test_every_way_delivers_the_records_before_a_fault_and_then_raises(
    read: Callable[[bytes], Reading],
) -> None:
    wrong = []
    for batch in CORPUS:
        reading = read(batch.in_the_middle())
        if reading.offsets != batch.expected_offsets or (reading.error is None) != batch.is_legal:
            wrong.append(f"{batch.name}: {reading}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "batch", [each for each in CORPUS if not each.is_legal], ids=lambda batch: batch.name
)
def test_the_error_says_where_the_fault_is_and_where_the_log_goes_on(batch: CraftedBatch) -> None:
    error = in_lists(batch.in_the_middle()).error

    assert isinstance(error, UnreadableBatch)
    assert error.partition == PARTITION
    assert error.offset == max([*batch.expected_offsets, 1]) + 1
    assert error.next_offset == batch.offsets_behind[0]
    assert str(error).startswith(f"t-3 at offset {error.offset}: ")
    behind = RecordCursor(PARTITION, batch.in_the_middle(), error.next_offset).take(10)
    assert tuple(record.offset for record in behind) == batch.offsets_behind


def test_the_errors_have_the_codes_of_kafka() -> None:
    large = BatchBuilder(1 << 24, codec=Codec.ZSTD)
    large.append(None, bytes(1 << 20), 0)
    unknown = next(batch for batch in CORPUS if batch.kind == "codec-5")

    with pytest.raises(OversizedBatch):
        RecordCursor(PARTITION, large.build(), 0, max_decompressed_bytes=1000).take(1)
    with pytest.raises(UnknownBatchCompression):
        RecordCursor(PARTITION, unknown.data, 0).take(1)
    for kind, parent in ((CorruptBatch, "CorruptMessage"), (OversizedBatch, "MessageTooLarge")):
        assert parent in {base.__name__ for base in kind.__mro__}
        assert not kind.retriable


def test_a_damaged_header_does_not_decide_where_the_log_goes_on() -> None:
    damaged = bytearray(good_batch(0, b"a"))
    damaged[23:27] = b"\x7f\xff\xff\xff"  # the last offset delta

    with pytest.raises(CorruptBatch, match="checksum") as raised:
        RecordCursor(PARTITION, bytes(damaged) + good_batch(1, b"b"), 0).take(1)

    assert raised.value.next_offset == 1


# --- through a consumer

BAD = next(batch for batch in CORPUS if batch.name == "key-length-max/none/middle")


class LogWithFault(Log):
    """A log whose partition 0 has an unreadable batch at offset 2, always or for the first fetches."""

    def __init__(self, broker: ScriptedBroker, partitions: int = 1, *, faulty_fetches: int = 1 << 30) -> None:
        super().__init__(broker, partitions)
        self.faulty_fetches = faulty_fetches

    def data(self, partition: int, offset: int) -> PartitionData:
        if partition or offset >= BAD.offsets_behind[0]:
            return super().data(partition, offset)
        self.faulty_fetches -= 1
        bad = BAD.at(2) if self.faulty_fetches >= 0 else good_batch(2, b"c", b"d", b"e")
        records = good_batch(0, b"a", b"b") + bad if offset < 2 else bad
        return PartitionData(partition_index=0, high_watermark=7, records=records)


async def test_an_error_is_raised_again_while_other_partitions_go_on(broker: ScriptedBroker) -> None:
    log = LogWithFault(broker, 2)
    log.add(*[b"%d" % number for number in range(2_000)], partition=1)

    errors: list[int] = []
    others = 0
    async with reader(broker, FAST) as consumer:
        while others < 2_000 or len(errors) < 3:
            try:
                found = await consumer.getmany(timeout_ms=5_000, max_records=100)
            except CorruptBatch as error:
                errors.append(error.offset)
            else:
                others += len(found.get(TopicPartition("t", 1), ()))
        assert await consumer.position(("t", 0)) == 3
    assert set(errors) == {3}


async def test_damage_on_the_way_is_mended_by_the_next_fetch(broker: ScriptedBroker) -> None:
    log = LogWithFault(broker, faulty_fetches=1)
    log.add(*[b"%d" % number for number in range(7)])

    async with reader(broker, FAST) as consumer:
        values = await take(consumer, 3)
        with pytest.raises(CorruptBatch):
            await anext(consumer)
        values += await take(consumer, 4)

    assert values == [b"a", b"b", b"value", b"d", b"e", b"5", b"6"]


async def test_an_iteration_goes_on_behind_the_batch_after_a_seek(broker: ScriptedBroker) -> None:
    log = LogWithFault(broker)
    log.add(*[b"%d" % number for number in range(7)])

    async with reader(broker, FAST) as consumer:
        await take(consumer, 3)
        with pytest.raises(CorruptBatch) as raised:
            await anext(consumer)
        consumer.seek(raised.value.partition, raised.value.next_offset)
        assert await take(consumer, 2) == [b"5", b"6"]

"""A small rest of a response keeps the whole of it in memory, unless it is copied."""

from __future__ import annotations

import pytest

from ottla.consumer.fetch.decoding import RecordCursor
from ottla.consumer.fetch.fetcher import copy_leftovers, held_bytes
from ottla.consumer.fetch.positions import FetchedData
from ottla.protocol.records import BatchBuilder, Codec
from ottla.protocol.topics import TopicPartition


def pieces_of_one_answer(count: int, codec: Codec = Codec.NONE) -> tuple[memoryview, list[FetchedData]]:
    """Some partitions' records as they lie behind each other in one frame, ten to each."""
    builder = BatchBuilder(codec=codec)
    for number in range(10):
        builder.append(b"key %d" % number, b"value %d" % number, 1_000)
    one = bytes(builder.build(base_offset=0))
    answer = memoryview(b"".join([one] * count))
    found = []
    for number in range(count):
        data = answer[number * len(one) : (number + 1) * len(one)]
        cursor = RecordCursor(TopicPartition("t", number), data, 0)
        found.append(FetchedData(cursor, data, None, 10, 0, 10, 10))
    return answer, found


def test_a_piece_counts_as_the_answer_that_it_keeps_alive() -> None:
    answer, buffered = pieces_of_one_answer(8)

    assert held_bytes(buffered) == held_bytes(buffered[:1]) == len(answer)


def test_the_rest_of_a_response_is_copied_when_it_is_less_than_half() -> None:
    answer, buffered = pieces_of_one_answer(8)

    copy_leftovers(buffered[:4])
    assert held_bytes(buffered[:4]) == len(answer), "half of it is worth keeping as it is"
    copy_leftovers(buffered[:3])
    assert held_bytes(buffered[:3]) == 3 * len(answer) // 8
    copy_leftovers(buffered[:3])
    assert held_bytes(buffered[:3]) == 3 * len(answer) // 8


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("given", [0, 4, 10])
def test_reading_continues_in_the_copy(codec: Codec, given: int) -> None:
    _, buffered = pieces_of_one_answer(8, codec)
    fetched = buffered[5]
    before = fetched.cursor.take(given)

    copy_leftovers([fetched])

    assert isinstance(fetched.data, bytes)
    records = [*before, *fetched.cursor.take(100)]
    assert [(each.offset, each.key, each.value) for each in records] == [
        (number, b"key %d" % number, b"value %d" % number) for number in range(10)
    ]


def test_bytes_that_are_being_read_are_not_copied() -> None:
    answer, buffered = pieces_of_one_answer(8)
    data = buffered[5].data

    def looks(value: bytes) -> bytes:
        copy_leftovers([fetched])
        return value.upper()

    cursor = RecordCursor(TopicPartition("t", 5), data, 0, value_deserializer=looks)
    fetched = FetchedData(cursor, data, None, 10, 0, 10, 10)
    assert [each.value for each in cursor.take(100)] == [b"VALUE %d" % number for number in range(10)]
    assert held_bytes([fetched]) == len(answer)

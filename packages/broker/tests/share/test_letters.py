"""The records of dead-letter topics: headers, copies, sizes, and topics that take none."""

from __future__ import annotations

import pytest

from ottla.broker.share.in_flight import DeadLetters, Reason
from ottla.broker.share.letters import NOTHING, Copied, LetterTopic, Origin, copied, left, letter_batch
from ottla.protocol.records import BatchBuilder, Codec, Record, decode_records
from ottla.protocol.topics import TopicPartition

ORIGIN = Origin("g", TopicPartition("orders", 3))
LIMIT = 10_000


def letter(first: int, last: int, count: int = 1, reason: Reason = Reason.REJECTED) -> DeadLetters:
    return DeadLetters(first, last, count, reason)


def log_of(*values: bytes, start: int = 0, codec: Codec = Codec.NONE) -> bytes:
    builder = BatchBuilder(1_000_000, codec=codec)
    for value in values:
        builder.append(b"k", value, 5, [("trace", b"1")])
    return builder.build(base_offset=start)


def offsets_of(records: list[Record]) -> list[int]:
    return [int(dict(record.headers)["__dlq.errors.offset"] or b"") for record in records]


def test_each_record_has_a_letter_with_the_headers_of_kafka() -> None:
    letters = [letter(7, 8), letter(10, 10, 5, Reason.EXHAUSTED)]

    batch = letter_batch(ORIGIN, letters, NOTHING, 1234, LIMIT)

    records = decode_records(batch.records)
    assert (batch.size, batch.ended) == (3, letters)
    assert [(record.key, record.value, record.timestamp_ms) for record in records] == [(None, None, 1234)] * 3
    assert list(records[2].headers) == [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"10"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"5"),
        ("__dlq.errors.message", b"Offset delivery count exceeded the threshold."),
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_key_and_value_are_copied_and_headers_are_not(codec: Codec) -> None:
    found = copied(log_of(b"a", b"b", b"c", codec=codec), [letter(1, 1)], 3, LIMIT)

    batch = letter_batch(ORIGIN, [letter(1, 1)], found, 0, LIMIT)

    assert found == Copied({1: (b"k", b"b")}, 3)
    (record,) = decode_records(batch.records)
    assert (record.key, record.value) == (b"k", b"b")
    assert "trace" not in dict(record.headers)


def test_a_record_that_the_log_has_lost_goes_with_its_headers_alone() -> None:
    found = copied(log_of(b"a") + log_of(b"d", start=3), [letter(0, 3)], 4, LIMIT)

    batch = letter_batch(ORIGIN, [letter(0, 3)], found, 0, LIMIT)

    assert [record.value for record in decode_records(batch.records)] == [b"a", None, None, b"d"]


def test_what_is_copied_at_once_is_bounded_and_the_rest_is_for_the_next_batch() -> None:
    found = copied(log_of(*[b"x" * 400] * 5), [letter(0, 4)], 5, 1000)

    batch = letter_batch(ORIGIN, [letter(0, 4)], found, 0, LIMIT)

    assert found.end_offset == 2
    assert batch.ended == [letter(0, 1)]
    assert left([letter(0, 4)], batch.ended) == [letter(2, 4)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_record_that_is_larger_than_the_topic_takes_is_not_copied(codec: Codec) -> None:
    found = copied(log_of(b"x" * 2000, codec=codec) + log_of(b"y", start=1), [letter(0, 1)], 2, 1000)

    assert found == Copied({1: (b"k", b"y")}, 2)


def test_a_damaged_batch_leaves_its_letters_without_copies() -> None:
    damaged = bytearray(log_of(b"a" * 50, codec=Codec.GZIP))
    damaged[-20:] = bytes(20)

    assert copied(bytes(damaged), [letter(0, 0)], 1, LIMIT) == Copied({}, 1)


def test_letters_that_do_not_fit_wait_for_the_next_batch() -> None:
    letters = [letter(0, 1), letter(5, 9), letter(20, 20)]
    one = len(letter_batch(ORIGIN, [letter(0, 0)], NOTHING, 0, LIMIT).records)

    ended: list[DeadLetters] = []
    seen: list[int] = []
    batches = 0
    while letters:
        batch = letter_batch(ORIGIN, letters, NOTHING, 0, one * 2)
        assert len(batch.records) <= one * 2
        seen += offsets_of(decode_records(batch.records))
        ended += batch.ended
        letters = left(letters, batch.ended)
        batches += 1

    assert seen == [0, 1, 5, 6, 7, 8, 9, 20]
    assert batches < len(seen)
    assert sum(piece.last_offset - piece.first_offset + 1 for piece in ended) == len(seen)


def test_a_letter_that_is_too_large_with_its_record_goes_without_it() -> None:
    found = Copied({0: (None, b"x" * 300), 1: (None, b"y")}, 2)

    batch = letter_batch(ORIGIN, [letter(0, 1)], found, 0, 500)

    values = [record.value for record in decode_records(batch.records)]
    assert values[0] is None
    assert len(batch.records) <= 500


def test_one_letter_is_in_each_batch_also_where_nothing_fits() -> None:
    batch = letter_batch(ORIGIN, [letter(0, 3)], NOTHING, 0, 10)

    assert (batch.size, batch.ended) == (1, [letter(0, 0)])


@pytest.mark.parametrize(
    ("name", "exists", "is_enabled", "may_be_created", "reason"),
    [
        ("", False, False, True, "has no dead-letter topic"),
        ("__dlq", True, True, True, "must not begin with __"),
        ("dlq.a", True, False, True, "is not for dead letters"),
        ("dlq.a", False, False, False, "there is no such topic"),
        ("other", True, True, True, "must begin with dlq."),
    ],
)
def test_a_topic_takes_no_letters_for_a_reason(
    name: str, exists: bool, is_enabled: bool, may_be_created: bool, reason: str
) -> None:
    topic = LetterTopic(
        name=name, exists=exists, is_enabled=is_enabled, may_be_created=may_be_created, prefix="dlq."
    )

    assert reason in str(topic.refusal)


@pytest.mark.parametrize(("exists", "may_be_created", "prefix"), [(True, False, "dlq."), (False, True, "")])
def test_a_topic_takes_letters(exists: bool, may_be_created: bool, prefix: str) -> None:
    topic = LetterTopic(
        name="dlq.a", exists=exists, is_enabled=exists, may_be_created=may_be_created, prefix=prefix
    )

    assert topic.refusal is None

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.topics import TopicPartition
from ottla.streams.scheduling.finished_offsets import PREFIX, decode, encode, worst_bytes

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)

gaps_and_lengths = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), max_size=60)


def ranges(offset: int, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found = []
    for gap, length in pairs:
        found.append((offset + gap, offset + gap + length))
        offset += gap + length
    return found


@given(st.integers(0, 2**62), gaps_and_lengths)
def test_what_is_encoded_is_decoded(offset: int, pairs: list[tuple[int, int]]) -> None:
    finished = ranges(offset, pairs)

    text, count = encode(P0, offset, finished, 1_000_000)

    assert count == len(finished)
    assert decode(P0, offset, text) == finished


@given(st.integers(0, 2**40), gaps_and_lengths, st.integers(0, 300))
def test_metadata_over_the_limit_names_a_prefix_that_fits(
    offset: int, pairs: list[tuple[int, int]], limit: int
) -> None:
    finished = ranges(offset, pairs)

    text, count = encode(P0, offset, finished, limit)

    assert len(text) <= limit
    assert decode(P0, offset, text) == finished[:count]


@pytest.mark.parametrize(
    "foreign",
    ["", "ottla1.", "ottla1.!!!!", "ottla1.AAAA", "ottla2.AAAAAAAAAAAA", "a note", "ottla1.é", '{"a": 1}'],
)
def test_foreign_metadata_means_that_nothing_is_known_finished(foreign: str) -> None:
    assert decode(P0, 5, foreign) == []


def test_damaged_metadata_means_that_nothing_is_known_finished() -> None:
    text, _ = encode(P0, 100, [(101, 150), (160, 170)], 4_096)
    generator = random.Random(1)

    for position in range(len(PREFIX), len(text)):
        other = generator.choice([each for each in "ABCdef012+/" if each != text[position]])
        damaged = text[:position] + other + text[position + 1 :]
        assert decode(P0, 100, damaged) == [], damaged


def test_metadata_of_another_offset_or_partition_means_that_nothing_is_known_finished() -> None:
    text, _ = encode(P0, 100, [(101, 150)], 4_096)

    assert decode(P0, 100, text) == [(101, 150)]
    assert decode(P0, 99, text) == []
    assert decode(P1, 100, text) == []
    assert decode(TopicPartition("u", 0), 100, text) == []


def test_the_smaller_of_runs_and_bitmap_is_written() -> None:
    one_run, _ = encode(P0, 0, [(1, 1_000_000)], 4_096)
    every_second = [(each, each + 1) for each in range(1, 20_000, 2)]
    alternating, count = encode(P0, 0, every_second, 4_096)

    assert len(one_run) < 30
    assert count == len(every_second)
    assert len(alternating) < 100  # deflate finds what repeats


def test_ten_thousand_records_finished_out_of_order_fit_the_brokers_limit() -> None:
    generator = random.Random(2)
    finished = [each for each in range(1, 10_000) if generator.random() < 0.5]

    text, count = encode(P0, 0, [(each, each + 1) for each in finished], 4_096)

    assert count == len(finished)
    assert len(text) < 1_750


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_metadata_that_is_cut_uses_nine_tenths_of_the_limit(share: float) -> None:
    generator = random.Random(2)
    finished = [(each, each + 1) for each in range(1, 500_000, 2) if generator.random() < share]

    text, count = encode(P0, 0, finished, 4_096)

    assert 3_686 <= len(text) <= 4_096
    assert decode(P0, 0, text) == finished[:count]


@given(st.integers(0, 2**40), gaps_and_lengths)
def test_the_worst_size_is_never_exceeded(offset: int, pairs: list[tuple[int, int]]) -> None:
    finished = ranges(offset, pairs)
    span = finished[-1][1] - offset if finished else 0

    text, _ = encode(P0, offset, finished, 1_000_000)

    assert len(text) <= worst_bytes(span, len(finished))


def test_a_body_that_inflates_without_end_is_cut_off() -> None:
    from ottla.streams.scheduling.finished_offsets import BITMAP, DEFLATED, _crc

    body = zlib.compress(b"\xff" * 50_000_000)
    kind = BITMAP | DEFLATED
    data = bytes([kind]) + _crc(P0, 0, kind, body) + body
    import base64

    found = decode(P0, 0, PREFIX + base64.b64encode(data).decode())

    assert found == [(0, 8 << 20)]
